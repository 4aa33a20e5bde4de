"""What an attacker does on its own device, a registered part: it trains on other data, or sends another update.

edgefl's own attacks are below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from edgefl.devices.attackers import AttackOptions
from edgefl.registry.part_fields import build_part
from edgefl.work import Item, Pass, Payload, Source, TensorSpec


@dataclass(frozen=True)
class Attack:
    """An attack of a client, ``fleet.failures.attack: {name: NAME, share: 20%}``.

    Subclass, give ``Options``, and override ``attacked_change`` for another update, or ``source`` for other data.
    """

    Options: ClassVar[type[AttackOptions]] = AttackOptions
    """Fields of the scenario; a subclass of ``Attack.Options``, which has ``name`` and ``share``."""
    labels: ClassVar[bool] = False
    """Whether it changes labels, and so needs clients that classify."""

    options: Any
    """The fields that the scenario gives."""
    classes: int = 0
    """Number of classes of the client's labels if it changes ``labels``, else 0."""
    seed: int = 0
    """The seed of the client's training in this round."""

    def source(self, source: Source) -> Source:
        """The data that the attacker trains on."""
        return source

    def attacked_change(self, item: Item, change: Tensor) -> Tensor:
        """The change of a tensor that it sends in place of its own, in float64: value - what it started from."""
        return change

    def attacked_upload(
        self, payload: Payload, tensors: Mapping[str, Tensor], base: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """What the attacker sends instead of ``tensors``, by item name: base + ``attacked_change`` (value - base).

        ``base`` has the values that it started from.  Tables, integers and tensors without a base stay as they are.
        """
        if type(self).attacked_change is Attack.attacked_change:
            return dict(tensors)
        return {
            item.name: tensors[item.name]
            if item.is_beside_model or item.name not in base or not tensors[item.name].is_floating_point()
            else self._attacked_value(item, tensors[item.name], base[item.name])
            for item in payload.items
        }

    def _attacked_value(self, item: Item, value: Tensor, base: Tensor) -> Tensor:
        start = base.to(value.device, torch.float64)
        return (start + self.attacked_change(item, value.double() - start)).to(value.dtype)

    def to_data(self) -> list[Any]:
        """As plain data, from which ``from_data`` makes it again."""
        return [self.options.model_dump(mode="json"), self.classes, self.seed]

    @staticmethod
    def from_data(raw: list[Any]) -> Attack:
        """The attack of which ``to_data`` made this; it may have been JSON.  Raises PluginError in a worker."""
        options, classes, seed = raw
        attack: Attack = build_part("attack", options, classes, seed)
        return attack


# --- edgefl's own ----------------------------------------------------------------------------------------------------


class _OwnOptions(AttackOptions):
    """Fields of edgefl's own attacks: all have ``factor``, as the scenarios of runs do."""

    factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None,
        description="Factor on the change that sign-flip and scaling send; null: 1 for sign-flip, 10 for scaling.",
    )

    @model_validator(mode="after")
    def _reject_unused_factor(self) -> _OwnOptions:
        if self.factor is not None and self.name == "label-flip":
            raise ValueError(f"factor belongs to sign-flip or scaling, not {self.name}")
        return self


class SignFlip(Attack):
    """Sends its change with the opposite sign: base - factor (value - base), by default 1 times."""

    Options = _OwnOptions

    def attacked_change(self, item: Item, change: Tensor) -> Tensor:
        """- factor times the change."""
        return -(1.0 if self.options.factor is None else self.options.factor) * change


class Scaling(Attack):
    """Sends its change enlarged: base + factor (value - base), by default 10 times."""

    Options = _OwnOptions

    def attacked_change(self, item: Item, change: Tensor) -> Tensor:
        """Factor times the change."""
        return (10.0 if self.options.factor is None else self.options.factor) * change


class LabelFlip(Attack):
    """Trains honestly, on private samples whose label is classes - 1 - label."""

    Options = _OwnOptions
    labels = True

    def source(self, source: Source) -> Source:
        """The data with flipped labels."""
        return Flipped(source, self.classes)


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
            yield pattern, self._flip_labels(batch) if pass_.data == "private" else batch

    def _flip_labels(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        flipped = dict(batch)
        if "label" in batch:
            label = batch["label"]
            flipped["label"] = torch.where((label >= 0) & (label < self.classes), self.classes - 1 - label, label)
        if "target" in batch:
            flipped["target"] = batch["target"].flip(-1)
        return flipped
