"""Answers of ``edgefl bench`` with drawn numbers, for tests of what shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgefl.commands.bench.answer import BenchAnswer, BenchCost, BenchFleet, BenchRow, BenchSpent, BenchVariant
from edgefl.commands.bench.winners import ranks_over_seeds
from edgefl.records.record import UNSET

NEEDS = {"end-to-end": 17.2, "layer-wise": 6.1, "progressive": 7.4, "LoRA": 12.3, "BitFit": 11.5, "split": 4.2,
         "frozen towers": 9.8, "quantised": 14.0}  # fmt: skip
"""MiB that the works of each variant take."""
AXES = ("virtual_seconds", "bytes", "energy_joules")
MIB = 2.0**20


def drawn_bench(
    *, names: Sequence[str] = tuple(NEEDS), shares: Sequence[float] = (1.0, 0.7, 0.3), seeds: int = 10, seed: int = 1,
    conditions: Sequence[str] = (), **fields: Any,
) -> BenchAnswer:  # fmt: skip
    """A bench of a budget of memory, or with ``conditions`` of these; ``fields`` replace those of the record."""
    rng = np.random.default_rng(seed)
    needs = dict(zip(names, NEEDS.values(), strict=False))
    places = sorted(needs.values())
    fleets = []
    if conditions:
        for number, name in enumerate(conditions):
            rows = [_row(rng, each, 0.35 * 0.9**number + 0.01 * i, seeds, number) for i, each in enumerate(names)]
            fleets.append(_fleet(name, rows))
    else:
        for share in shares:
            known: dict[tuple[str, bool], BenchRow] = {}  # what doesn't depend on the interval is one run
            for low, high in zip([0.0, *places], [*places, None], strict=True):
                rows = []
                for name in names:
                    fits = needs[name] <= low
                    centre = 0.14 + 0.013 * needs[name] if fits else 0.1 + 0.013 * needs[name] * (1 - share)
                    if (name, fits) not in known:
                        trained = centre if fits or share < 1 else None
                        known[name, fits] = _row(rng, name, trained, seeds, None, 1 if fits else 1 - share)
                    rows.append(known[name, fits])
                end = None if high is None else high * MIB
                label = f"{share:.0%} from {low}"
                fleets.append(_fleet(label, rows, small_share=share, low=low * MIB, high=end))
    totals: list[tuple[str, float, dict[str, float | None]]] = [
        (axis, total * unit, {names[0]: None} if total == 5 else {})
        for axis, unit in zip(AXES, (60.0, MIB, 10.0), strict=True)
        for total in (5, 20, 80)
    ]
    answer = {
        "suite": "memory", "folder": "runs/memory", "metric": "image-text.r@10", "split": "test", "better": "higher",
        "chance": 0.1, "target": 0.25, "budget": UNSET if conditions else "memory", "seeds": list(range(1, seeds + 1)),
        "variants": [
            BenchVariant(variant=name, sets={"schedule": {"name": name, "stages": 3}}, method="fedavg", schedule=name,
                         tuned=[f"training.lr={0.001 * (i + 1):g}"], tuned_score=0.3, trials=9, needs=[need * MIB],
                         at_edge=["training.lr: the best is the largest value"] if i == 1 else [])
            for i, (name, need) in enumerate(needs.items())
        ],
        "fleets": fleets,
        "ranks": ranks_over_seeds(fleets, higher=True),
        "spent": [
            BenchSpent(axis=axis, total=total, split="validation", winner=None, tied=list(names[:2]),
                       means={name: float(rng.uniform(0.1, 0.3)) for name in names} | missed)
            for axis, total, missed in totals
        ],
        "costs": [_cost(rng, fleet.fleet, row) for fleet in fleets[-2:] for row in fleet.rows],
        "references": [], "trained": 118, "cells": 640, "failed": {}, "seconds": 4000.0,
    }  # fmt: skip
    return BenchAnswer(**{**answer, **fields})


def _row(
    rng: np.random.Generator, name: str, centre: float | None, seeds: int, condition: int | None, share: float = 1.0
) -> BenchRow:
    scores = [None] * seeds if centre is None else [float(x) for x in rng.normal(centre, 0.02, seeds)]
    known = [score for score in scores if score is not None]
    return BenchRow(
        variant=name, eligible_share=share, scores=scores, mean=float(np.mean(known)) if known else None,
        half_width=float(2.26 * np.std(known, ddof=1) / len(known) ** 0.5) if len(known) > 1 else None, diverged=0,
        peak_memory_bytes=1000, bytes=1e6, virtual_seconds=100.0, energy_joules=5.0,
        kept_share=UNSET if condition is None else 0.9**condition,
        runs=[f"runs/{name}-{i}" if known else None for i in range(seeds)],
    )  # fmt: skip


def _fleet(name: str, rows: Sequence[BenchRow], **fields: Any) -> BenchFleet:
    order = sorted((row for row in rows if row.mean is not None), key=lambda row: -(row.mean or 0.0))
    gap = (order[0].mean or 0.0) - (order[1].mean or 0.0) if len(order) > 1 else None
    won = bool(order) and (gap is None or gap > 0.012)
    tied = [] if won else [row.variant for row in order if (order[0].mean or 0.0) - (row.mean or 0.0) < 0.012]
    return BenchFleet(
        fleet=name, rows=rows, winner=order[0].variant if won else None, tied=tied, gap=gap,
        detectable=None if gap is None else 0.012, **fields,
    )  # fmt: skip


def _cost(rng: np.random.Generator, fleet: str, row: BenchRow) -> BenchCost:
    reached = [score is not None and score > 0.25 for score in row.scores]
    costs = {
        axis: [float(rng.lognormal(4, 0.5)) * unit if there else None for there in reached]
        for axis, unit in zip(AXES, (10.0, MIB, 1.0), strict=True)
    }
    return BenchCost(fleet=fleet, variant=row.variant, reached=sum(reached), seeds=len(reached), **costs)
