"""The matrix that a report opens with: what each run lets in, costs and learns, for all clients and for each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from edgefl.drawing.charts import Records
from edgefl.drawing.charts.curves import main_metrics
from edgefl.drawing.text_tables import DIVERGED, NOTHING, scale_of, title_of
from edgefl.records.metrics import lower_is_better
from edgefl.records.record import UNSET
from edgefl.records.summary import CostRow, Participation, RunSummary, SeedFigure
from edgefl.results.facts import compared_split, fitting, hardest, peak_of, rivals_of
from edgefl.results.spread import SeedSpread, spread_words, with_confidence

Groups = Mapping[str, Sequence[Records]]
"""Runs that have played a round, by label; those of a group differ in their seeds only."""

ALL = ""
"""Stands for all clients among the kinds."""


@dataclass(frozen=True)
class MatrixColumn:
    """A column: its title, its unit (the end of a name such as ``bytes``), and the figure of a run for a kind."""

    title: str
    unit: str
    of: Callable[[RunSummary, str], float | None]
    higher: bool = False
    """Whether the best figure is the highest; else it is the lowest."""


@dataclass(frozen=True)
class MatrixSection:
    """All clients or those of a kind: what its figures are of, and a row for each group, a figure for each column."""

    kind: str
    about: str
    columns: Sequence[MatrixColumn]
    figures: Sequence[Sequence[SeedFigure]]
    """By column, then by group."""
    texts: Sequence[Sequence[str]]
    """The figures as text with units, likewise."""

    @property
    def rows(self) -> list[list[tuple[str, bool]]]:
        """By group: the cells as text, and whether each is the best."""
        best = [[figure.best for figure in of] for of in self.figures]
        return [list(zip(*row, strict=True)) for row in zip(zip(*self.texts, strict=True), zip(*best, strict=True),
                                                            strict=True)]  # fmt: skip


@dataclass(frozen=True)
class Matrix:
    """Runs by kind."""

    labels: Sequence[str]
    parts: Sequence[MatrixSection]
    notes: Sequence[str]

    @property
    def titles(self) -> list[str]:
        """The columns' titles."""
        return [column.title for column in self.parts[0].columns]


def matrix_of(groups: Groups) -> Matrix:
    """The matrix of these runs, one or more."""
    everyone = [run for runs in groups.values() for run in runs]
    metrics, split = main_metrics(everyone), compared_split([run.facts for run in everyone])
    confidence = with_confidence([SeedSpread((0.0,) * len(runs)) for runs in groups.values()])
    parts = []
    for kind in (ALL, *dict.fromkeys(kind for run in everyone for kind in run.kinds)):
        columns = [COLUMNS[0], *([_metric(metrics.get(kind, ""), split)] if metrics else []), *COLUMNS[1:]]
        figures = [_figures(groups, kind, column) for column in columns]
        texts = [_texts(groups, kind, *each, confidence=confidence) for each in zip(columns, figures, strict=True)]
        parts.append(MatrixSection(kind, _about(kind, metrics, everyone, split), columns, figures, texts))
    return Matrix(list(groups), parts, _notes(groups, parts, confidence=confidence))


# --- the columns -----------------------------------------------------------------------------------------------------


def eligible(facts: RunSummary, kind: str) -> float | None:
    """Clients that fit in the stage that admits fewest of them."""
    if not kind:
        return float(fitting(stage)[0]) if (stage := hardest(facts)) else None
    return min((float(stage.kinds[kind].eligible) for stage in facts.stages if kind in stage.kinds), default=None)


def of_clients(facts: RunSummary, kind: str) -> Participation | None:
    """The participation of a kind, or of all; None for a kind that a run doesn't have."""
    return facts.kinds.get(kind) if kind else facts.everyone


def _took_part(facts: RunSummary, kind: str) -> float | None:
    return None if (clients := of_clients(facts, kind)) is None else float(clients.took_part)


def _peak(facts: RunSummary, kind: str) -> float | None:
    return float(max((peak_of(facts, each) for each in ([kind] if kind else facts.kinds)), default=0)) or None


def _of_a_round(facts: RunSummary, kind: str, cost: Callable[[CostRow], float | None]) -> float | None:
    """The mean over the rounds of a kind's clients in all stages."""
    rows = [(row.client_rounds, value) for row in facts.costs if row.kind == kind and (value := cost(row)) is not None]
    flights = sum(n for n, _ in rows)
    return sum(n * value for n, value in rows) / flights if flights else None


def _traffic(facts: RunSummary, kind: str) -> float | None:
    if not kind:
        return float(facts.totals.carried_bytes)
    return _of_a_round(facts, kind, lambda row: (row.carried_download_bytes or 0.0) + (row.carried_upload_bytes or 0.0))


