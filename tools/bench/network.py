"""Events per CPU second of the server's line that clients share.

    python tools/bench.py network [CONCURRENT ...]

An event is the begin or end of a transfer, each in a SimPy process as in a simulation.  With ``one cap`` all transfers
have the same rate of their own, with ``ten caps`` about as many as the library's networks, with ``own caps`` each its
own (as from jitter).  In ``cohorts`` all begin at the same time and end before the next cohort begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from time import process_time
from types import SimpleNamespace
from typing import Any

import numpy as np
from measuring import parser_of, table

from edgefl import seeds
from edgefl.simulation.clock import Clock
from edgefl.simulation.closed_form import AT_DOWNLOAD
from edgefl.simulation.lines import FairShare, Fifo, SharedLine

CAPACITY = 1e9


def transfer(line: SharedLine, number: int, bits: float, rate: float) -> Iterator[Any]:
    """A download of a client, as far as its line knows it."""
    flight: Any = SimpleNamespace(
        client=number, phase=AT_DOWNLOAD, bits=(bits, 0.0), rates=(rate, 0.0), flowing=-inf, served=-inf
    )
    yield from line.carry(flight, inf)
    line.withdraw(flight)


def steady(line: SharedLine, number: int, times: int, caps: np.ndarray) -> Iterator[Any]:
    """One of the clients that transfer again and again."""
    draw = seeds.generator(number, "bench")
    for bits, rate in zip(draw.uniform(1e6, 1e8, times).tolist(), draw.choice(caps, times).tolist(), strict=True):
        yield from transfer(line, number, bits, rate)


def cohorts(clock: Clock, line: SharedLine, times: int, concurrent: int, caps: np.ndarray) -> Iterator[Any]:
    """One cohort after another."""
    most = seeds.generator(1, "bench").choice(caps, concurrent).tolist()
    for _ in range(times):
        yield clock.all_of([clock.process(transfer(line, n, 8e6, rate)) for n, rate in enumerate(most)])


def played(make: type[FairShare] | type[Fifo], together: bool, times: int, concurrent: int, caps: np.ndarray) -> float:
    """Events per second."""
    clock = Clock(initial_time=0.0)
    line = make(clock, CAPACITY)
    if together:
        clock.process(cohorts(clock, line, times, concurrent, caps))
    else:
        for number in range(concurrent):
            clock.process(steady(line, number, times, caps))
    start = process_time()
    clock.run()
    return 2 * times * concurrent / (process_time() - start)


def cases(concurrent: int) -> Iterator[tuple[str, bool, np.ndarray]]:
    """Name of each case, whether cohorts begin together, and the rates of clients' own links in bit/s."""
    share = CAPACITY / concurrent
    own = seeds.generator(2, "caps").lognormal(np.log(share * 1.2), 0.8, 200_000)
    yield "steady, one cap at the fair share", False, np.array([share])
    yield "steady, ten caps", False, own[:10]
    yield "steady, own caps", False, own
    yield "steady, own caps, never full", False, own / 10
    yield "cohorts, ten caps", True, own[:10]
    yield "cohorts, own caps", True, own


def main(arguments: list[str]) -> None:
    """Print a table for each number of concurrent transfers."""
    parser = parser_of(__doc__, "bench.py network")
    parser.add_argument("concurrent", type=int, nargs="*", default=[1000], help="transfers at a time (default 1000)")
    for concurrent in parser.parse_args(arguments).concurrent:
        times = max(1, 20_000 // concurrent)
        lines = [
            [name, *(f"{played(make, together, times, concurrent, caps):,.0f}" for make in (FairShare, Fifo))]
            for name, together, caps in cases(concurrent)
        ]
        print(table((f"{concurrent:,} transfers at a time: events/s", "fair", "fifo"), lines))
