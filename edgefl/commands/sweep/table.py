"""Results of ``edgefl sweep`` as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from edgefl import units
from edgefl.commands.sweep.answer import (
    CellHead,
    CellRow,
    Change,
    Frontier,
    MethodFrontier,
    Sensitivity,
    Sweep,
)
from edgefl.commands.sweep.devices_table import devices_markdown, markdown_table, print_devices
from edgefl.commands.sweep.frontiers import AGAINST
from edgefl.commands.sweep.stored_rows import cells_csv
from edgefl.drawing.text_tables import (
    DIVERGED,
    NOTHING,
    csv_text,
    field_formatter,
    flat,
    new_table,
    or_dash,
    percent,
    print_bounds,
    print_section,
    refusals,
    score,
    screen,
    show_rounds,
    title_of,
)
from edgefl.records.eligibility import LostData
from edgefl.records.metrics import shown_metrics
from edgefl.records.record import UNSET

LONG_LABEL = 14
"""Labels with more characters than this are broken at their commas."""
WIDEST_LABEL = 24
"""Lines of labels with up to this many characters aren't wrapped."""
MOST_NAMED = 3
"""Names in a list; further names are only counted."""
MOST_LISTED = 12
"""Entries of a table that may become very long; further entries are only counted."""
IN_WORDS = {
    "schedule_bytes": "traffic of the schedule",
    "schedule_seconds": "time of the schedule",
    "schedule_energy_joules": "energy of the schedule",
    "eligible_share": "eligible share",
    "round_seconds": "time of a round",
}


def print_sweep(result: Sweep, console: Console | None = None, *, full: bool = False) -> None:
    """Print the result of ``edgefl.sweep``: a line for each cell, devices and the sensitivity if they were asked for.

    ``full`` prints all of it: what each cell loses and costs, and the Pareto frontier.
    """
    console = console or screen()
    rows = result.costed_cells
    if rows or not result.devices:
        _print_cells(console, result.rows) if full else _print_lines(console, result)
    if result.devices:
        print_devices(result, console, full=full)
    _print_refused(console, result.refused_cells)
    if full and rows:
        _print_totals(console, rows)
    print_bounds(console, result.at_most, result.seconds_within)
    if full and rows:
        _print_caps(console, rows)
        _print_excluded(console, rows)
    if any(row.metrics for row in rows):
        _print_metrics(console, rows)
    if full and len(rows) > 1:
        _print_frontier(console, rows, result.frontier)
    if result.sensitivity:
        _print_sensitivity(console, result.sensitivity)


def sweep_csv(result: Sweep) -> str:
    """The rows as CSV; with devices those of each combination, device and kind."""
    if not result.devices:
        return cells_csv(result.rows)
    several = len(result.devices) > 1 or result.axes
    rows = [
        ({"label": label, **check.sets} if several else {}) | flat(row)
        for label, check in result.devices.items()
        for row in check.rows
    ]
    return csv_text(rows)


def sweep_markdown(result: Sweep) -> str:
    """The lines of the table in Markdown; with devices a row for each, and a column for each combination and kind."""
    if result.devices:
        return devices_markdown(result)
    columns, lines, _ = _lines(result)
    return "".join(f"{line}\n" for line in markdown_table(columns, lines))


MORE = "More: --full (lost data, totals of the schedule, Pareto frontier), --as csv, --as json."


def _lines(result: Sweep) -> tuple[list[str], list[list[str]], list[int]]:
    """A line for each cell: its values, who fits, and what the largest client's round takes; titles and texts."""
    titles, values = result.named_values([row.label for row in result.rows])
    ever = any(row.eligible_share_ever != row.eligible_share_at_hardest_stage for row in result.costed_cells)
    columns = [*titles, "eligible", *(["ever"] if ever else []), "refused by", "peak", "round", "energy"]
    lines = list[list[str]]()
    for row, named in zip(result.rows, values, strict=True):
        if row.refused:
            lines.append([*named, "refused", *[NOTHING] * (len(columns) - len(titles) - 1)])
            continue
        lines.append([
            *named, percent(row.eligible_share_at_hardest_stage), *([percent(row.eligible_share_ever)] if ever else []),
            refusals(row.refused_by, row.refused_memory_by), units.show_bytes(row.peak_memory_bytes),
            or_dash(units.show_seconds, row.round_seconds), or_dash(units.show_joules, row.energy_joules),
        ])  # fmt: skip
    return columns, lines, [*range(len(titles)), columns.index("refused by")]


