"""Evaluation by client: of the current model on the clients' own held-out samples, with its records and sums, and of
models that clients have for themselves on the server's samples.

It watches only: it takes no virtual time and no battery, and what clients receive for it isn't theirs in training.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from math import ceil, isfinite
from typing import Any

import numpy as np
from torch import Tensor

from edgefl import seeds
from edgefl.planning.client_evaluation import Scored, Scoring, ScoringPlanner, scored_clients
from edgefl.planning.versions import frozen_addresses, older, preinstalled_items
from edgefl.records.clients import ScoredClient
from edgefl.records.metrics import OVER_CLIENTS
from edgefl.records.record import UNSET, Maybe
from edgefl.records.rounds import ClientMetrics, Distribution
from edgefl.schedules import Stage
from edgefl.simulation.clock import Steps
from edgefl.simulation.learning import Training
from edgefl.simulation.records import scored_record
from edgefl.simulation.run_state import SimulationRun
from edgefl.simulation.server import finite_metrics, server_work, works_of_evaluation
from edgefl.simulation.tally import Tally
from edgefl.training import Assignment, Kept
from edgefl.work import Description, Form
from edgefl.work.update import Update

WAITING = 32
"""Works that are submitted before the oldest one's report is awaited: each holds a copy of the model.  A choice: more
than 32 workers wouldn't all be busy."""
Group = tuple[str, str]
"""What clients are grouped by, and the group's name: ("kind", "image")."""


def score_clients(run: SimulationRun, planner: ScoringPlanner, tally: Tally) -> None:
    """Score every client that is asked, and whose memory holds the work, with the current model."""
    round = tally.round
    parts, roster = run.parts, run.parts.roster
    trains = roster.eligible & (roster.cell >= 0)
    scored = planner.plan(round, trains, roster.stage, _stale_of(run))
    bad = parts.learning.non_finite()
    for client, scoring, report in _reports(run, planner, scored, round):
        metrics: Mapping[str, float | None] | Maybe = UNSET
        if report is not None:
            metrics = finite_metrics(_without_keep(scoring.form), report.metrics, bad)
        tally.scored.append(scored_record(parts.setup, scoring, round, client, bool(trains[client]), report, metrics))
    _note_received(run, scored)
    tally.client_metrics = sums_of(groups_of(run, scored, trains), tally.scored)


def _without_keep(form: Form) -> Form:
    """A work whose payloads lack what the client keeps."""
    return replace(form, down=tuple(p.only(lambda item: item.name not in form.keep) for p in form.down))


def _stale_of(run: SimulationRun) -> Callable[[int, Description, Stage], tuple[str, ...]]:
    """Gives the addresses of a work that a client lacks: neither training nor an earlier evaluation brought them."""
    trained, seen, current = run.parts.roster.client_versions, run.progress.scored_versions, run.state.versions
    known: dict[tuple[int, int, str, Hashable, int], tuple[str, ...]] = {}

    def stale(client: int, work: Description, stage: Stage) -> tuple[str, ...]:
        if not trained.keeping:
            return ()
        variant = run.parts.setup.variant_of(client)
        key = int(trained.of[client]), int(seen.of[client]), work.kind, variant, stage.index
        if key not in known:
            old = older(frozen_addresses(work, stage), trained.states[key[0]], current)
            known[key] = older(old, seen.states[key[1]], current)
        return known[key]

    return stale


def _note_received(run: SimulationRun, scored: Scored) -> None:
    received = run.progress.scored_versions
    if not received.keeping:
        return
    clients: dict[int, list[int]] = {}
    # most clients share an object, which ``scored`` holds
    scorings = {id(scoring): scoring for scoring in scored.scorings.values()}
    for client, scoring in scored.scorings.items():
        clients.setdefault(id(scoring), []).append(client)
    for key, members in clients.items():
        received.record_download(np.array(members), scorings[key].down, run.state.versions)
    received.pop_changed_clients()  # nobody asks for it
    if received.is_crowded:
        received.thin(run.state.versions)


