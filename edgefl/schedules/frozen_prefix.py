"""A frozen prefix: the last blocks train, and what the others compute is kept, since it never changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, cast

from pydantic import Field, PositiveInt
from torch import Tensor

from edgefl import models
from edgefl.errors import MethodError
from edgefl.models.tower import Tower
from edgefl.schedules.stages import EARLY, PARTS, Schedule, Stage
from edgefl.work.description import Description, Pass, StepArgs, Work
from edgefl.work.steps import Context, Step, Wrapper

KEEP, KEPT = "keep-activations", "from-activations"
"""The step that computes activations of the prefix, and the wrapper that begins with them."""


class FrozenPrefix(Schedule):
    """The embedding and the first blocks of each tower are frozen, the rest trains.

    With ``keep`` a client computes the prefix's outputs once, without gradients and in evaluation mode, and keeps them
    for all later rounds: the prefix never changes.
    """

    class Options(Schedule.Options):
        """Fields of ``schedule: {name: frozen-prefix, blocks: 3}``."""

        name: Literal["frozen-prefix"] = "frozen-prefix"
        blocks: PositiveInt | dict[str, PositiveInt] | None = Field(
            None,
            description="how many of each tower's first blocks are frozen, with the embedding, or by tower: "
            "{image: 6, text: 3}; null: half of them",
        )
        keep: bool = Field(
            True,
            description="whether clients keep what the prefix computes of their samples, or compute it for each batch",
        )

    def __init__(self, options: FrozenPrefix.Options, blocks: Mapping[str, int]):
        given = options.blocks
        if isinstance(given, dict) and (unknown := set(given) - set(blocks)):
            raise MethodError(f"blocks: the model has no tower {min(unknown)!r}; it has {', '.join(blocks)}")
        by_tower = given if isinstance(given, dict) else {}
        first = {t: given if isinstance(given, int) else by_tower.get(t, n // 2) for t, n in blocks.items()}
        for tower, count in blocks.items():
            if first[tower] >= count:
                raise MethodError(
                    f"blocks: {first[tower]} frozen blocks leave none to train of the {count} of the {tower} tower"
                )
        parts = PARTS[len(EARLY) :]
        stage = Keeping if options.keep else Stage
        super().__init__((stage(1, dict(blocks), first, parts, options.rounds or 10),))


@dataclass(frozen=True)
class Keeping(Stage):
    """A stage whose clients keep what the frozen blocks before ``first`` compute."""

    def restrict_work(self, work: Work) -> Work:
        """The work that computes the frozen blocks once for all its samples, and trains from there.

        Raises MethodError for a tower that can't begin in the middle, and for a step that reads further data.
        """
        return _keeping(super().restrict_work(work), self.first)


def _keeping(work: Work, first: Mapping[str, int]) -> Work:
    described = work.model.get("towers", {})
    begins = {tower: first[tower] for tower in described if first.get(tower)}
    own = [p for p in work.passes if p.train and p.data == "private"]
    if not begins or not own:
        return work
    module = models.blueprint(work.model)
    for tower in begins:
        if not getattr(module.get_submodule(tower), "divisible", False):
            name = described[tower].get("tower", work.model["name"])
            raise MethodError(f"keep: a {name} can't begin with kept activations: set schedule.keep: false")
    if any("beside" in p.args for p in own) or work.model["name"] != "towers":
        raise MethodError("keep: this method's steps need the whole model: set schedule.keep: false")
    patterns = tuple(dict.fromkeys(pattern for p in own for pattern in p.patterns))
    args = {n: v for n, v in own[0].args.items() if n in ("whole", "missing", "fields")} | {"begins": begins}
    compute = Pass(KEEP, "private", patterns, own[0].batch, False, cast(KeptArgs, args))
    more = {"begins": begins, "also": ["index"], "without": list(begins)}
    kept = work.change_passes(lambda p: p.inside(KEPT, **more) if p in own else p)
    return replace(kept, passes=(compute, *kept.passes))


def keeps(work: Description) -> bool:
    """Whether a client keeps activations for later rounds."""
    return any(p.step == KEEP for p in work.passes)


def _name(pattern: str, modality: str) -> str:
    return f"activations {pattern} {modality}"


class KeptArgs(StepArgs):
    """Arguments of both steps: blocks of each modality's tower whose activations are kept."""

    begins: Mapping[str, int]


class Keep(Step):
    """Computes the frozen first blocks of each tower for all samples, in their order.

    Writes ``activations <pattern> <modality>`` [samples, tokens, width]; ``args.begins`` has the blocks of each tower.
    The last batch is filled up with repeated samples, which have rows of their own.
    """

    def start(self, ctx: Context, pass_: Pass) -> None:
        """Count rows from the beginning."""
        self.rows: dict[str, int] = {}

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> None:
        """Keep the activations of a batch."""
        row, rows = self.rows.get(pattern, 0), ctx.source.counts(pass_)[pattern] * pass_.batch
        for modality, blocks in cast(KeptArgs, pass_.args)["begins"].items():
            if modality in batch:
                tokens = cast(Tower, ctx.client_model.tower(modality)).run(batch[modality], until=blocks)
                kept = ctx.output(_name(pattern, modality), (rows, *tokens.shape[1:]), tokens.dtype)
                kept.narrow(0, row, len(tokens)).copy_(tokens)
        self.rows[pattern] = row + pass_.batch


class FromKept(Wrapper):
    """A wrapper: begins with the kept activations of the batch's samples (``begins``), whose ``index`` it needs."""

    averages_samples = True

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor | None:
        """The loss of the step inside."""
        begins = {m: blocks for m, blocks in cast(KeptArgs, pass_.args)["begins"].items() if m in pattern.split("-")}
        kept = {m: ctx.outputs[_name(pattern, m)].index_select(0, batch["index"]) for m in begins}
        with _begin(ctx, begins):
            return self.step.loss(ctx, {**batch, **kept}, pattern, pass_)


@contextmanager
def _begin(ctx: Context, begins: Mapping[str, int]) -> Iterator[None]:
    towers = {m: cast(Tower, ctx.client_model.tower(m)) for m in begins}
    for modality, tower in towers.items():
        tower.begin = begins[modality]
    try:
        yield
    finally:
        for tower in towers.values():
            tower.begin = 0
