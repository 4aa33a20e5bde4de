"""Selections that learn from training: power-of-choice and Oort-like utility."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, ClassVar, Literal, cast

import numpy as np
from pydantic import Field

from edgefl.arrays import AnyArray, Floats, Integers
from edgefl.planning.round_options import RoundOptions
from edgefl.simulation.selection.base import Chosen, GroupDraw, Selection, contains, first_ready
from edgefl.simulation.selection.orders import NO_CLIENTS, RandomOrder, by_weight
from edgefl.units import Share

POOL = 3
"""Candidates for each explored place, of whom faster ones are more likely to be drawn.  A choice: the paper weighs all
clients, but that would ask a whole fleet for its seconds in each round."""
CLIP = 0.95
"""Quantile at which utilities are clipped, so that an outlier isn't drawn in every round: the paper's example."""

_COLUMNS = ("clients", "losses", "seconds", "samples", "last")


class LossSelection(Selection):
    """Keeps the last report of each client: arrays over the clients that have reported, ascending by client."""

    class Options(Selection.Options):
        """Fields of every selection by loss."""

        proxy: Literal["samples", "uniform"] | None = Field(
            None,
            description="replacement of a client's loss that needs no training: its number of samples, or 1 for "
            "every client (uniform); null: the loss itself",
        )

    needs_loss: ClassVar[bool] = True

    def __init__(self, options: Any, section: RoundOptions, seed: int):
        super().__init__(options, section, seed)
        self.clients: Integers = NO_CLIENTS
        self.losses: Floats = np.empty(0)
        self.seconds: Floats = np.empty(0)
        self.samples: Integers = NO_CLIENTS
        self.last: Integers = NO_CLIENTS

    def learn(self, clients: Integers, losses: AnyArray, seconds: AnyArray, samples: Integers, round: int) -> None:
        """Store the reports of these clients; without a proxy, reports whose loss isn't finite are ignored."""
        clients, samples = np.asarray(clients, dtype=np.int64), np.asarray(samples, dtype=np.int64)
        losses, seconds = np.asarray(losses, dtype=float), np.asarray(seconds, dtype=float)
        if self.options.proxy is not None:
            losses = self.stand_in(samples)
        order = np.argsort(clients)
        order = order[np.isfinite(losses[order])]
        clients, losses, seconds, samples = clients[order], losses[order], seconds[order], samples[order]
        new = ~contains(self.clients, clients)
        index = np.searchsorted(self.clients, clients[new])
        for name in _COLUMNS[1:]:
            setattr(self, name, np.insert(getattr(self, name), index, 0))
        self.clients = np.insert(self.clients, index, clients[new])
        index = np.searchsorted(self.clients, clients)
        self.losses[index], self.seconds[index], self.samples[index], self.last[index] = losses, seconds, samples, round

    def stand_in(self, samples: Integers) -> Floats:
        """What a ``proxy`` puts in place of the losses of clients with these samples, `[clients]`."""
        return samples.astype(float) if self.options.proxy == "samples" else np.ones(len(samples))

    def to_data(self) -> dict[str, object]:
        """State of the base class, and a list for each array of reports."""
        return {**super().to_data(), **{name: getattr(self, name).tolist() for name in _COLUMNS}}

    def load_data(self, raw: Mapping[str, Any]) -> None:
        """Go on from what ``to_data`` returned."""
        super().load_data(raw)
        for name in _COLUMNS:
            setattr(self, name, np.array(raw[name], dtype=getattr(self, name).dtype))


class PowerOfChoice(LossSelection):
    """Clients with the highest loss among candidates drawn by their samples (Cho, Wang and Joshi 2020).

    This is their variant rpow-d, which needs no further message: it uses the last known loss, and clients without one
    come first.  Their d is ``choices`` times the places of a group.
    """

    paper = "Cho, Wang and Joshi 2020"

    class Options(LossSelection.Options):
        """Fields of ``selection: {name: power-of-choice}``."""

        name: Literal["power-of-choice"] = "power-of-choice"
        choices: float = Field(2.0, ge=1, allow_inf_nan=False, description="candidates drawn for each place")

    def __init__(self, options: Any, section: RoundOptions, seed: int):
        super().__init__(options, section, seed)
        self._sums: dict[str, tuple[Integers, Floats]] = {}

    def pick(self, share: GroupDraw) -> Chosen:
        """The ready candidates with the highest losses; ties go to those drawn earlier."""
        known, sums = self._sums.get(share.name, (None, np.empty(0)))
        if known is not share.clients:
            sums = np.asarray(share.candidates.samples(share.clients), dtype=float).cumsum()
            self._sums[share.name] = share.clients, sums
        order = RandomOrder(share.generator(), len(share.clients), sums)
        drawn = first_ready(order, share, ceil(round(self.options.choices * share.count, 6)))
        losses = np.full(len(drawn.clients), np.inf)
        reported = contains(self.clients, drawn.clients)
        losses[reported] = self.losses[np.searchsorted(self.clients, drawn.clients[reported])]
        best = np.argsort(-losses, kind="stable")[: share.count]
        return Chosen(drawn.clients[best], drawn.asked, drawn.unready)


