"""Stages of a schedule: which part of a model exists, trains and is sent, and which stages a round offers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, chain
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

from pydantic import Field, PositiveInt
from torch import Tensor

from edgefl import models, registry
from edgefl.errors import MethodError
from edgefl.models.adapters import AdapterOptions
from edgefl.plain_data import load_data, to_data
from edgefl.registry.answers import check_answers
from edgefl.registry.part_fields import NamedFields
from edgefl.work import Address
from edgefl.work.description import Item, Payload, Work
from edgefl.work.optimizer.learning_rates import at_stage
from edgefl.work.sums import is_averaged

StageCount = Annotated[int, Field(gt=0, le=10_000)]
"""A number of stages: more are a mistake, and would take more memory than a model."""

EARLY, PARTS = ("embedding", "pooler"), ("embedding", "pooler", "norm", "rep", "head")
"""The parts of a tower besides its blocks.  Under the layer-wise schedule the EARLY ones train in stage 1 only.

A pooler is a part of published models that no step reads.  It is stored and sent with the model.
"""


@lru_cache(100_000)  # asked many times for each parameter of a candidate's works
def part_of(name: str) -> tuple[str, str, int | None]:
    """``(tower, part, block index)`` of a parameter's name: ``image.blocks.3.norm1.bias`` -> image, blocks, 3.

    Tensors that are kept beside a model, such as a step's output, have names without parts.  They belong to every
    stage.
    """
    tower, part, block = (*name.split("."), "", "")[:3]
    return tower, part, int(block) if part == "blocks" else None


@dataclass(frozen=True)
class Stage:
    """One stage of a schedule, or one of several parts that a round offers.

    A schedule that cuts works in a way of its own derives a stage with further fields and overrides ``restrict_work``,
    which calls ``super().restrict_work(work)`` first.  So do ``NarrowStage`` of ``heterofl``, ``Ranked`` of
    ``flexlora`` and ``Keeping`` of ``frozen-prefix``, each in the file of its schedule.
    """

    index: int
    """Number of the stage, from 1."""
    depth: Mapping[str, int]
    """Attached blocks of each tower."""
    first: Mapping[str, int]
    """The first block of each tower that trains."""
    parts: tuple[str, ...]
    """Other parts that train, of ``embedding``, ``pooler``, ``norm``, ``rep``, ``head``; all of them exist."""
    rounds: int
    """Rounds of the stage; may be 0."""
    until: Mapping[str, int] = field(default_factory=dict)
    """The block of each tower at which training ends, itself not trained; if absent, the last block trains too."""
    label: str = ""
    """Name in tables, where a schedule offers several stages at a time."""

    def __str__(self) -> str:
        """The label, or ``stage 2``."""
        return self.label or f"stage {self.index}"

    def is_attached(self, name: str) -> bool:
        """Whether this stage's model has the parameter."""
        tower, _, block = part_of(name)
        return block is None or block < self.depth.get(tower, block + 1)

    def is_active(self, name: str) -> bool:
        """Whether the parameter trains, is uploaded and is aggregated."""
        tower, part, block = part_of(name)
        if block is None:
            return part in self.parts or part not in PARTS
        return self.first.get(tower, 0) <= block < self.until.get(tower, block + 1) and self.is_attached(name)

    def restrict_work(self, work: Work) -> Work:
        """The part of a work for the full model that belongs to this stage.

        The model has the stage's depth.  Active parameters train, are edited and are uploaded.  A payload to the client
        has the attached parameters, or only the active ones if it follows training (FedCola's partner weights).  Tables
        stay as they are.  A partner weight whose own block does not exist yet is left out together with its gate.
        Raises MethodError for a work that can't be cut so.
        """

        def here(item: Item) -> bool:
            return self.is_attached(item.like or item.source.split("/", 1)[1])

        def down(payload: Payload) -> Payload:
            keep = self.is_active if payload.follows == "trained" else self.is_attached
            return payload.only(lambda i: i.is_table or (keep(i.parameter) and here(i)))

        trains = set(work.trainable)

        def is_copied(name: str) -> bool:
            return self.is_active(name) if name in trains else self.is_attached(name)

        received = tuple(down(p) for p in work.down)
        described = {item.name for payload in work.down for item in payload.items}
        names = {item.name for payload in received for item in payload.items}
        edits, gone = [], set[str]()
        for edit in work.edits:
            kind: Any = registry.get("edit", edit.name)
            kept = kind.restrict(edit, self.is_active, names)
            gone |= kind.names(edit) - (kind.names(kept) if kept else set())
            if kept:
                edits.append(kept)
        return replace(
            work,
            model=models.at_depth(work.model, self.depth),
            trainable=tuple(n for n in work.trainable if self.is_active(n) and n not in gone),
            edits=tuple(edits),
            scalars=at_stage(work.scalars, self.index),
            down=received,
            up=tuple(p.only(lambda i: i.is_table or self.is_active(i.parameter)) for p in work.up),
            keep=tuple(n for n in work.keep if n in names or (n not in described and self.is_attached(n))),
            reference=work.reference if isinstance(work.reference, bool) else tuple(filter(is_copied, work.reference)),
        )


