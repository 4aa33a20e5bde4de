"""``edgefl profile``: what one client of each kind costs at every stage, and over the whole schedule."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from edgefl.cells.cells import check_jobs
from edgefl.cells.pricing import parallel_pricing
from edgefl.commands.profile.answer import (
    ClientEvaluationRow,
    Computed,
    FlopsColumns,
    PeakMoment,
    Peaks,
    Profile,
    ProfileRow,
    Tables,
    TrafficColumns,
)
from edgefl.commands.profile.chart import stages_chart
from edgefl.commands.profile.schedule_totals import (
    client_totals,
    evaluation_totals,
    process_fields,
    round_totals,
    server_rows,
    stretches,
)
from edgefl.commands.profile.subjects import Subject, rounds_of, shown_round, subjects, works_of
from edgefl.commands.profile.timeline import memory_timeline
from edgefl.cost.client_cost import ComputeCost, traffic
from edgefl.cost.predict import timeline as trace_timeline
from edgefl.cost.price import price_rounds
from edgefl.cost.traced_ahead import PriceRequest
from edgefl.devices import Device, Link, available_memory_bytes, load_device, load_link, with_runtime
from edgefl.drawing.figures import FIGURE_FORMS, TIMELINE_FORMS, check_figure, draw_figure
from edgefl.errors import EdgeflError, RunError, ScenarioError, UnknownName
from edgefl.operator_classes import OPERATOR_NAMES
from edgefl.planning.client_evaluation import ScoringPlanner
from edgefl.planning.planner import Planner
from edgefl.planning.setup import Setup
from edgefl.records.answer import RuntimeRange
from edgefl.records.record import UNSET, Maybe, copy_fields
from edgefl.runs.progress import OnProgress, messages, silent
from edgefl.scenario import Scenario
from edgefl.scenario.problems import reason
from edgefl.schedules import Stage
from edgefl.setup.compose import Given, at_most, commonest_device, commonest_link, planner_of, scenario_of
from edgefl.setup.progress import public_command
from edgefl.work import Timeline

PRICE_COLUMNS = ("download_seconds", "compute_seconds", "virtual_seconds", "energy_joules")
"""Columns of a row of the table that are copied from the ``Price`` of its device and link."""


@dataclass(frozen=True)
class ProfileOptions:
    """The options of a profile: the device and link that price it, and the stage and kind that it is limited to.

    None means the fleet's most common device or link, and every stage or kind.
    """

    device: str | None = None
    link: str | None = None
    stage: int | None = None
    kind: str | None = None


@public_command
def profile(
    scenario: Given,
    overrides: Sequence[str] = (),
    *,
    device: str | None = None,
    link: str | None = None,
    stage: int | None = None,
    kind: str | None = None,
    timeline: str | os.PathLike[str] | None = None,
    figure: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    on_progress: OnProgress = silent,
    progress: bool = False,
) -> Profile:
    """Predict what one client's round costs at each stage, by client kind, and the totals of the whole schedule.

    Nothing is trained, so declared data are enough.  A row is the round of the kind's client with the most samples,
    which already holds all frozen parameters.  Where variants of a kind (``Method.variant``) cost different things each
    has a row.

    Args:
        scenario: A scenario file, the name of a shipped scenario, or a scenario as a dictionary.
        overrides: Changes of single fields, ``"training.batch=8"``.
        device: The device that prices time and energy, a name of the library or a file; by default the fleet's most
            common one.
        link: The link that prices transfers; by default the fleet's most common one.  Of equally common devices or
            links it is the slowest.
        stage: Only this stage of the schedule (from 1); totals that need all stages are left out.
        kind: Only this kind of client; totals that need all kinds are left out.
        timeline: A file (html, png) for a drawing of live memory, operator by operator, over the row with the highest
            peak among those with rounds.
        figure: A file (png, pdf, svg) for a drawing of memory, MACs and traffic by stage.
        jobs: How many processes price works, if there are more than four; by default one for each core.
        on_progress: Called with the name of an event and its facts.
        progress: Whether to show a bar, by tqdm or rich, whichever is installed.

    Returns:
        A record: ``rows`` (a client's round by stage and kind), ``totals`` (a client that takes part in every
        round), ``server_rows`` (the server's works), ``round_totals`` (a round of all selected clients and the server),
        ``evaluation_totals`` (an evaluation) and ``client_evaluation_rows`` (a client's evaluation on its own held-out
        samples, by stage and kind; empty without ``evaluation.clients``).  Bytes, FLOPs, MACs, seconds and joules are
        in base units, and the unit is in the field's name.  If the scenario compares, ``combinations`` has all this of
        each combination by its label, and ``refused`` why some can't be run, if there are such.

    Raises:
        ScenarioError: The scenario can't be run, or has no such stage.
        UnknownName: The device, link or kind is unknown.
        RunError: A drawing can't be written.
    """
    for path, forms in ((timeline, TIMELINE_FORMS), (figure, FIGURE_FORMS)):
        if path is not None:
            check_figure(path, forms)
    if jobs is not None:
        check_jobs(jobs)
    whole = scenario_of(scenario, overrides)
    wanted = ProfileOptions(device, link, stage, kind)
    combinations = whole.combinations() if whole.compare else []
    planners = {whole.name: planner_of(whole, on_progress)}
    others, refused = runnable(combinations, lambda combination: planner_of(combination, on_progress))
    check_wanted(wanted, [planner.setup for planner in (*planners.values(), *others.values())])
    parts = dict[str, Tables]()
    with parallel_pricing(partial(_works, wanted=wanted), [*planners.values(), *others.values()], jobs):
        own = _profile_planner(planners[whole.name], wanted, on_progress, whole.name)
        for index, (label, planner) in enumerate(others.items()):
            on_progress("combination", {"label": label, "index": index, "of": len(others)})
            parts[label] = _profile_planner(planner, wanted, on_progress, label)
    moment: PeakMoment | Maybe = UNSET
    if timeline is not None:
        traced, moment = _timeline(planners[whole.name], own.rows, wanted)
        title = f"{whole.name}: {moment.kind}, stage {moment.stage}"
        draw_figure(memory_timeline(traced, title), Path(timeline))
    result = Profile(
        scenario=whole.name,
        at_most=at_most([whole, *(each for _, each in combinations)]) or UNSET,
        **{table.name: getattr(own, table.name) for table in fields(Tables)},
        combinations=parts if whole.compare else UNSET,
        refused=refused or UNSET,
        timeline=moment,
    )
    if figure is not None:
        draw_figure(stages_chart(result.parts), Path(figure))
    return result


def check_wanted(wanted: ProfileOptions, setups: Sequence[Setup]) -> None:
    """Raise ScenarioError for a stage, or UnknownName for a kind, that no combination has."""
    kinds = dict.fromkeys(kind for setup in setups for kind in setup.clients.kinds)
    if wanted.kind is not None and wanted.kind not in kinds:
        raise UnknownName("client kind", wanted.kind, kinds)
    last = max(len(setup.schedule.offered) for setup in setups)
    if wanted.stage is not None and not 1 <= wanted.stage <= last:
        available = f"stages 1 to {last}" if last > 1 else "stage 1 only"
        raise ScenarioError(f"there is no stage {wanted.stage}: the schedule has {available}")


def _works(planner: Planner, wanted: ProfileOptions) -> Iterator[PriceRequest]:
    kinds = [kind for kind in planner.setup.clients.kinds if wanted.kind in (None, kind)]
    return works_of(planner, kinds, _stages(planner.setup, wanted))


def _profile_planner(planner: Planner, wanted: ProfileOptions, on_progress: OnProgress, label: str) -> Tables:
    setup = planner.setup
    fleet = setup.fleet
    device = with_runtime(load_device(wanted.device), fleet.runtime) if wanted.device else commonest_device(fleet)
    link = load_link(wanted.link) if wanted.link else commonest_link(setup.fleet)
    kinds = [kind for kind in setup.clients.kinds if wanted.kind in (None, kind)]
    stages = _stages(setup, wanted)
    if not kinds or not stages:
        return Tables(
            rows=[], totals=[], server_rows=[], round_totals=[], evaluation_totals=[], client_evaluation_rows=[]
        )

    on_message = messages(on_progress, f"{label}: ")

    shown = subjects(planner, kinds, stages)
    rows = []
    for stage in stages:
        for subject in shown:
            on_message(f"stage {stage.index} of {len(setup.schedule.offered)}, {subject.name}")
            rows.append(_row(planner, stage, subject, device, link))
    on_message("server and totals")
    spans = stretches(planner, wanted.stage)
    server = server_rows(planner, spans, wanted.kind)
    return Tables(
        rows=rows,
        totals=client_totals(planner, spans, shown, device, link) if wanted.stage is None else [],
        server_rows=server,
        round_totals=round_totals(planner, spans, server) if wanted.kind is None else [],
        evaluation_totals=evaluation_totals(server) if wanted.kind is None else [],
        client_evaluation_rows=client_evaluation_rows(planner, stages, shown, device, link),
    )


def _stages(setup: Setup, wanted: ProfileOptions) -> list[Stage]:
    return [stage for stage in setup.schedule.offered if wanted.stage in (None, stage.index)]


def runtime_range(device: Device, runtime: str | int) -> RuntimeRange | Maybe:
    """What the overhead of the runtime on this device rests on; UNSET for one without a source."""
    fact = device.facts.get("runtime_overhead_bytes")
    if fact is None:
        return UNSET
    low, high = int(fact.low), int(fact.high)
    return RuntimeRange(
        name=str(runtime), low_bytes=low, high_bytes=high, confidence=fact.confidence, source=fact.source.title
    )


def _row(planner: Planner, stage: Stage, subject: Subject, device: Device, link: Link) -> ProfileRow:
    setup, kind = planner.setup, subject.kind
    client = subject.largest(setup)
    demand = planner.demand(client, shown_round(setup, stage, kind), stage)
    throttling = setup.fleet.throttling
    computed, moved = demand.compute, demand.traffic
    hot, cold = (price_rounds([(computed, moved)], device, link, throttling=each) for each in (True, False))
    price = hot if throttling else cold
    return ProfileRow(
        kind=kind,
        variant=subject.shown_variant,
        stage=stage.index,
        part=stage.label or UNSET,
        rounds=len(rounds_of(setup, stage, kind)),
        **process_fields(computed, device),
        memory_assumed=computed.memory_assumed,
        runtime=runtime_range(device, setup.fleet.runtime),
        host_memory_bytes=computed.host_memory_bytes or UNSET,
        available_memory_bytes=available_memory_bytes(device),
        **copy_fields(Computed, computed),
        fvcore_macs_per_sample=computed.fvcore_macs_per_sample,
        **copy_fields(TrafficColumns, moved),
        **{name: getattr(price, name).item() for name in (*PRICE_COLUMNS, "upload_seconds")},
        compute_seconds_by_class=seconds_by_class(computed, device),
        samples=int(setup.clients.client_samples[client]),
        device=device.name,
        link=link.name,
        throttling_seconds=(hot.compute_seconds - cold.compute_seconds).item(),
        throttling_included=throttling,
    )


def seconds_by_class(computed: ComputeCost, device: Device) -> dict[str, float]:
    """Seconds of a client's computing by class of operator, of loading its model and of waiting for launches."""
    spent = computed.seconds_by_class(device)
    every: dict[str, float] = dict(zip(OPERATOR_NAMES, spent.by_class.tolist(), strict=True))
    every |= {"launches": spent.waiting, "loading": computed.load_seconds(device)}
    return {name: seconds for name, seconds in every.items() if seconds}


def _timeline(planner: Planner, rows: Sequence[ProfileRow], wanted: ProfileOptions) -> tuple[Timeline, PeakMoment]:
    """Live memory over the work of the row with the highest peak, and the facts of its peak."""
    setup = planner.setup
    if not rows:
        raise ScenarioError("there is nothing to draw: the scenario itself has no row for this stage and kind")
    # a stage without rounds is drawn only if no other is selected
    row = max(rows, key=lambda r: (bool(r.rounds), r.peak_memory_bytes))
    stage = setup.schedule.offered[row.stage - 1]
    shown = subjects(planner, [row.kind], _stages(setup, wanted))
    subject = next(each for each in shown if each.shown_variant == row.variant)
    source = setup.clients.client(subject.largest(setup))
    work, _ = planner.work(row.kind, shown_round(setup, stage, row.kind), stage, subject.variant)
    drawn = trace_timeline(work.limit_batches(source.size), source, planner.predictor.device)
    peak = drawn.moments[drawn.peak]
    moment = PeakMoment(
        kind=row.kind,
        variant=row.variant,
        stage=stage.index,
        peak_memory_bytes=peak.bytes,
        **{name: getattr(peak, name) for name in ("operator", "scope", "phase", "distinct_pass", "pattern", "step")},
        moment=drawn.peak,
        moments=len(drawn.moments),
    )
    return drawn, moment


Made = TypeVar("Made")


def runnable(
    combinations: Iterable[tuple[str, Scenario]], make: Callable[[Scenario], Made]
) -> tuple[dict[str, Made], dict[str, str]]:
    """What ``make`` gives of each combination, by label, and by label why a combination can't be run.

    Raises the error of the last one if none can, and errors that have another cause than the scenario.
    """
    made: dict[str, Made] = {}
    refused: dict[str, str] = {}
    last: EdgeflError | None = None
    for label, combination in combinations:
        try:
            made[label] = make(combination)
        except EdgeflError as error:
            if error.exit_code != EdgeflError.exit_code or isinstance(error, RunError):
                raise
            refused[label], last = reason(error), error
    if last is not None and not made:
        raise last
    return made, refused


def client_evaluation_rows(
    planner: Planner, stages: Sequence[Stage], shown: Sequence[Subject], device: Device, link: Link
) -> list[ClientEvaluationRow]:
    """A row per stage and subject: its client with the most held-out samples, which holds all frozen parameters.

    Empty without ``evaluation.clients``; a kind whose clients hold nothing out has no row.
    """
    setup = planner.setup
    if setup.held_out is None:
        return []
    scored, rows = ScoringPlanner(setup, planner, setup.held_out), []
    sizes = np.asarray(setup.held_out.client_samples)
    for stage in stages:
        rounds = setup.schedule.rounds_of(stage)
        for subject in shown:
            client = int(subject.members[np.argmax(sizes[subject.members])])
            if not sizes[client]:
                continue
            scoring = scored.scoring(client, rounds[0] if rounds else setup.schedule.rounds, stage, lambda *_: ())
            moved = traffic(scoring.down, (), planner.buffers)
            computed = scoring.compute
            price = price_rounds([(computed, moved)], device, link, throttling=setup.fleet.throttling)
            rows.append(
                ClientEvaluationRow(
                    kind=subject.kind,
                    variant=subject.shown_variant,
                    stage=stage.index,
                    part=stage.label or UNSET,
                    samples=int(sizes[client]),
                    **copy_fields(Peaks, computed),
                    **copy_fields(FlopsColumns, computed),
                    download_bytes=moved.download_bytes,
                    serialised_download_bytes=moved.serialised_download_bytes,
                    **{name: getattr(price, name).item() for name in PRICE_COLUMNS},
                    device=device.name,
                    link=link.name,
                )
            )
    return rows
