"""Records that the tests of this folder read and write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records import UNSET, ByKind, Clients, Keys, Maybe, Record, Share, part_of


class Cost(Record):
    download_bytes: int
    """Tensors sent down,
    for the whole work"""
    upload_bytes_by_part: Annotated[Mapping[str, int], Keys("PART")]
    """The same up, by part"""


class Measured(Record):
    memory_error: Share | None
    """Null where nothing was measured"""


class Step(Record):
    name: str
    """Its name"""
    seconds: float
    """Its time"""


class Trip(Cost, Measured):
    """Two groups and fields of its own."""

    round: int
    """Its round"""
    client: int
    """Its client"""
    eligible: bool
    """Whether it may"""
    part: str | Maybe = UNSET
    """Only in some runs"""
    of_kind: ByKind[Clients]
    """By kind"""
    metrics: Annotated[Mapping[str, Mapping[str, Share | None]], Keys("KIND.METRIC")]
    """Scores"""
    steps: Sequence[Step]
    """In order"""
    best: Step | Maybe = UNSET
    """Where a metric is followed"""


@part_of(Trip)
class Shown(Record):
    client: int
    """Its client"""
    part: str | Maybe = UNSET
    """Only in some runs"""


TRIP = Trip(
    round=3, client=7, eligible=True, download_bytes=10, upload_bytes_by_part={"head": 4}, memory_error=None,
    of_kind={"image": 2}, metrics={"image": {"accuracy": 0.25}}, steps=[Step(name="a", seconds=1.5)],
)  # fmt: skip
