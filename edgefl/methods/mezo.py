"""Zeroth-order training of which only the steps along seeded directions travel (MeZO; FedKSeed's pool of seeds)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from edgefl.errors import MethodError
from edgefl.methods.protocol import Method
from edgefl.work import Address, Item, Payload, Work
from edgefl.work.description import OptimizerSettings, Scalar
from edgefl.work.optimizer.zeroth_order import STEPS, direction, pooled_seed
from edgefl.work.training_options import TrainingOptions
from edgefl.work.update import Update


class Mezo(Method):
    """FedAvg of clients that train by ``training.optimizer: mezo`` and send lr g by direction in place of the model.

    Every round has a pool of directions, known by their seeds; for each batch a client takes one of them.  The server
    draws them again, rebuilds each client's model, and averages as FedAvg does.
    """

    class Options(Method.Options):
        """``method: {name: mezo, directions: 1024}``."""

        name: Literal["mezo"] = "mezo"
        directions: int = Field(
            1024, ge=1, le=2**24, description="directions in a round's pool; a client sends one number for each"
        )

    summary = "FedAvg without gradients; clients send one number per direction"
    paper = "Malladi et al. 2023"
    needs = {"training": {"optimizer": "mezo"}}  # noqa: RUF012 - as in the base class

    @classmethod
    def check_training(cls, options: Any, training: TrainingOptions) -> None:
        """Raises MethodError for another optimizer."""
        if training.optimizer != "mezo":
            raise MethodError(
                f"{options.name} sends steps along random directions, which training.optimizer: "
                f"{training.optimizer} doesn't take: set training.optimizer: mezo"
            )

    def work(self, kind: str, round: int) -> Work:
        """FedAvg's work; what goes up is the table ``steps`` alone."""
        work, count = super().work(kind, round), self.options.directions
        up = Payload(STEPS, (Item(STEPS, (count,), "float32", f"table/{STEPS}/{kind}"),))
        optimizer: OptimizerSettings = {**work.optimizer, "directions": count}
        scalars: dict[str, Scalar] = {**work.scalars, "round": round}
        return replace(work, up=(up,), optimizer=optimizer, scalars=scalars)

    def changed_addresses(self, work: Work) -> set[Address]:
        """The parameters that train."""
        return {item.source for item in trained_items(work)}

    def rebuild(self, update: Update) -> Update:
        """The update that the client would have sent under FedAvg, but for rounding: ``w - sum_j steps_j z_j``."""
        up = Payload("model", trained_items(update.work))
        return replace(update, work=replace(update.work, up=(up,)), payloads={"model": Rebuilt(update, up)})


def trained_items(work: Work) -> tuple[Item, ...]:
    """The items of a work's model that train and that the client doesn't keep for itself."""
    names = set(work.trainable) - set(work.keep)
    return tuple(item for payload in work.down for item in payload.items if item.name in names)


class Rebuilt(Mapping[str, Tensor]):
    """A client's parameters, each drawn from the steps that it sent when it is read, and not kept."""

    def __init__(self, update: Update, payload: Payload):
        self._update, self._sources = update, {item.name: item.source for item in payload.items}

    @cached_property
    def _seeded_steps(self) -> list[tuple[int, float]]:
        """The seeds of the directions, and the steps along them."""
        steps, round = self._update.payloads[STEPS][STEPS], int(self._update.work.number("round"))
        return [(pooled_seed(round, index), float(steps[index])) for index in steps.nonzero().flatten().tolist()]

    def __getitem__(self, name: str) -> Tensor:
        base = self._update.base[self._sources[name]]
        if self._update.payloads[STEPS][STEPS].is_meta:  # costs are planned without values
            return torch.empty_like(base, device="meta")
        value = base.clone()
        for seed, step in self._seeded_steps:
            for part, z in direction(seed, name, value):
                part.sub_(z, alpha=step)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)
