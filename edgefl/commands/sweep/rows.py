"""One row of a sweep: who can take part in a cell, which data leave with the others, and what the schedule costs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.commands.sweep.smallest_device import Library, smallest_device
from edgefl.commands.sweep.workload import (
    LEFT_OUT,
    Booleans,
    Integers,
    Judged,
    Prices,
    Workload,
    binding_counts,
    counts_of,
    evaluated,
)
from edgefl.planning import DataCoverage, Setup
from edgefl.planning.coverage import share
from edgefl.planning.places import places

TRAVELLING = ("download_bytes", "upload_bytes", "flops")
"""What a row gives as means of an eligible client's round and as totals of the schedule."""


def row_of(workload: Workload, library: Library) -> dict[str, Any]:
    """The row of a cell: fields with their units in their names."""
    setup = workload.setup
    holdings = DataCoverage.of(setup)
    prices = Prices(workload)
    judged = evaluated(workload, prices=prices)
    stages = []
    for _, turns in groupby(judged, key=lambda one: one.stage.index):
        stage = _stage_row(workload, taking := list(turns), holdings)
        for kind, mine in holdings.everyone.items():
            stage["kinds"][kind]["smallest_device"] = smallest_device(workload, taking[0], mine, library, prices)
        stages.append(stage)
    everyone = np.ones(len(holdings.samples), bool)
    ever = np.logical_or.reduce([one.eligible for one in judged])
    clients, rounds = len(everyone), sum(stage["rounds"] for stage in stages)
    hardest = min(stages, key=lambda s: s["eligible"])
    left = holdings.left(everyone, ever)
    able: Integers = np.sum([one.stage.rounds * counts_of(one.work[one.eligible], workload) for one in judged], axis=0)
    taken = np.flatnonzero(able)
    peaks = workload.table["memory"]
    offered = [counts_of(one.work[one.work != LEFT_OUT], workload) for one in judged]
    return {
        "clients": clients,
        "rounds": rounds,
        "eligible_share": sum(s["rounds"] * s["eligible_share"] for s in stages) / rounds,
        "eligible_share_ever": share(int(ever.sum()), clients),
        "eligible_share_at_hardest_stage": hardest["eligible_share"],
        "eligible_share_ever_by_kind": {
            kind: share(int((ever & mine).sum()), int(mine.sum())) for kind, mine in holdings.everyone.items()
        },
        "eligible_samples_share": sum(s["rounds"] * s["eligible_samples_share"] for s in stages) / rounds,
        "eligible_samples_share_ever": left["eligible_samples_share"],
        "class_coverage_ever": left["class_coverage"],
        "excluded_samples": left["excluded_samples"],
        "lost_classes": left["lost_classes"],
        "lost_modalities": left["lost_modalities"],
        "modality_samples_share_ever": left["modality_samples_share"],
        "empty_rounds": sum(stage["rounds"] for stage in stages if not stage["eligible"]),
        "hardest_stage": hardest["stage"],
        "refused_by": hardest["refused_by"],
        "peak_memory_bytes": int(peaks[sum(offered) > 0].max(initial=0)),
        "eligible_peak_memory_bytes": int(peaks[taken].max()) if len(taken) else None,
        **{name: _mean(workload.table[name], able) for name in TRAVELLING},
        "energy_joules": _weighted([(s["energy_joules"], s["rounds"] * s["eligible"]) for s in stages]),
        **merits(workload, judged),
        "stages": stages,
    }


