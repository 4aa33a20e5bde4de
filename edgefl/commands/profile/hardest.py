"""The turn of a schedule that is hardest for each client or device: what it does there, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.commands.sweep.workload import LEFT_OUT, Workload
from edgefl.planning import Priced, Verdicts, choose, gate

Integers = NDArray[Any]
Floats = NDArray[np.float64]


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
    memory_of_device: NDArray[np.bool_],
    joules_of_job: NDArray[np.bool_] | bool = False,
    *,
    stage: int | None = None,
) -> Hardest:
    """The hardest turn of each subject, of a ``group`` of the workload and on a ``pair`` that is priced: `[subjects]`.

    In a turn a subject does the first work offered that fits its ``budgets``, or the nearest one.  The hardest turn
    leaves the smallest share of a budget; of equal ones it has the highest peak memory.  ``stage`` limits the turns to
    those of this stage.
    """
    count = len(group)
    work, nearest = np.full(count, LEFT_OUT, np.int64), np.full(count, inf)
    peak = np.full(count, -1.0)
    turns, able = np.zeros(count, np.int64), np.zeros(count, np.int64)

    for turn, offered in zip(workload.stages, workload.candidates, strict=True):
        offered_works = {index: works[group] for index, works in offered.items()}
        members = np.flatnonzero(next(iter(offered_works.values())) != LEFT_OUT)
        if stage not in (None, turn.index) or not len(members):
            continue
        allowed = {name: values[members] for name, values in budgets.items()}
        works, pairs = {index: values[members] for index, values in offered_works.items()}, pair[members]
        choices = choose(works, pairs, priced, allowed)
        near = gate(priced.of(choices.row, pairs), allowed).nearness
        high = workload.table["memory"][choices.row]
        harder = (near < nearest[members]) | ((near == nearest[members]) & (high > peak[members]))
        chosen = members[harder]
        work[chosen], nearest[chosen], peak[chosen] = choices.row[harder], near[harder], high[harder]
        turns[members] += turn.rounds > 0
        able[members] += choices.eligible
    there = np.maximum(work, 0)  # subjects that are left out get any work, which nobody reads
    if not len(workload.demands):
        nothing = dict.fromkeys(budgets, np.zeros(count))
        return Hardest(work, gate(nothing, budgets, memory_of_device, joules_of_job), turns, able)
    verdicts = gate(priced.of(there, pair), budgets, memory_of_device, joules_of_job)
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
