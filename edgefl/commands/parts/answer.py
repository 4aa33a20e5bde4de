"""The answers of the commands that list parts: ``edgefl methods``, ``models``, ``data``, ``selections`` and others."""

from __future__ import annotations

from collections.abc import Sequence

from edgefl.records.devices import BrokenPart
from edgefl.records.record import UNSET, Maybe, Record


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


class ListedParts(Record):
    """The parts of each section that the command lists; the others are absent."""

    methods: Sequence[ListedPart] | Maybe = UNSET
    """Methods, with `edgefl methods`"""
    schedules: Sequence[ListedPart] | Maybe = UNSET
    """Schedules, with `edgefl methods` and `edgefl schedules`"""
    towers: Sequence[ListedPart] | Maybe = UNSET
    """Towers, with `edgefl models`"""
    models: Sequence[ListedPart] | Maybe = UNSET
    """Models that towers form, with `edgefl models`"""
    data_sets: Sequence[ListedPart] | Maybe = UNSET
    """Data sets, with `edgefl data`"""
    partitions: Sequence[ListedPart] | Maybe = UNSET
    """Partitions over clients, with `edgefl data`"""
    selections: Sequence[ListedPart] | Maybe = UNSET
    """Selections of clients, with `edgefl selections`"""
    policies: Sequence[ListedPart] | Maybe = UNSET
    """Round policies, with `edgefl policies`"""
    rules: Sequence[ListedPart] | Maybe = UNSET
    """Rules of aggregation, with `edgefl aggregations`"""
    server_optimizers: Sequence[ListedPart] | Maybe = UNSET
    """Server optimizers, with `edgefl aggregations`"""
    codecs: Sequence[ListedPart] | Maybe = UNSET
    """Codecs of payloads, with `edgefl aggregations`"""
    metrics: Sequence[ListedPart] | Maybe = UNSET
    """Metrics, with `edgefl metrics`"""
    optimizers: Sequence[ListedPart] | Maybe = UNSET
    """Optimizers, with `edgefl optimizers`"""
    rate_schedules: Sequence[ListedPart] | Maybe = UNSET
    """Rate schedules, with `edgefl optimizers`"""
    broken: Sequence[BrokenPart] | Maybe = UNSET
    """What is left out because it is broken; absent if nothing is"""
