"""``edgefl sweep --devices``: which devices could train a scenario's clients, and at what cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from edgefl.cells.pricing import most_jobs, parallel_pricing
from edgefl.commands.sweep.answer import DeviceCheck, DeviceCheckRow
from edgefl.commands.sweep.sweep_grid import SweepGrid, answers_of, columns_of_cells
from edgefl.devices import (
    BudgetOptions,
    Device,
    Link,
    available_memory_bytes,
    device_names,
    free_memory_range,
    load_device,
    load_link,
)
from edgefl.devices.fleet import draw_budgets, with_runtime_and_pace
from edgefl.errors import UnknownName, UnknownNames
from edgefl.planning.eligibility import Verdict, round_verdict
from edgefl.planning.planner import Demand, Planner
from edgefl.planning.subjects import Subject, check_stage_and_kind, subjects, works_of
from edgefl.planning.workload import LEFT_OUT, Workload, at_hardest, hardest, stage_of_works
from edgefl.runs.progress import OnProgress, messages, silent
from edgefl.scenario import Scenario
from edgefl.schedules import Stage
from edgefl.setup.compose import commonest_link, planner_of

ALL = "all"
"""The word for all devices of the library."""

Answer = Literal["yes", "no", "depends on scratch", "depends on free memory"]


def check_devices(
    scenario: Scenario,
    on_progress: OnProgress = silent,
    *,
    devices: Sequence[str],
    link: str | None = None,
    stage: int | None = None,
    kind: str | None = None,
    jobs: int | None = None,
) -> DeviceCheck:
    """Check devices against the largest client of each kind, at the stage that is hardest on it.

    A device fits if that client's round fits the memory that the device has for tensors, the round's deadline, and the
    budgets of every owner among the kind's clients, as if all of them had this device.  The clients of the fleet are
    not priced.  Raises ScenarioError, or UnknownName for the link or the kind.
    """
    runtime = scenario.fleet.runtime
    given_link = load_link(link) if link else None
    planner = planner_of(scenario, on_progress)
    setup = planner.setup
    check_stage_and_kind(stage, kind, [setup])
    over = given_link or commonest_link(setup.fleet)
    library = sorted(
        (with_runtime_and_pace(device, runtime, setup.fleet.pace_seed) for device in devices_named(devices)),
        key=lambda device: (available_memory_bytes(device), device.name),
    )
    kinds = [name for name in setup.clients.kinds if kind in (None, name)]
    messages(on_progress)(f"predicting {', '.join(kinds)}")
    shown = subjects(planner, setup.clients.kinds, setup.schedule.offered)
    with parallel_pricing(partial(works_of, kinds=setup.clients.kinds, stages=setup.schedule.offered), [planner], jobs):
        workload = largest_workload(planner, shown)
    granted = BudgetOptions.model_validate({}).model_copy(update={"memory": scenario.fleet.budgets.memory})
    rows = [
        row
        for group, subject in enumerate(shown)
        if subject.kind in kinds
        for row in _rows(workload, group, subject, library, over, stage, granted)
    ]
    order = {device.name: index for index, device in enumerate(library)}
    rows.sort(key=lambda row: order[row.device])
    return DeviceCheck(
        scenario=scenario.name,
        sets={},
        link=over.name,
        throttling=setup.fleet.throttling,
        runtime=runtime,
        rows=rows,
        predictions=len(planner.predictor.keys),
    )


def check_combinations(
    grid: SweepGrid,
    devices: Sequence[str],
    refused: dict[str, str],
    *,
    link: str | None,
    stage: int | None,
    kind: str | None,
    jobs: int | None,
    many: bool,
    on_progress: OnProgress,
) -> dict[str, DeviceCheck]:
    """``check_devices`` for each combination of a grid that can be run, by label; ``refused`` gets why others can't be.

    ``jobs`` combinations are checked side by side, by default those of ``many`` on all cores and others one by one.
    Raises ScenarioError if none can be run.
    """
    sets = columns_of_cells(grid)
    beside = jobs or (most_jobs() if many else 1)
    work = partial(
        check_devices, devices=devices, link=link, stage=stage, kind=kind,
        jobs=1 if min(beside, len(grid.cells)) > 1 else jobs,
    )  # fmt: skip
    answers = answers_of(grid, work, refused, beside, on_progress)
    return {
        label: replace(answer, sets=sets[label])
        for (label, _), answer in zip(grid.cells, answers, strict=True)
        if answer is not None
    }


def devices_named(names: Sequence[str]) -> list[Device]:
    """The devices of these names, which commas may part, each once; ``all`` is the library.

    Raises UnknownNames with all that are unknown, or DeviceError.
    """
    words = [word for each in names for word in each.split(",")]
    found, unknown = list[Device](), list[UnknownName]()
    for name in dict.fromkeys(name for word in words for name in (device_names() if word == ALL else [word])):
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
    budgets, of_caps = setup.budgets(members), setup.cap_limits(members)
    everywhere = np.zeros(len(setup.client_group), np.uint8)
    trained = stage_of_works(workload)
    rows = []
    for index, device in enumerate(library):
        drawn, of_device = draw_budgets(granted, (device,), everywhere, setup.seed)
        memory = drawn["memory"][members]
        allowed = budgets | {"memory": memory}
        mine = of_device[members]
        alike = all((values == values[0]).all() for values in (*allowed.values(), mine, *of_caps.values()))
        owners = slice(1) if alike else slice(None)
        count = 1 if alike else len(members)
        found = hardest(
            workload, priced, np.full(count, group), np.full(count, index),
            {name: values[owners] for name, values in allowed.items()}, mine[owners],
            {name: of[owners] for name, of in of_caps.items()}, stage=stage,
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
    taken, reserved = demand.compute.tensor_bytes, demand.compute.reserved_memory_bytes
    if verdict.eligible:
        return "yes" if taken <= least else "depends on free memory"
    if [name for name, margin in verdict.margins.items() if margin < 0] != ["memory"]:
        return "no"
    smallest = max(demand.compute.live_memory_bytes, reserved) if demand.compute.memory_assumed else taken
    if smallest <= verdict.budgets["memory"]:
        return "depends on scratch"
    return "depends on free memory" if verdict.memory_limit == "device" and smallest <= most else "no"
