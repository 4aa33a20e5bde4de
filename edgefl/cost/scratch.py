"""The table of kernels' scratch: by call of an operator, the most bytes that it holds at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import NamedTuple

from edgefl.work import Inside, LiveCall

LARGE = 32 * 2**20
"""Calls that touch fewer bytes are all measured at once; larger ones only if they could still move the peak.

Nine of the twelve calls of Qwen2.5-0.5B could not, and took 2.4 s.
"""

Probe = Callable[[Sequence[LiveCall]], Sequence[Inside]]
"""Measures calls; ``edgefl.machine.kernel_scratch.probe`` on the machine at hand."""


class ScratchRow(NamedTuple):
    """What the kernel of a call was measured to hold, as records have it."""

    call: str
    operator: str
    bytes: int
    assumed: bool
    kernels: str


class ScratchTable:
    """What calls of operators hold at a time, by ``Call.key``, for kernels of one kind of machine.

    ``kernels`` names the machine's kind and torch's version.  A call that the table lacks is measured by ``probe``.
    ``rows`` are all calls that were asked for, in order, so that another table can be made of them.
    """

    def __init__(self, kernels: str, probe: Probe):
        self.kernels, self._probe = kernels, probe
        self._known: dict[str, Inside] = {}
        self.rows: dict[str, ScratchRow] = {}
        self._recorded = 0

    def new_rows(self) -> list[ScratchRow]:
        """The rows that were added since the last call."""
        rows = list(self.rows.values())[self._recorded :]
        self._recorded = len(self.rows)
        return rows

    def take_over(self, rows: Iterable[ScratchRow]) -> None:
        """Take over the rows of an earlier process; none of them is new.  To be called before any is asked for.

        They count, whatever this machine would measure, since a resumed run must cost as it did.
        """
        for row in rows:
            self.rows[row.call] = row
            self._known[row.call] = Inside(row.bytes, row.assumed)
        self._recorded = len(self.rows)

    def add(self, rows: Iterable[tuple[str, int, bool]]) -> None:
        """Add measurements that another table has: key, bytes, and whether they are assumed."""
        self._known.update((key, Inside(size, assumed)) for key, size, assumed in rows)

    def scratch_by_call(self, calls: Sequence[LiveCall], live: int) -> list[Inside | None]:
        """What each call of a trace holds at a time; ``live`` is the trace's peak without scratch.

        It is None for a large call during which, by its bound, less can live than during another, so that it needn't
        run: on a decoder's scores of all tokens kernels take seconds.
        """
        # by identity: the caller has the calls, so that ids stay theirs
        small = [held for held in calls if held.touched_bytes < LARGE or held.most == inf]
        found = dict(zip(map(id, small), self._look_up(small), strict=True))
        peak = max([live, *(held.before + found[id(held)].bytes for held in small)])
        for held in sorted(calls, key=lambda held: -held.before - held.outputs):
            if id(held) not in found and held.most >= peak:
                (found[id(held)],) = self._look_up([held])
                peak = max(peak, held.before + found[id(held)].bytes)
        return [found.get(id(held)) for held in calls]

    def _look_up(self, calls: Sequence[LiveCall]) -> list[Inside]:
        lacking = {held.call.key: held for held in calls if held.call.key not in self._known}
        if lacking:
            measured = self._probe(list(lacking.values()))
            self._known.update(zip(lacking, measured, strict=True))
        insides = [self._known[held.call.key] for held in calls]
        for held, inside in zip(calls, insides, strict=True):
            key = held.call.key
            if key not in self.rows:
                self.rows[key] = ScratchRow(key, held.call.operator, inside.bytes, inside.assumed, self.kernels)
        return insides
