"""Orderings over several seeds: whether each holds, is reversed, or can't be told from chance.

A seed draws the same data, initial weights and cohorts for every variant, so seeds are paired.  An ordering holds if
neither 95 % interval of the gap, seed by seed, holds 0 (``paired.PairedGap``), and is reversed if that is so of the
opposite gap; otherwise there is no ordering.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean, stdev

from edgefl.commands.compare.answer import Ordering, OrderingClaim, OrderingFigure, OrderingRow
from edgefl.commands.compare.studies import Study, study_of
from edgefl.errors import RunError
from edgefl.records.eligibility import VerdictRecord
from edgefl.records.record import Record, part_of
from edgefl.records.rounds import lower_is_better, metric_value
from edgefl.records.run import FinalSummary
from edgefl.results.paired import PairedGap, paired_gap, seeds_needed
from edgefl.runs import Run

Values = Mapping[str, Mapping[str, Mapping[int, float]]]
"""A metric's value by variant, metric and seed."""


@dataclass(frozen=True)
class PairVerdict:
    """Verdict on a pair: the ``gap`` over seeds, and the number of seeds in which the better variant is ahead."""

    gap: PairedGap
    ahead: int

    @property
    def word(self) -> str:
        """Whether the ordering holds beyond chance."""
        if self.gap.seeds < 2:
            return "one seed: no ordering"
        if not self.gap.is_significant:
            return "no ordering"
        return "holds" if self.gap.mean > 0 else "reversed"


def judge(worse: Sequence[float], better: Sequence[float]) -> PairVerdict:
    """Compare the values of two variants, seed by seed."""
    return PairVerdict(paired_gap(better, worse), sum(b > a for a, b in zip(worse, better, strict=True)))


# --- what a scenario claims ------------------------------------------------------------------------------------------