class Oort(LossSelection):
    """Selection by utility, with a share of the places for clients without a report (Lai et al. 2021, algorithm 1).

    Simplifications: the statistical utility is samples times the mean loss, where the paper has the root mean square
    of the losses of single samples (equation 1), since a client reports its mean loss alone; the preferred duration T
    is the median of known round times, without Oort's pacer; utilities are divided by the largest, so that the bonus
    for old reports counts at any scale of the loss; clients without a report are drawn by predicted speed from a
    random pool of three for each place; clients aren't excluded after many rounds.
    """

    paper = "Lai et al. 2021"

    class Options(LossSelection.Options):
        """Fields of ``selection: {name: oort}``."""

        name: Literal["oort"] = "oort"
        proxy: Literal["samples", "uniform"] | None = Field(
            None,
            description="statistical utility where there is no training: a client's number of samples, or 1 for every "
            "client (uniform); null: its samples times its mean loss (the paper has the root mean square of the "
            "losses of single samples in place of the mean, which no client reports here)",
        )
        exploration: Share = Field(0.9, description="share of the places for clients without a report, in round 1")
        exploration_decay: Share = Field(0.98, description="factor on that share from round to round")
        exploration_least: Share = Field(0.2, description="lower bound of that share")
        cutoff: Share = Field(
            0.95, description="share of the last chosen client's utility above which other clients enter the draw too"
        )
        penalty: float = Field(
            2.0,
            ge=0,
            allow_inf_nan=False,
            description="exponent of T / seconds in the utility of clients slower than T",
        )

    def stand_in(self, samples: Integers) -> Floats:
        """The losses whose product with the samples is the proxy."""
        return super().stand_in(samples) / np.maximum(samples, 1)

    def pick(self, share: GroupDraw) -> Chosen:
        """Clients without a report first, then clients by utility; unfilled places of one go to the other."""
        options = self.options
        least = min(options.exploration_least, options.exploration)
        exploration = max(options.exploration * options.exploration_decay ** max(share.round - 1, 0), least)
        places = int(exploration * share.count + _stream(share, 0).random())
        new = self._explore(share, places)
        old = self._exploit(share, share.count - len(new.clients))
        if len(new.clients) + len(old.clients) < share.count and len(new.clients) == places:
            new = self._explore(share, share.count - len(old.clients))
        clients = np.concatenate([new.clients, old.clients])
        return Chosen(clients, new.asked + old.asked, new.unready + old.unready)

    def _explore(self, share: GroupDraw, count: int) -> Chosen:
        order = RandomOrder(_stream(share, 1), len(share.clients))
        pool = first_ready(order, share, POOL * count, known=self.clients)
        seconds = np.asarray(share.candidates.seconds(pool.clients), dtype=float)
        drawn = by_weight(_stream(share, 2), 1 / np.maximum(seconds, np.finfo(float).tiny))[:count]
        return Chosen(pool.clients[drawn], pool.asked, pool.unready)

    def _exploit(self, share: GroupDraw, count: int) -> Chosen:
        reported = contains(share.clients, self.clients).nonzero()[0]
        if not len(reported) or not count:
            return Chosen(NO_CLIENTS, 0, 0)
        utilities = utility(
            self.samples[reported],
            self.losses[reported],
            self.seconds[reported],
            self.last[reported],
            round=share.round,
            preferred=float(np.median(self.seconds[reported])),
            penalty=self.options.penalty,
        )
        ranked = np.argsort(-utilities, kind="stable")
        positions = np.searchsorted(share.clients, self.clients[reported[ranked]])
        best = first_ready(_Listed(positions), share, count)
        if len(best.clients) < count:
            return best
        limit = self.options.cutoff * utilities[ranked[best.asked - 1]]
        near = int(np.searchsorted(-utilities[ranked], -limit, side="right"))
        behind = positions[best.asked : max(near, best.asked)]
        more = first_ready(_Listed(behind), share, len(behind))
        clients = np.concatenate([best.clients, more.clients])
        chances = utilities[np.searchsorted(self.clients[reported], clients)]
        drawn = by_weight(_stream(share, 3), chances)[:count]
        return Chosen(clients[drawn], best.asked + more.asked, best.unready + more.unready)


def utility(
    samples: AnyArray, losses: Floats, seconds: Floats, last: AnyArray, *, round: int, preferred: float, penalty: float
) -> Floats:
    """Utility of each client, `[clients]`: (U / max U + sqrt(0.1 ln R / L)) (T / t)^a, with T / t at most 1.

    U = samples x mean loss (or the proxy), clipped at its 95 % quantile; L the round of its last report, R this
    ``round``, t its seconds, T the ``preferred`` ones and a the ``penalty``.
    """
    statistical = samples * np.maximum(losses, 0.0)
    statistical = np.minimum(statistical, np.quantile(statistical, CLIP))
    highest = statistical.max()
    bonus = np.sqrt(0.1 * np.log(max(round, 1)) / np.maximum(last, 1))
    slow = np.maximum(seconds / preferred, 1.0) if preferred > 0 else np.ones(len(seconds))
    utilities: Floats = (statistical / (highest if highest > 0 else 1.0) + bonus) * slow**-penalty
    return utilities


class _Listed:
    """Positions in a given order."""

    def __init__(self, positions: Integers):
        self._left = positions

    def take(self, wanted: int) -> Integers:
        """The next ``wanted`` positions; empty at the end."""
        positions, self._left = self._left[:wanted], self._left[wanted:]
        return positions


def _stream(share: GroupDraw, number: int) -> np.random.Generator:
    """One of several independent generators of this draw."""
    return np.random.Generator(cast(np.random.Philox, share.generator().bit_generator).jumped(number))
