"""Objects as plain JSON data: what comes back is of the fields' types, and equal objects are written alike."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from edgefl.plain_data import from_data, load_data, to_data
from edgefl.records.rounds import EarlyStop


@dataclass
class Leg:
    """A part of a trip."""

    name: str
    stops: tuple[tuple[int, float], ...] = ()


@dataclass
class Trip:
    """Fields of all the kinds that JSON can't tell apart."""

    legs: list[Leg]
    seen: set[int]
    names: frozenset[str] = frozenset()
    by_place: Mapping[tuple[str, int | None], Leg] = field(default_factory=dict)
    totals: Counter[str] = field(default_factory=Counter)
    best: Leg | None = None
    stopped: EarlyStop | None = None
    anything: Any = None


STOPPED = EarlyStop(round=3, metric=None, value=None, reason="on_round", text="stopped")
LEG = Leg("a", ((1, 0.5), (2, 0.25)))
TRIP = Trip([LEG, Leg("b")], {300, 2, 11}, frozenset("xyz"), {("c", None): LEG}, Counter(a=2), LEG, STOPPED, {"k": [1]})


@pytest.mark.parametrize("trip", [TRIP, Trip([], set())])
def test_what_comes_back_from_json_has_the_types_of_the_fields(trip: Trip) -> None:
    back = from_data(Trip, json.loads(json.dumps(to_data(trip), allow_nan=False)))
    assert back == trip and type(back.totals) is Counter and type(back.seen) is set


def test_sets_are_sorted_and_a_field_that_is_not_there_is_told() -> None:
    assert to_data(TRIP)["seen"] == [2, 11, 300] and to_data(TRIP)["names"] == ["x", "y", "z"]
    with pytest.raises(TypeError, match="wheels"):
        from_data(Leg, {"name": "a", "wheels": 2})


def test_an_object_that_is_there_takes_the_fields_that_are_named() -> None:
    there, raw = Trip([], {1}), json.loads(json.dumps(to_data(TRIP)))
    load_data(there, {name: raw[name] for name in ("legs", "totals", "stopped")})
    assert there == Trip(TRIP.legs, {1}, totals=TRIP.totals, stopped=STOPPED)
