"""Common parts of all tables: a console as wide as the terminal, and the format of single values."""

from __future__ import annotations

import csv
import io
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from html import escape
from math import floor, log10
from typing import Any, TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from edgefl import units
from edgefl.errors import visible
from edgefl.records.metrics import METRICS
from edgefl.records.record import UNSET, Maybe, Record

A = TypeVar("A", bound=Record)

WIDTH, MOST_WIDTH = 100, 120
"""Columns of a pipe or a file, unless COLUMNS says otherwise; most columns of a terminal."""

LEAST_WIDTH = 40
"""Fewer columns than this are taken as this many: a table with a word and a number for each row needs them."""

TITLES = {name: metric.title for name, metric in METRICS.items()}
"""Titles of metrics in tables."""


def title_of(metric: str) -> str:
    """A metric's name in words."""
    return TITLES.get(metric, metric.replace("_", " "))


NOTHING = "-"
"""Text of a cell without a value."""

DIVERGED = "diverged"
"""Text of a cell whose metric isn't finite."""

GAP = 2
"""Spaces between two columns."""
NARROW = 16
"""A column of text gets at least so many characters, if it has as many, before the table is split."""
MOST_OF_WIDTH = 0.45
"""The share of the width that a single word may take; a longer one is broken at its separators."""

MOST_COLUMNS = 4
"""Runs in one comparison table; further runs go into further tables."""


class Screen(Console):
    """A console whose words hold no control characters: those of the text are escapes, and styles are its own."""

    def print(self, *objects: Any, **more: Any) -> None:
        """Print; text gets its escapes before lines are broken."""
        super().print(*map(_visible, objects), **more)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Segments of what is printed, whatever it is, without control characters but those of the console itself."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def _visible(printed: Any) -> Any:
    if isinstance(printed, str):
        return visible(printed)
    if isinstance(printed, Text) and (shown := visible(printed.plain)) != printed.plain:
        printed = printed.copy()
        printed.plain = shown
    return printed


def screen(*, stderr: bool = False) -> Screen:
    """A console on stdout (or stderr) as wide as the terminal; without control codes if it isn't a terminal."""
    file = sys.stderr if stderr else sys.stdout
    console = Screen(file=file, highlight=False, soft_wrap=False, emoji=False, markup=False)
    if not console.is_terminal:
        return Screen(
            file=file, highlight=False, emoji=False, markup=False, width=_columns(), no_color=True, color_system=None
        )
    console.width = min(console.width, MOST_WIDTH)
    return console


def html_of(show: Callable[[A, Console], None], answer: A) -> str:
    """What ``show`` prints of an answer, for a notebook."""
    printed = io.StringIO()
    show(answer, Screen(file=printed, highlight=False, emoji=False, markup=False, width=WIDTH))
    return f"<pre>{escape(printed.getvalue())}</pre>"


def _columns() -> int:
    """Columns of a pipe or a file: what the environment variable COLUMNS says, at least 40."""
    given = os.environ.get("COLUMNS", "")
    return max(int(given), LEAST_WIDTH) if given.isascii() and given.isdigit() and len(given) < 5 else WIDTH


