"""No training: a state of shapes, whose versions change as with training."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from edgefl.methods import ServerState, Update
from edgefl.methods.aggregation.updates import Updates
from edgefl.planning.meta_state import shapes, shapes_alone
from edgefl.planning.planner import Planner
from edgefl.planning.setup import Setup
from edgefl.planning.versions import Raised
from edgefl.schedules import Stage
from edgefl.simulation.learning.interface import Arrival, Learning, part_of_stage
from edgefl.work import Address, Work

MOST_CHANGES = 256
"""Number of cached aggregations; a method whose works differ in every round would add to them without end.  A choice,
not measured: each holds a tensor without values for all that changes."""


def _alike(held: Tensor | None, new: Tensor) -> bool:
    """Whether two tensors are without values and equal."""
    return held is not None and held.is_meta and new.is_meta and (held.shape, held.dtype) == (new.shape, new.dtype)


class NoTraining(Learning):
    """No training: a state of shapes without values, whose versions change as with training.

    The method's own ``aggregate`` is called with shapes to find which tensors change; clients of one variant with equal
    uploads share one update.  Raises MethodError if ``aggregate`` needs values.
    """

    def __init__(self, setup: Setup, planner: Planner):
        self.setup, self.planner = setup, planner
        self.state = shapes(setup.method)
        self._changes: dict[tuple[int, frozenset[tuple[str, Hashable]]], dict[Address, Tensor]] = {}
        self._alike: dict[int, bool] = {}
        """By aggregation: that it changes versions alone, because the state has tensors of its shapes.

        The id is that of a value of ``_changes``, and goes with it.
        """

    def aggregate(self, arrivals: Sequence[Arrival], stage: Stage, *, at_once: bool = False) -> None:
        """Give all tensors that would change their next version; with noise, those of all whom the round expects."""
        if self.expected is not None:
            round, _, senders = self.expected()
            arrivals = [Arrival(0, plan, round, 0) for plan, _ in senders]
        alike = {(arrival.plan.form.upload, arrival.plan.variant): arrival for arrival in arrivals}
        key = stage.index, frozenset(alike)
        if key not in self._changes:
            if len(self._changes) >= MOST_CHANGES:
                self._changes, self._alike = {}, {}
            self._changes[key] = self._changed_tensors(list(alike.values()), stage)
        changed = self._changes[key]
        if changed:
            self.state = self._with(changed)

    def _with(self, changed: dict[Address, Tensor]) -> ServerState:
        """The state with these tensors at their next version."""
        before = self.state
        alike = self._alike.get(id(changed))
        if alike is None:
            alike = all(_alike(before.tensors.get(address), tensor) for address, tensor in changed.items())
            # others may have been compared with what this one replaces
            self._alike = {**self._alike, id(changed): True} if alike else {}
        if not alike:
            return before.with_tensors(changed)
        versions = before.versions
        raised = (
            versions.with_step(changed) if isinstance(versions, Raised) else Raised(versions, {}).with_step(changed)
        )
        return ServerState(before.tensors, raised)

    def _changed_tensors(self, arrivals: Sequence[Arrival], stage: Stage) -> dict[Address, Tensor]:
        updates = []
        for number, arrival in enumerate(arrivals):
            plan = arrival.plan
            form = part_of_stage(plan.form, stage)
            if not any(p.items for p in form.up):
                continue
            work = form.bind(self.planner.scalars(plan.kind, arrival.round, plan.stage, plan.variant))
            with torch.device("meta"):
                payloads = {p.name: {i.name: i.spec.empty() for i in p.items} for p in plan.form.up}
            base = self.state.base(work, self.state.items(work))
            counts = {pattern: arrival.plan.samples for p in work.passes for pattern in p.patterns}
            # a variant may be a client's own, and then the method may ask for whom it makes a table
            client = arrival.client if self.setup.method.varies else number
            own = self.setup.method.method_of(plan.variant)[1]
            updates.append(Update(client, plan.kind, counts, work, payloads, base, arrival.round, variant=own))
        if not updates:
            return {}
        with shapes_alone(self.setup.method, "training: none: aggregate()", self.state), torch.device("meta"):
            after = self.setup.method.aggregate(self.state, Updates(updates))
        return {a: t for a, t in after.tensors.items() if after.versions[a] != self.state.versions.get(a)}

    def absorb(self, work: Work, report: Update | None) -> None:
        """Add the result of a work of the server to the state, as shapes."""
        with torch.device("meta"):
            uploads = {i.source: i.spec.empty() for p in work.up for i in p.items}
        if uploads:
            self.state = self.state.with_tensors(uploads)
