"""Inputs of a simulation: method, schedule, data, fleet and options."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgefl import registry
from edgefl.arrays import Floats, Integers
from edgefl.cost.secure import SecureSum
from edgefl.devices import Fleet
from edgefl.devices.caps import CAPPED
from edgefl.methods import Method
from edgefl.planning.payload_options import PayloadOptions
from edgefl.planning.privacy import PrivacyOptions
from edgefl.planning.round_options import EvaluationOptions, RoundOptions
from edgefl.planning.stop_options import StopOptions
from edgefl.schedules import Schedule, Stage
from edgefl.training import Sources
from edgefl.work import Work


class Clients(Sources, Protocol):
    """Data of a simulation (edgefl.data.Federation): kind, group and number of samples of each client."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the client kinds."""
        ...

    @property
    def client_kind(self) -> NDArray:  # type: ignore[type-arg]
        """Index into ``kinds`` of each client, `[clients]`."""
        ...

    @property
    def client_samples(self) -> NDArray:  # type: ignore[type-arg]
        """Number of private samples of each client, `[clients]`."""
        ...

    @property
    def client_group(self) -> NDArray:  # type: ignore[type-arg]
        """Group index of each client, `[clients]`; clients of a group have equal kind, sample counts and cost."""
        ...

    def classes_of(self, kind: str) -> int:
        """Number of classes of the data set of this client kind."""
        ...

    @property
    def held_out(self) -> Clients | None:
        """The samples that clients hold out of their training, which the other fields leave out; None if none."""
        ...