def merits(workload: Workload, judged: Sequence[Judged]) -> dict[str, Any]:
    """What cells are compared by: the eligible share, a round's seconds, and what the schedule adds up to.

    A round lasts as long as its slowest eligible client.  ``schedule_*`` are of all rounds with the clients that a
    round is expected to select, each at the mean of the eligible of its kind.  Nothing is in it of what the server
    does, nor of copies that a client has to fetch anew.
    """
    rounds = [one.stage.rounds for one in judged]
    slowest = [float(one.seconds[one.eligible].max()) if one.eligible.any() else None for one in judged]
    shares = [share(int(one.eligible.sum()), len(one.eligible)) for one in judged]
    totals = {"cohort": 0.0, "energy_joules": 0.0, **dict.fromkeys(TRAVELLING, 0.0)}
    for one, count in zip(judged, rounds, strict=True):
        for seats, able in _cohort(workload.setup, one):
            works = counts_of(one.work[able], workload)
            totals["cohort"] += count * seats
            totals["energy_joules"] += count * seats * float(one.joules[able].mean())
            for name in TRAVELLING:
                totals[name] += count * seats * (_mean(workload.table[name], works) or 0.0)
    return {
        "eligible_share": sum(n * s for n, s in zip(rounds, shares, strict=True)) / sum(rounds),
        "round_seconds": _weighted(list(zip(slowest, rounds, strict=True))),
        "schedule_seconds": sum(n * (s or 0.0) for n, s in zip(rounds, slowest, strict=True)),
        "schedule_client_rounds": totals["cohort"],
        "schedule_download_bytes": totals["download_bytes"],
        "schedule_upload_bytes": totals["upload_bytes"],
        "schedule_bytes": totals["download_bytes"] + totals["upload_bytes"],
        "schedule_flops": totals["flops"],
        "schedule_energy_joules": totals["energy_joules"],
    }


def _cohort(setup: Setup, one: Judged) -> list[tuple[float, Booleans]]:
    """How many clients a round of this stage selects of each group that it draws from, and who is eligible there."""
    kind, part = np.asarray(setup.clients.client_kind), one.work != LEFT_OUT
    groups = {
        name: (int((part & mine).sum()), one.eligible & mine)
        for index, name in enumerate(setup.clients.kinds)
        if (part & (mine := kind == index)).any()
    }
    if not groups:
        return []
    if not setup.round.stratify:
        groups = {"": (int(part.sum()), one.eligible)}
    seats = places(setup.round.cohort, {name: size for name, (size, _) in groups.items()})
    return [(float(min(seats[name], int(able.sum()))), able) for name, (_, able) in groups.items() if able.any()]


def _stage_row(workload: Workload, turns: Sequence[Judged], holdings: DataCoverage) -> dict[str, Any]:
    """Clients of one stage, in all and by kind; shares are of all clients, those that the method leaves out too.

    ``turns`` are the stage's: who can take part is the same in all of them, and what he does may not be.
    """
    everyone = np.ones(len(turns[0].work), bool)
    return {
        "stage": turns[0].stage.index,
        "rounds": sum(one.stage.rounds for one in turns),
        **_group(workload, turns, holdings, everyone),
        "kinds": {kind: _group(workload, turns, holdings, mine) for kind, mine in holdings.everyone.items()},
    }


def _group(workload: Workload, turns: Sequence[Judged], holdings: DataCoverage, clients: Booleans) -> dict[str, Any]:
    one = turns[0]
    able, part = clients & one.eligible, clients & (one.work != LEFT_OUT)
    works: Integers = np.sum([each.stage.rounds * counts_of(each.work[able], workload) for each in turns], axis=0)
    offered = np.sum([counts_of(each.work[part], workload) for each in turns], axis=0)
    rounds = [each.stage.rounds for each in turns]
    slowest = [float(each.seconds[able].max()) if able.any() else None for each in turns]
    joules = [float(each.joules[able].mean()) if able.any() else None for each in turns]
    return {
        "clients": int(clients.sum()),
        "eligible": int(able.sum()),
        "eligible_share": share(int(able.sum()), int(clients.sum())),
        **holdings.left(clients, able),
        "refused_by": binding_counts(one.binding[part & ~one.eligible]),
        "peak_memory_bytes": int(workload.table["memory"][offered > 0].max(initial=0)),
        "round_seconds": _weighted(list(zip(slowest, rounds, strict=True))),
        **{name: _mean(workload.table[name], works) for name in TRAVELLING},
        "energy_joules": _weighted(list(zip(joules, rounds, strict=True))),
    }


def _mean(values: NDArray[np.float64], counts: Integers) -> float | None:
    """The mean of values that stand for this many each; None of nothing."""
    return float(counts @ values / counts.sum()) if counts.any() else None


def _weighted(values: Sequence[tuple[float | None, float]]) -> float | None:
    there = [(value, weight) for value, weight in values if value is not None]
    return sum(v * w for v, w in there) / sum(w for _, w in there) if there else None
