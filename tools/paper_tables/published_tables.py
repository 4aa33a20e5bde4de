"""What papers print: tables as rows of a scenario with their cells, and single figures; a file for each paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from edgefl.errors import RunError, UnknownName
from edgefl.yaml_lines import KeyPath, decode, parse_yaml
from tools.paper_tables.answer import ListedTable, ListedTables

FOLDER = Path(__file__).parent / "published"
"""The files, one for each paper."""
Typed = TypeVar("Typed", bound=BaseModel)
PERCENT = 100
"""Papers print recalls and accuracies in per cent; edgefl's are shares."""


def _flat(values: Any) -> Any:
    """A list without lists in it: an alias stands for all of a list's items."""
    return list(chain.from_iterable(each if isinstance(each, list) else [each] for each in values or ()))


class PrintedPart(BaseModel):
    """Fields of a file of published/: others are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PrintedRow(PrintedPart):
    """A row: what it changes of the table's scenario (path: value), and its cells in the order of the metrics.

    No cells: a curve without numbers.  ``left`` says why it can't be run.
    """

    set: Mapping[str, Any] = {}
    printed: Sequence[float] = ()
    left: str = ""


class PrintedTable(PrintedPart):
    """A table or figure whose rows are trained.

    ``base`` is a shipped scenario and ``set`` what all rows change of it; ``metrics`` are edgefl's names by the titles
    of the cells.  ``costs`` is the page with the same table's costs, ``then`` what is typed after the runs.  What is
    ``assumed`` is edgefl's choice, because the paper is silent; ``code`` is in the public code alone; ``slips``
    are contradictions in the paper.
    """

    title: str
    where: str
    base: str
    set: Mapping[str, Any] = {}
    metrics: Mapping[str, str]
    rows: Mapping[str, PrintedRow]
    costs: str = ""
    then: str = ""
    assumed: Annotated[Sequence[str], BeforeValidator(_flat)] = ()
    code: Annotated[Sequence[str], BeforeValidator(_flat)] = ()
    slips: Sequence[str] = ()
    left: str = ""

    @model_validator(mode="after")
    def _whole_rows(self) -> PrintedTable:
        for name, row in self.rows.items():
            if row.printed and len(row.printed) != len(self.metrics):
                raise ValueError(f"{name} has {len(row.printed)} cells for {len(self.metrics)} metrics")
        return self

    def changes(self, row: str) -> dict[str, Any]:
        """All that a row changes of the base, ``{path: value}``; sections that it writes replace the table's fields."""
        own = self.rows[row].set
        whole = [f"{path}." for path, value in own.items() if isinstance(value, Mapping)]
        return {**{path: value for path, value in self.set.items() if not path.startswith((*whole,))}, **own}

    def why_left(self, row: str) -> str:
        """Why a row can't be run; empty if it can."""
        return self.rows[row].left or self.left

    @property
    def left_rows(self) -> dict[str, str]:
        """The rows that can't be run, with the reason."""
        return {row: why for row in self.rows if (why := self.why_left(row))}

    @property
    def runnable(self) -> list[str]:
        """The rows that can be run."""
        return [row for row in self.rows if row not in self.left_rows]


class ImageForm(PrintedPart):
    """Pictures of a data set: channels, and classes if they are classified."""

    channels: int = 3
    classes: int = 2


class TextForm(PrintedPart):
    """Texts of a data set: classes if they are classified."""

    classes: int = 2


class AudioForm(PrintedPart):
    """Spectrograms of a data set."""

    bins: int
    frames: int
    classes: int


class PrintedSize(PrintedPart):
    """Size of a data set in the paper: pictures (or texts) to train and to test on, and captions of a picture.

    ``drawn`` says that the training samples were drawn one by one, not as pictures with all their captions.
    """

    train: int
    test: int
    captions: int = 1
    drawn: Literal["", "captions"] = ""
    image: ImageForm | None = None
    text: TextForm | None = None
    audio: AudioForm | None = None

    @property
    def training_samples(self) -> int:
        """Samples to train on: each caption of a picture is one."""
        return self.train * (1 if self.drawn else self.captions)


