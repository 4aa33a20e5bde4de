"""FedBABU: only the body is trained and averaged; clients fine-tune for themselves (Oh, Kim and Yun 2022)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Literal

from pydantic import Field

from edgefl.methods.protocol import Method
from edgefl.models.adapters import belongs
from edgefl.work import Item, Work


class FedBABU(Method):
    """FedAvg of all but the heads, which stay as they were at first, in every client."""

    class Options(Method.Options):
        """``method: {name: fedbabu, tune: all}``."""

        name: Literal["fedbabu"] = "fedbabu"
        tune: Literal["all", "head", "body"] = Field(
            "all", description="what a client fine-tunes before it is scored on its held-out samples"
        )

    summary = "FedAvg of the body with a fixed head; clients fine-tune before they are scored"
    paper = "Oh, Kim and Yun 2022"

    def work(self, kind: str, round: int) -> Work:
        """FedAvg's work without the heads, which neither train nor travel up."""
        work = super().work(kind, round)
        up = tuple(payload.only(lambda item: not belongs(item.name, "head")) for payload in work.up)
        down = tuple(replace(payload, items=tuple(map(_fixed_head, payload.items))) for payload in work.down)
        return replace(work, trainable=tuple(n for n in work.trainable if not belongs(n, "head")), down=down, up=up)

    def evaluate_client(self, kind: str, round: int, variant: Hashable = None) -> Work:
        """``training.epochs`` of fine-tuning on the client's samples, then its scores; nothing is kept or sent."""
        scored, tuned = super().evaluate_client(kind, round, variant), super().work(kind, round)
        part = self.options.tune
        trainable = tuple(n for n in tuned.trainable if part == "all" or belongs(n, "head") == (part == "head"))
        return replace(tuned, trainable=trainable, passes=(*tuned.passes, *scored.passes), up=())


def _fixed_head(item: Item) -> Item:
    return replace(item, fixed=item.fixed or belongs(item.name, "head"))
