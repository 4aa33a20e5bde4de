"""A comparison of runs as tables: a row for each method, schedule or whatever differs, with the spread over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgefl import units
from edgefl.commands.compare.answer import (
    ComparedRuns,
    EqualCosts,
    EqualRow,
    Ordering,
    OrderingClaim,
    RealDevice,
    SeedGroupRow,
)
from edgefl.drawing.text_tables import (
    DIVERGED,
    NOTHING,
    TITLES,
    csv_text,
    field_formatter,
    new_table,
    plain_markdown,
    print_section,
    print_table,
    scale_of,
    screen,
    title_of,
)
from edgefl.records.metrics import MEAN, METRICS, own_metrics
from edgefl.records.summary import SeedFigure
from edgefl.results.equal_costs import AXES
from edgefl.results.spread import spread_words

COSTS = {
    "eligible_share": "eligible",
    "peak_memory_bytes": "peak memory",
    "bytes": "traffic",
    "virtual_seconds": "virtual time",
    "energy_joules": "energy",
}
"""Costs that are shown without ``full``, and their titles."""
MORE_COSTS = {
    "eligible_share_ever": "ever eligible",
    "took_part_share": "took part",
    "updates": "updates",
    "flops": "computation",
}
LABEL_WIDTH = 36
"""Columns for labels, a third of a screen; longer ones are wrapped between words."""


@dataclass(frozen=True)
class ComparisonColumn:
    """A column of figures: its title (lines), a cell for each row, and whether more is better."""

    title: str
    cells: Sequence[SeedFigure]
    factor: float
    decimals: int

    def texts(self, *, confidence: bool) -> list[str]:
        """The cells as text; the best one ends in ``*``."""
        reaches = [cell.half_width if confidence else cell.deviation for cell in self.cells]
        marked = any(cell.best for cell in self.cells)
        spread = any(reaches)
        return [
            self._text(cell, reach if spread else None, marked) for cell, reach in zip(self.cells, reaches, strict=True)
        ]

    def _text(self, cell: SeedFigure, reach: float | None, marked: bool) -> str:
        mark = ("*" if cell.best else " ") if marked else ""
        if cell.mean is None:
            return (DIVERGED if cell.diverged else NOTHING) + mark
        text = f"{cell.mean / self.factor:.{self.decimals}f}"
        if reach is not None:
            text += f" ± {reach / self.factor:.{self.decimals}f}"
        return text + mark


def print_comparison(
    result: ComparedRuns, *, full: bool = False, equal: bool = True, console: Console | None = None
) -> None:
    """Print the result of ``edgefl.compare``: a row for each group of runs that differ in their seeds only.

    ``full`` adds the other metrics and costs.  ``equal`` adds the metrics at equal time, bytes and joules.
    """
    console = console or screen()
    rows, confidence = result.rows, result.spread != "standard deviation"
    labels = labels_of(rows)
    console.print(Text(heading_of(rows, confidence=confidence), style="bold"))
    metrics = shown_metrics(result.metrics, full=full)
    columns = columns_of(result, full=full)
    _print_blocks(console, labels, columns, confidence)
    for line in _notes(result, columns):
        console.print(Text(line))
    _print_standings(console, result.standings, metrics)
    console.print()
    for simulated in dict.fromkeys(row.simulated for row in result.real_devices):
        rows_of = [row for row in result.real_devices if row.simulated == simulated]
        print_section(console, f"On real devices, predicted ({simulated}) / measured", _real_devices(rows_of))
    if equal and len(rows) > 1:
        for part in result.equal:
            _print_equal(console, result, part, labels, metrics, confidence)


def _real_devices(rows: Sequence[RealDevice]) -> Table:
    table = new_table("device", "kind", "stage", "tasks", "computing", "transfer", "start-up", "peak", left=(0, 1))
    for row in rows:
        peak = "-" if row.measured_peak_memory_bytes is None else units.show_bytes(row.measured_peak_memory_bytes)
        table.add_row(
            row.device, row.kind, str(row.stage), str(row.tasks),
            f"{units.show_seconds(row.predicted_compute_seconds)} / {units.show_seconds(row.compute_seconds)}",
            f"{units.show_seconds(row.predicted_transfer_seconds)} / {units.show_seconds(row.transfer_seconds)}",
            units.show_seconds(row.start_up_seconds), f"{units.show_bytes(row.peak_memory_bytes)} / {peak}",
        )  # fmt: skip
    return table


def columns_of(result: ComparedRuns, *, full: bool) -> list[ComparisonColumn]:
    """The columns of the table of all rows."""
    metrics = shown_metrics(result.metrics, full=full)
    costs = COSTS | (MORE_COSTS if full else {})
    return [
        *(_metric_column(result.rows, metric, result.split, result.chance.get(metric)) for metric in metrics),
        *(_cost_column(result.rows, name, title) for name, title in costs.items()),
    ]


def shown_metrics(metrics: Sequence[str], *, full: bool) -> list[str]:
    """The metrics that a table shows, of those that the runs have: without ``full`` one or two for each kind.

    Means over kinds are among these where all kinds have the metric.
    """
    kinds = {metric.partition(".")[0] for metric in metrics} - {MEAN}
    headline = [
        metric for metric in metrics for kind, _, name in [metric.partition(".")]
        if ((name in METRICS and METRICS[name].is_headline) or own_metrics([name]))
        and (kind != MEAN or all(f"{each}.{name}" in metrics for each in kinds))
    ]  # fmt: skip
    return list(metrics) if full or not headline else headline


def heading_of(rows: Sequence[SeedGroupRow], *, confidence: bool) -> str:
    """What is compared, over which seeds, and what the spread is."""
    seeds = [row.seeds for row in rows]
    if max(map(len, seeds)) == 1:
        return (
            f"Comparison of runs with {_seeds(seeds[0])}"
            if _has_same_seeds(seeds)
            else "Comparison of runs with one seed each"
        )
    over = _seeds(seeds[0]) if _has_same_seeds(seeds) else "the seeds of each row"
    return f"Comparison: mean ± {spread_words(confidence=confidence)} over {over}"


def _has_same_seeds(seeds: Sequence[Sequence[int]]) -> bool:
    return all(sorted(each) == sorted(seeds[0]) for each in seeds)


def _seeds(seeds: Sequence[int], most: int = 8) -> str:
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"seeds {', '.join(map(str, seeds))}" if len(seeds) <= most else f"{len(seeds)} seeds"


def labels_of(rows: Sequence[SeedGroupRow]) -> list[str]:
    """The rows' labels, with their seeds where rows have different ones."""
    if _has_same_seeds([row.seeds for row in rows]):
        return [row.label for row in rows]
    return [f"{row.label} ({_seeds(row.seeds, 4)})" for row in rows]


