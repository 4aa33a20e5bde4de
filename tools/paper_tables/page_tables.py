"""Tables of a page of docs/evidence/papers: as they are made now, in Markdown and CSV, and as they are committed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgefl.drawing.text_tables import csv_lines
from tools.paper_tables.answer import PaperCell, PaperDifference


class CopiedCell(str):
    """A cell that is copied from a publication: no figure of edgefl's."""


@dataclass(frozen=True)
class PageTable:
    """A table of a page: the title above it on the page ("" before the first), a file name, and cells as text.

    The first ``labels`` columns name a row.  Cells of the type CopiedCell are copied.
    """

    heading: str
    name: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 1

    def label(self, row: tuple[str, ...]) -> str:
        """What names a row: ``image, none``."""
        return ", ".join(filter(None, row[: self.labels]))

    @property
    def copied_cells(self) -> list[PaperCell]:
        """Where cells are copied from a publication."""
        return [
            PaperCell(row=self.label(row), column=column)
            for row in self.rows
            for column, cell in zip(self.header, row, strict=True)
            if isinstance(cell, CopiedCell)
        ]

    def markdown(self) -> str:
        """The table as the pages have it."""
        lines = [self.header, ("---",) * len(self.header), *self.rows]
        return "".join(f"| {' | '.join(line)} |".replace("|  |", "| |").replace("|  |", "| |") + "\n" for line in lines)

    def csv(self) -> str:
        """The table as CSV: the page's digits, without marks of thousands and bold type."""
        return csv_lines([plain(cell) for cell in row] for row in (self.header, *self.rows))


@dataclass(frozen=True)
class Committed:
    """A table of a committed page, with the title above it and its line."""

    heading: str
    line: int
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def numbers(cell: str) -> list[float]:
    """The numbers in a cell: ``+0.025 ± 0.014`` has two."""
    return [float(found.replace(",", "")) for found in NUMBER.findall(cell)]


def plain(cell: str) -> str:
    """A cell without bold type, and without marks of thousands."""
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", cell.replace("**", ""))


def committed_tables(page: str) -> list[Committed]:
    """The tables of a page's Markdown, in their order; fenced code is left out."""
    heading, found, block = "", list[Committed](), list[str]()
    fenced, started = False, 0
    for number, line in enumerate([*page.splitlines(), ""], start=1):
        if line.startswith("```"):
            fenced = not fenced
        if not fenced and line.startswith("|"):
            started = started if block else number
            block.append(line)
            continue
        if block:
            header, _, *rows = map(_cells, block)
            found.append(Committed(heading, started, header, tuple(rows)))
            block = []
        if not fenced and line.startswith("## "):
            heading = line.removeprefix("## ").strip()
    return found


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|"))


def pages_folder() -> Path:
    """The folder of the committed pages."""
    return Path(__file__).resolve().parents[2] / "docs" / "evidence" / "papers"


# --- cells -----------------------------------------------------------------------------------------------------------


def mib(value: float, digits: int) -> str:
    """Bytes in MiB: ``6,692.3``."""
    return f"{value / 2**20:,.{digits}f}"


def ratio(value: float, to: float) -> str:
    """A ratio with three decimals: ``0.205``."""
    return f"{value / to:.3f}"


def alike(cells: Iterable[Any]) -> str:
    """The text that all cells have; several, with slashes between them, where the page takes them to be one."""
    return " / ".join(dict.fromkeys(map(str, cells)))


def differences(made: PageTable, committed: Committed) -> Iterator[PaperDifference]:
    """Cells that aren't as committed; a row or column that one side lacks has None there."""
    names = [made.header[i] if i < len(made.header) else committed.header[i] for i in range(
        max(len(made.header), len(committed.header)))]  # fmt: skip
    for index in range(-1, max(len(made.rows), len(committed.rows))):
        now, old = (_line(side, index) for side in (made, committed))
        label = "header" if index < 0 else made.label(now or old or ())
        for column, name in enumerate(names):
            was, is_ = (line[column] if line and column < len(line) else None for line in (old, now))
            if was != is_:
                yield PaperDifference(row=label, column=name, committed=was, now=is_ and str(is_))


def _line(table: PageTable | Committed, index: int) -> tuple[str, ...] | None:
    if index < 0:
        return table.header
    return table.rows[index] if index < len(table.rows) else None