def new_table(*columns: str, left: Container[int] = (0,)) -> Table:
    """An empty table.  The columns ``left`` (indices from 0) are left-aligned text; the others are numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index in left else "right", overflow="fold")
    return table


def print_section(console: Console, title: str, table: Table | None = None, note: str = "") -> None:
    """Print a title, the table below it, the note below that, and an empty line."""
    _print_stripped(console, Text(title, style="bold"))
    if table is not None:
        print_table(console, table)
    if note:
        _print_stripped(console, Text(note))
    console.print()


def print_table(console: Console, table: Table) -> None:
    """Print the table, in parts if it is too wide; outside a terminal without the spaces that end its lines."""
    for number, part in enumerate(fit_to_width(table, console.width)):
        if number:
            console.print()
        _print_stripped(console, part)


def _print_stripped(console: Console, content: Table | Text) -> None:
    with console.capture() as captured:
        console.print(content)
    text = captured.get()
    if not console.is_terminal:
        text = "".join(line.rstrip() + "\n" for line in text.splitlines())
    console.file.write(text)


def score(values: Mapping[str, float | None], name: str) -> str:
    """A metric with three decimals, ``diverged`` if it isn't finite, a dash if it wasn't computed."""
    if name not in values:
        return NOTHING
    value = values[name]
    return DIVERGED if value is None else f"{value:.3f}"


_SEED = re.compile(r"(^|,)\s*seed=[^,]*")


def without_seed(label: str) -> str:
    """The label of a combination without its seed; "" if that was all."""
    return _SEED.sub("", label).strip(", ")


def seeds_together(labels: Iterable[str]) -> list[str]:
    """Labels in which those that differ in their seeds only are one, with how many they are."""
    counts = Counter(without_seed(label) for label in labels)
    return [
        f"{label}{', ' * bool(label)}{count} seeds" if count > 1 or not label else label
        for label, count in counts.items()
    ]


def or_dash(show: Any, value: Any) -> str:
    """``show(value)``, or a dash if the value is None."""
    return NOTHING if value is None else str(show(value))


def percent(share: float) -> str:
    """A share as percent without decimals: ``12 %``."""
    return f"{100 * share:.0f} %"


def signed_percent(share: float) -> str:
    """A relative error as percent with a sign and two significant digits: ``+0.31 %``."""
    return "0 %" if share == 0 else f"{100 * share:+.2g} %"


def format_counts(counts: Mapping[str, int]) -> str:
    """Names with their counts as text: ``memory 3, bytes 1``."""
    return ", ".join(f"{name} {n}" for name, n in counts.items())


def refusals(refused_by: Mapping[str, int], memory_by: Mapping[str, int]) -> str:
    """Clients by the budget that refuses them, with those whose device has too little memory: ``memory 3 (device 2)``.

    ``memory_by`` counts those of memory by whose word it is.
    """
    of_device = memory_by.get("device", 0)
    return ", ".join(
        f"{name} {n} (device {of_device})" if name == "memory" and of_device else f"{name} {n}"
        for name, n in refused_by.items()
    )


def unit_of(name: str) -> str:
    """What a field counts, told by its name, as a word of ``units.NAMED`` (``bytes``, ``seconds``); or nothing."""
    last = name.rpartition(".")[2]
    if "share" in last or "coverage" in last or "accuracy" in last or last.startswith("r@"):
        return "share"
    word = last.rpartition("_")[2]
    return word if word in units.NAMED else ""


def scale_of(name: str, largest: float) -> tuple[float, str, int]:
    """Factor and name of the unit for figures up to ``largest``, and the decimals for three digits of it."""
    factor, unit = 1.0, ""
    if (word := "share" if "share" in name else name.rpartition("_")[2]) in units.NAMED:
        unit, factor, _ = units.NAMED[word].unit_for(largest)
    if name == "updates" or not largest:
        return factor, unit, 0
    return factor, unit, min(max(2 - floor(log10(largest / factor)), 0), 3)


def field_formatter(name: str) -> Callable[[float], str]:
    """The function that formats the values of a field, chosen by ``unit_of`` its name."""
    word = unit_of(name)
    return units.NAMED[word].show if word else "{:,.4g}".format


def number_formatter(name: str) -> Callable[[float], str]:
    """The function that formats a number of a device or a link, by the words that its name has of ``units.NAMED``."""
    if name == "flops_per_joule":
        return lambda value: f"{units.show_flops(value)}/J"
    if name == "loss":
        return units.show_share
    named = (each.show for word, each in units.NAMED.items() if word in name and name != "bytes_per_flop")
    return next(named, "{:.3g}".format)


def with_spread(text: str, value: float, spread: float) -> str:
    """A mean as ``text``, and its spread in the mean's unit: ``32.4 ± 0.46 GFLOP``."""
    number, _, unit = text.partition(" ")
    shown = float(number.replace(",", ""))
    reach = float(f"{spread * (shown / value if shown and value else 1.0):.2g}")
    return f"{number} ± {reach:,.12g} {unit}".rstrip()


def mib(value: float) -> str:
    """Bytes in MiB with two decimals and without a unit: ``12.30``; 0 bytes give ``0``."""
    return f"{value / 2**20:.2f}" if value else "0"


