"""``edgefl devices check``: which devices of the library could train a scenario's clients, and at what cost."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from edgefl.cells.cells import check_jobs
from edgefl.cells.pricing import parallel_pricing
from edgefl.commands.sweep.devices_chart import devices_that_fit
from edgefl.devices import (
    BudgetOptions,
    Device,
    Link,
    available_memory_bytes,
    device_names,
    free_memory_range,
    load_device,
    load_link,
    with_runtime,
)
from edgefl.devices.fleet import draw_budgets
from edgefl.drawing.figures import FIGURE_FORMS, check_figure, draw_figure
from edgefl.errors import UnknownName, UnknownNames
from edgefl.planning.eligibility import Verdict, round_verdict
from edgefl.planning.planner import Demand, Planner
from edgefl.planning.subjects import Subject, check_stage_and_kind, subjects, works_of
from edgefl.planning.workload import LEFT_OUT, Workload, at_hardest, hardest, stage_of_works
from edgefl.records.devices import DeviceCheck, DeviceCheckRow, DeviceChecks
from edgefl.records.record import UNSET
from edgefl.runs.progress import OnProgress, messages, silent
from edgefl.schedules import Stage
from edgefl.setup.compose import Given, commonest_link, labels_of, planner_of, scenario_of
from edgefl.setup.progress import public_command

Answer = Literal["yes", "no", "depends on scratch", "depends on free memory"]


@public_command
def check_devices(
    scenario: Given,
    overrides: Sequence[str] = (),
    *,
    devices: Sequence[str] = (),
    link: str | None = None,
    stage: int | None = None,
    kind: str | None = None,
    figure: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    on_progress: OnProgress = silent,
) -> DeviceCheck:
    """Check every device of the library against the largest client of each kind, at the stage that is hardest on it.

    A device fits if that client's round fits the memory that the device has for tensors, the round's deadline, and the
    budgets of every owner among the kind's clients, as if all of them had this device.  Nothing is trained.

    Args:
        scenario: A scenario file, the name of a shipped scenario, or a scenario as a dictionary.
        overrides: Changes of single fields, ``"training.batch=8"``.
        devices: Only these devices, names of the library or files; by default the whole library.
        link: The link that prices transfers; by default the fleet's most common one.
        stage: Only this stage of the schedule (from 1), in place of the hardest for each device.
        kind: Only this kind of client.
        figure: A file (png, pdf, svg) for a drawing of what fits.
        jobs: How many processes price works, if there are more than four; by default one for each core.
        on_progress: Called with the name of an event and its facts.

    Returns:
        A record: ``rows``, one for each device and kind, smallest memory first; if the scenario compares, rows of the
        scenario itself, without what it compares.

    Raises:
        ScenarioError: The scenario can't be run, or has no such stage.
        UnknownName: A device, the link or the kind is unknown (UnknownNames: several devices).
        DeviceError: A profile is invalid.
        RunError: The drawing can't be written.
    """
    if figure is not None:
        check_figure(figure, FIGURE_FORMS)
    if jobs is not None:
        check_jobs(jobs)
    whole = scenario_of(scenario, overrides)
    runtime = whole.fleet.runtime
    library = [with_runtime(device, runtime) for device in _load_devices(devices or device_names())]
    given_link = load_link(link) if link else None
    planner = planner_of(whole, on_progress)
    setup = planner.setup
    check_stage_and_kind(stage, kind, [setup])
    over = given_link or commonest_link(setup.fleet)
    library.sort(key=lambda device: (available_memory_bytes(device), device.name))
    kinds = [name for name in setup.clients.kinds if kind in (None, name)]
    messages(on_progress)(f"predicting {', '.join(kinds)}")
    shown = subjects(planner, setup.clients.kinds, setup.schedule.offered)
    with parallel_pricing(partial(works_of, kinds=setup.clients.kinds, stages=setup.schedule.offered), [planner], jobs):
        workload = largest_workload(planner, shown)
    granted = BudgetOptions.model_validate({}).model_copy(update={"memory": whole.fleet.budgets.memory})
    rows = [
        row
        for group, subject in enumerate(shown)
        if subject.kind in kinds
        for row in _rows(workload, group, subject, library, over, stage, granted)
    ]
    order = {device.name: index for index, device in enumerate(library)}
    rows.sort(key=lambda row: order[row.device])
    result = DeviceCheck(
        scenario=whole.name,
        link=over.name,
        throttling=setup.fleet.throttling,
        runtime=runtime,
        compared=list(whole.compare) or UNSET,
        rows=rows,
        predictions=len(planner.predictor.keys),
    )
    if figure is not None:
        draw_figure(devices_that_fit(result), Path(figure))
    return result


@public_command
def check_scenarios(
    scenarios: Sequence[Given],
    overrides: Sequence[str] = (),
    *,
    devices: Sequence[str] = (),
    link: str | None = None,
    stage: int | None = None,
    kind: str | None = None,
    figure: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    on_progress: OnProgress = silent,
) -> DeviceChecks:
    """``check_devices`` for each of several scenarios.  Raises as that does."""
    loaded = [scenario_of(scenario, overrides) for scenario in scenarios]
    checks = {
        label: check_devices(
            scenario, devices=devices, link=link, stage=stage, kind=kind, figure=figure, jobs=jobs,
            on_progress=on_progress,
        )
        for label, scenario in zip(labels_of(scenarios, loaded), loaded, strict=True)
    }  # fmt: skip
    return DeviceChecks(checks=checks)


def _load_devices(names: Sequence[str]) -> list[Device]:
    """The devices of these names, each once.  Raises UnknownNames with all that are unknown, or DeviceError."""
    found, unknown = list[Device](), list[UnknownName]()
    for name in dict.fromkeys(names):
        try:
            found.append(load_device(name))
        except UnknownName as error:
            unknown.append(error)
    if unknown:
        raise unknown[0] if len(unknown) == 1 else UnknownNames(unknown)
    return found


def largest_workload(planner: Planner, shown: Sequence[Subject]) -> Workload:
    """The works of the largest client of each subject, whose ``groups`` are the indices of the subjects."""
    setup = planner.setup
    demands, stages, candidates = list[Demand](), list[Stage](), list[dict[int, Any]]()
    known: dict[tuple[int, int], Any] = {}
    for current in setup.schedule.stages:
        first = 1 + sum(stage.rounds for stage in setup.schedule.stages if stage.index < current.index)
        for offered, _ in setup.schedule.turns(current):
            stages.append(current)
            for candidate in offered:
                if (current.index, candidate.index) in known:
                    continue
                works = known[current.index, candidate.index] = np.full(len(shown), LEFT_OUT, np.int64)
                for index, subject in enumerate(shown):
                    if len(subject.members) and setup.participates(subject.kind, first):
                        works[index] = len(demands)
                        demands.append(planner.demand(subject.largest(setup), first, candidate))
            candidates.append({candidate.index: known[current.index, candidate.index] for candidate in offered})
    return Workload(setup, tuple(demands), tuple(stages), tuple(candidates))


def _rows(
    workload: Workload,
    group: int,
    subject: Subject,
    library: Sequence[Device],
    over: Link,
    stage: int | None,
    granted: BudgetOptions,
) -> list[DeviceCheckRow]:
    setup = workload.setup
    members = subject.members
    if not len(members) or not workload.demands:
        return []
    priced = workload.prices.on([(device, over) for device in library], setup.fleet.throttling)
    # owners' memory is drawn for each device, since it may be a share of the device's
    budgets, of_job = setup.budgets(members), setup.job_budget_mask(members)
    everywhere = np.zeros(len(setup.client_group), np.uint8)
    trained = stage_of_works(workload)
    rows = []
    for index, device in enumerate(library):
        drawn, of_device = draw_budgets(granted, (device,), everywhere, setup.seed)
        memory = drawn["memory"][members]
        allowed = budgets | {"memory": memory}
        flags = of_device[members], of_job
        alike = all((values == values[0]).all() for values in (*allowed.values(), *flags))
        owners = slice(1) if alike else slice(None)
        count = 1 if alike else len(members)
        found = hardest(
            workload, priced, np.full(count, group), np.full(count, index),
            {name: values[owners] for name, values in allowed.items()}, *(flag[owners] for flag in flags), stage=stage,
        )  # fmt: skip
        worst = int(np.argmin(found.verdicts.nearness))
        work, verdict = int(found.work[worst]), found.verdicts[worst]
        if work == LEFT_OUT:
            continue
        demand = workload.demands[work]
        unthrottled = demand.compute.seconds(device) + demand.compute.loaded_bytes / device.storage_bytes_per_second
        rows.append(
            DeviceCheckRow(
                device=device.name,
                kind=subject.kind,
                variant=subject.shown_variant,
                link=over.name,
                samples=int(setup.clients.client_samples[subject.largest(setup)]),
                answer=_answer(verdict, demand, device),
                owners=len(members),
                fitting_owners=int(found.verdicts.eligible.sum()) * (len(members) // count),
                available_memory_bytes=available_memory_bytes(device),
                least_available_bytes=free_memory_range(device)[0],
                most_available_bytes=free_memory_range(device)[1],
                least_memory_bytes=int(memory.min()),
                most_memory_bytes=int(memory.max()),
                throttling_seconds=float(device.with_throttling(np.asarray(unthrottled))) - unthrottled,
                stages=int(found.turns[worst]),
                eligible_stages=int(found.able[worst]),
                **vars(at_hardest(setup, demand, trained[work])),
                **vars(round_verdict(verdict)),
            )
        )
    return rows


def _answer(verdict: Verdict, demand: Demand, device: Device) -> Answer:
    """What may be said of a round, where scratch may be assumed and the device's memory is known within a range."""
    least, most = free_memory_range(device)
    peak = demand.compute.peak_memory_bytes
    if verdict.eligible:
        return "yes" if peak <= least else "depends on free memory"
    if [name for name, margin in verdict.margins.items() if margin < 0] != ["memory"]:
        return "no"
    smallest = demand.compute.live_memory_bytes if demand.compute.memory_assumed else peak
    if smallest <= verdict.budgets["memory"]:
        return "depends on scratch"
    return "depends on free memory" if verdict.memory_limit == "device" and smallest <= most else "no"
