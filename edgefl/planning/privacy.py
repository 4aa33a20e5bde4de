"""The scenario's ``privacy`` section, and the account of what rounds with noise spend."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field, PositiveFloat, model_validator

from edgefl.errors import MethodError, install_hint
from edgefl.registry.part_fields import Fields

LEAST_NOISE, MOST_NOISE = 0.1, 1e4
"""Noise that is searched for a target, and the least that ``pld`` counts.  Below 0.1 a round of all clients spends an
epsilon above 80, which promises nothing; above 10,000 nothing is learnt."""
TOLERANCE = 1e-3
"""Noise that is found is at most so much above the least that keeps to the target, and rounded up to as many places."""


class PrivacyOptions(Fields):
    """``privacy: {delta: 1e-6, epsilon: 8}``: how the privacy of clients is counted."""

    delta: float | None = Field(
        None, gt=0, lt=1, description="chance with which epsilon may not hold, below one in the number of clients"
    )
    epsilon: PositiveFloat | None = Field(
        None,
        description="what all rounds may spend: the run ends before the round that would pass it; null: no limit",
    )
    accountant: Literal["pld", "rdp"] = Field(
        "pld",
        description="how rounds are added up: by distributions of the privacy loss (pld, tight), or by Rényi "
        "divergences (rdp, faster, and epsilon is larger)",
    )

    @model_validator(mode="after")
    def _counts(self) -> PrivacyOptions:
        if self.epsilon is not None and self.delta is None:
            raise ValueError("epsilon holds but for a chance of delta: add delta, such as 1e-6")
        return self


WIDTH, LARGE = 1e-4, 100.0
"""Width of the pieces of a privacy loss, as dp-accounting has it, and the epsilon above which pieces are wider, so that
their number stays: at 51,503 they took 3.9 GiB."""
Sampling = Literal["poisson", "without replacement"]
"""How a round's clients are drawn."""


class RoundDraw(NamedTuple):
    """``places`` of a round for so many ``clients``: on average under Poisson sampling, else exactly."""

    places: int
    clients: int