@dataclass(frozen=True)
class EndedRound:
    """A round that has ended, as ``Schedule.learn`` gets it."""

    round: int
    """Its number, from 1."""
    metrics: Mapping[str, Mapping[str, float | None]]
    """Metrics of its evaluation by kind and name; empty without one, None for one that isn't finite."""
    losses: Mapping[str, float | None]
    """Mean training loss of each kind's updates, weighted by samples; None if none is finite, absent without
    updates."""
    before: Mapping[Address, Tensor] = field(repr=False)
    """The server's tensors before the round; one that the round left alone is the same object ``after`` it."""
    after: Mapping[Address, Tensor] = field(repr=False)
    """The server's tensors after the round."""

    def moved_addresses(self) -> list[Address]:
        """The models' tensors of floating point, buffers among them, that are others after the round."""
        return [
            address
            for address, new in self.after.items()
            if new is not self.before.get(address, new) and is_averaged(address) and new.is_floating_point()
        ]


class Ending:
    """A rule that ends a stage, made for each stage.  Its fields in ``state`` are plain data for a checkpoint."""

    state: ClassVar[tuple[str, ...]] = ()

    def sees(self, seen: EndedRound, stage: Stage) -> bool:
        """Take in a round of the stage; whether the stage ends with it."""
        raise NotImplementedError

    def fewest(self, first: int, every: int) -> int:
        """The fewest rounds of a stage, as ``Schedule.fewest`` has them."""
        raise NotImplementedError

    def tensors(self) -> dict[str, Tensor]:
        """Tensors for a checkpoint, by name."""
        return {}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what ``tensors`` returned, after ``state`` has been read."""


class Aggregation(Protocol):
    """What a schedule may ask of the scenario's ``aggregation`` section."""

    @property
    def rule_name(self) -> str:
        """Name of the rule that combines updates."""
        ...

    @property
    def by_update(self) -> bool:
        """Whether the rule weighs whole updates."""
        ...


def _misfit(schedule: Schedule, arguments: tuple[object, ...], answer: None) -> str:
    """What is wrong with the stages that a schedule has made of its options and the blocks of each tower."""
    if not hasattr(schedule, "offered"):
        return "doesn't call super().__init__ with the stages"
    if not schedule.rounds:
        return "has no round: its stages need one or more together"
    if [stage.index for stage in schedule.stages] != [*range(1, len(schedule.stages) + 1)]:
        return f"numbers its stages {[stage.index for stage in schedule.stages]}, not 1, 2, ..."
    blocks: Mapping[str, int] = next((given for given in arguments if isinstance(given, Mapping)), {})
    for stage in (*schedule.stages, *schedule.offered) if blocks else ():
        if unknown := [part for part in stage.parts if part not in PARTS]:
            return f"trains {', '.join(unknown)} in {stage}; allowed in parts: {', '.join(PARTS)}"
        for field_name in ("depth", "first", "until"):
            for tower, at in getattr(stage, field_name).items():
                if not 0 <= at <= blocks.get(tower, -1):
                    of = f"0 to {blocks[tower]}" if tower in blocks else f"the towers {', '.join(blocks)}"
                    return f"has {field_name} {{{tower!r}: {at!r}}} in {stage}; allowed: {of}"
    return ""


