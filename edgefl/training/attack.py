"""What an attacker does on its own device: train on flipped labels, or change the update that it sends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from edgefl.work import Pass, Payload, Source, TensorSpec


@dataclass(frozen=True)
class Attack:
    """An attack of a client.

    ``strength`` is the factor on its change of the tensors that the server averages: below 0 the sign is flipped, 1
    leaves the update as it is.  ``classes`` is the number of classes whose labels it flips, 0 for none.
    """

    strength: float = 1.0
    classes: int = 0

    def source(self, source: Source) -> Source:
        """The data that the attacker trains on."""
        return Flipped(source, self.classes) if self.classes else source

    def sent(self, payload: Payload, tensors: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the attacker sends instead of ``tensors``, by item name: base + strength (value - base).

        ``base`` has the values that it started from.  Tables, integers and tensors without a base stay as they are.
        """
        return {
            item.name: tensors[item.name]
            if item.beside or item.name not in base
            else self._changed(tensors[item.name], base[item.name])
            for item in payload.items
        }

    def _changed(self, value: Tensor, base: Tensor) -> Tensor:
        if self.strength == 1 or not value.is_floating_point():
            return value
        start = base.to(value.device, torch.float64)
        return (start + self.strength * (value.double() - start)).to(value.dtype)


@dataclass(frozen=True)
class Flipped:
    """A data source whose private samples have the label ``classes`` - 1 - label; soft answers are reversed alike.

    Padding and samples of no class keep their label.  Public and server data stay as they are.
    """

    honest: Source
    classes: int

    def spec(self, pass_: Pass, pattern: str) -> dict[str, TensorSpec]:
        """Shapes as in the honest source."""
        return self.honest.spec(pass_, pattern)

    def counts(self, pass_: Pass) -> dict[str, int]:
        """Batches as in the honest source."""
        return self.honest.counts(pass_)

    def size(self, pass_: Pass) -> int:
        """Samples as in the honest source."""
        return self.honest.size(pass_)

    def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """The honest batches in the same order, with flipped labels where they are private."""
        for pattern, batch in self.honest.batches(pass_, seed):
            yield pattern, self._flipped(batch) if pass_.data == "private" else batch

    def _flipped(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        flipped = dict(batch)
        if "label" in batch:
            label = batch["label"]
            flipped["label"] = torch.where((label >= 0) & (label < self.classes), self.classes - 1 - label, label)
        if "target" in batch:
            flipped["target"] = batch["target"].flip(-1)
        return flipped