@dataclass(frozen=True)
class PrivacyAccount:
    """What the rounds of a run spend, each of which draws clients as ``draws`` says (of kinds the likeliest draw).

    Neighbours are federations that differ by one client: it is added or removed under Poisson sampling, where it moves
    the sum by ``clip`` at most, and replaced where cohorts have a fixed size, where it moves it by twice as much.
    """

    options: PrivacyOptions
    sampling: Sampling
    draws: Sequence[RoundDraw]
    given: float | None

    NEIGHBOURS: ClassVar[dict[Sampling, str]] = {
        "poisson": "one client added or removed", "without replacement": "one client replaced"
    }  # fmt: skip

    @property
    def neighbours(self) -> str:
        """By what neighbouring federations differ."""
        return self.NEIGHBOURS[self.sampling]

    def check(self) -> None:
        """Raise MethodError without dp-accounting, and for a noise that is given as ``noise`` does."""
        accountants()
        if self.given is not None:
            _ = self.noise

    @cached_property
    def noise(self) -> float:
        """The noise that is given, or the least that keeps all rounds within ``privacy.epsilon``.

        Raises MethodError if none does, and for one that is given if it can't be counted or the first round passes it.
        """
        options, target, rounds = self.options, self.options.epsilon, len(self.draws)
        if self.given is not None:
            if options.accountant == "pld" and self.given < LEAST_NOISE:
                raise MethodError(
                    f"aggregation.noise: pld counts {LEAST_NOISE:g} or more: write privacy.accountant: rdp"
                )
            if target is not None and (first := self._epsilon(self.given, 1)) > target:
                places, clients = self.draws[0]
                raise MethodError(
                    f"privacy.epsilon: round 1 alone spends {first:.4g} of {target:g}, with noise {self.given:g} and "
                    f"{places} of {clients} clients: give more noise or epsilon or a smaller cohort, or leave out "
                    "aggregation.noise, which is then found"
                )
            return self.given
        from scipy.optimize import brentq  # here, because its import takes 0.7 s

        assert target is not None
        if self._by_rdp(LEAST_NOISE, rounds) <= target:
            return LEAST_NOISE
        if self._by_rdp(MOST_NOISE, rounds) > target:
            raise MethodError(f"privacy.epsilon: no noise up to {MOST_NOISE:g} keeps {rounds} rounds within {target:g}")
        found = brentq(lambda noise: self._by_rdp(noise, rounds) - target, LEAST_NOISE, MOST_NOISE, xtol=TOLERANCE / 2)
        if options.accountant == "pld":  # tighter by less than a half
            found = brentq(
                lambda noise: self._epsilon(noise, rounds) - target, found / 2, found + TOLERANCE, xtol=TOLERANCE / 2
            )
        return float(round(math.ceil((found + TOLERANCE / 2) / TOLERANCE) * TOLERANCE, 3))

    def epsilon(self, rounds: int) -> float:
        """Epsilon after so many rounds.  It is computed anew for each number, so that a resumed run gives the same."""
        if rounds not in self._epsilons:
            self._epsilons[rounds] = self._epsilon(self.noise, rounds)
        return self._epsilons[rounds]

    def ends_after(self, rounds: int) -> bool:
        """Whether one more round would pass ``privacy.epsilon``."""
        target = self.options.epsilon
        return target is not None and rounds < len(self.draws) and self.epsilon(rounds + 1) > target

    @cached_property
    def _epsilons(self) -> dict[int, float]:
        return {}

    def _counts(self, rounds: int) -> list[tuple[RoundDraw, int]]:
        """How often each draw is made in the first rounds."""
        return sorted(Counter(draw for draw in self.draws[:rounds] if draw.places).items())

    def _epsilon(self, noise: float, rounds: int) -> float:
        spent, counts = self._by_rdp(noise, rounds), self._counts(rounds)
        if self.options.accountant == "rdp" or not counts:
            return spent
        width = WIDTH * 2 ** math.ceil(math.log2(max(spent / LARGE, 1.0)))
        losses = [_loss(noise, draw.places / draw.clients, width).self_compose(count) for draw, count in counts]
        return float(reduce(lambda a, b: a.compose(b), losses).get_epsilon_for_delta(self.options.delta))

    def _by_rdp(self, noise: float, rounds: int) -> float:
        library, counts = accountants(), self._counts(rounds)
        if not counts:
            return 0.0
        relation = library.NeighboringRelation
        is_poisson = self.sampling == "poisson"
        spent = library.rdp.RdpAccountant(
            neighboring_relation=relation.ADD_OR_REMOVE_ONE if is_poisson else relation.REPLACE_ONE
        )
        # noise is in units of the sum's sensitivity: a client that is replaced moves it by twice the clip
        gaussian = library.GaussianDpEvent(noise if is_poisson else noise / 2)
        with _quiet():
            for (places, clients), count in counts:
                if is_poisson:
                    event = library.PoissonSampledDpEvent(places / clients, gaussian)
                else:
                    event = library.SampledWithoutReplacementDpEvent(clients, places, gaussian)
                spent.compose(event, count)
            return float(spent.get_epsilon(self.options.delta))


@lru_cache(64)
def _loss(noise: float, rate: float, width: float) -> Any:
    """The distribution of the privacy loss of a round under Poisson sampling, which takes half a second."""
    accountants()
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=width
    )  # fmt: skip


def accountants() -> Any:
    """``dp_accounting`` with its accountants.  Raises MethodError, with what installs it, if it is missing."""
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError as error:
        raise MethodError(
            "an epsilon needs a package that isn't installed: pip install dp-accounting (or, "
            f"{install_hint('privacy')})"
        ) from error
    return dp_accounting


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what dp-accounting logs of Rényi orders that it leaves out, which makes epsilon larger at most."""
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