def csv_text(rows: Sequence[Mapping[str, object]], columns: Sequence[str] | None = None) -> str:
    """Flat rows as CSV, empty where a row lacks a column; by default columns are in the order of their first rows."""
    names = columns if columns is not None else list(dict.fromkeys(name for row in rows for name in row))
    return csv_lines([names, *([row.get(name, "") for name in names] for row in rows)])


def flat(row: Record) -> dict[str, object]:
    """The row with nested fields joined by a dot: ``memory_bytes.activations``."""
    fields: dict[str, object] = {}
    for name, value in row.to_data().items():
        if isinstance(value, Mapping):
            fields |= {f"{name}.{part}": item for part, item in value.items()}
        else:
            fields[name] = value
    return fields


def records_csv(parts: Mapping[str, Sequence[Record]], label: str) -> str:
    """The records of each part as CSV, a line each; the column ``label`` has the part's name, unless it is empty.

    Fields that a record doesn't have (such as payloads of another method) are empty.
    """
    rows = [({label: name} if label else {}) | flat(row) for name, part in parts.items() for row in part]
    # parts of one quantity are adjacent columns, even if only a later row has some of them
    order = list(dict.fromkeys(name.partition(".")[0] for row in rows for name in row))
    names = dict.fromkeys(name for row in rows for name in row)
    return csv_text(rows, sorted(names, key=lambda name: order.index(name.partition(".")[0])))


def csv_lines(lines: Iterable[Sequence[object]]) -> str:
    """Lines of cells as CSV, None as an empty cell.  Every CSV file and answer of edgefl is written here or by pandas.

    Characters that a file can't hold, which begin in names that aren't UTF-8, are escapes.
    """
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([csv_cell(cell) for cell in line] for line in lines)
    return file.getvalue().encode("utf-8", "backslashreplace").decode()


FORMULA = ("=", "+", "-", "@", "\t", "\r", "\N{FULLWIDTH EQUALS SIGN}", "\N{FULLWIDTH PLUS SIGN}",
           "\N{FULLWIDTH HYPHEN-MINUS}", "\N{FULLWIDTH COMMERCIAL AT}")  # fmt: skip
"""Beginnings of a cell that a spreadsheet may compute."""

_FIGURE = re.compile(r"[+-](\d[\d.,]*(e[+-]?\d+)?|inf|nan)?( ?%)?( ± \d[\d.,]*(e[+-]?\d+)?)?", re.IGNORECASE)


def csv_cell(cell: object) -> object:
    """A cell of a table for spreadsheets: text that would be a formula has an apostrophe before it; figures stay."""
    if isinstance(cell, str) and cell.startswith(FORMULA) and not _FIGURE.fullmatch(cell):
        return f"'{cell}"
    return cell


# --- widths of columns ---------------------------------------------------------------------------------------------


def fit_to_width(table: Table, width: int) -> list[Table]:
    """The table with widths for a screen of ``width`` columns, in which no word is broken.

    Right-aligned columns, which hold numbers, are as wide as their widest cell; columns of text are wrapped.  If that
    is too wide, the columns are divided over several tables, each of which begins with the columns that name a row.
    """
    columns = [_Measured(column, max(int(width * MOST_OF_WIDTH), NARROW)) for column in table.columns]
    if not columns:
        return [table]
    return [_part(table, part, _widths(part, width)) for part in _parts(columns, width)]


class _Measured:
    """A column's cells as text, whose long words are broken, and the widths that it may have."""

    def __init__(self, column: Column, longest: int):
        self.column = column
        self.style = [cell.style if isinstance(cell, Text) else "" for cell in column.cells]
        cells = [visible(cell.plain if isinstance(cell, Text) else str(cell)) for cell in column.cells]
        self.is_text = column.justify == "left"
        self.cells = [_break_words(cell, longest) if self.is_text else cell for cell in cells]
        self.header = header = visible(str(column.header))
        lines = [line for cell in self.cells for line in cell.split("\n")]
        self.natural = max((cell_len(line) for line in (*header.split("\n"), *lines)), default=0)
        # a label is never wrapped; a number keeps its unit
        kept = lines if not self.is_text or column.no_wrap else [word for line in lines for word in line.split()]
        longest_kept = max((cell_len(word) for word in (*header.split(), *kept)), default=0)
        self.least = max(longest_kept, min(self.natural, NARROW if self.is_text else 0))


