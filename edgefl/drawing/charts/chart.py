"""What a figure shows, apart from how it is drawn: series of numbers in panels, and the same numbers as a table.

Numbers are in base units (bytes, seconds, joules, FLOPs); whoever draws them chooses the prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from edgefl.drawing.charts.palette import INK
from edgefl.drawing.text_tables import csv_lines
from edgefl.errors import visible
from edgefl.units import NAMED

Number = float | None
Form = Literal["lines", "bars", "stacks", "areas", "points", "spans", "map"]


class _DrawnText:
    """Something whose texts are drawn: characters that turn the order of others or can't be drawn are escapes."""

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]  # every class below is a dataclass
            if each.name not in ("rows", "columns"):  # a CSV file has these too
                object.__setattr__(self, each.name, _make_visible(getattr(self, each.name)))


def _make_visible(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list | tuple) and any(isinstance(part, str | tuple) for part in value):
        return type(value)(_make_visible(part) for part in value)
    return value


@dataclass(frozen=True)
class ChartAxis(_DrawnText):
    """An axis: its title and the unit of its numbers, a word of ``units.NAMED`` (``bytes``, ``seconds``, ``share``).

    Larger numbers than ``top`` are cut off.
    """

    title: str
    unit: str = ""
    log: bool = False
    top: Number = None
    bottom: Number = None
    names: Sequence[str] = ()
    """The places of an axis of names, in order."""

    def scale(self, values: Iterable[Any]) -> tuple[float, str]:
        """The divisor for these values, and the title with the unit: ``(1048576, "peak memory, MiB")``."""
        if self.unit not in NAMED:
            return 1.0, self.title
        largest = max((abs(v) for v in values if isinstance(v, int | float)), default=0.0)
        if self.top is not None:
            largest = min(largest, self.top)
        factor = NAMED[self.unit].unit_for(largest).factor
        return factor, self.title_with_unit(factor)

    def title_with_unit(self, factor: float) -> str:
        """The title with the unit of numbers that are divided by ``factor``."""
        name = next((step.name for step in NAMED[self.unit].steps if step.factor == factor), "") if self.unit else ""
        return ", ".join(filter(None, [self.title, name]))


@dataclass(frozen=True)
class Series(_DrawnText):
    """Numbers of one name and colour.  All sequences are as long as ``x`` or empty.

    ``low`` and ``high`` are the ends of a band or of error bars, ``base`` the place where a span begins, ``symbols``
    indices of marks, ``sizes`` the number of clients that a point stands for, and ``notes`` a text for each point.
    """

    name: str
    x: Sequence[Any]
    y: Sequence[Any]
    colour: str = INK
    low: Sequence[Number] = ()
    high: Sequence[Number] = ()
    base: Sequence[float] = ()
    symbols: Sequence[int] = ()
    sizes: Sequence[int] = ()
    notes: Sequence[str] = ()
    hollow: bool = False
    dashed: bool = False
    heavy: bool = False
    """Whether its line is thick."""
    written: bool = False
    """Whether the notes stand beside the points, bars or cells, not only under the pointer."""
    leftward: bool = False
    """Whether notes that stand beside points of a panel of lines end there, and don't begin."""
    form: Form | None = None
    """How this series is drawn, if not as its panel says."""


MOST_UPRIGHT = 5
"""Bars of their own that stand; more of them lie, because their names would overlap below them."""


@dataclass(frozen=True)
class Panel(_DrawnText):
    """One pair of axes.  ``across`` and ``down`` are lines with a name, at a height and at a place of the x axis.

    ``areas`` are stacked and hold their value until the next place.  In a ``map`` each series is a line of cells.
    """

    title: str
    form: Form
    x: ChartAxis
    y: ChartAxis
    series: Sequence[Series]
    across: Sequence[tuple[float, str]] = ()
    down: Sequence[tuple[float, str]] = ()
    symbols: Sequence[str] = ()
    """What each mark stands for."""
    value: ChartAxis | None = None
    """What the colours of a map stand for."""
    marked: bool = True
    """Whether the places of lines have marks; if not, series of points among them have marks and error bars."""
    legend: bool = False
    """Whether the panel has a legend of its own."""
    labelled: bool = False
    """Whether its lines have their names beside them, so that it needs no legend."""

    def factors(self) -> tuple[float, float]:
        """The divisors of the numbers along x and along y, so that the largest is told with a fitting prefix."""
        across: list[Number] = []
        up: list[Number] = []
        sums: dict[object, float] = {}
        for series in self.series:
            across += [b + x for b, x in zip(series.base, series.x, strict=True)] if series.base else series.x
            up += [*series.y, *series.high]
            if self.form in ("stacks", "areas") and series.form is None:
                for x, y in zip(series.x, series.y, strict=True):
                    sums[x] = sums.get(x, 0.0) + (y or 0.0)
        return self.x.scale(across)[0], self.y.scale([*up, *sums.values()])[0]

    @property
    def has_single_bars(self) -> bool:
        """Whether each series is one bar of its own, named below it: such a panel needs no legend."""
        series = [each for each in self.series if each.form is None]
        return (
            self.form == "bars"
            and all(len(each.x) == 1 for each in series)
            and len(series) == len({each.x[0] for each in series})
        )

    @property
    def is_horizontal(self) -> bool:
        """Whether bars lie, with their names beside them, since they are too many for names below."""
        return self.has_single_bars and len(self.series) > MOST_UPRIGHT


@dataclass(frozen=True)
class Chart(_DrawnText):
    """A figure: panels, a sentence that says what they show, and the same numbers as a table.

    ``group`` is what several figures have in common that show the same for other metrics or kinds; ``choice`` is what
    tells this one from them.
    """

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    group: str = ""
    choice: str = ""
    notes: Sequence[str] = field(default=())
    """Sentences below the figure."""
    spread: str = ""
    """What bands and error bars are, as a sentence; a picture has it below the axes."""
    across: int = 2
    """Panels that stand beside each other."""
    size: tuple[float, float] | None = None
    """Inches of a panel in a picture; None for as much as fits the text of a paper."""
    headed: bool = False
    """Whether a picture has the title above it."""
    aligned: bool = False
    """Whether all panels share their x axis, and those of a line their y axis."""

    def csv(self) -> str:
        """The table as CSV text: a line of names, and numbers in base units."""
        return csv_lines([self.columns, *self.rows])


def mean(values: Iterable[Number]) -> Number:
    """The mean of the values that are known; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