# --- works -----------------------------------------------------------------------------------------------------------


def _reports(
    run: SimulationRun, planner: ScoringPlanner, scored: Scored, round: int
) -> Iterator[tuple[int, Scoring, Update | None]]:
    """Each client's scoring and report, in order; None without training."""
    learning, entries = run.parts.learning, list(scored.scorings.items())
    if not isinstance(learning, Training):
        yield from ((client, scoring, None) for client, scoring in entries)
        return
    state, setup, metered = learning.state, learning.setup, learning.metered
    wires: dict[tuple[Any, ...], Mapping[str, Tensor]] = {}

    def assignments() -> Iterator[Assignment]:
        for client, scoring in entries:
            # on the current model, with the parts of it that are the client's own
            form, start = scoring.form, (scoring.kind, scoring.variant, scoring.stage.index, scoring.old)
            if start not in wires:
                wires[start] = state.wire(form, preinstalled_items(form, scoring.down, state.versions))
            inputs, own = _with_own(learning, wires[start], client, form.keep)
            seed = seeds.key(setup.seed, "client evaluation", round, client)
            yield Assignment(
                scoring.without_keep,  # it is scored only: what it keeps stays as it is
                planner.scalars(scoring, round), inputs, client, seed,
                setup.measure == "all" or scoring.key not in metered,
                kept=own, peak=scoring.compute.peak_memory_bytes,
            )  # fmt: skip
            metered.add(scoring.key)

    for told, ((client, scoring), report) in enumerate(zip(entries, _run_all(learning, assignments()), strict=True), 1):
        run.parts.on_progress("scored", {"round": round, "done": told, "of": len(entries)})
        yield client, scoring, report


def _with_own(
    learning: Training, inputs: Mapping[str, Tensor], client: int, names: tuple[str, ...]
) -> tuple[Mapping[str, Tensor], Kept | None]:
    """The inputs without those that a client has values of its own for, and these values."""
    own = learning.kept.client_values(client, names) if names else None
    return (inputs if own is None else {n: tensor for n, tensor in inputs.items() if n not in own.names}), own


def _run_all(learning: Training, assignments: Iterable[Assignment]) -> Iterator[Update]:
    """The report of each assignment, in order."""
    waiting: deque[Future[Update]] = deque()
    for assignment in assignments:
        waiting.append(learning.executor.submit(assignment))
        if len(waiting) == WAITING:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def score_own_models(run: SimulationRun, split: str, tally: Tally) -> Steps:
    """Score each client's own model on a split of the server; for each kind the mean of every metric over its clients,
    and the standard deviation as ``NAME_deviation``.

    Scores that aren't finite are left out; None if all are.  Without training the result is empty.  The server's record
    and clock have one evaluation of each kind, because no server of such a method exists that would do the others.
    """
    learning, setup = run.parts.learning, run.parts.setup
    works = {kind: work for work, kinds in works_of_evaluation(run, split, tally) for kind in kinds}
    for work in works.values():
        yield from server_work(run, work, f"evaluate {split}", None, tally)
    if not isinstance(learning, Training):
        return {}
    wires = {kind: learning.state.wire(work) for kind, work in works.items()}
    clients, found = scored_clients(setup).tolist(), dict[str, dict[str, list[float]]]()

    def assignments() -> Iterator[Assignment]:
        for client in clients:
            kind = setup.kind_of(client)
            names = tuple(item.name for payload in works[kind].down for item in payload.items)
            inputs, own = _with_own(learning, wires[kind], client, names)
            seed = seeds.key(setup.seed, f"own model, {split}", tally.round, client)
            yield Assignment(works[kind].form, works[kind].scalars, inputs, None, seed, kept=own)

    for told, (client, report) in enumerate(zip(clients, _run_all(learning, assignments()), strict=True), 1):
        run.parts.on_progress("scored", {"round": tally.round, "done": told, "of": len(clients)})
        of_kind = found.setdefault(setup.kind_of(client), {})
        for name, value in report.metrics.items():
            of_kind.setdefault(name, []).extend([value] if isfinite(value) else [])
    return {kind: _mean_and_deviation(found[kind]) for kind in setup.clients.kinds if kind in found}


