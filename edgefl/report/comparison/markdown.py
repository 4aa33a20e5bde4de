"""Orderings as Markdown: means of the rows, and a verdict on each pair."""

from __future__ import annotations

from collections.abc import Iterable

from edgefl.records.compare import Ordering, OrderingFigure


def orderings_markdown(orderings: Iterable[Ordering]) -> str:
    """The ``orderings`` of a comparison as Markdown: a section each."""
    return "".join(f"### {ordering.title}\n\n" + "\n".join(_lines(ordering)) + "\n\n" for ordering in orderings)


def _lines(ordering: Ordering) -> list[str]:
    seeds, metrics = ordering.seeds, ordering.metrics
    if not seeds:
        return ["no seed has a finished run of every variant yet"]
    lines = [
        f"Mean ± standard deviation over seeds {', '.join(map(str, seeds))}.",
        "",
        f"| variant | {' | '.join(metrics)} |",
        f"| --- |{' --- |' * len(metrics)}",
    ]
    for row in ordering.rows:
        cells = [row.figures[metric] for metric in metrics]
        lines.append(f"| {row.label} | {' | '.join(map(_mean, cells))} |")
    lines += ["", "| claimed | metric | gap | spread | seeds | verdict |", "| --- | --- | --- | --- | --- | --- |"]
    for claim in ordering.claims:
        lines.append(
            f"| {claim.worse} < {claim.better} | {claim.metric} | "
            f"{claim.gap:+.3f} ± {claim.gap_deviation:.3f} | {claim.spread:.3f} | "
            f"{claim.ahead} of {claim.seeds} | {claim.verdict} |"
        )
    if ordering.not_run:
        lines += ["", f"Not run: {', '.join(ordering.not_run)}."]
    return lines


def _mean(cell: OrderingFigure) -> str:
    return f"{cell.mean:.3f} ± {cell.deviation:.3f}"
