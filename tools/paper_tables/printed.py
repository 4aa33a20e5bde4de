"""What ``tools/papers.py`` prints: which tables of pages equal the committed ones, and published tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from edgefl.drawing.text_tables import NOTHING, new_table, or_dash, print_section, screen
from edgefl.units import show_bytes, show_flops, show_seconds
from tools.paper_tables.answer import (
    DryTable,
    ListedTables,
    MadePage,
    MeasuredHours,
    PaperFigure,
    PaperPage,
    PaperPages,
    Papers,
    PaperTable,
    PublishedTable,
    ScoredTable,
)
from tools.paper_tables.making import all_differences

MOST_CELLS = 40
"""Differing cells that are printed, about a screen; all of them are in differences.csv."""


def print_page_list(result: PaperPages, console: Console | None = None) -> None:
    """Print the result of ``list_papers``: a line for each page."""
    console = console or screen()
    table = new_table("page", "what", "tables", "figures", "takes about", left=(0, 1))
    for page in result.pages:
        table.add_row(page.page, page.what, str(page.tables), str(page.figures or NOTHING), _takes(page))
    note = "tools/papers.py NAME makes a page's tables again and compares them, --all those of all pages."
    print_section(console, "Pages of docs/evidence/papers", table, note)


def _takes(page: PaperPage) -> str:
    minutes = page.minutes
    return f"{minutes:g} min" if minutes >= 1 else f"{60 * minutes:g} s"


def print_papers(result: Papers, console: Console | None = None) -> None:
    """Print the result of ``papers``: a line for each table, then the cells that differ."""
    console = console or screen()
    for page in result.pages:
        table = new_table("table", "cells", "copied", "compared with the page", left=(0, 3))
        for each in page.tables:
            if each.status != "not regenerated":
                cells = sum(len(row) for row in each.rows)
                table.add_row(each.table, str(cells), str(len(each.published) or NOTHING), _status(each))
        if table.row_count:
            print_section(console, page.page, table, "\n".join(_figures(page.figures)))
        else:
            console.print(Text(page.page, style="bold"))
        _print_skipped(console, page)
    _print_cells(console, result)
    counts = result.counts
    words = [f"{counts['equal']} equal"]
    words += [f"{counts[word]} {text}" for word, text in (
        ("differs", "different"), ("not regenerated", "not regenerated")) if counts[word]]  # fmt: skip
    copied = any(table.published for page in result.pages for table in page.tables)
    note = "  Copied cells are figures of publications." if copied else ""
    console.print(Text(f"Tables: {', '.join(words)}.{note}"))
    console.print(Text(f"Files: {result.output}", overflow="fold"), soft_wrap=True)


def _status(table: PaperTable) -> str:
    cells = len(table.differences)
    if table.status == "equal":
        return "equal"
    return table.reason or f"{cells} cell{' differs' if cells == 1 else 's differ'}"


def _figures(figures: Sequence[PaperFigure]) -> list[str]:
    lines = []
    for figure in figures:
        share = figure.differing_pixels
        said = "its size isn't the committed one's" if share is None else f"{100 * share:.2g} % of its pixels differ"
        lines.append(f"{figure.file}: {'equal to the committed figure' if share == 0 else said}")
    return lines


def _print_skipped(console: Console, page: MadePage) -> None:
    """Print what wasn't made, by the reason."""
    reasons: dict[str, list[str]] = {}
    for each in page.tables:
        if each.status == "not regenerated":
            reasons.setdefault(each.reason or "", []).append(each.heading or each.table)
    for reason, headings in reasons.items():
        word = "table" if len(headings) == 1 else "tables"
        console.print(Text(f"not regenerated, {len(headings)} {word}: {reason}"))
    if reasons:
        console.print()


def _print_cells(console: Console, result: Papers) -> None:
    """Print the cells that differ."""
    cells = [*all_differences(result)]
    if not cells:
        return
    shown = new_table("page", "table", "row", "column", "committed", "now", left=(0, 1, 2, 3))
    for page, table, each in cells[:MOST_CELLS]:
        shown.add_row(page, table, each.row, each.column, _cell(each.committed), _cell(each.now))
    more = f"{len(cells) - MOST_CELLS} more are in differences.csv" if len(cells) > MOST_CELLS else ""
    print_section(console, "Cells that differ", shown, more)


