"""Zeroth-order training of which only the steps along seeded directions travel (MeZO; FedKSeed's pool of seeds)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field

from edgefl.errors import MethodError
from edgefl.methods.aggregation.combine import Fold, Folded
from edgefl.methods.protocol import Method
from edgefl.methods.setting import Setting
from edgefl.methods.state import ServerState, Update
from edgefl.work import Address, Item, Payload, Work
from edgefl.work.optimizer.zeroth_order import STEPS, direction, pooled
from edgefl.work.sums import averaged


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

    def changed_by(self, work: Work) -> set[Address]:
        """The parameters that train."""
        return {item.source for item in trained_items(work)}

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """FedAvg's mean of the clients' models, each of which is rebuilt from its steps."""
        options = self.setting.aggregation
        if options.rule != "mean" or self.setting.averages_products:
            return super().aggregate(state, [rebuilt(update) for update in updates])
        # one model at a time is in memory
        light = [without_values(update) for update in updates]
        parameters = {a: t for a, t in state.tensors.items() if averaged(a)}
        fold = Fold(parameters, light, self.update_weight, options)
        for update in sorted(updates, key=lambda update: update.client):
            fold.add(rebuilt(update))
        return super().aggregate(state, Folded(light, fold))


def trained_items(work: Work) -> tuple[Item, ...]:
    """The items of a work's model that train and that the client doesn't keep for itself."""
    names = set(work.trainable) - set(work.keep)
    return tuple(item for payload in work.down for item in payload.items if item.name in names)


def without_values(update: Update) -> Update:
    """The update that the client would have sent under FedAvg, with tensors that have shapes alone."""
    items = trained_items(update.work)
    values = {item.name: torch.empty_like(update.base[item.source], device="meta") for item in items}
    return replace(update, work=replace(update.work, up=(Payload("model", items),)), payloads={"model": values})


def rebuilt(update: Update) -> Update:
    """The update that the client would have sent under FedAvg, but for rounding: ``w - sum_j steps_j z_j``."""
    steps, round = update.payloads[STEPS][STEPS], update.work.scalars["round"]
    light = without_values(update)
    if steps.is_meta:  # costs are planned without values
        return light
    taken = [(pooled(round, index), float(steps[index])) for index in steps.nonzero().flatten().tolist()]
    values = {}
    for payload in light.work.up:
        for item in payload.items:
            value = values[item.name] = update.base[item.source].clone()
            for seed, step in taken:
                for part, z in direction(seed, item.name, value):
                    part.sub_(z, alpha=step)
    return replace(light, payloads={"model": values})