@dataclass(frozen=True)
class Setup:
    """Everything that a run depends on: method, schedule, data, fleet and options.

    ``measure`` says which works are metered: the ``first`` of each cost key, ``all`` or ``none``.
    """

    seed: int
    method: Method
    schedule: Schedule
    clients: Clients
    fleet: Fleet
    round: RoundOptions
    evaluation: EvaluationOptions
    measure: str = "first"
    payload: PayloadOptions = field(default_factory=lambda: PayloadOptions.model_validate({}))
    stop: StopOptions = field(default_factory=lambda: StopOptions.model_validate({}))
    privacy: PrivacyOptions = field(default_factory=lambda: PrivacyOptions.model_validate({}))

    @cached_property
    def shortest(self) -> Setup | None:
        """The setup whose stages end as soon as they may; None if none of them ends early."""
        return replace(self, schedule=self.schedule.shortest(self.evaluation.every)) if self.schedule.adapts else None

    def kind_of(self, client: int) -> str:
        """The kind of a client."""
        return self.clients.kinds[int(self.clients.client_kind[client])]

    @property
    def variants(self) -> list[tuple[str, Hashable]]:
        """Every kind with each of its variants: ``(kind, None)`` where the method has none."""
        return [(kind, variant) for kind in self.clients.kinds for variant in self.method.variants[kind]]

    def variant_of(self, client: int) -> Hashable:
        """The method's variant of a client; None if all clients of its kind do the same work."""
        return self.method.variant_of(self.kind_of(client), client)

    @property
    def held_out(self) -> Clients | None:
        """The samples that clients hold out of their training; None unless they are scored on them."""
        return self.clients.held_out if self.evaluation.clients else None

    def participates(self, kind: str, round: int) -> bool:
        """Whether clients of this kind take part in this round, if they are drawn."""
        return kind not in self.round.leave_out and self.method.participates(kind, round)

    def drawn_kinds(self, round: int) -> dict[str, int]:
        """The kinds that this round's cohort is drawn from, and the number of clients of each."""
        drawn = (k for k in self.clients.kinds if k not in self.round.leave_out and self.method.is_drawn(k, round))
        return {kind: len(self.of_kind(kind)) for kind in drawn}

    def seats(self, round: int) -> dict[str, int]:
        """Places of a round's cohort as ``RoundOptions.seats`` has them, with those for clients that are sent home."""
        population = self.drawn_kinds(round)
        if not any(population.values()) or self.method.draws_all(round):
            return population
        return self.round.seats(population)

    def secure_sum(self, kind: str) -> SecureSum | None:
        """The secure sum of the clients of a kind in a cohort; None without ``aggregation.secure``."""
        setting = self.method.setting
        asked, clients = setting.aggregation, setting.cohort.get(kind, 1)
        return SecureSum.among(clients, asked.secure, asked.neighbours, asked.bits) if asked.secure else None

    def rate_of(self, round: int) -> float:
        """The learning rate of a round without scaling by batch size."""
        training = self.method.setting.training
        return training.lr * training.lr_factor(round)

    def restrict_to_stage(self, work: Work, stage: Stage) -> Work:
        """Restrict a work on a client kind's model to the stage; a work on the server's own model stays as it is."""
        return stage.restrict_work(work) if work.kind in self.clients.kinds else work

    def evaluations(self, split: str, stage: Stage) -> list[tuple[Work, list[str]]]:
        """Works that evaluate every kind's model at a stage, each with the kinds whose model it evaluates.

        A model that several kinds share is evaluated once.
        """
        evaluations: list[tuple[Work, list[str]]] = []
        for kind in self.clients.kinds:
            work = self.restrict_to_stage(self.with_metrics(self.method.evaluate(kind, split)), stage)
            for known, kinds in evaluations:
                if known == work:
                    kinds.append(kind)
                    break
            else:
                evaluations.append((work, [kind]))
        return evaluations

    def with_metrics(self, work: Work) -> Work:
        """An evaluation with the metrics that the scenario names, in each pass that scores their task."""
        named = [metric.model_dump(mode="json") for metric in self.evaluation.metrics]
        if not named:
            return work
        tasks = {given["name"]: registry.get("metric", given["name"]).task for given in named}
        passes = []
        for each in work.passes:
            task = "" if each.train else registry.get("step", each.step).metrics_of
            own = [given for given in named if tasks[given["name"]] == task]
            passes.append(replace(each, args={**each.args, "metrics": own}) if own else each)
        return replace(work, passes=tuple(passes))

    def of_kind(self, kind: str) -> Integers:
        """Clients of a kind, ascending."""
        return self._of_kind[kind]

    def of_variant(self, kind: str, variant: Hashable) -> Integers:
        """Clients of a variant of a kind, ascending."""
        members, index = self.of_kind(kind), self.method.client_variant
        return members if index is None else members[index[members] == self.method.variants[kind].index(variant)]

    @cached_property
    def client_group(self) -> Integers:
        """Group index of each client, `[clients]`: clients of a group have equal data costs and the same variant."""
        return self.by_variant(np.asarray(self.clients.client_group))

    def by_variant(self, groups: Integers) -> Integers:
        """These groups `[clients]`, of clients of one kind each, divided by the method's variants."""
        index = self.method.client_variant
        if index is None:
            return groups
        pairs = groups.astype(np.int64) * (int(index.max(initial=0)) + 1) + index
        divided: Integers = np.unique(pairs, return_inverse=True)[1].astype(np.int32)
        return divided

    @cached_property
    def _of_kind(self) -> dict[str, Integers]:
        return {k: np.flatnonzero(self.clients.client_kind == i) for i, k in enumerate(self.clients.kinds)}

    @cached_property
    def samples_of_kind(self) -> dict[str, int]:
        """Total number of private samples of each kind."""
        samples = self.clients.client_samples
        return {kind: int(samples[clients].sum()) for kind, clients in self._of_kind.items()}

    def cell_indices(self, client: int) -> tuple[int, int, int]:
        """Indices of a client's group, device and link."""
        return (
            int(self.client_group[client]),
            int(self.fleet.device_index[client]),
            int(self.fleet.link_index[client]),
        )

    def budgets(
        self, clients: Integers | slice, fleet: Fleet | None = None, spent: Floats | None = None
    ) -> dict[str, Floats]:
        """Budgets of these clients (of ``fleet``, if given), by their names.

        A deadline caps all seconds, and the fleet's caps bytes and joules; ``spent`` is what earlier rounds took of
        them, by default nothing.
        """
        fleet = fleet or self.fleet
        allowed = {name: values[clients] for name, values in fleet.budgets.items()}
        if fleet.caps is not None:
            for name in CAPPED:
                allowed[name], _ = fleet.caps.tightest(name, allowed[name], clients, spent)
        if self.round.deadline is not None:
            allowed["seconds"] = np.minimum(allowed["seconds"], self.round.deadline)
        return allowed

    def cap_limits(self, clients: Integers, spent: Floats | None = None) -> dict[str, Integers]:
        """What a client's budget of bytes and that of joules are for, ROUND, DAY or JOB: `[clients]`, by budget."""
        fleet = self.fleet
        if fleet.caps is None:
            return {}
        return {name: fleet.caps.tightest(name, fleet.budgets[name][clients], clients, spent)[1] for name in CAPPED}

    @cached_property
    def representative(self) -> Integers:
        """First client of each group, `[groups]`; its data source represents the group's."""
        groups = self.client_group
        first = np.full(int(groups.max(initial=-1)) + 1, -1, np.int64)
        first[groups[::-1]] = np.arange(len(groups) - 1, -1, -1)
        return first
