"""What a simulation is made of, and what each client's round costs in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgefl.devices import Fleet
from edgefl.methods import Method
from edgefl.planning.payload_options import PayloadOptions
from edgefl.planning.round_options import EvaluationOptions, RoundOptions
from edgefl.schedules import Schedule, Stage, restrict
from edgefl.training import Sources
from edgefl.work import Work

Integers = NDArray[Any]


class Clients(Sources, Protocol):
    """The data side of a simulation (edgefl.data.Federation): kinds, and who is of which kind."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the client kinds."""
        ...

    @property
    def client_kind(self) -> NDArray:  # type: ignore[type-arg]
        """Index into ``kinds`` of each client."""
        ...

    @property
    def client_samples(self) -> NDArray:  # type: ignore[type-arg]
        """Private samples of each client."""
        ...

    @property
    def client_group(self) -> NDArray:  # type: ignore[type-arg]
        """Index of a group whose members cost the same: of one kind, with as many samples."""
        ...


@dataclass(frozen=True)
class Setup:
    """A method under a schedule on a fleet with data: all that a run is a function of."""

    seed: int
    method: Method
    schedule: Schedule
    clients: Clients
    fleet: Fleet
    round: RoundOptions
    evaluation: EvaluationOptions
    measure: str = "first"
    payload: PayloadOptions = field(default_factory=lambda: PayloadOptions.model_validate({}))

    def kind_of(self, client: int) -> str:
        """The kind of a client."""
        return self.clients.kinds[int(self.clients.client_kind[client])]

    def participates(self, kind: str, round: int) -> bool:
        """Whether clients of this kind may be drawn in this round."""
        return kind not in self.round.leave_out and self.method.participates(kind, round)

    def staged(self, work: Work, stage: Stage) -> Work:
        """A work on the model of a client kind is held to the stage; the server's own model is under no schedule."""
        return restrict(work, stage) if work.kind in self.clients.kinds else work

    def evaluations(self, split: str, stage: Stage) -> list[tuple[Work, list[str]]]:
        """The works that score every kind's model at a stage, each with the kinds whose model it scores.

        A method whose one model stands for several kinds is evaluated once.
        """
        found: list[tuple[Work, list[str]]] = []
        for kind in self.clients.kinds:
            work = self.staged(self.method.evaluate(kind, split), stage)
            for known, kinds in found:
                if known == work:
                    kinds.append(kind)
                    break
            else:
                found.append((work, [kind]))
        return found

    def of_kind(self, kind: str) -> Integers:
        """Clients of a kind, ascending."""
        return self._of_kind[kind]

    @cached_property
    def _of_kind(self) -> dict[str, Integers]:
        return {k: np.flatnonzero(self.clients.client_kind == i) for i, k in enumerate(self.clients.kinds)}

    @cached_property
    def samples_of_kind(self) -> dict[str, int]:
        """Private samples of all clients of each kind together."""
        samples = self.clients.client_samples
        return {kind: int(samples[clients].sum()) for kind, clients in self._of_kind.items()}

    def place(self, client: int) -> tuple[int, int, int]:
        """The client's group, and the indices of its device and of its link."""
        return (
            int(self.clients.client_group[client]),
            int(self.fleet.device_index[client]),
            int(self.fleet.link_index[client]),
        )

    def budgets(self, clients: Integers | slice, fleet: Fleet | None = None) -> dict[str, Integers]:
        """What these clients may use, on another ``fleet`` if one is given; a deadline is a budget for everyone."""
        allowed = {name: values[clients] for name, values in (fleet or self.fleet).budgets.items()}
        if self.round.deadline is not None:
            allowed["seconds"] = np.minimum(allowed["seconds"], self.round.deadline)
        return allowed

    @cached_property
    def representative(self) -> Integers:
        """One client of each group: whose source stands for the group's."""
        groups = np.asarray(self.clients.client_group)
        first = np.full(int(groups.max(initial=-1)) + 1, -1, np.int64)
        first[groups[::-1]] = np.arange(len(groups) - 1, -1, -1)
        return first