def _metric_column(
    rows: Sequence[SeedGroupRow] | Sequence[EqualRow], metric: str, split: str, chance: float | None
) -> ComparisonColumn:
    kind, name = metric.split(".", 1)
    base, bracket, pattern = name.partition("[")
    title = f"{kind}{bracket}{pattern}\n{TITLES.get(base, base)}, {split}"
    if chance is not None:
        title += f"\n(chance {chance:.3f})"
    return ComparisonColumn(title, [row.figures[metric] for row in rows], 1.0, 3)


def _cost_column(rows: Sequence[SeedGroupRow], name: str, title: str) -> ComparisonColumn:
    cells = [row.figures[name] for row in rows]
    factor, unit, decimals = scale_of(name, max((cell.mean or 0.0 for cell in cells), default=0.0))
    return ComparisonColumn(f"{title}\n{unit}" if unit else title, cells, factor, decimals)


def _print_blocks(
    console: Console, labels: Sequence[str], columns: Sequence[ComparisonColumn], confidence: bool
) -> None:
    """Print the columns as one table; what doesn't fit into the width goes into further tables below it."""
    texts = [column.texts(confidence=confidence) for column in columns]
    first = min(max(map(len, labels)), LABEL_WIDTH)
    widths = [max(map(len, [*c.title.split("\n"), *cells])) + 2 for c, cells in zip(columns, texts, strict=True)]
    start = 0
    while start < len(columns):
        end, width = start, first
        while end < len(columns) and (end == start or width + widths[end] <= console.width):
            width += widths[end]
            end += 1
        table = new_table("", *(column.title for column in columns[start:end]))
        table.columns[0].max_width = first
        for column in table.columns[1:]:
            column.no_wrap = True
        for index, label in enumerate(labels):
            table.add_row(label, *(cells[index] for cells in texts[start:end]))
        print_table(console, table)
        start = end


def _notes(result: ComparedRuns, columns: Sequence[ComparisonColumn]) -> list[str]:
    rows, notes = result.rows, []
    if any(cell.best for column in columns for cell in column.cells):
        notes.append(f"*: the best, {best_words(rows)}")
    elif len(rows) > 1 and len(set.intersection(*(set(row.seeds) for row in rows))) < 2:
        notes.append("rows that share fewer than two seeds can't be paired, so no best is marked")
    notes.append(f"metrics: {result.reported}; costs: all clients together, whole run")
    if result.also_differ:
        notes.append(f"the rows differ in these fields too: {', '.join(result.also_differ)}")
    notes += [*result.stopped, *result.privacy]
    return notes


def best_words(rows: Sequence[SeedGroupRow]) -> str:
    """What a star and bold stand for."""
    among = (
        " of its budgets" if any(path.startswith(("fleet.budgets.", "round.deadline")) for path in rows[0].sets) else ""
    )
    return f"ahead of each other row{among} beyond chance (paired over shared seeds, 5 %)"


