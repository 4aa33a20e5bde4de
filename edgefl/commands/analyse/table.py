"""Results of ``edgefl analyse`` as tables and as a figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from rich.console import Console
from rich.text import Text

from edgefl.commands.analyse.answer import (
    Analysis,
    CompletionRecord,
    Drift,
    FeatureDistance,
    Gaps,
    Gradients,
    MatchingRow,
    OfPart,
    Shapley,
    ShardOfAnalysis,
)
from edgefl.commands.analyse.chart import complete_pattern, metric_words
from edgefl.drawing.text_tables import NOTHING, new_table, or_dash, print_section, screen

R = TypeVar("R", bound=OfPart)

MEASURES = {"shapley": "Shapley", "lost": "lost", "alone": "alone"}


def _number(value: float) -> str:
    """Three significant digits; from 1000 on a whole number."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _share(value: float) -> str:
    return f"{value:.2f}"


def _angle(value: float) -> str:
    return f"{value:+.2f}" if round(abs(value), 2) else "0.00"


def _format_signed(value: float, spread: float | None) -> str:
    # a value that is rounded to 0 is shown without a sign
    text = f"{value:+.3f}" if round(abs(value), 3) else "0.000"
    return text if spread is None else f"{text} ±{spread:.3f}"


def print_analysis(result: Analysis | ShardOfAnalysis, console: Console | None = None) -> None:
    """Print the answer of ``edgefl analyse``: a table for each analysis, and the reason for each that was skipped.

    Of a shard that doesn't find all runs finished there is no table.
    """
    if isinstance(result, ShardOfAnalysis):
        return
    console = console or screen()
    console.print(Text(f"=== {result.scenario}, {result.method} ===", style="bold"))
    if result.run is not None:
        console.print(Text(f"the run at {result.run}\n"), soft_wrap=True)
    if result.shapley:
        _print_values(console, result.shapley)
    if result.gradients:
        _print_gradients(console, result.gradients)
    if result.drift:
        _print_drift(console, result.drift)
    if result.matching:
        _print_matching(console, result.matching)
    if result.gaps:
        _print_gaps(console, result.gaps)
    if result.embeddings:
        title = f"Distances of models ({result.embeddings.split} samples)"
        note = "Norm of the difference of the mean features of the same samples, which have unit length."
        _print_distances(console, title, result.embeddings.distances, note)
    if result.landscape:
        table = new_table("kind", "samples", "loss", "eigenvalues", "")
        for kind in result.landscape.kinds:
            table.add_row(kind.kind, f"{kind.samples:,}", f"{kind.loss:.3f}", *map(_number, kind.eigenvalues))
        print_section(console, "Loss on training samples, and the two largest curvatures", table, "Of the Hessian.")
        _print_distances(console, "Distances of sets of samples", result.landscape.distances, "Of mean features.")
    for name, reason in result.skipped.items():
        console.print(Text(f"no {name}: {reason}"))


def _print_values(console: Console, result: Shapley) -> None:
    players = result.players
    everybody, *_, least = result.rows[0].values if result.rows else ("everybody", "nobody")
    table = new_table("metric", least, everybody, "", *players, left=(0, 3))
    for row in result.rows:
        ends = [f"{row.values[name]:.3f}" for name in (least, everybody)]
        for index, (name, title) in enumerate(MEASURES.items()):
            head = [metric_words(row), *ends] if index == 0 else ["", "", ""]
            values = (row.players[player] for player in players)
            table.add_row(
                *head, title, *(_format_signed(getattr(value, name), getattr(value, f"{name}_std")) for value in values)
            )
    seeds, none = len(result.seeds), least == "nobody"
    print_section(
        console, f"Contribution of each client kind to the metrics ({result.split} split)", table,
        f"everybody: all kinds take part.  {least}: {'no client takes' if none else 'only these take'} part.\n"
        f"Shapley: mean gain by a kind over all orders of joining; the values add up to everybody - {least}.\n"
        f"lost: everybody - all other kinds.  alone: the kind {'by itself' if none else 'beside these'} - {least}."
        + (f"\nMeans and standard deviations of {seeds} seeds." if seeds > 1 else ""),
    )  # fmt: skip


def _by_part(
    rows: Sequence[R], column: Callable[[R], str], show: Callable[[R], str]
) -> tuple[list[str], dict[tuple[str, str], dict[str, str]]]:
    """The columns, and the cells of each line, ``{(tower, part): {column: text}}``; lines are grouped by tower."""
    columns = list(dict.fromkeys(map(column, rows)))
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        lines.setdefault((row.tower, row.part), {})[column(row)] = show(row)
    return columns, dict(
        sorted(lines.items(), key=lambda line: list(dict.fromkeys(r.tower for r in rows)).index(line[0][0]))
    )


