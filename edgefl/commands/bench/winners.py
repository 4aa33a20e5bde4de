"""The answer of ``edgefl bench``: scores over seeds, winners and ties, ranks, and costs until a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from edgefl.commands.bench.answer import (
    BenchAnswer,
    BenchCost,
    BenchFleet,
    BenchRanks,
    BenchReference,
    BenchRow,
    BenchSpent,
    BenchVariant,
)
from edgefl.commands.bench.priced_fleets import BenchCell, FleetCells
from edgefl.commands.tune.answer import Tuning
from edgefl.records.metrics import OVER_CLIENTS, lower_is_better, metric_value
from edgefl.records.record import UNSET, Maybe, or_nan
from edgefl.records.summary import RunSummary
from edgefl.results.equal_costs import AXES, Curve, curve_of
from edgefl.results.facts import facts_of
from edgefl.results.paired import ROUNDING, Winner, mean_ranks, winner_of
from edgefl.results.spread import SeedSpread
from edgefl.runs import read_run
from edgefl.scenario.suite import Suite, Variant

TOTALS = 8
"""Totals of an axis at which the variants are compared. A choice, not measured: a line each in the printed answer."""


@dataclass(frozen=True)
class _Played:
    """What is read of a run: its summary, its curve and the metric after the last round, None if it diverged.

    ``chance`` has the metric's chance level by split, None if it has none.
    """

    facts: RunSummary
    curve: Curve
    score: float | None
    chance: Mapping[str, float | None]


def answer_of(
    suite: Suite,
    variants: Sequence[Variant],
    needs: Mapping[str, Sequence[float]],
    tunings: Mapping[str, Tuning],
    fleets: Sequence[FleetCells],
    references: FleetCells,
    failed: Mapping[str, str],
    folder: Path,
    metric: str,
    seconds: float,
) -> BenchAnswer:
    """The record of a suite whose runs, in ``folder``, have ended; ``failed`` says why some failed."""
    lower = lower_is_better(metric)
    able = [cell for each in [*fleets, references] for of in each.cells.values() for cell in of if cell.eligible_share]
    trained = {cell.run for cell in able}
    ended = {name: _read(folder / "runs" / name, metric) for name in sorted(trained - failed.keys())}
    alone = {cell.run for of in references.cells.values() for cell in of}
    # in other runs nobody trained
    played = {name: run for name, run in ended.items() if name in alone or run.facts.totals.finished}
    options = suite.options
    split = suite.base.evaluation.final
    chance = _chance(played.values(), split)
    shown = [_fleet(fleet, played, metric, chance, lower=lower, first=fleets[0] if options.conditions else None)
             for fleet in fleets]  # fmt: skip
    reference = fleets[-1] if options.budget is not None else fleets[0]
    during = _split(suite, [each.curve for each in played.values() if each.curve.evaluations])
    return BenchAnswer(
        suite=suite.name,
        folder=str(folder),
        metric=metric,
        split=split,
        better="lower" if lower else "higher",
        chance=chance,
        target=UNSET if options.target is None else options.target,
        target_split="" if options.target is None else during,
        budget=options.budget or UNSET,
        seeds=list(suite.seeds),
        variants=[_variant(each, needs, tunings) for each in variants],
        fleets=shown,
        references=[_reference(name, cells, played, metric) for name, cells in references.cells.items()],
        ranks=ranks_over_seeds(shown, higher=not lower),
        spent=_scores_within_totals(suite, reference, played, metric, higher=not lower),
        costs=UNSET if options.target is None else _costs(during, fleets, played, metric, options.target, lower=lower),
        trained=len(ended),
        cells=len(able),
        failed=dict(failed),
        seconds=seconds,
    )


def _read(folder: Path, metric: str) -> _Played:
    run = read_run(folder)
    facts = facts_of(run)
    score = metric_value(facts.metrics, metric) if run.is_finished else None
    chance = {split: metric_value(levels, metric) for split, levels in run.evaluation.chance.items()}
    return _Played(facts, curve_of(run), score, chance)


def _chance(played: Iterable[_Played], split: str) -> float | None:
    """The chance level of the metric on a split, None if no run has one."""
    levels = (each.chance.get(split) for each in played)
    return next((level for level in levels if level is not None), None)


def _variant(variant: Variant, needs: Mapping[str, Sequence[float]], tunings: Mapping[str, Tuning]) -> BenchVariant:
    tuning = tunings.get(variant.name)
    return BenchVariant(
        variant=variant.name,
        sets=variant.fields,
        method=variant.scenario.method_name,
        schedule=variant.scenario.schedule_name,
        tuned=UNSET if tuning is None else list(tuning.best.sets),
        tuned_score=UNSET if tuning is None else tuning.best.score,
        at_edge=UNSET if tuning is None else [each.text for each in tuning.at_edge],
        trials=UNSET if tuning is None else len(tuning.trials),
        needs=list(needs[variant.name]) if variant.name in needs else UNSET,
        refused=UNSET if variant.refused is None else variant.refused,
    )


# --- fleets ----------------------------------------------------------------------------------------------------------


def _fleet(
    fleet: FleetCells, played: Mapping[str, _Played], metric: str, chance: float | None, *, lower: bool,
    first: FleetCells | None,
) -> BenchFleet:  # fmt: skip
    rows = [_row(name, cells, played, metric, first) for name, cells in fleet.cells.items()]
    best = best_beyond_chance({row.variant: row.scores for row in rows}, chance, higher=not lower)
    level = fleet.level
    return BenchFleet(
        fleet=fleet.name,
        small_share=UNSET if fleet.small is None else fleet.small,
        low=UNSET if level is None else level.low,
        high=UNSET if level is None else level.high if np.isfinite(level.high) else None,
        rows=rows,
        winner=best.name,
        tied=list(best.tied),
        gap=None if best.gap is None else best.gap.mean,
        detectable=best.detectable,
    )


def best_beyond_chance(scores: Mapping[str, Sequence[float | None]], chance: float | None, *, higher: bool) -> Winner:
    """The winner by the paired rule, or the tie, without variants that aren't better than chance.

    A variant is better than chance if the 95 % interval of its mean (Student's t) is, or its score with one seed.
    Where the best mean isn't, there is no winner and no gap.
    """
    best = winner_of(scores, higher=higher)
    if chance is None or (best.name is None and not best.tied):
        return best
    tied = tuple(name for name in best.tied if _beats_chance(scores[name], chance, higher=higher))
    if _beats_chance(scores[best.name or best.tied[0]], chance, higher=higher):
        return replace(best, tied=tied)
    return Winner(None, tied)


def _beats_chance(scores: Sequence[float | None], chance: float, *, higher: bool) -> bool:
    spread = SeedSpread(tuple(scores))
    if spread.mean is None:
        return False
    ahead = (spread.mean - chance) * (1 if higher else -1)
    return ahead > (spread.half_width or 0.0) + ROUNDING * abs(chance)


def _row(
    variant: str, cells: Sequence[BenchCell], played: Mapping[str, _Played], metric: str, first: FleetCells | None
) -> BenchRow:
    runs = [played.get(cell.run) if cell.eligible_share else None for cell in cells]
    scores = SeedSpread(tuple(None if run is None else run.score for run in runs))
    there = [run.facts for run in runs if run is not None]
    kept: float | Maybe | None = UNSET
    if first is not None:
        reference = _mean(
            [None if (run := played.get(cell.run)) is None else run.score for cell in first.cells[variant]]
        )
        kept = scores.mean / reference if scores.mean is not None and reference else None
    return BenchRow(
        variant=variant,
        eligible_share=fmean(cell.eligible_share for cell in cells),
        scores=list(scores.values),
        mean=scores.mean,
        half_width=scores.half_width,
        diverged=sum(run is not None and run.score is None for run in runs),
        peak_memory_bytes=max((row.peak_memory_bytes for facts in there for row in facts.costs), default=None),
        bytes=_over(there, lambda facts: float(facts.totals.carried_bytes)),
        virtual_seconds=_over(there, lambda facts: facts.virtual_seconds),
        energy_joules=_over(there, lambda facts: or_nan(facts.totals.energy_joules)),
        worst_decile=_on_clients(there, metric),
        kept_share=kept,
        runs=[f"runs/{cell.run}" if cell.eligible_share else None for cell in cells],
    )


def _reference(name: str, cells: Sequence[BenchCell], played: Mapping[str, _Played], metric: str) -> BenchReference:
    runs = [played.get(cell.run) for cell in cells]
    scores = SeedSpread(tuple(None if run is None else run.score for run in runs))
    spread = [None if run is None else metric_value(run.facts.metrics, metric + OVER_CLIENTS) for run in runs]
    return BenchReference(
        reference=name,
        scores=list(scores.values),
        mean=scores.mean,
        half_width=scores.half_width,
        deviation=_mean(spread) if any(value is not None for value in spread) else UNSET,
        runs=[f"runs/{cell.run}" for cell in cells],
    )


def _mean(values: Sequence[float | None]) -> float | None:
    return SeedSpread(tuple(values)).mean


def _over(facts: Sequence[RunSummary], of: Callable[[RunSummary], float]) -> float | None:
    return fmean(map(of, facts)) if facts else None


def _on_clients(facts: Sequence[RunSummary], metric: str) -> float | Maybe | None:
    """The metric on the worst tenth of the clients, mean over the seeds; UNSET without such scores."""
    name, worst = metric.partition(".")[2], list[float | None]()
    for group in (group for each in facts for group in each.client_metrics or () if group.by == "all"):
        found = group.metrics.get(name)
        worst.append(None if found is None else found.worst_decile)
    return _mean(worst) if worst else UNSET


def ranks_over_seeds(fleets: Sequence[BenchFleet], *, higher: bool) -> BenchRanks | None:
    """Each seed ranks the variants on every fleet; the seeds are what is independent, so the spread is over them."""
    variants = [row.variant for row in fleets[0].rows] if len(fleets) > 1 else []
    if len(variants) < 2:
        return None
    by_seed = [
        mean_ranks([{row.variant: row.scores[seed] for row in fleet.rows} for fleet in fleets], higher=higher)
        for seed in range(len(fleets[0].rows[0].scores))
    ]
    of = {name: SeedSpread(tuple(ranks[name] for ranks in by_seed)) for name in variants}
    means = {name: spread.mean or 0.0 for name, spread in of.items()}
    best = winner_of({name: spread.values for name, spread in of.items()}, higher=False)
    return BenchRanks(
        fleets=len(fleets),
        ranks={name: means[name] for name in sorted(means, key=lambda name: (means[name], name))},
        half_widths={name: spread.half_width for name, spread in of.items()},
        winner=best.name,
        tied=list(best.tied),
    )


# --- costs -----------------------------------------------------------------------------------------------------------


def _split(suite: Suite, curves: Sequence[Curve]) -> str:
    """The split of the evaluations during a run, or of the last one where there are no others."""
    options = suite.base.evaluation
    during = all(any(each.split == options.split for each in curve.evaluations) for curve in curves)
    return options.split if during else options.final


def _scores_within_totals(
    suite: Suite, reference: FleetCells, played: Mapping[str, _Played], metric: str, *, higher: bool
) -> list[BenchSpent]:
    """The metric within totals of each axis, spaced evenly by their logarithm from the first evaluation to the end."""
    curves = {
        name: [played[cell.run].curve for cell in cells]
        for name, cells in reference.cells.items()
        if all(cell.eligible_share and cell.run in played for cell in cells)
    }
    flat = [curve for of in curves.values() for curve in of if curve.evaluations]
    if not flat:
        return []
    split, found = _split(suite, flat), []
    chance = _chance(played.values(), split)
    for axis in AXES:
        spends = [[e.spent[axis] for e in curve.evaluations if e.split == split] for curve in flat]
        low, high = max(min(each) for each in spends if each), max(max(each) for each in spends if each)
        if not 0 < low < high:
            continue
        for total in np.geomspace(low, high, TOTALS).tolist():
            scores = {
                name: [_score_within(curve, axis, total, split, metric) for curve in of] for name, of in curves.items()
            }
            best = best_beyond_chance(scores, chance, higher=higher)
            found.append(
                BenchSpent(
                    axis=axis,
                    total=total,
                    split=split,
                    means={name: _mean(values) for name, values in scores.items()},
                    winner=best.name,
                    tied=list(best.tied),
                )
            )
    return found


def _score_within(curve: Curve, axis: str, total: float, split: str, metric: str) -> float | None:
    last = curve.last(axis, total, split)
    return None if last is None else metric_value(last.metrics, metric)


def _costs(
    split: str,
    fleets: Sequence[FleetCells],
    played: Mapping[str, _Played],
    metric: str,
    target: float,
    *,
    lower: bool,
) -> list[BenchCost]:
    """What each variant spends on each fleet until an evaluation reaches the target."""
    rows = []
    for fleet in fleets:
        for name, cells in fleet.cells.items():
            spent: list[Mapping[str, float] | None] = []
            for cell in cells:
                run = played.get(cell.run) if cell.eligible_share else None
                spent.append(None if run is None else _until(split, run.curve, metric, target, lower=lower))
            if all(cell.eligible_share for cell in cells):
                by_axis = {axis: [None if each is None else each[axis] for each in spent] for axis in AXES}
                reached = len(spent) - spent.count(None)
                rows.append(BenchCost(fleet=fleet.name, variant=name, reached=reached, seeds=len(cells), **by_axis))
    return rows


def _until(split: str, curve: Curve, metric: str, target: float, *, lower: bool) -> Mapping[str, float] | None:
    """What a run had spent by its first evaluation on the split that reaches the target, None if there is none."""
    for each in curve.evaluations:
        value = metric_value(each.metrics, metric)
        if each.split == split and value is not None and (value <= target if lower else value >= target):
            return each.spent
    return None
