"""Selections that learn from training: power-of-choice and Oort-like utility."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgefl.planning.round_options import RoundOptions
from edgefl.simulation.selection.base import (
    NOBODY,
    Chosen,
    Floats,
    Integers,
    Places,
    RandomOrder,
    Selection,
    by_weight,
    contains,
    first_ready,
)
from edgefl.units import Share

POOL = 3
"""Clients asked for each place of an exploration, of which the faster ones have the better chances."""
CLIP = 0.95
"""Utilities above this quantile count as much as it: an outlier isn't drawn in every round."""

_HEARD = ("clients", "losses", "seconds", "samples", "last")


class LossSelection(Selection):
    """Remembers what was heard from each client last: arrays over the clients heard from, ascending by client."""

    class Options(Selection.Options):
        """Fields that every such selection has."""

        proxy: Literal["samples", "uniform"] | None = Field(
            None,
            description="stand-in for a client's loss, which works without training: its number of samples, or 1 for "
            "every client (uniform); null: the loss itself",
        )

    needs_loss: ClassVar[bool] = True

    def __init__(self, options: RoundOptions, seed: int):
        super().__init__(options, seed)
        self.clients: Integers = NOBODY
        self.losses: Floats = np.empty(0)
        self.seconds: Floats = np.empty(0)
        self.samples: Integers = NOBODY
        self.last: Integers = NOBODY

    def learn(
        self, clients: Integers, losses: NDArray[Any], seconds: NDArray[Any], samples: Integers, round: int
    ) -> None:
        """Keep the news of these clients; one whose loss is no finite number has none, unless a proxy stands for it."""
        clients, samples = np.asarray(clients, dtype=np.int64), np.asarray(samples, dtype=np.int64)
        losses, seconds = np.asarray(losses, dtype=float), np.asarray(seconds, dtype=float)
        if self.own.proxy is not None:
            losses = samples.astype(float) if self.own.proxy == "samples" else np.ones(len(clients))
        order = np.argsort(clients)
        order = order[np.isfinite(losses[order])]
        clients, losses, seconds, samples = clients[order], losses[order], seconds[order], samples[order]
        new = ~contains(self.clients, clients)
        at = np.searchsorted(self.clients, clients[new])
        for name in _HEARD[1:]:
            setattr(self, name, np.insert(getattr(self, name), at, 0))
        self.clients = np.insert(self.clients, at, clients[new])
        at = np.searchsorted(self.clients, clients)
        self.losses[at], self.seconds[at], self.samples[at], self.last[at] = losses, seconds, samples, round

    def rows(self) -> dict[str, Any]:
        """With what was heard, a list for each of the arrays."""
        return {**super().rows(), **{name: getattr(self, name).tolist() for name in _HEARD}}

    def restore(self, rows: Mapping[str, Any]) -> None:
        """Go on from ``rows``."""
        super().restore(rows)
        for name in _HEARD:
            setattr(self, name, np.array(rows[name], dtype=getattr(self, name).dtype))


class PowerOfChoice(LossSelection):
    """Of candidates drawn by their samples, those with the highest loss (Cho, Wang and Joshi 2020).

    Their variant rpow-d, which costs no message: a client's last known loss counts, and who was never heard from
    comes first.  Their d is ``choices`` times the places of a group.
    """

    class Options(LossSelection.Options):
        """Fields of ``selection: {name: power-of-choice}``."""

        name: Literal["power-of-choice"] = "power-of-choice"
        choices: float = Field(2.0, ge=1, allow_inf_nan=False, description="candidates drawn for each place")

    def __init__(self, options: RoundOptions, seed: int):
        super().__init__(options, seed)
        self._sums: dict[str, tuple[Integers, Floats]] = {}

    def pick(self, share: Places) -> Chosen:
        """The highest losses among the ready ones that were drawn; of equal ones those drawn earlier."""
        known, sums = self._sums.get(share.name, (None, np.empty(0)))
        if known is not share.clients:
            sums = np.asarray(share.candidates.samples(share.clients), dtype=float).cumsum()
            self._sums[share.name] = share.clients, sums
        order = RandomOrder(share.generator(), len(share.clients), sums)
        drawn = first_ready(order, share, ceil(round(self.own.choices * share.count, 6)))
        losses = np.full(len(drawn.clients), np.inf)
        heard = contains(self.clients, drawn.clients)
        losses[heard] = self.losses[np.searchsorted(self.clients, drawn.clients[heard])]
        best = np.argsort(-losses, kind="stable")[: share.count]
        return Chosen(drawn.clients[best], drawn.asked, drawn.unready)


