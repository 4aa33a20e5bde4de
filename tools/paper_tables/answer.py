"""The answers of ``tools/papers.py``: pages made again, beside those committed, and published tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records.answer import Answer
from edgefl.records.record import Clients, Keys, Record, Rounds, Samples, Share, Unit


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


class PaperTable(Record):
    """A table beside the committed one."""

    table: str
    """Name of the table, and of its CSV file"""
    heading: str
    """The title above it on the page; empty before the first"""
    line: int | None
    """Its line on the page; `null` if the page has no such table"""
    status: str
    """`equal`, `differs` or `not regenerated`"""
    reason: str | None
    """Why it wasn't made, or that the page has no such table; otherwise `null`"""
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


# --- tables that are trained -----------------------------------------------------------------------------------------


class ScoredCell(Record):
    """A printed score beside edgefl's, both in per cent."""

    metric: str
    """The title of the cell"""
    published: float | None
    """What the paper prints; `null` where it draws a curve without numbers"""
    own: float | None
    """What the run gave; `null` if it has no such score"""
    difference: float | None
    """Own - published"""


class ScoredRow(Record):
    """A row that was trained."""

    row: str
    """Its name"""
    label: str
    """Its name, with the sizes of data sets that aren't the paper's"""
    folder: str
    """The folder of its run, which rows with the same scenario share"""
    failed: str | None
    """Why its run has no scores; `null` if it ended well"""
    cells: Sequence[ScoredCell]
    """Its cells"""


class PublishedTable(Answer):
    """A published table, and what is to be known beside its cells."""

    table: str
    """Its name"""
    title: str
    """What it shows"""
    paper: str
    """The paper"""
    where: str
    """Its number there"""
    metrics: Annotated[Mapping[str, str], Keys("TITLE")]
    """edgefl's names of the scores, by title"""
    assumed: Sequence[str]
    """What is edgefl's choice, because the paper is silent"""
    code: Sequence[str]
    """What only the authors' public code states"""
    slips: Sequence[str]
    """Where the paper contradicts itself"""
    left: Annotated[Mapping[str, str], Keys("ROW")]
    """Why rows can't be run"""
    costs: str
    """The page of docs/evidence/papers with the table's costs; empty if there is none"""


class ScoredTable(PublishedTable):
    """A published table with the scores of edgefl's runs."""

    folder: str
    """The folder with the runs"""
    rows: Sequence[ScoredRow]
    """A row"""
    then: Sequence[str]
    """What is typed after the runs"""

    @property
    def exit_code(self) -> int:
        """1 if a run has no scores."""
        return int(any(row.failed for row in self.rows))


class MissingFile(Record):
    """A file of a data set that isn't there."""

    source: str
    """The data set"""
    folder: str
    """The folder in which it must lie"""
    file: str
    """Its name, or a pattern of names; empty where none is known"""
    holds: str
    """What is in it, as published"""
    size_bytes: int | None
    """Its size, where it is known"""


class DryRow(Record):
    """What training a row would take."""

    row: str
    """Its name"""
    same: str | None
    """The row whose run it shares; `null` for a run of its own"""
    why: str | None
    """Why it can't be priced without data; `null` if it is"""
    rounds: Rounds | None = None
    """Rounds; this and all that follows is `null` for a row that isn't priced"""
    flops: float | None = None
    """Mean computation of a round, of all clients and the server, without evaluation"""
    download_bytes: float | None = None
    """Mean tensors of a round down, to all clients"""
    upload_bytes: float | None = None
    """The same, up"""
    peak_memory_bytes: int | None = None
    """The largest peak of a client"""
    clients: Clients | None = None
    """Clients of the fleet"""
    eligible: Clients | None = None
    """Those that fit their budgets at the hardest stage"""
    core_hours: float | None = None
    """Hours of one core of this machine for the run, with its evaluations; `null` if nothing was measured"""


class MeasuredModel(Record):
    """Steps of a model on one core of this machine."""

    kind: str
    """Kind of client, or `server`"""
    steps: int
    """Different steps, each the faster of two"""
    samples: Samples
    """Samples of a batch"""
    flops: float
    """Computation of these steps"""
    processor_seconds: float
    """Their time"""
    flops_per_second: Annotated[float, Unit("FLOP/s")]
    """The rate"""


class DryTable(PublishedTable):
    """What training a published table would take."""

    missing: Sequence[MissingFile]
    """A file that isn't there"""
    rows: Sequence[DryRow]
    """A row"""
    measured: Sequence[MeasuredModel]
    """What hours rest on: measured steps of each different model"""
    core_hours: float | None
    """Hours of one core for all rows that are priced, shared runs once; `null` if nothing was measured"""


class TableHours(Record):
    """What training a published table would take."""

    rows: int
    """Its rows"""
    priced: int
    """Those that could be priced without data"""
    core_hours: float | None
    """Hours of one core for these, in three digits; `null` if there are none"""


class MeasuredHours(Answer):
    """What training each published table would take."""

    origin: str
    """How and when it was measured"""
    machine: str
    """The processor"""
    tables: Annotated[Mapping[str, TableHours], Keys("TABLE")]
    """A table"""
    models: Annotated[Mapping[str, MeasuredModel], Keys("MODEL")]
    """Measured steps of each different model, by a digest of its description"""


class ListedTable(Record):
    """A published table that can be trained."""

    table: str
    """Its name"""
    title: str
    """What it shows"""
    paper: str
    """The paper"""
    where: str
    """Its number there"""
    rows: Sequence[str]
    """Its rows that can be run"""


class ListedTables(Answer):
    """The published tables that can be trained."""

    tables: Sequence[ListedTable]
    """A table"""
