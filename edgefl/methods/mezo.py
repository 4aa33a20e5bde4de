"""Zeroth-order training of which only the steps along seeded directions travel (MeZO; FedKSeed's pool of seeds)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from edgefl.errors import MethodError
from edgefl.methods.protocol import Method
from edgefl.methods.setting import Setting
from edgefl.methods.state import ServerState, Update
from edgefl.work import Item, Payload, Work
from edgefl.work.optimizer.zeroth_order import STEPS, direction, pooled


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
    needs = {"training": {"optimizer": "mezo"}}  # noqa: RUF012 - as in the base class

    def __init__(self, options: Any, setting: Setting):
        super().__init__(options, setting)
        if setting.training.optimizer != "mezo":
            raise MethodError(
                f"{options.name} sends steps along random directions, which training.optimizer: "
                f"{setting.training.optimizer} doesn't take: set training.optimizer: mezo"
            )

    def work(self, kind: str, round: int) -> Work:
        """FedAvg's work; what goes up is the table ``steps`` alone."""
        work, count = super().work(kind, round), self.options.directions
        up = Payload(STEPS, (Item(STEPS, (count,), "float32", f"table/{STEPS}/{kind}"),))
        optimizer, scalars = {**work.optimizer, "directions": count}, {**work.scalars, "round": round}
        return replace(work, up=(up,), optimizer=optimizer, scalars=scalars)

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """FedAvg's mean of the clients' models, rebuilt."""
        return super().aggregate(state, [rebuilt(update) for update in updates])


def rebuilt(update: Update) -> Update:
    """The update that the client would have sent under FedAvg, but for rounding: ``w - sum_j steps_j z_j``."""
    work, steps = update.work, update.payloads[STEPS][STEPS]
    trained = set(work.trainable) - set(work.keep)
    items = tuple(item for payload in work.down for item in payload.items if item.name in trained)
    values = {item.name: update.base[item.source].clone() for item in items}
    # without values, as costs are planned, there is nothing to move
    taken = [] if steps.is_meta else [(int(j), float(steps[j])) for j in steps.nonzero().flatten()]
    for item in items:
        _move(values[item.name], item.name, taken, work.scalars["round"])
    return replace(update, work=replace(work, up=(Payload("model", items),)), payloads={"model": values})


def _move(value: Tensor, name: str, taken: Sequence[tuple[int, float]], round: int) -> None:
    with torch.no_grad():
        for index, step in taken:
            z = direction(pooled(round, index), name, value.shape)
            value.sub_(z.to(value.device), alpha=step)
