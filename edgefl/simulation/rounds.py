"""Round policies: when a round ends and whose updates count."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import simpy

from edgefl.cost import Duration
from edgefl.simulation.options import RoundOptions
from edgefl.simulation.setup import Plan
from edgefl.training import Report


@dataclass
class Flight:
    """A client under way: what it does, how long each phase takes, and the training that goes on meanwhile.

    ``arrive`` is called when its update reaches the server: there the future is awaited.
    """

    plan: Plan
    duration: Duration
    future: Future[Report]
    metered: bool
    arrive: Callable[[Flight], None]
    finished: bool = False
    process: simpy.Process | None = None

    def fly(self, env: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        """Download, compute, upload on the virtual clock.  An interrupt ends it unfinished."""
        try:
            yield env.timeout(self.duration.download_seconds)
            yield env.timeout(self.duration.compute_seconds)
            yield env.timeout(self.duration.upload_seconds)
        except simpy.Interrupt:
            return
        self.finished = True
        self.arrive(self)


class Synchronous:
    """Wait for the whole cohort, or until the deadline; whoever is later is left out."""

    def __init__(self, options: RoundOptions):
        self.options = options

    def collect(self, env: simpy.Environment, flights: Sequence[Flight]) -> Generator[simpy.Event, Any, None]:
        """Run the flights until the round ends; ``finished`` then says whose update counts."""
        for flight in flights:
            flight.process = env.process(flight.fly(env))
        everyone = simpy.AllOf(env, [f.process for f in flights if f.process is not None])
        if self.options.deadline is None:
            yield everyone
            return
        yield everyone | env.timeout(self.options.deadline)
        for flight in flights:
            if flight.process is not None and flight.process.is_alive:
                flight.process.interrupt("deadline")