def _print_lines(console: Console, result: Sweep) -> None:
    columns, lines, left = _lines(result)
    table = new_table(*columns, left=left)
    for line in lines:
        table.add_row(*line)
    in_some = "  Ever: in some stage." if "ever" in columns else ""
    print_section(
        console, "Eligible clients, and the costs of a round", table,
        f"Eligible: in the hardest stage.{in_some}  Peak: of the largest client.  Round: of the slowest eligible one.\n"
        + MORE,
    )  # fmt: skip


def _label(row: CellHead) -> str:
    label = row.label
    return label if len(label) <= LONG_LABEL else label.replace(",", ",\n")


def _keep_labels(table: Table, rows: Sequence[CellHead]) -> None:
    """Let rich wrap other columns instead of the labels."""
    table.columns[0].no_wrap = max(len(part) for row in rows for part in _label(row).splitlines()) <= WIDEST_LABEL


def _print_cells(console: Console, rows: Sequence[CellRow]) -> None:
    table = new_table(
        "", "eligible\never", "\nhardest", "samples\never", "classes\never", "refused by", "peak\nmemory",
        "round\ntime", "traffic", "energy", left=(0, 5),
    )  # fmt: skip
    _keep_labels(table, rows)
    for row in rows:
        if row.refused:
            table.add_row(_label(row), "refused", *[NOTHING] * 8)
            continue
        table.add_row(
            _label(row),
            percent(row.eligible_share_ever),
            percent(row.eligible_share_at_hardest_stage),
            percent(row.eligible_samples_share_ever),
            or_dash(percent, row.class_coverage_ever),
            refusals(row.refused_by, row.refused_memory_by),
            units.show_bytes(row.peak_memory_bytes),
            or_dash(units.show_seconds, row.round_seconds),
            or_dash(units.show_bytes, row.traffic_bytes),
            or_dash(units.show_joules, row.energy_joules),
        )
    print_section(
        console, "Eligible clients, and the costs of a round", table,
        "Refused by: the binding budgets at the hardest stage; device: whose device has less memory than is "
        "granted.  Peak memory: of the largest client.  Round time: of the slowest eligible client.  Traffic "
        "and energy: means of an eligible client's round.",
    )  # fmt: skip


def _print_refused(console: Console, rows: Sequence[CellRow]) -> None:
    """Print why cells can't be run; cells with the same reason are printed once."""
    labels: dict[str, list[str]] = {}
    for row in rows:
        labels.setdefault(str(row.refused), []).append(_label(row))
    if not labels:
        return
    table = new_table("", "", left=(0, 1))
    table.show_header = False
    _keep_labels(table, rows)
    for reason, same in labels.items():
        more = [f"and {len(same) - MOST_NAMED} more"] if len(same) > MOST_LISTED else []
        table.add_row("\n".join([*(same[:MOST_NAMED] if more else same), *more]), f"refused: {reason}")
    count = "1 combination" if len(rows) == 1 else f"{len(rows)} combinations"
    print_section(console, f"{count} can't be run", table)


def _print_caps(console: Console, rows: Sequence[CellRow]) -> None:
    """Print for how many rounds the clients' caps last, where they have some."""
    if not any(row.caps for row in rows):
        return
    table = new_table("", "cap", "rounds", "least", "median", "drawn", "lasts for", left=(0, 1))
    _keep_labels(table, rows)
    for row in rows:
        for name, lasts in (row.caps or {}).items():
            shown = [NOTHING] * 4
            if lasts is not None:
                shown = [str(lasts.least_rounds), f"{lasts.median_rounds:g}", NOTHING, NOTHING]
                if lasts.expected_rounds is not UNSET and lasts.lasting_share is not UNSET:
                    shown[2:] = f"{lasts.expected_rounds:.1f}", percent(lasts.lasting_share)
            table.add_row(_label(row), name.replace("_", " "), str(row.rounds), *shown)
    print_section(
        console, "Rounds within the caps", table,
        "Least, median: rounds for which the cap of a client that ever fits lasts, if it takes part in each.  Drawn: "
        "rounds in which it is expected to.  Lasts for: clients whose cap is enough for these.  The other tables "
        "compare the whole cap with each round alone.",
    )  # fmt: skip


