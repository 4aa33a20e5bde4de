"""The answers of ``edgefl validate``: what a scenario that can be run consists of, or a JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records.answer import Answer
from edgefl.records.record import UNSET, Keys, Maybe, Record, Rounds, Unit

ByName = Annotated[Mapping[str, int], Keys("NAME"), Unit("clients")]


class ValidCombination(Record):
    """A combination of what the scenario compares."""

    label: str
    """Its label"""
    method: str
    """Its method"""
    schedule: str
    """Its schedule"""
    rounds: Rounds
    """Rounds in all"""
    fewest_rounds: Rounds | Maybe = UNSET
    """The fewest in which a run may end; only of a schedule that ends its stages by what a run learns"""
    rounds_by_stage: Annotated[Sequence[int], Unit("rounds")]
    """Rounds of each stage"""
    clients: Annotated[Mapping[str, int], Keys("KIND"), Unit("clients")]
    """Clients of each kind"""
    samples: Annotated[Mapping[str, int], Keys("KIND"), Unit("samples")]
    """Private samples of each kind"""
    lacking: Annotated[Mapping[str, Mapping[str, int]], Keys("KIND.PATTERN"), Unit("samples")]
    """Samples of kinds that lack modalities, by pattern; `dropped`: those without any"""
    parameters: Annotated[Mapping[str, int], Keys("KIND")]
    """Parameters of each kind's model"""
    nobody_fits: Sequence[str]
    """Sentences that say that nobody can train: at all, or of a kind or in a stage"""
    devices: ByName
    """Clients by device, most first"""
    links: ByName
    """Clients by link, most first"""
    relays: Annotated[Mapping[str, int], Keys("LINK")] | Maybe = UNSET
    """Relays by their link; absent without `fleet.relays`"""


class ValidScenario(Answer):
    """A scenario that can be run."""

    scenario: str
    """Name of the scenario"""
    seed: int
    """Its seed"""
    combinations: Sequence[ValidCombination]
    """Each combination; of a scenario that compares nothing the scenario itself"""
    resolved: Annotated[Mapping[str, object], Keys("SECTION")]
    """The scenario with every default written out"""


class JsonSchema(Answer):
    """What ``edgefl validate --schema`` prints."""

    of: str
    """`scenario`, or the record"""
    file: str | None
    """The file that it was written to; `null` without one"""
    schema: Annotated[Mapping[str, object], Keys("KEY")]
    """The JSON Schema"""
