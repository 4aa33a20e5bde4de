"""A row of a sweep: the eligible clients of a cell, the data of the others, and the costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from math import inf
from typing import Any

import numpy as np

from edgefl.arrays import Booleans, Floats, Integers
from edgefl.commands.sweep.answer import (
    CapRounds,
    CellCosts,
    Merits,
    StageGroup,
    SweepGroup,
)
from edgefl.devices.caps import CAPS, DAY
from edgefl.planning.coverage import DataCoverage, share
from edgefl.planning.setup import Setup
from edgefl.planning.workload import (
    LEFT_OUT,
    StageEligibility,
    Workload,
    binding_counts,
    counts_of,
    memory_limit_counts,
    stage_eligibility,
)
from edgefl.records.record import UNSET, Maybe

TRAVELLING = ("download_bytes", "upload_bytes", "flops")
"""Costs that a row gives as means over eligible clients' rounds and as totals of the schedule."""


def row_of(workload: Workload) -> CellCosts:
    """What a cell costs."""
    setup = workload.setup
    holdings = DataCoverage.from_setup(setup)
    judged = stage_eligibility(workload)
    stages = [
        _stage_row(workload, list(turns), holdings) for _, turns in groupby(judged, key=lambda turn: turn.stage.index)
    ]
    everyone = np.ones(len(holdings.samples), bool)
    ever = np.logical_or.reduce([turn.eligible for turn in judged])
    clients, rounds = len(everyone), sum(stage.rounds for stage in stages)
    hardest = min(stages, key=lambda stage: (stage.eligible, -stage.peak_memory_bytes))
    excluded = holdings.measure_coverage(everyone, ever)
    counts: Integers = np.sum(
        [turn.stage.rounds * counts_of(turn.work[turn.eligible], workload) for turn in judged], axis=0
    )
    peaks = workload.table["memory"]
    offered = [counts_of(turn.work[turn.work != LEFT_OUT], workload) for turn in judged]
    return CellCosts(
        clients=clients,
        rounds=rounds,
        **_least(workload, judged),
        eligible_share_ever=share(int(ever.sum()), clients),
        eligible_share_at_hardest_stage=hardest.eligible_share,
        eligible_share_ever_by_kind={
            kind: share(int((ever & members).sum()), int(members.sum())) for kind, members in holdings.everyone.items()
        },
        eligible_samples_share=sum(stage.rounds * stage.eligible_samples_share for stage in stages) / rounds,
        eligible_samples_share_ever=excluded.eligible_samples_share,
        class_coverage_ever=excluded.class_coverage,
        excluded_samples=excluded.excluded_samples,
        lost_classes=excluded.lost_classes,
        lost_modalities=excluded.lost_modalities,
        modality_samples_share_ever=excluded.modality_samples_share,
        empty_rounds=sum(stage.rounds for stage in stages if not stage.eligible),
        hardest_stage=hardest.stage,
        refused_by=hardest.refused_by,
        refused_memory_by=hardest.refused_memory_by,
        peak_memory_bytes=int(peaks[sum(offered) > 0].max(initial=0)),
        download_bytes=_mean(workload.table["download_bytes"], counts),
        upload_bytes=_mean(workload.table["upload_bytes"], counts),
        flops=_mean(workload.table["flops"], counts),
        energy_joules=_weighted_mean([(stage.energy_joules, stage.rounds * stage.eligible) for stage in stages]),
        **vars(merits(workload, judged)),
        caps=_cap_rounds(workload, judged),
        stages=stages,
    )


