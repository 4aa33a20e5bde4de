"""The answers of ``tools/papers.py``: the pages that can be made again, and their tables beside those committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records.answer import Answer
from edgefl.records.record import Keys, Record, Share


class PaperPage(Record):
    """A page of docs/evidence/papers."""

    page: str
    """Name of the page"""
    what: str
    """What is on it"""
    tables: int
    """Its tables"""
    figures: int = 0
    """Its figures"""
    minutes: float = 0.0
    """Minutes that its predictions take on one core with an empty cache"""
    training_hours: float = 0.0
    """Hours of training that its tables need"""


class PaperPages(Answer):
    """The pages that can be made again."""

    pages: Sequence[PaperPage]
    """A page"""


class PaperCell(Record):
    """A cell of a table."""

    row: str
    """Its row: the first columns of it; `header` for the titles"""
    column: str
    """Its column"""


class PaperDifference(PaperCell):
    """A cell that isn't as committed."""

    committed: str | None
    """The committed cell; `null` if the page has none"""
    now: str | None
    """The cell that was made; `null` if there is none"""
    within_tolerance: bool
    """Whether it counts as equal"""


class PaperTable(Record):
    """A table beside the committed one."""

    table: str
    """Name of the table, and of its CSV file"""
    heading: str
    """The title above it on the page; empty before the first"""
    line: int | None
    """Its line on the page; `null` if the page has no such table"""
    status: str
    """`equal`, `within tolerance`, `differs` or `not regenerated`"""
    reason: str | None
    """Why it wasn't made, or that the page has no such table; otherwise `null`"""
    tolerance: str | None
    """How far numbers may be apart, and why; `null` if cells must be equal"""
    header: Sequence[str]
    """Titles of the columns"""
    rows: Sequence[Sequence[str]]
    """The cells as text, row by row"""
    published: Sequence[PaperCell]
    """A cell that is copied from a publication"""
    differences: Sequence[PaperDifference]
    """A cell that isn't as committed"""


class PaperFigure(Record):
    """A figure that was drawn."""

    file: str
    """Its file"""
    differing_pixels: Share | None
    """Pixels that aren't those of the committed figure; `null` if its size differs"""


class MadePage(Record):
    """A page that was made again."""

    page: str
    """Name of the page"""
    tables: Sequence[PaperTable]
    """Its tables, in the page's order"""
    figures: Sequence[PaperFigure]
    """Its figures"""
    error: str | None
    """Why the page's tables could not be made; `null` if they were"""


class Papers(Answer):
    """The tables of docs/evidence/papers that were made again, beside the committed ones."""

    output: str
    """The folder with the files"""
    finished: bool
    """Whether all pages that were asked for are done; false in `papers.json` while the command runs"""
    seconds: float
    """Time that the command took"""
    pages: Sequence[MadePage]
    """A page"""
    counts: Annotated[Mapping[str, int], Keys("STATUS")]
    """Number of tables by status"""
    equal: bool
    """Whether no table differs and no page failed; otherwise the exit code is 1"""
