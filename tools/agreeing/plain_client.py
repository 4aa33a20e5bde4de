"""A client's training in plain torch, and what all peers read and write.  NumPy and torch alone.

The case, ``case.npz``, has the first values ``first.K`` of the network's parameter K, the samples of every client that
was sent off, ``x`` ``[flights, steps, batch, 3, 32, 32]`` and ``y`` ``[flights, steps, batch]`` in the order in which
it trained on them, and ``client`` ``[rounds, cohort]``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from bench.plain import plain_cnn
from torch import Tensor, nn
from torch.nn import functional as F

MU = 0.1
RATE = 0.05
CLIENTS = 8
METHODS = ("fedavg", "fedprox", "scaffold")


@dataclass(frozen=True)
class Case:
    """What a peer plays: its first values, its cohorts, and the batches of each flight."""

    first: list[Tensor]
    client: list[list[int]]
    x: Tensor
    y: Tensor

    @classmethod
    def read(cls, folder: Path) -> Case:
        """The case in a folder."""
        with np.load(folder / "case.npz") as stored:
            first = [torch.from_numpy(stored[f"first.{k}"]) for k in range(sum("first." in n for n in stored.files))]
            return cls(first, stored["client"].tolist(), torch.from_numpy(stored["x"]), torch.from_numpy(stored["y"]))

    def flight(self, round: int, place: int) -> list[tuple[Tensor, Tensor]]:
        """The batches of the client at this place of a round's cohort."""
        number = round * len(self.client[0]) + place
        return list(zip(self.x[number], self.y[number], strict=True))

    def network(self) -> nn.Module:
        """The network with its first values, in float64."""
        module = plain_cnn().double()
        with torch.no_grad():
            for parameter, value in zip(module.parameters(), self.first, strict=True):
                parameter.copy_(value)
        return module


def trained(
    module: nn.Module, start: Sequence[Tensor], batches: Sequence[tuple[Tensor, Tensor]], method: str,
    control: Sequence[Tensor] = (), own: Sequence[Tensor] = (),
) -> list[Tensor]:  # fmt: skip
    """The parameters after an epoch of SGD from ``start``; SCAFFOLD's with both control variates."""
    parameters = list(module.parameters())
    with torch.no_grad():
        for parameter, value in zip(parameters, start, strict=True):
            parameter.copy_(value)
    for x, y in batches:
        loss = F.cross_entropy(module(x), y)
        if method == "fedprox":
            loss = loss + MU / 2 * sum((p - w).square().sum() for p, w in zip(parameters, start, strict=True))
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for k, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
                if method == "scaffold":
                    gradient = gradient + control[k] - own[k]
                parameter.sub_(gradient, alpha=RATE)
    return [p.detach().clone() for p in parameters]


def renewed(
    own: Sequence[Tensor], control: Sequence[Tensor], start: Sequence[Tensor], end: Sequence[Tensor], steps: int,
    sign: int = 1,
) -> list[Tensor]:  # fmt: skip
    """SCAFFOLD's c_i+ (option II): c_i - c + (x - y_i) / (K lr); ``sign`` -1 turns the last term round, as in pfl."""
    return [o - c + sign * (x - y) / (steps * RATE) for o, c, x, y in zip(own, control, start, end, strict=True)]


def zeros(like: Sequence[Tensor]) -> list[Tensor]:
    """Zeros of the same shapes."""
    return [torch.zeros_like(value) for value in like]


def write(path: Path, rounds: Sequence[Sequence[Tensor]]) -> None:
    """Write the server's parameters after each round, ``ROUND.K``."""
    arrays = {f"{r}.{k}": value.numpy() for r, values in enumerate(rounds) for k, value in enumerate(values)}
    np.savez(path, **arrays)


def asked() -> tuple[Path, str]:
    """The folder of the case and the method that a peer is to play, from its command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("method")
    given = parser.parse_args()
    torch.set_num_threads(1)
    return given.folder, given.method