def _print_equal(
    console: Console,
    result: ComparedRuns,
    part: EqualCosts,
    labels: Sequence[str],
    metrics: Sequence[str],
    confidence: bool,
) -> None:
    """Print the metrics at the largest budget of one axis that all runs reached."""
    noun, show = AXES[part.axis], field_formatter(part.axis)
    trained = "" if all(0 not in row.figures["updates"].values for row in result.rows) else " in which anybody trained"
    title = f"At equal {noun}: {show(part.budget)}, the most that all runs{trained} reached"
    rows = part.rows
    figures = [row.figures[metric] for row in rows for metric in metrics]
    if all(cell.mean is None for cell in figures):
        console.print(Text(f"{title}: not every run was evaluated by then (evaluation.every)\n"))
        return
    if [row.figures for row in rows] == [{m: r.figures[m] for m in row.figures}
                                            for r, row in zip(result.rows, rows, strict=True)]:  # fmt: skip
        console.print(Text(f"{title}: as above\n"))
        return
    console.print(Text(title, style="bold"))
    columns = [_metric_column(rows, metric, part.split, part.chance.get(metric)) for metric in metrics]
    _print_blocks(console, labels, columns, confidence)
    console.print(Text(f"{part.split} split; the last evaluation within the budget (a step function)"))
    _print_standings(console, part.standings, metrics)
    console.print()


def _print_standings(console: Console, standings: Mapping[str, str], metrics: Sequence[str]) -> None:
    """Print who is behind whom, a line for each of these metrics."""
    for kind, name in (metric.split(".", 1) for metric in metrics):
        if words := standings[f"{kind}.{name}"]:
            console.print(Text(f"{kind} {title_of(name)}: {words}"))


# --- CSV -------------------------------------------------------------------------------------------------------------


def comparison_csv(result: ComparedRuns) -> str:
    """A line for each row: its label, fields and seeds, figures, and metrics at equal budgets (``at_AXIS.METRIC``)."""
    lines = []
    for index, row in enumerate(result.rows):
        line: dict[str, object] = {"label": row.label, **row.sets, "seeds": " ".join(map(str, row.seeds))}
        line |= {"split": result.split, **_cells("", row.figures)}
        for part in result.equal:
            line |= {f"at_{part.axis}.budget": part.budget, f"at_{part.axis}.split": part.split}
            line |= _cells(f"at_{part.axis}.", part.rows[index].figures)
        lines.append(line)
    return csv_text(lines)


def _cells(prefix: str, figures: Mapping[str, SeedFigure]) -> dict[str, object]:
    return {
        f"{prefix}{name}.{part}": getattr(cell, part)
        for name, cell in figures.items()
        for part in ("mean", "deviation", "half_width", "best")
    }


# --- orderings -------------------------------------------------------------------------------------------------------


def comparison_orderings(result: ComparedRuns) -> str:
    """Which row beats which beyond chance, as Markdown."""
    return orderings_markdown(result.orderings, result.split) or "one row alone has no order\n"


def orderings_markdown(orderings: Iterable[Ordering], split: str) -> str:
    """The ``orderings`` of a comparison, whose metrics are on ``split``, as Markdown: a section each."""
    return "".join(
        f"### {plain_markdown(each.title)}\n\n" + "\n".join(_markdown(each, split)) + "\n\n" for each in orderings
    )


def _markdown(ordering: Ordering, split: str) -> list[str]:
    seeds, metrics = ordering.seeds, ordering.metrics
    if not seeds:
        return ["no seed has a finished run of every variant yet"]
    lines = [
        f"Mean ± standard deviation over seeds {', '.join(map(str, seeds))}, {split} split.",
        "",
        f"| variant | {' | '.join(map(plain_markdown, metrics))} |",
        f"| --- |{' --- |' * len(metrics)}",
    ]
    for row in ordering.rows:
        means = (row.figures[metric] for metric in metrics)
        cells = [f"{cell.mean:.3f} ± {cell.deviation:.3f}" for cell in means]
        lines.append(f"| {plain_markdown(row.label)} | {' | '.join(cells)} |")
    lines += ["", f"| {' | '.join(CLAIM_HEADER)} |", f"|{' --- |' * len(CLAIM_HEADER)}"]
    for claim in ordering.claims:
        names = (f"{plain_markdown(claim.worse)} < {plain_markdown(claim.better)}", plain_markdown(claim.metric))
        lines.append(f"| {' | '.join((*names, *claim_cells(claim)))} |")
    return lines


CLAIM_HEADER = ("claimed", "metric", "gap", "95 % interval", "detectable", "seeds", "seeds for 80 %", "verdict")


def claim_cells(claim: OrderingClaim) -> tuple[str, ...]:
    """The figures of a claim as text, below CLAIM_HEADER from ``gap`` on."""
    seeds, needed = f"{claim.ahead} of {claim.seeds}", claim.seeds_needed
    if claim.gap_deviation is None or claim.low is None or claim.high is None or claim.detectable is None:
        return f"{claim.gap:+.3f}", NOTHING, NOTHING, seeds, NOTHING, claim.verdict
    return (
        f"{claim.gap:+.3f} ± {claim.gap_deviation:.3f}",
        f"{claim.low:+.3f} to {claim.high:+.3f}",
        f"{claim.detectable:.3f}",
        seeds,
        f"{needed:,}" if needed else "> 10,000" if claim.gap else NOTHING,
        claim.verdict,
    )
