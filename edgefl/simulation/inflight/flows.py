"""Flows on the server's shared link: what a simulation asks of it, in whatever way it is shared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from math import inf, isfinite
from typing import Any

from edgefl.simulation.inflight.exact_bits import UNIT, flow_limit, link_rate, units_of


class SharedLink(ABC):
    """Flows on a link of ``bits_per_second``, as plain data on a clock that the caller keeps.

    A call at a time at which flows complete, or later, first lets these go at their own times; ``finish`` hands them
    out.  Time doesn't run backwards from call to call: ValueError.
    """

    def __init__(self, bits_per_second: float):
        self._capacity = link_rate(bits_per_second)
        self._flows: dict[int, Any] = {}
        self._done: set[int] = set()  # complete, and not yet handed out
        self._instant = -inf

    def add(self, now: float, flow: int, bits: float, most: float) -> None:
        """Begin a flow of so many bits that takes at most so many bit/s.  Raises ValueError for a number in use."""
        self._advance(now)
        if flow in self._flows or flow in self._done:
            raise ValueError(f"flow {flow} is under way")
        self._put(now, flow, units_of(bits), flow_limit(most, self._capacity))

    def add_all(self, now: float, flows: Iterable[int], bits: Iterable[float], most: Iterable[float]) -> None:
        """Begin many flows at one moment: as ``add`` on each, in any order."""
        for flow, size, cap in zip(flows, bits, most, strict=True):
            self.add(now, flow, size, cap)

    def remove(self, now: float, flow: int) -> float:
        """Break a flow off.  Gives the bits that it had not carried; KeyError if it is not under way."""
        left = self.left(now, flow)
        if flow in self._done:
            self._done.remove(flow)
        else:
            self._break_off(now, flow)
        return left

    def next(self) -> tuple[float, int] | None:
        """When the next flow completes as things stand, and which."""
        return (self._instant, min(self._done)) if self._done else self._first()

    def finish(self, now: float) -> list[int]:
        """The flows that are complete, ascending; each is handed out once."""
        self._advance(now)
        done, self._done = sorted(self._done), set()
        return done

    def left(self, now: float, flow: int) -> float:
        """Bits that a flow has still to carry; KeyError if it is not under way."""
        self._advance(now)
        return 0.0 if flow in self._done else self._units_left(now, flow) / UNIT

    @abstractmethod
    def rates(self) -> dict[int, float]:
        """The rate of each flow as things stand, in bit/s."""

    @abstractmethod
    def rows(self) -> dict[str, Any]:
        """The exact state, as JSON can hold it; ``from_rows`` goes on from it to the last bit."""

    def __len__(self) -> int:
        return len(self._flows)

    def _advance(self, now: float) -> None:
        """Begin the moment ``now``, if it hasn't begun."""
        if now == self._instant:
            return
        if not (now > self._instant and isfinite(now)):
            raise ValueError(f"a time of {now} s after {self._instant} s: time doesn't run backwards")
        self._begin(now)

    @abstractmethod
    def _begin(self, now: float) -> None:
        """Let go what completes until ``now``, each at its own time, and begin that moment."""

    @abstractmethod
    def _put(self, now: float, flow: int, units: int, cap: float) -> None:
        """Begin a flow of so many units of ``exact_bits`` that takes at most ``cap`` bit/s."""

    @abstractmethod
    def _break_off(self, now: float, flow: int) -> None:
        """Take out a flow that isn't complete."""

    @abstractmethod
    def _first(self) -> tuple[float, int] | None:
        """When the next of the flows that aren't complete completes, and which."""

    @abstractmethod
    def _units_left(self, now: float, flow: int) -> int:
        """Units that a flow which isn't complete has still to carry."""