class Schedule:
    """Stages in order, and the stages that each round offers to clients.

    A subclass calls ``super().__init__(stages, deliver_final=..., offered=..., ending=...)``, and overrides
    ``candidates`` if it offers several stages at a time.  ``ending`` makes the rule that ends a stage, anew for each.
    The server's models are at ``stage(round)``.

    A schedule that ``adapts`` sees each round that ends (``learn``), and may end the stage then (``end_stage``).  The
    rounds of its ``stages`` are the most that they may last: what is priced beforehand is at most what a run costs.
    What it remembers of earlier rounds belongs into ``to_data`` and ``load_data``, or a resumed run would differ.
    """

    class Options(NamedFields):
        """Options of every schedule."""

        rounds: PositiveInt | None = Field(None, description="rounds in all (10 if nothing says otherwise)")

    stages: tuple[Stage, ...]
    """The stages in order."""
    offered: tuple[Stage, ...]
    """Every stage that a client may ever train, by index; by default the ``stages``."""
    deliver_final: bool
    """Whether finished blocks are sent once to every client."""
    paper: ClassVar[str] = ""
    """Where it was published: authors and year, or the paper's name."""
    needs: ClassVar[Mapping[str, object]] = {}
    """Sections of a scenario that the schedule requires; ``edgefl.testing`` adds them."""
    averages: ClassVar[Literal["values", "products"]] = "values"
    """What the server averages: ``values`` of parameters, or ``products`` of LoRA's factors."""
    adapts: bool = False
    """Whether it sees the rounds that end, and may end its stages by them; needs training."""

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        check_answers(cls, {"__init__": _misfit})

    def __init__(
        self,
        stages: tuple[Stage, ...],
        *,
        deliver_final: bool = False,
        offered: tuple[Stage, ...] | None = None,
        ending: Callable[[], Ending] | None = None,
    ):
        self.stages, self.deliver_final = stages, deliver_final
        self._ending, self._rule = ending, (1, ending()) if ending else None
        self.adapts = self.adapts or ending is not None
        self.offered = stages if offered is None else offered
        self._ends = list(accumulate(stage.rounds for stage in stages))
        self._ended: dict[int, int] = {}
        if self.adapts and deliver_final:
            raise MethodError(
                "deliver_final: a schedule that adapts knows that a stage ends only after its last round: write false"
            )

    @property
    def rounds(self) -> int:
        """Rounds in all, at most."""
        return self._ends[-1] if self._ends else 0

    def check(self, adapter: AdapterOptions, aggregation: Aggregation) -> None:
        """Raise MethodError for sections of the scenario that the schedule doesn't go with; by default for none.

        The message may begin with the field that is to change: ``schedule.ranks: ...``.
        """

    def learn(self, seen: EndedRound) -> None:
        """Take in a round that has ended, before the next one begins; called if the schedule ``adapts``.

        By default it ends the stage if the schedule's ``ending`` says so.
        """
        stage = self.stage(seen.round)
        if self._ending and self._rule and self._rule[0] != stage.index:
            self._rule = stage.index, self._ending()
        if self._rule and self.ends_early(stage) and self._rule[1].sees(seen, stage):
            self.end_stage(seen.round)

    def end_stage(self, round: int) -> bool:
        """End the stage of ``round`` with it: later stages begin sooner.  Whether it ended, now or as planned.

        The last stage that has rounds isn't ended: the section ``stop`` ends a run.
        """
        stage = self.stage(round)
        if self.ends_early(stage):
            self._end(stage.index, round)
        return self.ends_early(stage)

    def ends_early(self, stage: Stage) -> bool:
        """Whether the stage may end before its last round: not the last one that has rounds."""
        return self.adapts and stage.rounds > 0 and any(later.rounds for later in self.stages[stage.index :])

    def fewest(self, stage: Stage, first: int, every: int) -> int:
        """The fewest rounds after which ``learn`` ends the stage if ``first`` is its first round.

        Models are evaluated in each round that ``every`` divides.  Without an ``ending`` it is one round.
        """
        return self._ending().fewest(first, every) if self._ending else 1

    def shortest(self, every: int) -> Self:
        """The schedule whose stages end as soon as they may, of a schedule that has seen no round."""
        short, first, stages = copy(self), 1, []
        for stage in self.stages:
            rounds = min(stage.rounds, self.fewest(stage, first, every)) if self.ends_early(stage) else stage.rounds
            first += rounds
            stages.append(replace(stage, rounds=rounds))
        short.stages = tuple(stages)
        short.offered = short.stages if self.offered is self.stages else self.offered
        short._ends = list(accumulate(stage.rounds for stage in stages))
        return short

    def _end(self, index: int, round: int) -> None:
        saved = self._ends[index - 1] - round
        self._ends[index - 1 :] = [end - saved for end in self._ends[index - 1 :]]
        self._ended[index] = round

    def to_data(self) -> dict[str, object]:
        """What later rounds depend on, as plain JSON data for a checkpoint.

        A schedule that remembers more adds it: ``{**super().to_data(), "best": self.best}``.
        """
        rule = self._rule and [
            self._rule[0],
            {name: to_data(getattr(self._rule[1], name)) for name in self._rule[1].state},
        ]
        return {"ended": [[index, round] for index, round in self._ended.items()], "rule": rule}

    def load_data(self, raw: Mapping[str, Any]) -> None:
        """Go on from what ``to_data`` returned, in a schedule that has seen no round."""
        for index, round in raw["ended"]:
            self._end(index, round)
        if self._ending and raw["rule"]:
            self._rule = raw["rule"][0], self._ending()
            load_data(self._rule[1], raw["rule"][1])

    def tensors(self) -> dict[str, Tensor]:
        """The tensors among what later rounds depend on, by name."""
        return self._rule[1].tensors() if self._rule else {}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what ``tensors`` returned, after ``load_data``."""
        if self._rule:
            self._rule[1].load_tensors(tensors)

    def fresh(self) -> Self:
        """The schedule for a run of its own: a copy if it adapts, else itself."""
        return deepcopy(self) if self.adapts else self

    def stage(self, round: int) -> Stage:
        """The stage of ``round`` (from 1).  Raises MethodError outside the schedule."""
        for stage, end in zip(self.stages, self._ends, strict=True):
            if 1 <= round <= end:
                return stage
        raise MethodError(f"round {round} is outside the schedule of {self.rounds} rounds")

    def candidates(self, round: int) -> tuple[Stage, ...]:
        """Stages that a client may train in this round, best first.  A client takes the first that fits its budgets."""
        return (self.stage(round),)

    def evaluated_stage(self, reached: Collection[int]) -> Stage | None:
        """The one of ``offered`` as which the server's models are evaluated, if it isn't the round's stage (None).

        ``reached`` has the indices of those whose updates the server has taken in so far.
        """
        return None

    def turns(self, stage: Stage) -> list[tuple[tuple[Stage, ...], Sequence[int]]]:
        """The different sets of candidates during one of ``stages``, each with its rounds, in order of first use."""
        first = self._ends[stage.index - 2] + 1 if stage.index > 1 else 1
        rounds = range(first, self._ends[stage.index - 1] + 1)
        if type(self).candidates is Schedule.candidates:  # a million rounds are no list
            return [((stage,), rounds)] if rounds else []
        turns: dict[tuple[int, ...], tuple[tuple[Stage, ...], list[int]]] = {}
        for round in rounds:
            candidates = self.candidates(round)
            indices = tuple(candidate.index for candidate in candidates)
            turns.setdefault(indices, (candidates, []))[1].append(round)
        return [(candidates, tuple(rounds)) for candidates, rounds in turns.values()]

    def rounds_of(self, stage: Stage) -> Sequence[int]:
        """The rounds in which one of ``offered`` is among the candidates, in order."""
        found = [
            rounds
            for current in self.stages
            for candidates, rounds in self.turns(current)
            if any(candidate.index == stage.index for candidate in candidates)
        ]
        return found[0] if len(found) == 1 else sorted(chain.from_iterable(found))

    def ends(self, round: int) -> Stage | None:
        """The stage that ends with this round; None if none does."""
        stage = self.stage(round)
        return stage if self._ends[stage.index - 1] == round else None