def _print_parts(
    console: Console, title: str, rows: Sequence[R], column: Callable[[R], str], show: Callable[[R], str],
    note: str,
) -> None:  # fmt: skip
    columns, lines = _by_part(rows, column, show)
    table = new_table("tower", "part", *columns, left=(0, 1))
    last = None
    for (tower, part), cells in lines.items():
        table.add_row(tower if tower != last else "", part, *(cells.get(name, NOTHING) for name in columns))
        last = tower
    print_section(console, title, table, note)


def _print_gradients(console: Console, result: Gradients) -> None:
    count = max((row.clients for row in result.rows), default=0)
    _print_parts(
        console, "Gradient norm (and its ratio to the norm of the weights)", result.rows, lambda row: row.kind,
        lambda row: f"{_number(row.norm)} ({or_dash(_number, row.relative)})",
        f"Norm of the mean gradient of a local epoch at the final weights, averaged over up to {count} clients.",
    )  # fmt: skip
    if result.stages:
        _print_parts(
            console, "Gradient of the attention output at each stage (and its ratio to the last block's)",
            [replace(row, part=f"{row.part}, stage {row.stage}") for row in result.stages], lambda row: row.kind,
            lambda row: f"{_number(row.norm)} ({or_dash(_number, row.relative)})",
            "Mean norm over the updates of a stage's last round, and over its clients.",
        )  # fmt: skip


def _print_drift(console: Console, result: Drift) -> None:
    count = max((row.clients for row in result.within), default=0)
    _print_parts(
        console, "Agreement of the clients of a kind: consistency (and relative size of updates)", result.within,
        lambda row: row.kind,
        lambda row: f"{or_dash(_share, row.consistency)} ({or_dash(_number, row.moved)})",
        "Consistency: norm of the mean update over the mean norm of updates; 1 if all updates are parallel, "
        "1/sqrt(clients) if they are independent.  In brackets: norm of an update over that of the weights.  "
        f"Updates are those of the last round's work, of up to {count} clients of a kind.",
    )  # fmt: skip
    if result.between:
        _print_parts(
            console, "Agreement between kinds: cosine of mean updates (and distance of models)", result.between,
            lambda row: " and\n".join(row.kinds),
            lambda row: f"{or_dash(_angle, row.cosine)} ({or_dash(_number, row.distance)})",
            "Distance: norm of the difference of the two global models over the mean of their norms.",
        )  # fmt: skip


def _print_matching(console: Console, result: CompletionRecord) -> None:
    ranks = list(result.rows[0].matched) if result.rows else []
    table = new_table("kind", "samples with", "completed by", *(f"top {k}" for k in ranks), "accuracy", left=range(3))
    last: tuple[str, str] = ("", "")
    rows = sorted(result.rows, key=lambda row: _first_index(result.rows, row))
    for row in rows:
        method = f"{row.inference} (the run's)" if row.own else row.inference
        if row.pattern == complete_pattern(row):  # the inference method doesn't change complete samples
            if not row.own:
                continue
            method = NOTHING
        head = (row.kind, row.pattern)
        table.add_row(
            row.kind if head[0] != last[0] else "", row.pattern if head != last else "", method,
            *(or_dash("{:.3f}".format, row.matched[k]) for k in ranks), f"{row.accuracy:.3f}",
        )  # fmt: skip
        last = head
    print_section(
        console, f"Matching on the {result.split} split: how often the true class is among the best k", table,
        "zero: zeros for the missing modality; oracle: the prototype of the true class, an upper bound.",
    )  # fmt: skip


def _first_index(rows: Sequence[MatchingRow], row: MatchingRow) -> int:
    """The index of the first row with the same kind and pattern."""
    return next(i for i, r in enumerate(rows) if (r.kind, r.pattern) == (row.kind, row.pattern))


def _print_distances(console: Console, title: str, rows: Sequence[FeatureDistance], note: str) -> None:
    table = new_table("features", "of", "and of", "distance", left=range(3))
    for row in rows:
        table.add_row(row.space, *row.of, _number(row.distance))
    print_section(console, title, table, note)


def _print_gaps(console: Console, result: Gaps) -> None:
    table = new_table("modality", "set", "samples", "of pairs", "gap", left=(0, 1))
    for row in result.rows:
        table.add_row(row.modality, row.set, f"{row.samples:,}", f"{row.pair_samples:,}", _number(row.gap))
    table.add_row("all", "", "", "", _number(result.total))
    note = "Gap: norm of the difference of mean CLIP features, which aren't normalised."
    print_section(console, "Gap between the sets of one modality and the pairs", table, note)
