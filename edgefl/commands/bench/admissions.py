"""What decides a cell of a suite: which works of each client fit its budget, so that equal cells are trained once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf, nextafter
from typing import Any, cast

import numpy as np

from edgefl.arrays import Floats, Integers
from edgefl.cells.fingerprint import fixed_part
from edgefl.cost.predict import Predictor
from edgefl.devices import Fleet
from edgefl.devices.budgets import budget_named, field_of
from edgefl.devices.options import UNLIMITED
from edgefl.planning.planner import Planner
from edgefl.planning.setup import Setup
from edgefl.planning.workload import LEFT_OUT, Workload, stage_eligibility, workload_of
from edgefl.scenario import Scenario
from edgefl.work.description import digest


@dataclass(frozen=True)
class Works:
    """The works of a variant with a seed, on any fleet: what they take of the suite's budget, and who could do them."""

    scenario: Scenario
    setup: Setup
    workload: Workload
    budget: str | None
    steady: bool
    """Whether works take the same in every round of a stage, so that ``takes`` has all that a run compares."""

    @cached_property
    def takes(self) -> list[Floats]:
        """What the works of each group of clients take of the budget, smallest first: `[groups][works]`."""
        assert self.budget is not None
        of_works = self.workload.table[self.budget]
        groups: list[set[float]] = [set() for _ in self.setup.representative]
        for offered in self.workload.candidates:
            for works in offered.values():
                for group, work in enumerate(works.tolist()):
                    if work != LEFT_OUT:
                        groups[group].add(float(of_works[work]))
        return [np.array(sorted(amounts)) for amounts in groups]

    @property
    def needs(self) -> list[float]:
        """The amounts from which some client can do more, smallest first."""
        return sorted({amount for amounts in self.takes for amount in amounts.tolist()})

    def fits(self, fleet: Fleet) -> Integers:
        """How many of its works fit each client's budget on this fleet: `[clients]`."""
        assert self.budget is not None
        allowed, group = fleet.budgets[self.budget], self.setup.client_group
        found = np.zeros(len(group), np.int64)
        for index, amounts in enumerate(self.takes):
            members = group == index
            found[members] = np.searchsorted(amounts, allowed[members], side="right")
        return found

    @cached_property
    def content(self) -> str:
        """A digest of the scenario without its name and the suite's budget."""
        return content_of(self.scenario, self.budget)

    def key(self, fleet: Fleet) -> str:
        """Equal for cells whose runs train the same weights.

        A run compares a budget of memory or of FLOPs with the costs of works and with nothing else: amounts that lie
        between the same two costs give the same run.
        """
        if self.budget is None:
            return self.content
        decides = self.fits(fleet) if self.steady else fleet.budgets[self.budget]
        return digest([self.content, decides.tolist()])

    def eligible(self, fleet: Fleet) -> float:
        """The share of the clients that can do some work on this fleet."""
        able = np.zeros(len(fleet), bool)
        for judged in stage_eligibility(self.workload, fleet, why=False):
            able |= judged.eligible
        return float(able.mean()) if len(able) else 0.0


def content_of(scenario: Scenario, budget: str | None) -> str:
    """A digest of a scenario without its name and this budget."""
    fixed = fixed_part(scenario)
    del fixed["name"]
    if budget is not None:
        fleet = cast(dict[str, Any], fixed["fleet"])
        fixed["fleet"] = {**fleet, "budgets": {k: v for k, v in fleet["budgets"].items() if k != field_of(budget)}}
    return digest(fixed)


def works_of(scenario: Scenario, setup: Setup, predictor: Predictor, budget: str | None) -> Works:
    """Price the works of a variant's scenario."""
    workload = workload_of(setup, predictor)
    return Works(scenario, setup, workload, budget, budget is None or _steady(setup, predictor))


def _steady(setup: Setup, predictor: Predictor) -> bool:
    """Whether no work changes its form between the rounds of a stage."""
    planner, first = Planner(setup, predictor), 1
    for stage in setup.schedule.stages:
        for kind, variant in _participants(setup, first):
            forms = {
                planner.form(kind, round, stage, variant)[1]
                for round in range(first, first + stage.rounds)
                if setup.method.participates(kind, round)
            }
            if len(forms) > 1:
                return False
        first += stage.rounds
    return True


def _participants(setup: Setup, round: int) -> Iterator[tuple[str, object]]:
    for kind in setup.clients.kinds:
        if setup.method.participates(kind, round):
            for variant in setup.method.variants[kind]:
                yield kind, variant


@dataclass(frozen=True)
class Level:
    """What small devices have of the budget: ``low`` or more, less than ``high``; they are given ``amount``."""

    low: float
    high: float
    amount: float


def levels_of(needs: Mapping[str, list[float]], budget: str, at: list[Any]) -> list[Level]:
    """The intervals of the budget between amounts from which some variant does more, or the amounts ``at``."""
    amounts = sorted({amount for each in needs.values() for amount in each})
    if at:
        most = max([*amounts, *(each for each in at if each != UNLIMITED)])  # more changes nothing
        return [Level(most, inf, inf) if each == UNLIMITED else Level(each, each, each) for each in at]
    if not amounts:
        return [Level(0.0, inf, inf)]
    whole = budget_named(budget).quantity.whole
    below = max(1.0, amounts[0] - 1) if whole else nextafter(amounts[0], 0)
    ends = [*amounts[1:], inf]
    return [Level(0.0, amounts[0], below), *(Level(a, b, a) for a, b in zip(amounts, ends, strict=True))]