@dataclass
class SeedScores:
    """Values by variant, metric and seed."""

    study: Study
    values: dict[str, dict[str, dict[int, float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )

    @property
    def variants(self) -> list[str]:
        """Variants with a finished run."""
        return [variant for variant in self.study.variants if self.values.get(variant)]

    @property
    def seeds(self) -> list[int]:
        """Seeds for which all these variants are finished."""
        seeds = [set(next(iter(self.values[v].values()))) for v in self.variants]
        return sorted(set.intersection(*seeds)) if seeds else []

    def seed_values(self, term: str, metric: str) -> list[float]:
        """Values by seed of a variant, or of the difference of two variants."""
        first, *second = term.split(" - ")
        values = [self.values[first][metric][seed] for seed in self.seeds]
        return (
            values if not second else [a - b for a, b in zip(values, self.seed_values(second[0], metric), strict=True)]
        )


@part_of(VerdictRecord)
class EligibleColumn(Record):
    """Whether a client was eligible."""

    client: int
    eligible: bool


def tables_of(runs: Iterable[Run]) -> list[SeedScores]:
    """The values of these finished runs for each study that one of them belongs to.

    A run that lacks a metric of its study, or whose model diverged, is left out.
    """
    tables: dict[str, SeedScores] = {}
    for run in runs:
        study = study_of(run.name)
        if study is None:
            continue
        table = tables.setdefault(study.title, SeedScores(study))
        for variant in study.variants:
            if is_variant(study, variant, run.scenario):
                try:
                    values = {metric: last_metric(run, metric) for metric in study.metrics}
                except RunError:
                    continue
                for metric, value in values.items():
                    table.values[variant][metric][run.settings.seed] = value
    return list(tables.values())


def is_variant(study: Study, variant: str, scenario: Mapping[str, object]) -> bool:
    """Whether a resolved scenario is this variant."""
    return all(value_at_path(scenario, path) == value for path, value in study.variants[variant].items())


def value_at_path(scenario: Mapping[str, object], path: str) -> object:
    """The value at a dotted path of a resolved scenario; None if there is none."""
    value: object = scenario
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def last_metric(run: Run, metric: str) -> float:
    """A metric of the last evaluation; ``eligible`` is the share of clients that were eligible at least once.

    Raises RunError if the run has no such metric.
    """
    if metric == "eligible":
        eligible = defaultdict[int, bool](bool)
        for verdict in run.read(EligibleColumn):
            eligible[verdict.client] |= verdict.eligible
        return fmean(map(float, eligible.values()))
    result = run.read_file(FinalSummary)
    value = None if result is None else metric_value(result.metrics, metric)
    if value is None:
        raise RunError(f"the run at {run.path} has no value of {metric}, which its ordering is about")
    return value


# --- as a record ---------------------------------------------------------------------------------------------------


def ordering_of_study(table: SeedScores) -> Ordering:
    """The means of a study's variants and the verdicts on what is claimed."""
    study, there = table.study, set(table.variants)
    claims = []
    for claim in study.claims if table.seeds else ():
        for worse, better in zip(claim.order, claim.order[1:], strict=False):
            if {part for term in (worse, better) for part in term.split(" - ")} <= there:
                verdict = judge(table.seed_values(worse, claim.metric), table.seed_values(better, claim.metric))
                claims.append(_claim(worse, better, claim.metric, verdict))
    not_run = [variant for variant in study.variants if variant not in there]
    return _ordering(study.title, table.values, table.variants, study.metrics, table.seeds, claims, not_run)


def ordering_of_rows(title: str, values: Values, metrics: Sequence[str]) -> Ordering:
    """The means of a comparison's rows and the verdict on each pair, the row with the better mean as the better one.

    ``values`` has for each row and metric the value by seed; only seeds that every row has are compared, and only
    metrics that every row has for all of them.
    """
    rows = list(values)
    seeds = sorted(set.intersection(*({s for of in values[row].values() for s in of} for row in rows)))
    common = [m for m in metrics if all(seed in values[row].get(m, {}) for row in rows for seed in seeds)]
    claims = []
    for metric in common if seeds else ():
        for pair in combinations(rows, 2):
            sign = -1.0 if lower_is_better(metric) else 1.0  # a gap above 0 is one by which the better row is ahead
            columns = {row: [sign * values[row][metric][seed] for seed in seeds] for row in pair}
            worse, better = sorted(pair, key=lambda row: fmean(columns[row]))
            claims.append(_claim(worse, better, metric, judge(columns[worse], columns[better])))
    return _ordering(title, values, rows, common, seeds, claims, [])


def _claim(worse: str, better: str, metric: str, verdict: PairVerdict) -> OrderingClaim:
    gap = verdict.gap
    return OrderingClaim(
        worse=worse,
        better=better,
        metric=metric,
        gap=gap.mean,
        gap_deviation=gap.deviation,
        low=gap.student.low if gap.student else None,
        high=gap.student.high if gap.student else None,
        detectable=gap.detectable,
        seeds_needed=None if gap.deviation is None else seeds_needed(gap.mean, gap.deviation),
        ahead=verdict.ahead,
        seeds=gap.seeds,
        verdict=verdict.word,
    )


def deviation(values: Sequence[float]) -> float:
    """Standard deviation of a sample; 0 for a single value."""
    return stdev(values) if len(values) > 1 else 0.0


def _ordering(
    title: str, values: Values, rows: Sequence[str], metrics: Sequence[str], seeds: Sequence[int],
    claims: list[OrderingClaim], not_run: list[str],
) -> Ordering:  # fmt: skip
    means = []
    for row in rows if seeds else ():
        columns = {metric: [values[row][metric][seed] for seed in seeds] for metric in metrics}
        figures = {metric: OrderingFigure(mean=fmean(c), deviation=deviation(c)) for metric, c in columns.items()}
        means.append(OrderingRow(label=row, figures=figures))
    return Ordering(title=title, seeds=list(seeds), metrics=list(metrics), rows=means, claims=claims, not_run=not_run)
