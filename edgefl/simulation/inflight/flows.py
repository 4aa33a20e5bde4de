"""Interface of the server's shared link, however it is shared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from math import inf, isfinite
from typing import Any

from edgefl.simulation.inflight.exact_bits import UNIT, flow_limit, link_rate, units_of


class SharedLink(ABC):
    """Flows on a link of ``bits_per_second``; the caller gives the time ``now`` with each call.

    A call first completes all flows that end by its time, each at its own time; ``finish`` returns them.  Raises
    ValueError if the time is before that of an earlier call.
    """

    def __init__(self, bits_per_second: float):
        self._capacity = link_rate(bits_per_second)
        self._flows: dict[int, Any] = {}
        self._done: set[int] = set()  # complete, and not yet returned by ``finish``
        self._instant = -inf

    def add(self, now: float, flow: int, bits: float, most: float) -> None:
        """Begin a flow of ``bits`` at a rate of at most ``most`` bit/s.  Raises ValueError if its number is in use."""
        self._advance(now)
        if flow in self._flows or flow in self._done:
            raise ValueError(f"flow {flow} is under way")
        self._put(now, flow, units_of(bits), flow_limit(most, self._capacity))

    def add_all(self, now: float, flows: Iterable[int], bits: Iterable[float], most: Iterable[float]) -> None:
        """Begin many flows at one time: like ``add`` for each flow, in any order."""
        for flow, size, cap in zip(flows, bits, most, strict=True):
            self.add(now, flow, size, cap)

    def remove(self, now: float, flow: int) -> float:
        """Cancel a flow; return the bits that remain.  Raises KeyError if it is not under way."""
        left = self.left(now, flow)
        if flow in self._done:
            self._done.remove(flow)
        else:
            self._break_off(now, flow)
        return left

    def next(self) -> tuple[float, int] | None:
        """Time and number of the next flow to complete at current rates; None without flows."""
        return (self._instant, min(self._done)) if self._done else self._first()

    def finish(self, now: float) -> list[int]:
        """The flows completed since the last call, ascending."""
        self._advance(now)
        done, self._done = sorted(self._done), set()
        return done

    def left(self, now: float, flow: int) -> float:
        """Bits of a flow that remain.  Raises KeyError if it is not under way."""
        self._advance(now)
        return 0.0 if flow in self._done else self._units_left(now, flow) / UNIT

    @abstractmethod
    def rates(self) -> dict[int, float]:
        """The current rate of each flow, in bit/s."""

    @abstractmethod
    def rows(self) -> Mapping[str, object]:
        """The state as JSON can hold it, from which ``from_rows`` restores it exactly."""

    def __len__(self) -> int:
        return len(self._flows)

    def _advance(self, now: float) -> None:
        """Advance to the time ``now``, if it is later than the last call's."""
        if now == self._instant:
            return
        if not (now > self._instant and isfinite(now)):
            raise ValueError(f"the time of a call must be finite and not before {self._instant} s, not {now} s")
        self._begin(now)

    @abstractmethod
    def _begin(self, now: float) -> None:
        """Complete the flows that end by ``now``, each at its own time, and advance to ``now``."""

    @abstractmethod
    def _put(self, now: float, flow: int, units: int, cap: float) -> None:
        """Begin a flow of ``units`` (``exact_bits``) at a rate of at most ``cap`` bit/s."""

    @abstractmethod
    def _break_off(self, now: float, flow: int) -> None:
        """Remove a flow that isn't complete."""

    @abstractmethod
    def _first(self) -> tuple[float, int] | None:
        """Time and number of the next incomplete flow to complete."""

    @abstractmethod
    def _units_left(self, now: float, flow: int) -> int:
        """Units that remain of a flow that isn't complete."""
