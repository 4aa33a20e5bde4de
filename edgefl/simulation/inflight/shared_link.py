"""The server's shared link: what a simulation asks of it, and the ways in which it can be shared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from edgefl.simulation.inflight.fair_share import FairShare
from edgefl.simulation.inflight.fifo import Fifo

__all__ = ["SHARING", "FairShare", "Fifo", "SharedLink"]


class SharedLink(Protocol):
    """Flows on a link, as plain data on a clock that the caller keeps.

    A call at a time at which flows complete, or later, first lets these go at their own times; ``finish`` hands them
    out.  Time doesn't run backwards from call to call: ValueError.
    """

    def add(self, now: float, flow: int, bits: float, most: float) -> None:
        """Begin a flow of so many bits that takes at most so many bit/s."""
        ...

    def add_all(self, now: float, flows: Iterable[int], bits: Iterable[float], most: Iterable[float]) -> None:
        """Begin many flows at one moment."""
        ...

    def remove(self, now: float, flow: int) -> float:
        """Break a flow off.  Gives the bits that it had not carried; KeyError if it is not under way."""
        ...

    def next(self) -> tuple[float, int] | None:
        """When the next flow completes as things stand, and which."""
        ...

    def finish(self, now: float) -> list[int]:
        """The flows that are complete, ascending; each is handed out once."""
        ...

    def left(self, now: float, flow: int) -> float:
        """Bits that a flow has still to carry."""
        ...

    def rates(self) -> dict[int, float]:
        """The rate of each flow as things stand, in bit/s."""
        ...

    def rows(self) -> dict[str, Any]:
        """The exact state, as JSON can hold it."""
        ...

    def __len__(self) -> int: ...


SHARING: Mapping[str, Callable[[float], SharedLink]] = {"fair": FairShare, "fifo": Fifo}
"""The ways to share a link of so many bit/s, by the name that a scenario gives them."""