def _print_totals(console: Console, rows: Sequence[CellRow]) -> None:
    table = new_table("", "rounds", "empty", "eligible", "client\nrounds", "time", "down", "up", "energy", "computing")
    least = [
        f"{_label(row)} {units.show_bytes(row.least_schedule_bytes)} both ways"
        for row in rows
        if row.least_schedule_bytes is not UNSET
    ]
    _keep_labels(table, rows)
    for row in rows:
        table.add_row(
            _label(row),
            show_rounds(row.rounds, row.fewest_rounds),
            str(row.empty_rounds) if row.empty_rounds else NOTHING,
            percent(row.eligible_share),
            f"{row.schedule_client_rounds:,.0f}",
            units.show_seconds(row.schedule_seconds),
            units.show_bytes(row.schedule_download_bytes),
            units.show_bytes(row.schedule_upload_bytes),
            units.show_joules(row.schedule_energy_joules),
            units.show_flops(row.schedule_flops),
        )
    print_section(
        console, "Totals of the schedule", table,
        "Empty: rounds without an eligible client; they cost nothing.  Eligible: mean over the rounds.  "
        "Client rounds: expected number of selected clients, added over the rounds.  The server's work isn't "
        "included, nor are downloads of frozen parts that a client fetches again."
        + (f"  In the fewest rounds: {'; '.join(least)}." if least else ""),
    )  # fmt: skip


def _print_excluded(console: Console, rows: Sequence[CellRow]) -> None:
    """Print samples, modalities and classes that are lost over all stages, and at the stage that admits fewest."""
    table = new_table("", "samples", "modalities", "classes", "at stage", "samples", "modalities", "classes",
                      left=(0, 2, 3, 6, 7))  # fmt: skip
    for row in rows:
        hardest = next(stage for stage in row.stages if stage.stage == row.hardest_stage)
        if not hardest.excluded_samples:
            continue
        cells = []
        sources: tuple[LostData, ...] = row, hardest
        for source in sources:
            cells += [
                f"{source.excluded_samples:,}",
                _shorten_names(source.lost_modalities),
                or_dash(_shorten_names, source.lost_classes),
            ]
        table.add_row(_label(row), *cells[:3], str(row.hardest_stage), *cells[3:])
    if table.row_count:
        print_section(
            console, "Data lost with the excluded clients: over all stages, and at the hardest stage", table,
            "A modality or class is lost if no eligible client holds any of it.  By stage and kind: --as json.",
        )  # fmt: skip


def _shorten_names(names: Sequence[str]) -> str:
    if len(names) > MOST_NAMED:
        return f"{len(names)}: {', '.join(names[: MOST_NAMED - 1])}, ..."
    return ", ".join(names) or NOTHING


def _print_metrics(console: Console, rows: Sequence[CellRow]) -> None:
    columns = {
        (kind, name): f"{kind}\n{title_of(name)}"
        for row in rows
        for kind, values in (row.metrics or {}).items()
        for name in shown_metrics(values)
    }
    table = new_table("", "updates", "took part", *columns.values())
    split = next(row.trained.metrics_split for row in rows if row.metrics and row.trained)
    for row in rows:
        if not row.trained:
            continue
        scores = [DIVERGED if row.trained.diverged else score((row.metrics or {}).get(kind, {}), name)
                  for kind, name in columns]  # fmt: skip
        table.add_row(
            _label(row), str(row.trained.updates), str(row.trained.clients_that_took_part),
            *scores,
        )  # fmt: skip
    print_section(console, f"Metrics: {split} split", table)