def _parts(columns: Sequence[_Measured], width: int) -> list[list[_Measured]]:
    """The columns in as few groups as their least widths allow, of similar widths; all begin with the key columns."""
    keys = columns[: _keys(columns, width)]

    def within(limit: int) -> list[list[_Measured]]:
        groups = [list(keys)]
        for column in columns[len(keys) :]:
            group = groups[-1]
            if len(group) > len(keys) and sum(c.least + GAP for c in group) + column.least > limit:
                groups.append(group := list(keys))
            group.append(column)
        return groups

    count = len(within(width))
    return (
        within(next(limit for limit in range(width + 1) if len(within(limit)) <= count)) if count > 1 else [[*columns]]
    )


def _keys(columns: Sequence[_Measured], width: int) -> int:
    """How many leading columns tell the rows apart; an empty cell stands for the one above it."""
    names: list[tuple[str, ...]] = [() for _ in columns[0].cells]
    for count, column in enumerate(columns, start=1):
        if sum(c.least + GAP for c in columns[:count]) > width / 2:
            break
        cell = ""
        for row, given in enumerate(column.cells):
            cell = given or cell
            names[row] = (*names[row], cell)
        if len(set(names)) == len(names):
            return count
    return 1


def _widths(columns: Sequence[_Measured], width: int) -> list[int]:
    """A width for each column: the natural one, or less for the widest columns of text."""
    widths = [column.natural for column in columns]
    excess = sum(widths) + GAP * (len(widths) - 1) - width
    while excess > 0:
        shrinkable = [i for i, column in enumerate(columns) if widths[i] > column.least]
        if not shrinkable:
            break
        widest = max(shrinkable, key=lambda i: widths[i])
        widths[widest] -= 1
        excess -= 1
    return widths


def _part(table: Table, columns: Sequence[_Measured], widths: Sequence[int]) -> Table:
    """A table of these columns with the look of ``table``."""
    part = Table(box=table.box, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), header_style=table.header_style,
                 show_header=table.show_header)  # fmt: skip
    for measured, width in zip(columns, widths, strict=True):
        part.add_column(measured.header, justify=measured.column.justify, overflow="fold", width=width)
    for row in zip(*(zip(column.cells, column.style, strict=True) for column in columns), strict=True):
        part.add_row(*(Text(cell, style=style) if style else cell for cell, style in row))
    return part


def _break_words(cell: str, longest: int) -> str:
    """The cell with line breaks in words of more than ``longest`` characters, behind commas if they have any."""
    return re.sub(r"\S+", lambda word: "\n".join(_pieces(word[0], longest)), cell)


def _pieces(word: str, longest: int) -> Iterator[str]:
    while cell_len(word) > longest:
        head = word[:longest]
        end = next((head.rindex(mark) + 1 for mark in (",", "=", "/", "_", "-") if mark in head[:-1]), longest)
        yield word[:end]
        word = word[end:]
    yield word


def print_bounds(console: Console, names: Sequence[str] | Maybe, within: Mapping[str, float] | Maybe) -> None:
    """Say which schedules may end their stages early, if an answer that predicts names some, and how sure seconds are.

    ``within`` are the intervals of devices.
    """
    if within:
        console.print(Text(f"seconds: {units.show_interval(*within.values())}"))
    if names:
        ends = "ends its" if len(names) == 1 else "end their"
        told = f"{' and '.join(names)} {ends} stages by what a run learns: rounds and totals are at most these"
        console.print(Text(told))


def show_rounds(most: int, fewest: int | Maybe) -> str:
    """The rounds of a stage or a schedule: ``12``, or ``7 to 12`` if it may end sooner."""
    return str(most) if fewest in (most, UNSET) else f"{fewest} to {most}"


def plain_markdown(name: str) -> str:
    """A name as Markdown that shows it as it is, within a cell of a table."""
    return re.sub(r"([\\`|<*\[])", r"\\\1", visible(" ".join(name.split("\n"))))
