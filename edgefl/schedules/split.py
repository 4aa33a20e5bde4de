"""Split training: clients compute the first blocks of the model, the server the rest, and they exchange every batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import torch
from pydantic import Field, PositiveInt

from edgefl import models
from edgefl.errors import MethodError
from edgefl.modalities import MODALITIES
from edgefl.models.halves import in_first_half, shared_rows
from edgefl.models.tower import running_as_written
from edgefl.schedules.stages import PARTS, Schedule, Stage
from edgefl.work.description import BatchExchange, Payload, TensorSpec, Work
from edgefl.work.optimizer.zeroth_order import without_gradients
from edgefl.work.private import PRIVATE

SERVER_HALF = "server half"
"""The payload that stays at the server."""


class Split(Schedule):
    """Clients hold the embeddings and the first blocks of each tower, and the server the rest.

    For each batch a client sends the tokens at the cut and the labels, and gets their gradients.  The server has a half
    for each client, which are averaged like the clients' (SplitFedV1), or one that clients train in turn (SplitFedV2).
    """

    paper = "Thapa et al. 2022"

    class Options(Schedule.Options):
        """Fields of ``schedule: {name: split, after: 1}``."""

        name: Literal["split"] = "split"
        after: PositiveInt | dict[str, PositiveInt] = Field(
            1, description="how many of each tower's first blocks the client computes, or by tower: {image: 2, text: 1}"
        )
        server: Literal["per-client", "shared"] = Field(
            "per-client",
            description="the server's half: per-client, one for each client of a round, and their mean (SplitFedV1); "
            "shared, one that the clients of a round train one after the other, in a drawn order (SplitFedV2)",
        )

    def __init__(self, options: Split.Options, blocks: Mapping[str, int]):
        given = options.after
        if isinstance(given, dict) and (unknown := set(given) - set(blocks)):
            raise MethodError(f"after: the model has no tower {min(unknown)!r}; it has {', '.join(blocks)}")
        after = {t: given if isinstance(given, int) else given.get(t, 1) for t in blocks}
        for tower, count in blocks.items():
            if after[tower] >= count:
                allowed = "1" if count == 2 else f"1 to {count - 1}"
                raise MethodError(
                    f"after: {after[tower]} of the {count} blocks of the {tower} tower leave the server nothing; "
                    + ("it can't be split" if count == 1 else f"allowed: {allowed}, or schedule: end-to-end")
                )
        rounds, none = options.rounds or 10, dict.fromkeys(blocks, 0)
        in_turn = options.server == "shared"
        super().__init__((Halved(1, dict(blocks), none, PARTS, rounds, after=after, in_turn=in_turn),))


@dataclass(frozen=True)
class Halved(Stage):
    """A stage whose works are split after so many blocks of each tower; ``in_turn``: with one server's half for all."""

    after: Mapping[str, int] = field(default_factory=dict)
    in_turn: bool = False

    def restrict_work(self, work: Work) -> Work:
        """The work with the payloads of both halves, and with what its passes exchange.

        Raises MethodError for a work whose steps need more than the tokens at the cut.
        """
        work = super().restrict_work(work)
        if not any(p.data == "private" for p in work.passes):
            return work  # of the server, which has the whole model
        cut = {tower: self.after[tower] for tower in work.model["towers"] if tower in self.after}
        if fault := _fault(work, cut):
            raise MethodError(f"split: {fault}")
        tokens = {tower: _tokens(models.Frozen(work.model), tower, at) for tower, at in cut.items()}
        loss = TensorSpec((), "float64" if work.precision == "float64" else "float32")
        return replace(
            work.change_passes(lambda p: replace(p, exchange=BatchExchange(tokens, loss))),
            split=cut,
            down=_both(work.down, cut, _shared_rows(work, cut), self.in_turn),
            up=_both(work.up, cut, frozenset(), self.in_turn),
        )


def _both(
    payloads: tuple[Payload, ...], cut: Mapping[str, int], shared: frozenset[str], in_turn: bool
) -> tuple[Payload, ...]:
    """The client's part of the payloads, and the one that stays at the server."""
    kept = [i for p in payloads for i in p.items if i.name in shared or not in_first_half(i.name, cut)]
    return (
        *(payload.only(lambda item: in_first_half(item.name, cut)) for payload in payloads),
        Payload(SERVER_HALF, tuple(kept), travels=False, in_turn=in_turn),
    )


def _shared_rows(work: Work, cut: Mapping[str, int]) -> frozenset[str]:
    """Parameters of the first half that the last half reads its scores by."""
    module = models.blueprint(work.model)
    rows = shared_rows(module, cut)  # by identity, held by the module
    return frozenset(name for name, parameter in module.named_parameters() if id(parameter) in rows)


@lru_cache(maxsize=64)  # a search asks for the same cut in each of hundreds of combinations
def _tokens(model: models.Frozen, tower: str, at: int) -> TensorSpec:
    """A sample's tokens at the cut ``[tokens, width]``, found by running the first half without data."""
    description = model.description["towers"][tower]
    facts = MODALITIES[tower]
    shape = (2, *(description[name] for name in facts.shape))  # type: ignore[literal-required]
    dtype = models.dtype_of(description) if facts.dtype == "float32" else getattr(torch, facts.dtype)
    module: Any = models.blueprint(model.description).get_submodule(tower)
    with torch.no_grad(), torch.device("meta"), running_as_written():
        tokens = module.run(torch.zeros(shape, dtype=dtype), until=at)
    return replace(TensorSpec.from_tensor(tokens), shape=tuple(tokens.shape[1:]))


def _fault(work: Work, cut: Mapping[str, int]) -> str:
    """Why a work can't be split; empty if it can."""
    module = models.blueprint(work.model)
    training = work.optimizer
    if work.model["name"] != "towers" or "exits" in work.model:
        return f"the model of {work.kind} clients is one for all modalities, or has exits; allowed: a tower for each"
    for tower in cut:
        if not getattr(module.get_submodule(tower), "divisible", False):
            name = work.model["towers"][tower].get("tower")
            return f"a {name} can't begin in the middle; take a tower of transformer blocks, or end-to-end"
    if rows := _shared_rows(work, cut) & {*work.trainable}:
        return (
            f"both halves would train {min(rows)}, by whose rows the scores are read: add an adapter, or untie them "
            "(tie_word_embeddings: false)"
        )
    if any(PRIVATE in p.around for p in work.passes):
        return "the norm of a sample's gradient is known to neither half: leave training.private out"
    plain = all(p.train and p.data == "private" and not p.around and "beside" not in p.args for p in work.passes)
    beside = any(item.is_beside_model for p in (*work.down, *work.up) for item in p.items)
    if not plain or beside or work.edits or work.keep or work.reference:
        return (
            f"{work.kind} clients exchange, keep or compute more under this method than batches of their own samples; "
            "allowed: method: fedavg, and others whose clients train their model and nothing else"
        )
    if without_gradients(work) or training.get("step_in_backward"):
        return "the server answers with gradients before its update: leave out mezo and training.step_in_backward"
    if work.accumulation > 1:
        return "the server answers after each batch: set training.accumulation: 1"
    if training.get("clip"):
        return "the norm of the whole gradient is known to neither half: leave training.clip out"
    if work.precision == "float16":
        return "a scaled loss is known to the server alone: set training.precision: bfloat16 or float32"
    return ""
