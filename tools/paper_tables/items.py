"""What the papers did, experiment by experiment, and how edgefl runs each: ``items.yaml``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, RootModel, model_validator

from tools.paper_tables.published_tables import PrintedPart, read_typed

FILE = Path(__file__).parent / "items.yaml"
State = Literal["as printed", "partly", "not"]


class Item(PrintedPart):
    """An experiment, setting or figure of a paper, and the commands that run it.

    ``why`` says what differs from the paper, and ``lines`` how many of edgefl's it would take, 0 if none would do.
    """

    what: str
    state: State = "as printed"
    why: str = ""
    lines: int = 0
    run: Sequence[str] = Field(min_length=1)

    @model_validator(mode="after")
    def _has_a_reason(self) -> Item:
        if (self.state == "as printed") == bool(self.why):
            raise ValueError(f"{self.what}: why is for what isn't as printed, and only for that")
        return self


class PaperItems(PrintedPart):
    """A paper's items by their numbers; ``paper`` is the name of its file in published/."""

    title: str
    paper: str
    items: Mapping[int, Item]


class _Items(RootModel[Sequence[PaperItems]]):
    """The file."""

    @model_validator(mode="after")
    def _each_number_once(self) -> _Items:
        numbers = Counter(number for paper in self.root for number in paper.items)
        if twice := [number for number, count in numbers.items() if count > 1]:
            raise ValueError(f"a number stands twice: {', '.join(map(str, twice))}")
        return self


@cache
def paper_items() -> Sequence[PaperItems]:
    """The papers with their items.  Raises RunError if the file isn't valid."""
    return read_typed(FILE, _Items).root
