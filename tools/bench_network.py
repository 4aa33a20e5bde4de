"""Events a CPU second of the shared server link, beside working every rate out again at every event.

    python tools/bench_network.py [CONCURRENT ...]

An event is a flow that begins or ends; after each, the next end is asked for, as a simulation does.  ``one cap``: all
flows have the same; ``ten caps``: as many as the library has networks; ``own caps``: each flow its own, as jitter
makes them.  ``cohorts``: all flows begin at the same moment and end before the next cohort begins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from time import process_time

import numpy as np

from edgefl import seeds
from edgefl.simulation.inflight.shared_link import FairShare, Fifo, SharedLink

CAPACITY = 1e9


class Naive:
    """Max-min fairness by sorting all flows and serving all of them at every event, in NumPy."""

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
        """As ``FairShare``."""
        self._serve(now)
        new = slice(self.n, self.n + len(flows))
        self.flows[new], self.bits[new], self.most[new] = flows, bits, most
        self.n += len(flows)
        self._share()

    def next(self) -> tuple[float, int] | None:
        """As ``FairShare``."""
        if not self.n:
            return None
        left = self.bits[: self.n] / self.rates[: self.n]
        first = int(left.argmin())
        return self.now + float(left[first]), int(self.flows[first])

    def finish(self, now: float) -> list[int]:
        """As ``FairShare``."""
        self._serve(now)
        over = self.bits[: self.n] <= 1e-6
        done = sorted(self.flows[: self.n][over].tolist())
        kept = int(self.n - over.sum())
        for values in (self.bits, self.most, self.flows):
            values[:kept] = values[: self.n][~over]
        self.n = kept
        if kept:
            self._share()
        return done


def steady(link: SharedLink | Naive, events: int, concurrent: int, caps: np.ndarray) -> int:
    """Whenever flows end, as many begin."""
    draw = seeds.generator(1, "bench")
    sizes = draw.uniform(1e6, 1e8, events + concurrent).tolist()
    most = draw.choice(caps, events + concurrent).tolist()
    first = list(range(concurrent))
    link.add_all(0.0, first, sizes[:concurrent], most[:concurrent])
    flow, seen = concurrent, concurrent
    while seen < events and (found := link.next()) is not None:
        done = link.finish(found[0])
        new = list(range(flow, flow + len(done)))
        link.add_all(found[0], new, sizes[flow : flow + len(done)], most[flow : flow + len(done)])
        flow, seen = flow + len(done), seen + 2 * len(done)
    return seen


def cohorts(link: SharedLink | Naive, events: int, concurrent: int, caps: np.ndarray) -> int:
    """All begin together; the last to end lets the next cohort begin."""
    most = seeds.generator(1, "bench").choice(caps, concurrent).tolist()
    now, seen = 0.0, 0
    while seen < events:
        link.add_all(now, list(range(concurrent)), [8e6] * concurrent, most)
        while (found := link.next()) is not None:
            now = found[0]
            seen += len(link.finish(now))
        seen += concurrent
    return seen


def rate(play: Callable[..., int], link: SharedLink | Naive, events: int, concurrent: int, caps: np.ndarray) -> float:
    """Events a CPU second."""
    start = process_time()
    seen = play(link, events, concurrent, caps)
    return seen / (process_time() - start)


def cases(concurrent: int) -> Iterator[tuple[str, Callable[..., int], np.ndarray]]:
    """Name, how flows come, and the caps that they have."""
    share = CAPACITY / concurrent
    own = seeds.generator(2, "caps").lognormal(np.log(share * 1.2), 0.8, 200_000)
    yield "steady, one cap at the fair share", steady, np.array([share])
    yield "steady, ten caps", steady, own[:10]
    yield "steady, own caps", steady, own
    yield "steady, own caps, never full", steady, own / 10
    yield "cohorts, ten caps", cohorts, own[:10]
    yield "cohorts, own caps", cohorts, own


def main() -> None:
    """Print a table for each number of flows at a time."""
    for concurrent in [int(n) for n in sys.argv[1:]] or [1000]:
        print(f"{concurrent:,} flows at a time: events/s{'':17}fair {'fifo':>12} {'naive':>12} {'ratio':>8}")
        for name, play, caps in cases(concurrent):
            fair = rate(play, FairShare(CAPACITY), max(100_000, 4 * concurrent), concurrent, caps)
            fifo = rate(play, Fifo(CAPACITY), max(100_000, 4 * concurrent), concurrent, caps)
            few = max(4_000, min(3 * concurrent, 40_000))
            naive = rate(play, Naive(CAPACITY, 3 * concurrent), few, concurrent, caps)
            print(f"  {name:40}{fair:12,.0f} {fifo:12,.0f} {naive:12,.0f} {fair / naive:8.1f}")


if __name__ == "__main__":
    main()
