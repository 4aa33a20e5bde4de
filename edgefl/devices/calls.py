"""Calls "on" and "off" of clients that switch by a Markov process, drawn by counter around the times that are asked.

The calls of one kind are a Poisson process.  Time is divided into cells; the gaps of every cell are drawn independently
from its start, as a Poisson process has no memory.  Calls of a cell come in ascending order, so only as many are drawn
as the answer needs.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl import seeds
from edgefl.arrays import Booleans, Floats, Integers

ON, OFF = 0, 1
"""Kinds of calls."""

MEANS_A_CELL = 4
"""Mean number of calls in a cell, a block's: 2 % of cells are empty, and 5 % need more than two blocks.  Another number
gives other draws, and so other records."""

BLOCKS_A_BATCH, MOST_BLOCKS = 4, 48
"""Blocks of four gaps: how many are added up together, and the most per cell.

A cell with more than 48 * 4 calls, where 4 are expected, has a probability below 10^-240.
"""

FEW, SOME = 512, 1500
"""Up to so many cells, a batch of blocks (two blocks) is drawn at once: calls of NumPy cost more than the numbers.

64 clients took 0.27, 0.38 and 0.65 ms by four, two and one block, 1500 took 2.3, 1.3 and 2.0 ms, and 8192 took 13, 6.5
and 4.3 ms.
"""


class Calls:
    """The calls around one time for each client: ``rows`` and ``times`` `[clients]`.

    ``gaps`` are the mean seconds between two calls "on" and between two calls "off".
    """

    def __init__(self, seed: int, gaps: tuple[float, float], rows: Integers, times: Floats):
        self._rows, self._times = rows, times
        self._lengths = np.array([MEANS_A_CELL * gap for gap in gaps])
        self._keys = np.concatenate(
            [seeds.counter_key(seed, f"availability calls {name}") for name in ("on", "off")], axis=1
        )
        self._cells = np.stack([_cell(times, length) for length in self._lengths.tolist()])
        kinds, columns = np.repeat((ON, OFF), len(rows)), np.tile(np.arange(len(rows)), 2)
        before, after = self._around(kinds, columns, self._cells.reshape(-1))
        self._before, self._after = before.reshape(2, -1), after.reshape(2, -1)

    def on(self) -> Booleans:
        """Whether the last call was "on": `[clients]`; of two calls at one time, "on" counts."""
        before, cells = self._before, self._cells.copy()
        last, begins = before, cells * self._lengths[:, None]
        columns = np.arange(len(self._rows))
        while True:
            # a kind without a call in its cell had its last one before; a call of the other within the cell was later
            undecided = np.isneginf(last) & (last[::-1] < begins)
            columns = columns[undecided.any(axis=0)]
            if not len(columns):
                return np.asarray(before[ON] >= before[OFF])
            kinds, among = np.nonzero(undecided[:, undecided.any(axis=0)])
            cells[kinds, columns[among]] -= 1
            before[kinds, columns[among]], _ = self._around(kinds, columns[among], cells[kinds, columns[among]])
            last, begins = before[:, columns], cells[:, columns] * self._lengths[:, None]

    def after(self, kinds: Integers, columns: Integers | None = None) -> Floats:
        """The time of the first call of these kinds after the times, for the clients in these columns (None: all)."""
        columns = np.arange(len(self._rows)) if columns is None else columns
        first, cells = self._after[kinds, columns], self._cells[kinds, columns]
        pending = np.flatnonzero(np.isinf(first))
        pending = pending[np.argsort(kinds[pending], kind="stable")]
        while len(pending):
            cells[pending] += 1
            _, first[pending] = self._around(kinds[pending], columns[pending], cells[pending])
            pending = pending[np.isinf(first[pending])]
        return first

    def _around(self, kinds: Integers, columns: Integers, cells: Integers) -> tuple[Floats, Floats]:
        """Times of the last call at or before and of the first call after the clients' times, within these cells.

        They are -inf and inf where the cell has none.  ``kinds`` are ascending.
        """
        rows, times = self._rows[columns], self._times[columns]
        if len(rows) <= SOME:
            return _around(self._keys[:, kinds], self._lengths[kinds], rows, cells, times)
        split = int(np.searchsorted(kinds, OFF))
        parts = [
            _around(self._keys[:, kind : kind + 1], self._lengths[kind], rows[part], cells[part], times[part])
            for kind, part in ((ON, slice(split)), (OFF, slice(split, None)))
        ]
        before, after = (np.concatenate(both) for both in zip(*parts, strict=True))
        return before, after


def _cell(times: Floats, length: float) -> Integers:
    """The cell of each time."""
    cell = np.floor(times / length).astype(np.int64)
    # rounding may have moved the quotient across the boundary of a cell
    cell -= cell * length > times
    cell += (cell + 1) * length <= times
    return cell


def _around(
    keys: NDArray[np.uint64], lengths: Any, rows: Integers, cells: Integers, times: Floats
) -> tuple[Floats, Floats]:
    """``Calls._around`` by keys and lengths of cells: one for all or one for each."""
    before, after = np.full(len(rows), -inf), np.full(len(rows), inf)
    last = np.nextafter((cells + 1) * lengths, -inf)  # keeps a call in its cell despite rounding
    begun = np.zeros(len(rows))  # position of the last call of the batches before, as a fraction of the cell
    since = np.zeros(len(rows))  # the same of this batch, from ``begun``
    where, block = np.arange(len(rows)), 0
    while len(where):
        wanted = BLOCKS_A_BATCH if len(where) <= FEW else 2 if len(where) <= SOME else 1
        blocks = min(wanted, BLOCKS_A_BATCH - block % BLOCKS_A_BATCH)
        gaps = _gaps(keys, rows, cells, block, blocks)
        gaps[0] += since
        positions = np.cumsum(gaps, axis=0)
        since = positions[-1].copy()
        positions += begun
        at = cells + positions
        at *= lengths
        np.minimum(at, last, out=at)
        at[positions >= 1] = inf
        passed = np.count_nonzero(at <= times, axis=0)
        some, ends = np.flatnonzero(passed), passed < len(at)
        before[where[some]] = at[passed[some] - 1, some]
        after[where[ends]] = at[passed[ends], np.flatnonzero(ends)]
        block += blocks
        if block % BLOCKS_A_BATCH == 0:
            begun, since = positions[-1], np.zeros(len(where))
        more = np.flatnonzero(~ends)
        where, rows, cells, times, last = where[more], rows[more], cells[more], times[more], last[more]
        begun, since = begun[more], since[more]
        keys = keys if keys.shape[1] == 1 else keys[:, more]
        lengths = lengths[more] if np.ndim(lengths) else lengths
    return before, after


def _gaps(keys: NDArray[np.uint64], rows: Integers, cells: Integers, block: int, blocks: int) -> Floats:
    """Four gaps for each block and cell, as fractions of its length: `[4 * blocks, cells]`."""
    numbers = cells * MOST_BLOCKS + block
    if blocks == 1:
        drawn = seeds.columns_of(keys, rows, numbers)
    else:
        numbers = (numbers + np.arange(blocks)[:, None]).reshape(-1)
        each = keys if keys.shape[1] == 1 else np.tile(keys, blocks)
        drawn = seeds.columns_of(each, np.tile(rows, blocks), numbers)
        drawn = np.ascontiguousarray(drawn.reshape(4, blocks, -1).transpose(1, 0, 2)).reshape(4 * blocks, -1)
    np.log(drawn, out=drawn)
    drawn /= -MEANS_A_CELL
    return drawn