def _print_frontier(console: Console, rows: Sequence[CellRow], frontier: Mapping[str, MethodFrontier]) -> None:
    row_of = {row.label: row for row in rows}
    for method, costs in frontier.items():
        table = new_table("against", "", "eligible", "", "dominated by it", left=(0, 1, 4))
        table.columns[1].no_wrap = True
        for cost in AGAINST:
            result: Frontier = getattr(costs, cost)
            name = IN_WORDS[cost].partition(" ")[0]
            points: dict[tuple[float, float], list[str]] = {}
            for point in result.frontier:
                points.setdefault((point.eligible_share, getattr(point, cost)), []).append(point.label)
            for (share, amount), labels in points.items():
                dominated = [label for label, by in result.dominated.items() if by in labels]
                equal = f"\nand {len(labels) - 1} equal to it" if len(labels) > 1 else ""
                table.add_row(
                    name, _label(row_of[labels[0]]) + equal, percent(share), field_formatter(cost)(amount),
                    _shorten_labels(dominated),
                )  # fmt: skip
                name = ""
        note = f"No client is eligible:\n{_shorten_labels(costs.nobody)}" if costs.nobody else ""
        print_section(
            console,
            f"Pareto frontier of {method}: eligible clients against traffic, time and energy of the schedule",
            table,
            note,
        )


def _shorten_labels(labels: Sequence[str]) -> str:
    if len(labels) > MOST_LISTED:
        return "\n".join([*labels[:MOST_NAMED], f"and {len(labels) - MOST_NAMED} more"])
    return "\n".join(labels) or NOTHING


def _print_sensitivity(console: Console, sensitivity: Sensitivity) -> None:
    factor = f"{sensitivity.factor:g}"
    own = [f"{name} {value:g}" for name, value in (sensitivity.residuals or {}).items()]
    table = new_table(
        "order of the cells by", "survives", "pairs that\nflip", "lowest tau\none or all", "by", "drawn:\nlowest tau",
        "same\norder", "same\nbest", left=(0, 4),
    )  # fmt: skip
    for name, figure in sensitivity.figures.items():
        table.add_row(
            IN_WORDS[name], "yes" if figure.survives else "no", f"{figure.pairs_that_flip} of {figure.pairs}",
            or_dash("{:.2f}".format, figure.lowest_tau), or_dash(_change, figure.lowest_tau_by),
            or_dash("{:.2f}".format, figure.drawn_lowest_tau), percent(figure.drawn_unchanged_share),
            percent(figure.drawn_same_best_share),
        )  # fmt: skip
    print_section(
        console, f"Sensitivity to errors in device and link numbers by a factor of {factor}", table,
        f"Each number is multiplied and divided by {factor}: in all profiles, in each profile alone, and all "
        f"numbers at once.  drawn: {sensitivity.draws} random draws of a factor up to {factor} for every number.\n"
        "tau: Kendall's tau-b with the unchanged order."
        + (f"\nSeconds of computing by the residuals of published measurements: {', '.join(own)}." if own else ""),
    )  # fmt: skip
    if not sensitivity.flips:
        return
    flips = new_table("by", "better", "than", "no longer with", left=range(4))
    for flip in sensitivity.flips[:MOST_LISTED]:
        flips.add_row(
            IN_WORDS[flip.figure], flip.better.replace(",", ",\n"), flip.worse.replace(",", ",\n"),
            "; ".join(map(_change, flip.by[:MOST_NAMED]))
            + (f"; {len(flip.by) - MOST_NAMED} more" if len(flip.by) > MOST_NAMED else ""),
        )  # fmt: skip
    more = len(sensitivity.flips) - MOST_LISTED
    print_section(console, "Pairs of cells whose order changes", flips, f"{more} more: --as json." if more > 0 else "")


def _change(change: Change) -> str:
    where = "" if change.where == "everywhere" else f" of {change.where}"
    if change.number.startswith("all "):
        return f"{change.number} by {change.factor:g}"
    times = change.factor
    return f"{change.number}{where} {f'x {times:g}' if times > 1 else f'/ {1 / times:g}'}"
