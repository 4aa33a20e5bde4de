"""No training: a state of shapes, whose versions change as with training."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgefl.methods import Update
from edgefl.planning.meta_state import shapes, shapes_alone
from edgefl.planning.setup import Setup
from edgefl.schedules import Stage
from edgefl.simulation.inflight.closed_form import Flights
from edgefl.simulation.learning.interface import Arrival, part_of_stage
from edgefl.training import Report
from edgefl.work import Address, Work

Floats = NDArray[np.float64]
Integers = NDArray[Any]


MOST_CHANGES = 256
"""Number of cached aggregations; a method whose works differ in every round would add to them without end."""


class NoTraining:
    """No training: a state of shapes without values, whose versions change as with training.

    The method's own ``aggregate`` is called with shapes to find which tensors change; clients with equal uploads share
    one update.  Raises MethodError if ``aggregate`` needs values.
    """

    def __init__(self, setup: Setup):
        self.setup = setup
        self.state = shapes(setup.method)
        self._changes: dict[tuple[int, frozenset[int]], tuple[list[Any], dict[Address, Tensor]]] = {}

    def send(self, flights: Flights, go: NDArray[np.bool_], *, in_order: bool = False) -> None:
        """Do nothing: no client is trained."""

    def expect(self, arrivals: Sequence[Arrival], stage: Stage) -> None:
        """Do nothing: shapes need no memory."""

    def land(self, client: int, arrived: bool) -> Report | None:
        """Return None: there is no report without training."""
        return None

    def rejects(self, client: int, number: int) -> str | None:
        """Return None: shapes have no values to reject."""
        return None

    def non_finite(self) -> list[str]:
        """Return an empty list: shapes have no values."""
        return []

    def aggregate(self, arrivals: Sequence[Arrival], stage: Stage, *, at_once: bool = False) -> None:
        """Give all tensors that would change their next version."""
        alike = {id(arrival.plan.work.up): arrival for arrival in arrivals}
        key = stage.index, frozenset(alike)
        if key not in self._changes:
            if len(self._changes) >= MOST_CHANGES:
                self._changes = {}
            self._changes[key] = list(alike.values()), self._changed(list(alike.values()), stage)
        changed = self._changes[key][1]
        if changed:
            self.state = self.state.changed(changed)

    def _changed(self, arrivals: Sequence[Arrival], stage: Stage) -> dict[Address, Tensor]:
        updates = []
        for number, arrival in enumerate(arrivals):
            work = part_of_stage(arrival.plan.work, stage)
            if not any(p.items for p in work.up):
                continue
            with torch.device("meta"):
                payloads = {p.name: {i.name: i.spec.empty() for i in p.items} for p in arrival.plan.work.up}
            base = self.state.base(work, self.state.items(work))
            counts = {pattern: arrival.plan.samples for p in work.passes for pattern in p.patterns}
            updates.append(Update(number, arrival.plan.kind, counts, work, payloads, base, arrival.round))
        if not updates:
            return {}
        with shapes_alone(self.setup.method, "training: none: aggregate()", self.state), torch.device("meta"):
            after = self.setup.method.aggregate(self.state, updates)
        return {a: t for a, t in after.tensors.items() if after.versions[a] != self.state.versions.get(a)}

    def forget(self, arrivals: Sequence[Arrival]) -> None:
        """Do nothing: no updates are stored."""

    def submit(self, work: Work, when: str, round: int, index: int) -> Future[Report] | None:
        """Return None: the server computes nothing."""
        return None

    def absorb(self, work: Work, report: Report | None) -> None:
        """Add the result of a work of the server to the state, as shapes."""
        with torch.device("meta"):
            uploads = {i.source: i.spec.empty() for p in work.up for i in p.items}
        if uploads:
            self.state = self.state.changed(uploads)

    def leave(self) -> None:
        """Do nothing: no training is under way."""
