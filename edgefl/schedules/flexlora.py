"""FlexLoRA: each client trains LoRA factors of the largest rank that fits (Bai et al. 2024, arXiv 2402.11505)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveInt, field_validator

from edgefl.errors import MethodError
from edgefl.models.adapters import FACTORS, AdapterOptions, LoraOptions
from edgefl.schedules.stages import PARTS, Aggregation, Schedule, Stage
from edgefl.work.description import Item, Payload, Work
from edgefl.work.slices import cut_between


class FlexLoRA(Schedule):
    """A client trains factors of the largest of these ranks that fits its own budgets.

    The server averages the products of the factors, and cuts the mean to the largest rank by its singular values.  The
    factors' first rows and columns are those of the largest values, so that a client of a smaller rank has the
    best product of its rank.
    """

    paper = "Bai et al. 2024"

    needs: ClassVar[Mapping[str, object]] = {"adapter": {"name": "lora"}, "schedule": "flexlora"}
    averages: ClassVar[Literal["values", "products"]] = "products"

    class Options(Schedule.Options):
        """Fields of ``schedule: {name: flexlora}``."""

        name: Literal["flexlora"] = "flexlora"
        ranks: tuple[PositiveInt, ...] = Field(
            (8, 4, 2), min_length=1, description="ranks that clients are offered; adapter.rank among them, the server's"
        )

        @field_validator("ranks")
        @classmethod
        def _once(cls, value: tuple[int, ...]) -> tuple[int, ...]:
            if len(set(value)) < len(value):
                raise ValueError(f"ranks {list(value)} has a value twice; each may stand once")
            return tuple(sorted(value, reverse=True))

    def __init__(self, options: FlexLoRA.Options, blocks: Mapping[str, int]):
        self.ranks = options.ranks
        rounds, zero = options.rounds or 10, dict.fromkeys(blocks, 0)
        offered = tuple(
            Ranked(i, dict(blocks), zero, PARTS, rounds, label=f"rank {rank}", rank=rank)
            for i, rank in enumerate(options.ranks, start=1)
        )
        super().__init__(offered[:1], offered=offered)

    def check(self, adapter: AdapterOptions, aggregation: Aggregation) -> None:
        """Raise MethodError without LoRA, for ranks that don't go up to its rank, and a rule that compares updates."""
        if not isinstance(adapter, LoraOptions) or adapter.name != "lora":
            raise MethodError("flexlora offers ranks of LoRA's factors: set adapter: {name: lora}, or another schedule")
        if self.ranks[0] != (rank := adapter.rank):
            raise MethodError(
                f"schedule.ranks: ranks {list(self.ranks)} must go up to adapter.rank, {rank}, the server's: write "
                f"ranks: {sorted({rank, max(1, rank // 2), max(1, rank // 4)}, reverse=True)}"
            )
        if aggregation.by_update:
            rule = aggregation.rule_name
            raise MethodError(f"aggregation.rule: {rule} compares factors, which flexlora doesn't average")

    def candidates(self, round: int) -> tuple[Stage, ...]:
        """All ranks, the largest first."""
        return self.offered


@dataclass(frozen=True)
class Ranked(Stage):
    """A stage whose model has the first ``rank`` rows of every A and columns of every B."""

    rank: int = 1

    def restrict_work(self, work: Work) -> Work:
        """The work on factors of this rank; their scale stays the server's, alpha / the full rank.

        Raises MethodError for a model without LoRA, a rank above its own, and for tensors that follow a factor: factors
        of two rounds differ by a rotation.
        """
        work = super().restrict_work(work)
        adapter = work.model.get("adapter")
        if adapter is None or adapter["name"] != "lora":
            raise MethodError("flexlora: there are no factors whose rank could differ: set adapter: {name: lora}")
        if self.rank > adapter["rank"]:
            raise MethodError(f"ranks: {self.rank} is above adapter.rank, {adapter['rank']}, which is the server's")
        if kept := [name for name in work.keep if name.rpartition(".")[2] in FACTORS]:
            raise MethodError(
                f"flexlora: {kept[0]} stays on the client, and factors of two rounds don't belong together"
            )

        def slice_payload(payload: Payload) -> Payload:
            return replace(payload, items=tuple(_item(item, self.rank) for item in payload.items))

        return replace(
            work,
            model={**work.model, "adapter": {**adapter, "rank": self.rank}},
            down=tuple(map(slice_payload, work.down)),
            up=tuple(map(slice_payload, work.up)),
        )


def _item(item: Item, rank: int) -> Item:
    factor = item.parameter.rpartition(".")[2]
    if factor not in FACTORS:
        return item
    if item.like is not None:
        raise MethodError(f"flexlora: {item.name!r} follows a factor, and factors of two rounds don't belong together")
    shape: Any = (rank, item.shape[1]) if factor == FACTORS[0] else (item.shape[0], rank)
    return replace(item, shape=shape, cut=cut_between(item.shape, shape))
