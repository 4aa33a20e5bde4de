"""Gaussian noise on sums of clipped updates: what central differential privacy adds to a mean (McMahan et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgefl import seeds
from edgefl.work import Address, Description


@dataclass(frozen=True)
class ExpectedSenders:
    """Clients that send alike: the ``number`` of them that a round expects, which needn't be whole."""

    kind: str
    work: Description
    number: float


@dataclass(frozen=True)
class Noise:
    """The noise of one round: N(0, ``deviation``²) on each coordinate of each sum.

    ``senders`` are those that the round expects.  Their numbers are the denominators of means, whoever arrives, because
    a denominator that counts the arrivals would tell who took part.
    """

    seed: int
    round: int
    deviation: float
    senders: Sequence[ExpectedSenders]

    def on_mean(self, mean: Tensor, address: Address, part: int, total: float) -> Tensor:
        """The mean at an address, or at a numbered part of it, with noise of deviation / ``total``.

        The noise is a function of seed, round, address and part alone; a tensor without values stays as it is.
        """
        if mean.is_meta:
            return mean
        generator = torch.Generator().manual_seed(seeds.key(self.seed, f"noise {address}", self.round, part))
        drawn = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device="cpu")
        return mean + drawn.to(mean.device) * (self.deviation / total)