def _mean_and_deviation(scores: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
    known = {name: np.array(values) for name, values in scores.items()}
    means = {name: float(values.mean()) if len(values) else None for name, values in known.items()}
    spread = {f"{name}{OVER_CLIENTS}": float(values.std()) if len(values) else None for name, values in known.items()}
    return means | spread


# --- sums ------------------------------------------------------------------------------------------------------------


def groups_of(run: SimulationRun, scored: Scored, trains: Any) -> dict[Group, dict[str, int]]:
    """Clients that were asked, by group: all, eligible or left out, and each kind, device class and modality.

    Of each group the number of ``clients``, of those ``scored``, ``too_small`` (memory) and ``without`` samples.
    """
    groups: dict[Group, dict[str, int]] = {}
    setup = run.parts.setup
    devices, index = setup.fleet.devices, setup.fleet.device_index
    outcomes = {"scored": scored.scorings, "too_small": scored.too_small.tolist(), "without": scored.without.tolist()}
    for outcome, clients in outcomes.items():
        for client in clients:
            for group in _groups(setup.kind_of(client), devices[int(index[client])].name, bool(trains[client])):
                counts = groups.setdefault(group, {"clients": 0, "scored": 0, "too_small": 0, "without": 0})
                counts["clients"] += 1
                counts[outcome] += 1
    return groups


def _groups(kind: str, device: str, eligible: bool) -> list[Group]:
    modalities = [("modality", modality) for modality in kind.split("-")]
    able = "eligible" if eligible else "left out"
    return [("all", "all"), ("eligibility", able), ("kind", kind), ("device", device), *modalities]


_ORDER = ("all", "eligibility", "kind", "device", "modality")
_SUMMED = ("samples", "download_bytes", "serialised_download_bytes", "forward_flops", "energy_joules")


def sums_of(groups: Mapping[Group, Mapping[str, int]], records: Sequence[ScoredClient]) -> list[ClientMetrics]:
    """A row for each group: its counts, its clients' costs, and each metric's distribution over its clients."""
    members: dict[Group, list[ScoredClient]] = {}
    for record in records:
        for group in _groups(record.kind, record.device, record.eligible):
            members.setdefault(group, []).append(record)
    rows = []
    for group in sorted(groups, key=lambda group: (_ORDER.index(group[0]), group[1])):
        own = members.get(group, [])
        names = dict.fromkeys(name for record in own if record.metrics is not UNSET for name in record.metrics)
        rows.append(
            ClientMetrics(
                by=group[0],
                group=group[1],
                **groups[group],
                **{name: sum(getattr(record, name) for record in own) for name in _SUMMED},
                longest_virtual_seconds=max((record.virtual_seconds for record in own), default=0.0),
                metrics={name: distribution(own, name) for name in names},
            )
        )
    return rows


def distribution(records: Sequence[ScoredClient], name: str) -> Distribution:
    """A metric over clients: mean, mean by samples, standard deviation, and mean of the worst tenth.

    Clients weigh alike, except in ``weighted_mean``; the worst are the lowest, ceil(clients / 10) of them.  Scores that
    aren't finite are left out; ``clients`` counts the others.
    """
    scores = [(r.metrics.get(name), r.samples) for r in records if r.metrics is not UNSET]
    found = [(value, samples) for value, samples in scores if value is not None]
    if not found:
        return Distribution(clients=0, mean=None, weighted_mean=None, deviation=None, worst_decile=None)
    values, samples = np.array(found, float).T
    return Distribution(
        clients=len(values),
        mean=float(values.mean()),
        weighted_mean=float(np.average(values, weights=samples)),
        deviation=float(values.std()),
        worst_decile=float(np.sort(values)[: ceil(len(values) / 10)].mean()),
    )