def merits(workload: Workload, judged: Sequence[StageEligibility]) -> Merits:
    """The figures by which cells are compared: eligible share, seconds of a round, and totals of the schedule.

    A round lasts as long as its slowest eligible client.  ``schedule_*`` sum over all rounds the expected cohort, each
    client at the mean of its kind's eligible clients.  Costs of the server and of copies that a client has to download
    again are not included.
    """
    rounds = [turn.stage.rounds for turn in judged]
    slowest = [float(turn.seconds[turn.eligible].max()) if turn.eligible.any() else None for turn in judged]
    shares = [share(int(turn.eligible.sum()), len(turn.eligible)) for turn in judged]
    totals = {"cohort": 0.0, "energy_joules": 0.0, **dict.fromkeys(TRAVELLING, 0.0)}
    for turn, count in zip(judged, rounds, strict=True):
        for seats, eligible in _cohort(workload.setup, turn):
            works = counts_of(turn.work[eligible], workload)
            totals["cohort"] += count * seats
            totals["energy_joules"] += count * seats * float(turn.joules[eligible].mean())
            for name in TRAVELLING:
                totals[name] += count * seats * (_mean(workload.table[name], works) or 0.0)
    return Merits(
        eligible_share=sum(count * ratio for count, ratio in zip(rounds, shares, strict=True)) / sum(rounds),
        round_seconds=_weighted_mean(list(zip(slowest, rounds, strict=True))),
        schedule_seconds=sum(count * (seconds or 0.0) for count, seconds in zip(rounds, slowest, strict=True)),
        schedule_client_rounds=totals["cohort"],
        schedule_download_bytes=totals["download_bytes"],
        schedule_upload_bytes=totals["upload_bytes"],
        schedule_bytes=totals["download_bytes"] + totals["upload_bytes"],
        schedule_flops=totals["flops"],
        schedule_energy_joules=totals["energy_joules"],
    )


def _least(workload: Workload, judged: Sequence[StageEligibility]) -> dict[str, Any]:
    """The fewest rounds in which a run may end, and their bytes; empty if it plays all rounds.

    Of several turns in a stage the first are those that remain.
    """
    short = workload.setup.shortest
    if short is None:
        return {}
    left, turns = {stage.index: stage.rounds for stage in short.schedule.stages}, []
    for turn in judged:
        rounds = min(turn.stage.rounds, left[turn.stage.index])
        left[turn.stage.index] -= rounds
        turns.append(replace(turn, stage=replace(turn.stage, rounds=rounds)))
    least = merits(workload, turns)
    return {"fewest_rounds": short.schedule.rounds, "least_schedule_bytes": least.schedule_bytes}


def _cap_rounds(workload: Workload, judged: Sequence[StageEligibility]) -> dict[str, CapRounds | None] | Maybe:
    """For how many rounds the clients' caps last; UNSET without any, None where no client with one fits.

    A client that is ever eligible takes part in each round that it fits, as long as enough is left.
    ``expected_rounds`` are those that a draw gives it, on average; its cap lasts if what they take is no more.
    """
    setup, caps = workload.setup, workload.setup.fleet.caps
    if caps is None:
        return UNSET
    costs = workload.prices.on(setup.fleet.pairs, setup.fleet.throttling).costs
    ever = np.logical_or.reduce([turn.eligible for turn in judged])
    found: dict[str, CapRounds | None] = {}
    for name, whole in caps.amounts.items():
        mine, daily = ever & np.isfinite(whole), CAPS[name].lasts == DAY
        left, done = np.array(whole, dtype=float), np.full(len(whole), inf if daily else 0.0)
        drawn, needed = np.zeros(len(whole)), np.zeros(len(whole))
        for turn in judged:
            taken = np.where(turn.eligible, costs[CAPS[name].budget][setup.fleet.pair_index, turn.work], 0.0)
            some = np.flatnonzero(turn.eligible)
            with np.errstate(divide="ignore", invalid="ignore"):  # a round without cost; no limit
                fitting = np.floor(left[some] / taken[some])
            if daily:
                done[some] = np.fmin(done[some], fitting)
                continue
            rounds = np.fmin(fitting, turn.stage.rounds)
            done[some] += rounds
            left[some] -= rounds * taken[some]
            for seats, eligible in _cohort(setup, turn):
                expected = turn.stage.rounds * seats / int(eligible.sum())
                drawn[eligible] += expected
                needed[eligible] += expected * taken[eligible]
        found[name] = None if not mine.any() else CapRounds(
            least_rounds=int(done[mine].min()),
            median_rounds=float(np.median(done[mine])),
            expected_rounds=UNSET if daily else float(drawn[mine].mean()),
            lasting_share=UNSET if daily else float((needed[mine] <= whole[mine]).mean()),
        )  # fmt: skip
    return found