class Oort(LossSelection):
    """By utility, with a share of the places for clients that were never heard from (Lai et al. 2021, algorithm 1).

    What is simplified: a client's mean loss stands for the root of the mean of its squared losses; the preferred
    duration T is a quantile of the rounds heard of, where Oort's pacer moves it; utilities are divided by the largest,
    so that the bonus for not having been heard from has a weight whatever the loss; unknown clients are drawn by
    predicted speed from a random pool of three for each place; nobody is barred after many rounds.
    """

    class Options(LossSelection.Options):
        """Fields of ``selection: {name: oort}``."""

        name: Literal["oort"] = "oort"
        exploration: Share = Field(
            0.9, description="share of the places, in round 1, for clients that were never heard from"
        )
        exploration_decay: Share = Field(0.98, description="factor on that share from round to round")
        exploration_least: Share = Field(0.2, description="least value of that share")
        cutoff: Share = Field(
            0.95,
            description="share of the utility of the last client chosen from which on others may be drawn in its stead",
        )
        pace: Share = Field(0.5, description="quantile of the round times heard of that is the preferred time T")
        penalty: float = Field(
            2.0,
            ge=0,
            allow_inf_nan=False,
            description="exponent of T / seconds in the utility of clients slower than T",
        )

    def pick(self, share: Places) -> Chosen:
        """The explored places first, then by utility; what one of the two can't fill goes to the other."""
        own = self.own
        least = min(own.exploration_least, own.exploration)
        exploration = max(own.exploration * own.exploration_decay ** max(share.round - 1, 0), least)
        places = int(exploration * share.count + _stream(share, 0).random())
        new = self._explored(share, places)
        old = self._exploited(share, share.count - len(new.clients))
        if len(new.clients) + len(old.clients) < share.count and len(new.clients) == places:
            new = self._explored(share, share.count - len(old.clients))
        clients = np.concatenate([new.clients, old.clients])
        return Chosen(clients, new.asked + old.asked, new.unready + old.unready)

    def _explored(self, share: Places, count: int) -> Chosen:
        order = RandomOrder(_stream(share, 1), len(share.clients))
        pool = first_ready(order, share, POOL * count, known=self.clients)
        seconds = np.asarray(share.candidates.seconds(pool.clients), dtype=float)
        drawn = by_weight(_stream(share, 2), 1 / np.maximum(seconds, np.finfo(float).tiny))[:count]
        return Chosen(pool.clients[drawn], pool.asked, pool.unready)

    def _exploited(self, share: Places, count: int) -> Chosen:
        heard = contains(share.clients, self.clients).nonzero()[0]
        if not len(heard) or not count:
            return Chosen(NOBODY, 0, 0)
        worth = utility(
            self.samples[heard],
            self.losses[heard],
            self.seconds[heard],
            self.last[heard],
            round=share.round,
            preferred=float(np.quantile(self.seconds[heard], self.own.pace)),
            penalty=self.own.penalty,
        )
        ranked = np.argsort(-worth, kind="stable")
        positions = np.searchsorted(share.clients, self.clients[heard[ranked]])
        best = first_ready(_Listed(positions), share, count)
        if len(best.clients) < count:
            return best
        limit = self.own.cutoff * worth[ranked[best.asked - 1]]
        near = int(np.searchsorted(-worth[ranked], -limit, side="right"))
        behind = positions[best.asked : max(near, best.asked)]
        more = first_ready(_Listed(behind), share, len(behind))
        clients = np.concatenate([best.clients, more.clients])
        chances = worth[np.searchsorted(self.clients[heard], clients)]
        drawn = by_weight(_stream(share, 3), chances)[:count]
        return Chosen(clients[drawn], best.asked + more.asked, best.unready + more.unready)


def utility(
    samples: NDArray[Any],
    losses: Floats,
    seconds: Floats,
    last: NDArray[Any],
    *,
    round: int,
    preferred: float,
    penalty: float,
) -> Floats:
    """What a client's next round is worth, arrays `[clients]`: (U / max U + sqrt(0.1 ln R / L)) (T / t)^a if t > T.

    U = samples x mean loss, clipped at its 95 % quantile; L the round that it was heard from last, R this ``round``, t
    its seconds, T the ``preferred`` ones and a the ``penalty``.
    """
    statistical = samples * np.maximum(losses, 0.0)
    statistical = np.minimum(statistical, np.quantile(statistical, CLIP))
    most = statistical.max()
    bonus = np.sqrt(0.1 * np.log(max(round, 1)) / np.maximum(last, 1))
    slow = np.maximum(seconds / preferred, 1.0) if preferred > 0 else np.ones(len(seconds))
    worth: Floats = (statistical / (most if most > 0 else 1.0) + bonus) * slow**-penalty
    return worth


class _Listed:
    """Positions in a given order."""

    def __init__(self, positions: Integers):
        self._left = positions

    def take(self, wanted: int) -> Integers:
        """The next ``wanted``; empty at the end."""
        found, self._left = self._left[:wanted], self._left[wanted:]
        return found


def _stream(share: Places, number: int) -> np.random.Generator:
    """One of several independent generators of this draw."""
    return np.random.Generator(cast(np.random.Philox, share.generator().bit_generator).jumped(number))