class PrintedFigure(PrintedPart):
    """A figure that the paper prints, or several, with the table, figure or section where it stands."""

    what: str
    where: str
    value: float | None = None
    values: Sequence[float] = ()

    @model_validator(mode="after")
    def _one_or_several(self) -> PrintedFigure:
        if (self.value is None) == (not self.values):
            raise ValueError("write either value or values")
        return self

    @property
    def all(self) -> tuple[float, ...]:
        """Its figures."""
        return tuple(self.values) if self.value is None else (self.value,)


class PrintedPaper(PrintedPart):
    """A paper: its tables, its single figures, its data sets, and changes that several rows make."""

    paper: str
    cite: str
    sets: Mapping[str, PrintedSize]
    changes: Mapping[str, Mapping[str, Any]] = {}
    metrics: Mapping[str, str] = {}
    assumed: Sequence[str] = ()
    code: Sequence[str] = ()
    tables: Mapping[str, PrintedTable]
    facts: Mapping[str, PrintedFigure] = Field(min_length=1)

    def fact(self, name: str) -> float:
        """A figure by its name.  Raises UnknownName."""
        if name not in self.facts:
            raise UnknownName(f"fact of {self.paper}", name, self.facts)
        (value,) = self.facts[name].all
        return value

    @property
    def figures(self) -> set[float]:
        """Every number that the paper prints, as far as the file has it."""
        cells = chain.from_iterable(row.printed for table in self.tables.values() for row in table.rows.values())
        return {*cells, *chain.from_iterable(fact.all for fact in self.facts.values())}


@cache
def published(paper: str) -> PrintedPaper:
    """A paper by the name of its file: ``fedcola``.  Raises UnknownName, and RunError for a file that isn't valid."""
    names = paper_names()
    if paper not in names:
        raise UnknownName("paper", paper, names)
    return read_typed(FOLDER / f"{paper}.yaml", PrintedPaper)


def read_typed(file: Path, kind: type[Typed]) -> Typed:
    """A file of YAML as a type.  Raises RunError, which says where the file isn't valid."""

    def refuse(message: str, line: int | None, _: KeyPath) -> RunError:
        return RunError(f"{file}{f':{line}' if line else ''}: {message}")

    data, _ = parse_yaml(decode(file.read_bytes(), refuse), refuse, file=str(file), merge=True)
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise RunError(f"{file}: {error}") from error


def paper_names() -> list[str]:
    """The papers' files, without their ending."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def published_tables() -> Mapping[str, tuple[PrintedPaper, PrintedTable]]:
    """All tables by name, each with its paper."""
    papers = map(published, paper_names())
    return {name: (paper, table) for paper in papers for name, table in paper.tables.items()}


def table_of(name: str) -> tuple[PrintedPaper, PrintedTable]:
    """A table by its name, with its paper.  Raises UnknownName with the nearest."""
    tables = published_tables()
    if name not in tables:
        raise UnknownName("published table", name, tables)
    return tables[name]


def rows_of(table: PrintedTable, rows: Sequence[str]) -> list[str]:
    """The rows of a table by their names, all that can be run for none.  Raises UnknownName, and RunError for one that
    can't be run."""
    for row in rows:
        if row not in table.rows:
            raise UnknownName(f"row of {table.where}", row, table.rows)
        if why := table.why_left(row):
            raise RunError(f"{table.where}: {row} can't be run: {why}")
    return [row for row in table.runnable if row in rows or not rows]


def list_tables() -> ListedTables:
    """The published tables with the rows that can be run."""
    return ListedTables(
        tables=[
            ListedTable(table=name, title=table.title, paper=paper.cite, where=table.where, rows=table.runnable)
            for name, (paper, table) in published_tables().items()
        ]
    )