def _cohort(setup: Setup, turn: StageEligibility) -> list[tuple[float, Booleans]]:
    """The number of selected clients and a mask of the eligible ones, for each group that a round draws from."""
    if not turn.eligible.any():
        return []
    first = 1 + sum(stage.rounds for stage in setup.schedule.stages if stage.index < turn.stage.index)
    seats, groups, home = setup.seats(first), {"": turn.eligible}, 0
    if "" in seats:
        drawn = setup.drawn_kinds(first)
        home = sum(n for kind, n in drawn.items() if not setup.participates(kind, first))
    else:
        index, kinds = np.asarray(setup.clients.client_kind), setup.clients.kinds
        groups = {kind: turn.eligible & (index == kinds.index(kind)) for kind in seats}

    def expectation(name: str, eligible: int) -> float:
        # those of the cohort who are sent home need not be eligible
        return min(seats[name], eligible + home) * eligible / (eligible + home)

    return [(expectation(name, int(able.sum())), able) for name, able in groups.items() if able.any()]


def _stage_row(workload: Workload, turns: Sequence[StageEligibility], holdings: DataCoverage) -> StageGroup:
    """Clients of one stage, in all and by kind; shares are of all clients, also those that the method leaves out.

    Eligibility is the same in all ``turns`` of the stage; works may differ.
    """
    everyone = np.ones(len(turns[0].work), bool)
    return StageGroup(
        stage=turns[0].stage.index,
        rounds=sum(turn.stage.rounds for turn in turns),
        **vars(_group(workload, turns, holdings, everyone)),
        kinds={kind: _group(workload, turns, holdings, members) for kind, members in holdings.everyone.items()},
    )


def _group(
    workload: Workload, turns: Sequence[StageEligibility], holdings: DataCoverage, clients: Booleans
) -> SweepGroup:
    first = turns[0]
    eligible, participants = clients & first.eligible, clients & (first.work != LEFT_OUT)
    works: Integers = np.sum([turn.stage.rounds * counts_of(turn.work[eligible], workload) for turn in turns], axis=0)
    offered = np.sum([counts_of(turn.work[participants], workload) for turn in turns], axis=0)
    refused = participants & ~first.eligible
    budgets = workload.setup.fleet.budget_names
    no_memory = refused & (first.binding == budgets.index("memory"))
    rounds = [turn.stage.rounds for turn in turns]
    slowest = [float(turn.seconds[eligible].max()) if eligible.any() else None for turn in turns]
    joules = [float(turn.joules[eligible].mean()) if eligible.any() else None for turn in turns]
    return SweepGroup(
        clients=int(clients.sum()),
        eligible=int(eligible.sum()),
        eligible_share=share(int(eligible.sum()), int(clients.sum())),
        **vars(holdings.measure_coverage(clients, eligible)),
        refused_by=binding_counts(first.binding[refused], budgets),
        refused_memory_by=memory_limit_counts(workload.setup.fleet.memory_of_device[no_memory]),
        peak_memory_bytes=int(workload.table["memory"][offered > 0].max(initial=0)),
        round_seconds=_weighted_mean(list(zip(slowest, rounds, strict=True))),
        download_bytes=_mean(workload.table["download_bytes"], works),
        upload_bytes=_mean(workload.table["upload_bytes"], works),
        flops=_mean(workload.table["flops"], works),
        energy_joules=_weighted_mean(list(zip(joules, rounds, strict=True))),
    )


def _mean(values: Floats, counts: Integers) -> float | None:
    """The mean of the values weighted by ``counts``; None if all counts are 0."""
    return float(counts @ values / counts.sum()) if counts.any() else None


def _weighted_mean(values: Sequence[tuple[float | None, float]]) -> float | None:
    known = [(value, weight) for value, weight in values if value is not None]
    return sum(v * w for v, w in known) / sum(w for _, w in known) if known else None