def _cell(text: str | None) -> str:
    return NOTHING if text is None else text or "(empty)"


# --- tables that are trained -----------------------------------------------------------------------------------------


def print_table_list(result: ListedTables, console: Console | None = None) -> None:
    """Print the result of ``list_tables``: a line for each table."""
    console = console or screen()
    table = new_table("table", "paper", "where", "what", "rows", left=(0, 1, 2, 3))
    for each in result.tables:
        table.add_row(each.table, each.paper, each.where, each.title, str(len(each.rows)))
    note = "tools/papers.py train TABLE trains its rows, --dry says first which files are missing and what it costs."
    print_section(console, "Published tables", table, note)


def print_scores(result: ScoredTable, console: Console | None = None) -> None:
    """Print the result of ``train_table``: a line for each printed score, and what is to be known beside it."""
    console = console or screen()
    table = new_table("row", "score", "printed", "here", "difference", left=(0, 1))
    for row in result.rows:
        for index, cell in enumerate(row.cells):
            shown = (or_dash("{:.2f}".format, cell.published), or_dash("{:.2f}".format, cell.own),
                     or_dash("{:+.2f}".format, cell.difference))  # fmt: skip
            table.add_row("" if index else row.label, cell.metric, *shown)
    failed = [f"{row.row}: {row.failed}" for row in result.rows if row.failed]
    more = [*failed, f"files: {result.folder}", *result.then]
    print_section(console, f"{_title(result)}, in per cent", table, _remarks(result, more))


def print_dry_run(result: DryTable, console: Console | None = None) -> None:
    """Print the result of ``dry_table``: missing files, a line for each row, and what hours rest on."""
    console = console or screen()
    files = new_table("data set", "file", "what it holds", "size", "folder", left=(0, 1, 2, 4))
    for each in result.missing:
        files.add_row(each.source, each.file, each.holds, or_dash("{:,} bytes".format, each.size_bytes), each.folder)
    if result.missing:
        print_section(console, "Missing files", files)
    table = new_table("row", "rounds", "FLOPs a round", "down", "up", "eligible", "core hours")
    for row in result.rows:
        if row.why is not None:
            table.add_row(row.row, *[NOTHING] * 6)
            continue
        table.add_row(
            row.row, str(row.rounds), or_dash(show_flops, row.flops), or_dash(show_bytes, row.download_bytes),
            or_dash(show_bytes, row.upload_bytes), f"{row.eligible} of {row.clients}",
            f"as {row.same}" if row.same else or_dash("{:,.3g}".format, row.core_hours),
        )  # fmt: skip
    more = [f"not priced: {row.row}: {row.why}" for row in result.rows if row.why is not None]
    if result.core_hours is not None:
        more.append(f"{result.core_hours:,.3g} core hours in all, of one core of this machine, from measured steps:")
    more += [
        f"  {each.kind}: {each.steps} of {each.samples} samples, {show_flops(each.flops)} in "
        f"{show_seconds(each.processor_seconds)}, {show_flops(each.flops_per_second)}/s"
        for each in result.measured
    ]
    print_section(console, f"{_title(result)}, on declared data", table, _remarks(result, more))


def print_hours(result: MeasuredHours, console: Console | None = None) -> None:
    """Print the result of ``measure_hours``: a line for each table."""
    console = console or screen()
    table = new_table("table", "rows", "priced", "core hours")
    for name, each in result.tables.items():
        table.add_row(name, str(each.rows), str(each.priced), or_dash("{:,.3g}".format, each.core_hours))
    print_section(console, "Hours of one core", table, f"{result.origin}; {result.machine}")


def _title(result: PublishedTable) -> str:
    return f"{result.table}: {result.title}, {result.where} of {result.paper}"


def _remarks(result: PublishedTable, more: Sequence[str]) -> str:
    """What is assumed, what the public code alone says, where the paper slips, and lines of one's own."""
    lines = [f"[A] {text}" for text in result.assumed] + [f"[code] {text}" for text in result.code]
    lines += [f"slip: {text}" for text in result.slips]
    lines += [f"left out: {row}: {why}" for row, why in result.left.items()]
    if result.costs:
        lines.append(f"costs: docs/evidence/papers/{result.costs}.md")
    return "\n".join([*lines, *more])
