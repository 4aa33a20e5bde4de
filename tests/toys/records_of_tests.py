"""Records that the tests of this folder read and write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from typing import Annotated, Any, TypeVar, get_args, get_origin

from edgefl import RUN_FORMAT
from edgefl.records.record import UNSET, ByKind, Clients, Keys, Maybe, Record, Share, part_of, types_of
from edgefl.records.run import Environment

R = TypeVar("R", bound=Record)


ENVIRONMENT = Environment(
    run_format=RUN_FORMAT, edgefl="0", python="3", packages={}, system="", machine="", cpu="", cpu_cores=1, ram_bytes=1,
    gpu=None, cuda=None,
)  # fmt: skip


def blank(cls: type[R], **given: Any) -> R:
    """A record with these fields, and zeros, empty texts and empty lists in the others that every record has."""
    for name, kind in types_of(cls).items():
        if name not in given and cls.__dataclass_fields__[name].default is MISSING:
            given[name] = _blank(kind)
    return cls(**given)


def _blank(kind: Any) -> Any:
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if type(None) in get_args(kind):
        return None
    origin = get_origin(kind) or kind
    if issubclass(origin, Record):
        return blank(origin)
    return {Mapping: {}, Sequence: []}.get(origin) if origin in (Mapping, Sequence) else origin()


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
