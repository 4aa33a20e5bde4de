"""The works of clients whatever their devices, which clients can do them on a fleet, and the turn that is hardest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from edgefl.arrays import AnyArray, Booleans, Floats, Integers
from edgefl.cost.predict import Predictor
from edgefl.devices import Fleet
from edgefl.planning.eligibility import DEVICE, OWNER, Verdicts, gate
from edgefl.planning.offers import Priced, Prices, choose
from edgefl.planning.planner import Demand, Planner
from edgefl.planning.setup import Setup
from edgefl.records.answer import AtHardest
from edgefl.records.record import UNSET
from edgefl.schedules import Stage

LEFT_OUT = -1
"""The work of clients that the method leaves out of a stage."""


@dataclass(frozen=True)
class Workload:
    """The works that a schedule gives to the clients, each with its demand on any device.

    ``stages`` are those with rounds, once for each turn in which other parts are offered, with the rounds of that turn.
    ``candidates[i]`` has for stage i, by index of each candidate stage that the schedule offers, best first, the work
    `[groups]` of each group of clients that cost the same: an index into ``demands``, or LEFT_OUT, then for all
    candidates of a stage.  Clients already hold all frozen parameters.
    """

    setup: Setup
    demands: tuple[Demand, ...]
    stages: tuple[Stage, ...]
    candidates: tuple[Mapping[int, Integers], ...]

    @cached_property
    def table(self) -> dict[str, Floats]:
        """Numbers of each work that no device changes: `[works]`."""
        columns: dict[str, Callable[[Demand], float]] = {
            "memory": lambda demand: demand.compute.tensor_bytes,
            "peak": lambda demand: demand.compute.peak_memory_bytes,
            "flops": lambda demand: demand.compute.forward_flops + demand.compute.backward_flops,
            "download_bytes": lambda demand: demand.traffic.download_bytes,
            "upload_bytes": lambda demand: demand.traffic.upload_bytes,
        }
        return {
            name: np.array([column(demand) for demand in self.demands], dtype=float) for name, column in columns.items()
        }

    @cached_property
    def prices(self) -> Prices:
        """The works' prices on any device and link, by the budgets of the scenario's fleet."""
        return Prices(self.demands, self.setup.fleet.budget_names)


@dataclass(frozen=True)
class StageEligibility:
    """Eligibility and costs of the clients in a stage: arrays `[clients]`.

    ``work`` is the first offered work that fits, or the nearest one; ``binding`` indexes the fleet's ``budget_names``
    (-1: unlimited); ``seconds`` and ``joules`` are of a round, without jitter.  A client that the method leaves out is
    not eligible and costs nothing.
    """

    stage: Stage
    work: Integers
    eligible: Booleans
    binding: Integers
    seconds: Floats
    joules: Floats


def workload_of(setup: Setup, predictor: Predictor) -> Workload:
    """Predict every work of the schedule, once for all clients of one kind and variant with equally many samples."""
    planner = Planner(setup, predictor)
    demands, stages, candidates = list[Demand](), [], []
    known: dict[tuple[int, int], Integers] = {}
    turns = [(stage, turn) for stage in setup.schedule.stages for turn in setup.schedule.turns(stage)]
    for stage, (offered, rounds) in turns:
        stages.append(replace(stage, rounds=len(rounds)))
        first = 1 + sum(before.rounds for before in setup.schedule.stages if before.index < stage.index)
        for candidate in offered:
            if (stage.index, candidate.index) in known:
                continue
            works = known[stage.index, candidate.index] = np.full(len(setup.representative), LEFT_OUT, np.int32)
            for group, client in enumerate(setup.representative.tolist()):
                if setup.participates(setup.kind_of(client), first):
                    works[group] = len(demands)
                    demands.append(planner.demand(client, first, candidate))
        candidates.append({candidate.index: known[stage.index, candidate.index] for candidate in offered})
    return Workload(setup, tuple(demands), tuple(stages), tuple(candidates))


def stage_eligibility(workload: Workload, fleet: Fleet | None = None, *, why: bool = True) -> list[StageEligibility]:
    """Which clients can take part in each stage on this fleet, by default the scenario's.

    A client takes the first work offered that fits all its budgets, including the round's deadline.  Without ``why``
    ``binding`` isn't computed, which saves most of the time.
    """
    setup = workload.setup
    fleet = fleet or setup.fleet
    group = setup.client_group
    table = workload.prices.on(fleet.pairs, fleet.throttling)

    def judge_stage(stage: Stage, offered: Mapping[int, Integers]) -> StageEligibility:
        clients = np.flatnonzero(next(iter(offered.values()))[group] != LEFT_OUT)
        groups, pairs = group[clients], fleet.pair_index[clients]
        works = {index: of_groups[groups] for index, of_groups in offered.items()}
        chosen = choose(works, pairs, table, setup.budgets(clients, fleet), why=why)

        def for_all(values: AnyArray, default: Any) -> AnyArray:
            whole = np.full(len(group), default, values.dtype)
            whole[clients] = values
            return whole

        return StageEligibility(
            stage,
            for_all(chosen.row, LEFT_OUT),
            for_all(chosen.eligible, False),
            for_all(chosen.binding, -1),
            for_all(table.costs["seconds"][pairs, chosen.row], 0),
            for_all(table.costs["joules"][pairs, chosen.row], 0),
        )

    return [judge_stage(stage, offered) for stage, offered in zip(workload.stages, workload.candidates, strict=True)]


def counts_of(works: Integers, workload: Workload) -> Integers:
    """How many of these clients do each work: `[works]`."""
    return np.bincount(works, minlength=len(workload.demands))


def memory_limit_counts(memory_of_device: Booleans) -> dict[str, int]:
    """How many of these clients' memory budgets are their owners' word, and how many are what the device has."""
    of_device = int(memory_of_device.sum())
    counts = {OWNER: len(memory_of_device) - of_device, DEVICE: of_device}
    return {name: count for name, count in counts.items() if count}


def binding_counts(binding: Integers, names: Sequence[str]) -> dict[str, int]:
    """How many clients each of the budgets binds, the most frequent first."""
    counts = np.bincount(binding[binding >= 0], minlength=len(names))
    order = sorted(range(len(names)), key=lambda i: -counts[i])
    return {names[i]: int(counts[i]) for i in order if counts[i]}


@dataclass(frozen=True)
class Hardest:
    """Arrays `[subjects]`, for clients or devices as subjects.

    ``work`` is what a subject does in its hardest turn (LEFT_OUT if the method leaves it out of all turns).
    ``verdicts`` are those on these works.  ``turns`` counts the turns in which a subject takes part, ``able`` those
    that it is eligible in.
    """

    work: Integers
    verdicts: Verdicts
    turns: Integers
    able: Integers


def hardest(
    workload: Workload,
    priced: Priced,
    group: Integers,
    pair: Integers,
    budgets: Mapping[str, Floats],
    memory_of_device: Booleans,
    cap_limits: Mapping[str, Integers] | None = None,
    *,
    stage: int | None = None,
) -> Hardest:
    """The hardest turn of each subject, of a ``group`` of the workload and on a ``pair`` that is priced: `[subjects]`.

    In a turn a subject does the first work offered that fits its ``budgets``, or the nearest one.  The hardest turn
    leaves the smallest share of a budget; of equal ones it takes most memory.  ``stage`` limits the turns to
    those of this stage.
    """
    count = len(group)
    work, nearest = np.full(count, LEFT_OUT, np.int64), np.full(count, inf)
    most = np.full(count, -1.0)
    turns, able = np.zeros(count, np.int64), np.zeros(count, np.int64)

    for turn, offered in zip(workload.stages, workload.candidates, strict=True):
        offered_works = {index: works[group] for index, works in offered.items()}
        members = np.flatnonzero(next(iter(offered_works.values())) != LEFT_OUT)
        if stage not in (None, turn.index) or not len(members):
            continue
        allowed = {name: values[members] for name, values in budgets.items()}
        works, pairs = {index: values[members] for index, values in offered_works.items()}, pair[members]
        choices = choose(works, pairs, priced, allowed)
        near = gate(priced.work_costs(choices.row, pairs), allowed).nearness
        high = workload.table["memory"][choices.row]
        harder = (near < nearest[members]) | ((near == nearest[members]) & (high > most[members]))
        chosen = members[harder]
        work[chosen], nearest[chosen], most[chosen] = choices.row[harder], near[harder], high[harder]
        turns[members] += turn.rounds > 0
        able[members] += choices.eligible
    there = np.maximum(work, 0)  # subjects that are left out get any work, which nobody reads
    if not len(workload.demands):
        nothing = dict.fromkeys(budgets, np.zeros(count))
        return Hardest(work, gate(nothing, budgets, memory_of_device, cap_limits), turns, able)
    peaks = workload.table["peak"][there]
    verdicts = gate(priced.work_costs(there, pair), budgets, memory_of_device, cap_limits, peaks)
    return Hardest(work, verdicts, turns, able)


def stage_of_works(workload: Workload) -> dict[int, int]:
    """The index of the stage that each work trains."""
    return {
        int(work): index
        for offered in workload.candidates
        for index, works in offered.items()
        for work in np.unique(works)
        if work != LEFT_OUT
    }


def at_hardest(setup: Setup, demand: Demand, stage: int) -> AtHardest:
    """What a work costs on any device."""
    return AtHardest(
        stage=stage,
        part=setup.schedule.offered[stage - 1].label or UNSET,
        batch=next((p.batch for p in demand.form.passes if p.train), None),
        peak_memory_bytes=demand.compute.tensor_bytes,
        flops=demand.compute.forward_flops + demand.compute.backward_flops,
        download_bytes=demand.traffic.download_bytes,
        upload_bytes=demand.traffic.upload_bytes,
    )
