"""The answer of ``edgefl parts``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records.answer import Answer
from edgefl.records.devices import BrokenPart
from edgefl.records.record import UNSET, Keys, Maybe, Record


class PartOption(Record):
    """An option of a part."""

    name: str
    """The option"""
    default: str
    """Its default as text; `-` for none, `required` if it must be given"""
    values: str
    """What it may be"""
    description: str
    """What it does"""


class ListedPart(Record):
    """A part that a scenario can name."""

    name: str
    """Its name"""
    summary: str
    """What it is, in a line"""
    options: Sequence[PartOption] | Maybe = UNSET
    """Its options; absent if it can have none"""


class Parts(Answer):
    """The parts of each kind that was asked for."""

    sections: Annotated[Mapping[str, Sequence[ListedPart]], Keys("KIND")]
    """The parts by kind: `method`, `schedule`, `data-set`, ..."""
    broken: Sequence[BrokenPart] | Maybe = UNSET
    """What is left out because it is broken; absent if nothing is"""

    @property
    def notices(self) -> list[str]:
        """A line for each part that is left out."""
        return [f"left out: {each.message}" for each in self.broken or ()]
