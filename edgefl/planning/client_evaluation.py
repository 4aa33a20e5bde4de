"""Works that score clients on their own held-out samples: which model a client scores, and what that costs it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from edgefl import seeds
from edgefl.arrays import Booleans, Integers
from edgefl.cost.client_cost import traffic
from edgefl.cost.predict import work_key
from edgefl.cost.price import price_rounds
from edgefl.devices import Price
from edgefl.planning.payload_options import with_codecs
from edgefl.planning.planner import PlacedDemand, Planner, WorkKey
from edgefl.planning.setup import Clients, Setup
from edgefl.planning.versions import travelling
from edgefl.schedules import Stage
from edgefl.work import Form, Work, intern_form
from edgefl.work.description import Scalar
from edgefl.work.optimizer.learning_rates import at_stage


@dataclass(frozen=True, kw_only=True)
class Scoring(PlacedDemand):
    """Work that scores a client on its own held-out samples, without the values of its scalars, and its price without
    jitter.

    Clients of one kind, variant, device and link with equal numbers of held-out samples and the same stale copies
    (``old``) share it.  ``form.keep`` are the parts of the model that are the client's own; ``key`` is its cost key.
    """

    price: Price

    @cached_property
    def without_keep(self) -> Form:
        """The form that a client runs: its samples are scored, and what it keeps stays as it is."""
        return intern_form(replace(self.form, keep=()))


@dataclass(frozen=True)
class Scored:
    """The clients of an evaluation, ascending: ``scorings`` by client, those whose memory is too small for the work,
    and those that hold no sample out."""

    scorings: Mapping[int, Scoring]
    too_small: Integers
    without: Integers


class ScoringPlanner:
    """Plans of evaluations on clients; ``clients`` are those that are asked, drawn once (``client_sample``)."""

    def __init__(self, setup: Setup, planner: Planner, held_out: Clients):
        self.setup, self.planner, self.held_out = setup, planner, held_out
        self.clients = scored_clients(setup)
        self._works: dict[WorkKey, tuple[Form, Form, str]] = {}
        self._of_round: dict[WorkKey, tuple[Work, str]] = {}
        self._round = 0
        """That of the works in ``_of_round``."""
        self._group = setup.by_variant(np.asarray(held_out.client_group))
        self._known: dict[tuple[Any, ...], Scoring] = {}

    def plan(
        self, round: int, trains: Booleans, stage: Integers, stale: Callable[[int, Work, Stage], tuple[str, ...]]
    ) -> Scored:
        """Which clients are scored after a round, with which work.

        ``trains`` `[clients]` says who may train in this round, ``stage`` `[clients]` at which stage (its index): they
        score the model of that stage.  The others score that of the first candidate that fits their memory.
        ``stale(client, work, stage)`` are the addresses that a client's copy lacks.
        """
        held = np.asarray(self.held_out.client_samples)[self.clients]
        memory = self.setup.fleet.budgets["memory"]
        found: dict[int, Scoring] = {}
        too_small = []
        stages = self.setup.schedule.candidates(round)
        by_index = {candidate.index: (candidate,) for candidate in stages}
        for client in self.clients[held > 0].tolist():
            offered = by_index.get(int(stage[client]), stages) if trains[client] else stages
            for candidate in offered:
                scoring = self.scoring(client, round, candidate, stale)
                if scoring.compute.tensor_bytes <= memory[client]:
                    found[client] = scoring
                    break
            else:
                too_small.append(client)
        return Scored(found, np.array(too_small, np.int64), self.clients[held == 0])

    def scoring(
        self, client: int, round: int, stage: Stage, stale: Callable[[int, Work, Stage], tuple[str, ...]]
    ) -> Scoring:
        """The work that scores a client at this stage."""
        setup, kind, variant = self.setup, self.setup.kind_of(client), self.setup.variant_of(client)
        work, base = self._work(kind, round, stage, variant)
        old, group = stale(client, work, stage), int(self._group[client])
        device, link = int(setup.fleet.device_index[client]), int(setup.fleet.link_index[client])
        key = (group, device, link, stage.index, old)
        if key not in self._known:
            # what is kept is neither sent nor computed anew
            form = replace(work.form, keep=())
            fitted, cost_key, computed = self.planner.compute(form, work.scalars, base, client)
            down = travelling(work.form, stage, old)
            hardware, connection = setup.fleet.devices[device], setup.fleet.links[link]
            moved = traffic(down, (), self.planner.buffers)
            price = price_rounds([(computed, moved)], hardware, connection, throttling=setup.fleet.throttling)
            self._known[key] = Scoring(
                replace(fitted, keep=work.keep), cost_key, computed, down, moved, kind=kind, variant=variant,
                samples=int(self.held_out.client_samples[client]), stage=stage, old=old, device=hardware,
                link=connection, price=price,
            )  # fmt: skip
        return self._known[key]

    def scalars(self, scoring: Scoring, round: int) -> Mapping[str, Scalar]:
        """The scalars of this work after a round."""
        return self._work(scoring.kind, round, scoring.stage, scoring.variant)[0].scalars

    def _work(self, kind: str, round: int, stage: Stage, variant: Hashable) -> tuple[Work, str]:
        """The method's work at a stage, and the part of its cost key that doesn't depend on data."""
        if round != self._round:
            self._of_round, self._round = {}, round
        key = (kind, variant, stage.index)
        if key in self._of_round:
            return self._of_round[key]
        full = self.setup.with_metrics(self.setup.method.client_evaluation(kind, round, variant))
        known = self._works.get(key)
        if known is None or known[0] != full.form:
            form = with_codecs(
                stage.restrict_work(full).form, self.setup.payload, self.planner.buffers, self.setup.method
            )
            known = self._works[key] = full.form, intern_form(form), work_key(replace(form, keep=()))
            self._known = {}
        _, form, base = known
        self._of_round[key] = form.bind(at_stage(full.scalars, stage.index)), base
        return self._of_round[key]


def scored_clients(setup: Setup) -> Integers:
    """The clients that are scored on their own samples, ascending: all, or those drawn by ``client_sample``.

    A share is drawn of each kind, at least one client of it; a number is drawn of all clients together.
    """
    everyone, wanted = np.arange(len(setup.clients.client_kind)), setup.evaluation.client_sample
    if wanted is None:
        return everyone
    draw = seeds.uniforms(setup.seed, "scored clients", of=everyone)[:, 0]

    def first(clients: Integers, number: int) -> Integers:
        chosen: Integers = clients[np.argsort(draw[clients], kind="stable")[:number]]
        return chosen

    if isinstance(wanted, int):
        return np.sort(first(everyone, wanted))
    members = (setup.of_kind(kind) for kind in setup.clients.kinds)
    return np.sort(np.concatenate([first(m, max(1, round(wanted * len(m)))) for m in members if len(m)]))
