"""Events per CPU second of the shared server link, compared with computing every rate anew at every event.

    python tools/bench.py network [CONCURRENT ...]

An event is the begin or end of a flow; after each, the next end is computed, as in a simulation.  With ``one cap`` all
flows have the same cap, with ``ten caps`` about as many as the library's networks, with ``own caps`` each flow its own
(as from jitter).  In ``cohorts`` all flows begin at the same time and end before the next cohort begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import process_time

import numpy as np
from measuring import parser_of, table

from edgefl import seeds
from edgefl.simulation.inflight.shared_link import FairShare, Fifo, SharedLink

CAPACITY = 1e9


class Naive:
    """Max-min fairness in NumPy that sorts and serves all flows at every event; the functions are ``FairShare``'s."""

    def __init__(self, capacity: float, room: int):
        self.capacity, self.now = capacity, 0.0
        self.bits, self.most, self.flows = np.empty(room), np.empty(room), np.empty(room, dtype=int)
        self.rates, self.n = np.empty(room), 0

    def _serve(self, now: float) -> None:
        self.bits[: self.n] -= self.rates[: self.n] * (now - self.now)
        self.now = now

    def _share(self) -> None:
        caps = np.sort(self.most[: self.n])
        below = np.concatenate(([0.0], caps.cumsum()[:-1]))
        levels = (self.capacity - below) / np.arange(self.n, 0, -1)
        full = (levels < caps).nonzero()[0]
        self.rates[: self.n] = np.minimum(self.most[: self.n], levels[full[0]] if len(full) else np.inf)

    def add_all(self, now: float, flows: list[int], bits: list[float], most: list[float]) -> None:
        """Add flows."""
        self._serve(now)
        new = slice(self.n, self.n + len(flows))
        self.flows[new], self.bits[new], self.most[new] = flows, bits, most
        self.n += len(flows)
        self._share()

    def next(self) -> tuple[float, int] | None:
        """Time and flow of the next end."""
        if not self.n:
            return None
        left = self.bits[: self.n] / self.rates[: self.n]
        first = int(left.argmin())
        return self.now + float(left[first]), int(self.flows[first])

    def finish(self, now: float) -> list[int]:
        """Remove the flows that end at ``now``."""
        self._serve(now)
        over = self.bits[: self.n] <= 1e-6
        done = sorted(self.flows[: self.n][over].tolist())
        remaining = int(self.n - over.sum())
        for values in (self.bits, self.most, self.flows):
            values[:remaining] = values[: self.n][~over]
        self.n = remaining
        if remaining:
            self._share()
        return done


Link = SharedLink | Naive


def steady(link: Link, events: int, concurrent: int, caps: np.ndarray) -> int:
    """Play flows of which as many begin as end; returns the number of events."""
    draw = seeds.generator(1, "bench")
    sizes = draw.uniform(1e6, 1e8, events + concurrent).tolist()
    most = draw.choice(caps, events + concurrent).tolist()
    link.add_all(0.0, list(range(concurrent)), sizes[:concurrent], most[:concurrent])
    flow, seen = concurrent, concurrent
    while seen < events and (end := link.next()) is not None:
        done = link.finish(end[0])
        new = slice(flow, flow + len(done))
        link.add_all(end[0], list(range(flow, flow + len(done))), sizes[new], most[new])
        flow, seen = flow + len(done), seen + 2 * len(done)
    return seen


def cohorts(link: Link, events: int, concurrent: int, caps: np.ndarray) -> int:
    """Play cohorts whose flows begin together, one cohort after another; returns the number of events."""
    most = seeds.generator(1, "bench").choice(caps, concurrent).tolist()
    now, seen = 0.0, 0
    while seen < events:
        link.add_all(now, list(range(concurrent)), [8e6] * concurrent, most)
        while (end := link.next()) is not None:
            now = end[0]
            seen += len(link.finish(now))
        seen += concurrent
    return seen


def cases(concurrent: int) -> Iterator[tuple[str, Callable[..., int], np.ndarray]]:
    """Name of each case, the function that plays its flows, and their caps in bit/s."""
    share = CAPACITY / concurrent
    own = seeds.generator(2, "caps").lognormal(np.log(share * 1.2), 0.8, 200_000)
    yield "steady, one cap at the fair share", steady, np.array([share])
    yield "steady, ten caps", steady, own[:10]
    yield "steady, own caps", steady, own
    yield "steady, own caps, never full", steady, own / 10
    yield "cohorts, ten caps", cohorts, own[:10]
    yield "cohorts, own caps", cohorts, own


def main(arguments: list[str]) -> None:
    """Print a table for each number of concurrent flows."""
    parser = parser_of(__doc__, "bench.py network")
    parser.add_argument("concurrent", type=int, nargs="*", default=[1000], help="flows at a time (default 1000)")
    for concurrent in parser.parse_args(arguments).concurrent:
        many, few = max(100_000, 4 * concurrent), max(4_000, min(3 * concurrent, 40_000))
        links: list[tuple[Link, int]] = []
        lines = []
        for name, play, caps in cases(concurrent):
            links = [(FairShare(CAPACITY), many), (Fifo(CAPACITY), many), (Naive(CAPACITY, 3 * concurrent), few)]
            rates = []
            for link, events in links:
                start = process_time()
                seen = play(link, events, concurrent, caps)
                rates.append(seen / (process_time() - start))
            lines.append([name, *(f"{rate:,.0f}" for rate in rates), f"{rates[0] / rates[2]:.1f}"])
        print(table((f"{concurrent:,} flows at a time: events/s", "fair", "fifo", "naive", "fair / naive"), lines))