def _time(facts: RunSummary, kind: str) -> float | None:
    return _of_a_round(facts, kind, lambda row: row.virtual_seconds) if kind else facts.virtual_seconds


def _energy(facts: RunSummary, kind: str) -> float | None:
    return _of_a_round(facts, kind, lambda row: row.energy_joules) if kind else facts.totals.energy_joules


COLUMNS = (
    MatrixColumn("eligible", "clients", eligible, higher=True),
    MatrixColumn("peak memory", "bytes", _peak),
    MatrixColumn("traffic", "bytes", _traffic),
    MatrixColumn("time", "seconds", _time),
    MatrixColumn("energy", "joules", _energy),
    MatrixColumn("took part", "clients", _took_part, higher=True),
)


def _metric(name: str, split: str) -> MatrixColumn:
    return MatrixColumn(
        "metric", "", lambda facts, kind: facts.metrics_on(split).get(kind, {}).get(name),
        higher=not lower_is_better(name),
    )  # fmt: skip


def rivals_among(groups: Groups) -> list[str | None]:
    """For each group what its rivals have in common; None where nobody trained."""
    return [rivals_of((run.settings, run.facts) for run in runs) for runs in groups.values()]


def _figures(groups: Groups, kind: str, column: MatrixColumn) -> list[SeedFigure]:
    """A figure for each group; the best is marked where several have two seeds or more."""
    spreads = [SeedSpread(tuple(column.of(run.facts, kind) for run in runs)) for runs in groups.values()]
    if len(groups) > 1 and max(map(len, groups.values())) > 1:
        from edgefl.results.paired import figures_of  # its libraries take longer to import than a page to write

        seeds = [[run.settings.seed for run in runs] for runs in groups.values()]
        return figures_of(seeds, spreads, rivals_among(groups), higher=column.higher)
    return [
        SeedFigure(mean=spread.mean, deviation=spread.deviation, half_width=spread.half_width,
                   values=list(spread.values), diverged=spread.diverged, best=False)
        for spread in spreads
    ]  # fmt: skip


# --- as text ---------------------------------------------------------------------------------------------------------


def _texts(
    groups: Groups, kind: str, column: MatrixColumn, figures: Sequence[SeedFigure], *, confidence: bool
) -> list[str]:
    reaches = [(figure.half_width if confidence else figure.deviation) or 0.0 for figure in figures]
    factor, unit, decimals = 1.0, "", 3
    if column.unit == "clients":
        decimals = 1 if any(reaches) else 0
    elif column.unit:
        largest = max((figure.mean for figure in figures if figure.mean is not None), default=0.0)
        factor, unit, decimals = scale_of(f"_{column.unit}", largest)
    texts = []
    for runs, figure, reach in zip(groups.values(), figures, reaches, strict=True):
        if figure.mean is None:
            texts.append(DIVERGED if not column.unit and any(kind in run.facts.metrics for run in runs) else NOTHING)
            continue
        text = f"{figure.mean / factor:,.{decimals}f}"
        text += f" ± {reach / factor:,.{decimals}f}" if any(reaches) else ""
        if column.unit == "clients":
            clients = [of.clients for run in runs if (of := of_clients(run.facts, kind)) is not None]
            text += f" of {fmean(clients):,.0f}"
        texts.append(f"{text} {unit}".rstrip())
    return texts


def _about(kind: str, metrics: Mapping[str, str], runs: Sequence[Records], split: str) -> str:
    """What the costs and the metric of a part are."""
    if not kind:
        return "costs of the whole run"
    words = "mean costs of a client's round"
    if metric := metrics.get(kind):
        chance = runs[0].chance.get(split, {}).get(kind, {}).get(metric)
        by = f", chance {chance:.3g}" if chance is not None else ""
        best = runs[0].facts.best_of_last
        words += f"; {title_of(metric)} on the {split} split{by}"
        words += "" if best is UNSET else f", best of the last {best} rounds"
    return words


def _notes(groups: Groups, parts: Sequence[MatrixSection], *, confidence: bool) -> list[str]:
    notes = [
        "Eligible: fits all budgets in the hardest stage. Peak memory: of the largest client that was asked, fit or "
        "not, in tensors and kernels' scratch; a process takes its runtime beside it (edgefl profile says how much)."
    ]
    if max(map(len, groups.values())) > 1:
        notes.append(f"Means ± {spread_words(confidence=confidence)} over the seeds.")
    if any(figure.best for part in parts for of in part.figures for figure in of):
        among = " of its budgets" if len({*rivals_among(groups)} - {None}) > 1 else ""
        notes.append(f"A star: the best, ahead of each other run{among} beyond chance (paired over shared seeds, 5 %).")
    return notes
