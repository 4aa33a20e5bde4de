"""What a changed scenario costs one client of a kind on a device; at least, where nothing has been predicted.

A prediction takes up to seconds, everything else about a candidate next to nothing.  So traffic is always exact, and
peak memory and computation are bounded from below by what was predicted of like candidates:

- the same operators on smaller tensors hold no more: a larger batch peaks no lower, where the same moments occur;
- recomputing adds operators, and as many samples in smaller batches are no fewer operations, each with its overhead;
- parameters and the gradients of those that train are alive together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from edgefl.commands.compose import compose
from edgefl.commands.fit.changes import Axis, Levels, compares, plain, sets_of, steps_of
from edgefl.cost import ClientCost, ComputeCost, Predictor, Traffic
from edgefl.devices import Device, FleetOptions, Link
from edgefl.planning import NO_COMPUTE, Planner, Setup, client_cost, stale
from edgefl.scenario import Scenario, load
from edgefl.schedules import Stage
from edgefl.work import Work, distinct


class Enough(Exception):
    """No more may be predicted."""


@dataclass(frozen=True)
class Question:
    """What ``edgefl fit`` is asked: the scenario with what it is composed to, and the device and link to fit.

    ``allowed`` is what a round may use by budget, inf without end.  At most ``most`` works may be predicted for a kind,
    and ``first`` answers are wanted (None: all).  With ``any_stage`` one stage that fits will do; with ``epochs`` the
    local epochs may be fewer too.
    """

    scenario: Scenario
    setup: Setup
    predictor: Predictor
    device: Device
    link: Link
    allowed: Mapping[str, float]
    any_stage: bool
    epochs: bool
    most: int
    first: int | None


@dataclass(frozen=True)
class Span:
    """Rounds in which a kind takes part and does the same, but for its learning rate, at one stage of the schedule."""

    first: int
    rounds: int
    stages: tuple[Stage, ...]
    """What the schedule offers in these rounds, best first."""


@dataclass(frozen=True)
class _Shape:
    """Of each distinct pass its batch and its batches by pattern; what decides which moments a work has."""

    batches: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]
    trains: tuple[bool, ...]
    accumulation: int

    def moments(self) -> Any:
        """Equal for works that go through the same kinds of moments: with gradients, with an optimizer's state."""
        k = self.accumulation
        return k > 1, [
            [min(n, 2) for n in of] + ([sum(of) > k, sum(of) > k + 1] if k > 1 and train else [])
            for of, train in zip(self.counts, self.trains, strict=True)
        ]

    def done(self) -> list[int]:
        """What a work can't do more of and cost less: samples, batches, updates, and batches added to others'."""
        found = [int(self.accumulation > 1)]  # each batch's loss is divided then
        for batch, of in zip(self.batches, self.counts, strict=True):
            updates = -(-sum(of) // self.accumulation)
            found += [batch * sum(of), sum(of), updates, sum(of) - updates]
        return found


class Pricer:
    """Prices candidates for one client of a kind.

    Before each prediction ``on_prediction`` is called with how many there were, the candidate and the stage.
    """

    def __init__(
        self,
        question: Question,
        axes: Sequence[Axis],
        kind: str,
        client: int,
        on_prediction: Callable[[int, Levels, Stage], None],
    ):
        self.question, self.axes, self.kind, self.client = question, axes, kind, client
        self.most, self._on_prediction = question.most, on_prediction
        self.keys: set[str] = set()
        """The works that were predicted."""
        self._data, setup = plain(question.scenario), question.setup
        self._source = setup.clients.client(client)
        self._changes = _changes(setup, kind)
        # a loss that compares samples isn't the same work in halves
        self._divisible = not compares(setup, kind)
        self._setups: dict[Levels, Setup] = {}
        self._spans: dict[int, list[Span]] = {}
        self._planner: tuple[Levels, Planner] | None = None
        self._shapes: dict[tuple[Levels, int, int], _Shape] = {}
        self._computed: dict[tuple[Levels, int, int], ComputeCost] = {}
        self._moved: dict[tuple[Levels, int, int, bool], Traffic] = {}
        self._floors: dict[tuple[Levels, int], int] = {}

    # candidates -----------------------------------------------------------------------------------------------------

    def spans(self, levels: Levels) -> list[Span]:
        """The schedule of a candidate as this kind sees it.  Raises EdgeflError for what can't be composed."""
        at = self._level(levels, "schedule")
        if at not in self._spans:
            self._spans[at] = self._walk(self.setup(self._scheduled(levels)))
        return self._spans[at]

    def _walk(self, setup: Setup) -> list[Span]:
        found, last = list[Span](), None
        for round, work in self._changes.items():
            stages = tuple(setup.schedule.candidates(round))
            sign = work, setup.schedule.stage(round).index, [stage.index for stage in stages]
            if sign == last:
                found[-1] = replace(found[-1], rounds=found[-1].rounds + 1)
            else:
                found.append(Span(round, 1, stages))
            last = sign
        return found

    def cell(self, levels: Levels) -> Levels:
        """The candidate without what changes traffic alone: the same computation."""
        return tuple(level if axis.computes else 0 for axis, level in zip(self.axes, levels, strict=True))

    def _scheduled(self, levels: Levels) -> Levels:
        """The candidate's schedule in the scenario as it is."""
        return tuple(level * (axis.name == "schedule") for axis, level in zip(self.axes, levels, strict=True))

    def setup(self, levels: Levels) -> Setup:
        """What a candidate is composed to; its fleet is nobody's."""
        if levels not in self._setups:
            sets = sets_of(steps_of(self.axes, levels))
            scenario = load(self._data, sets)
            # a fleet may be large, and this one is not asked
            made = compose(replace(scenario, fleet=FleetOptions.model_validate({})))
            self._setups[levels] = replace(made, clients=self.question.setup.clients, fleet=self.question.setup.fleet)
        return self._setups[levels]

    def planner(self, levels: Levels) -> Planner:
        """The planner of a candidate: the last one is kept, as all about a candidate is asked in a row."""
        if self._planner is None or self._planner[0] != levels:
            self._planner = levels, Planner(self.setup(levels), self.question.predictor)
        return self._planner[1]

    # prices ---------------------------------------------------------------------------------------------------------

    def cost(self, levels: Levels, span: Span, stage: Stage, *, late: bool = True) -> ClientCost:
        """What a round costs.

        With ``late`` the client comes to the stage with old copies of all that trained before it.  Raises Enough.
        """
        cell_key = (self.cell(levels), span.first, stage.index)
        planner = self.planner(levels)
        if cell_key not in self._computed:
            if len(self.keys) >= self.most:
                raise Enough
            self._on_prediction(len(self.keys), levels, stage)
            self._shape(levels, span, stage)
            work, base = planner.work(self.kind, span.first, stage)
            _, key, self._computed[cell_key] = planner.compute(work, base, self.client)
            self.keys.add(key)
        return self._priced(self._computed[cell_key], self.moved(levels, span, stage, late=late))

    def moved(self, levels: Levels, span: Span, stage: Stage, *, late: bool = True) -> Traffic:
        """What travels in a round."""
        cell_key = (levels, span.first, stage.index, late)
        if cell_key not in self._moved:
            planner = self.planner(levels)
            work, base = planner.work(self.kind, span.first, stage)
            old = stale(work, stage, {}, _trained(work, stage, planner.setup)) if late else ()
            self._moved[cell_key] = planner.moved(work, base, stage, old)[1]
        return self._moved[cell_key]

    def _priced(self, computed: ComputeCost, moved: Traffic) -> ClientCost:
        asked = self.question
        return client_cost(computed, moved, asked.device, asked.link, throttling=asked.setup.fleet.throttling)

    # bounds ---------------------------------------------------------------------------------------------------------

    def at_least(self, levels: Levels, span: Span, stage: Stage) -> dict[str, float]:
        """What a round costs at least, by budget: exactly what it costs where that is known."""
        cell_key = (self.cell(levels), span.first, stage.index)
        moved = self.moved(levels, span, stage)
        if cell_key in self._computed:
            return self._priced(self._computed[cell_key], moved).budgets()
        found = self._priced(NO_COMPUTE, moved).budgets()
        found["memory"] = self.floor(levels, span, stage)
        mine = self._shape(levels, span, stage)
        for other, known in self._like(cell_key):
            theirs = self._shapes[other, span.first, stage.index]
            if len(theirs.batches) != len(mine.batches):
                continue
            larger = all(a >= b for a, b in zip(mine.batches, theirs.batches, strict=True))
            same_recomputing = self._level(other, "checkpointing") == self._level(levels, "checkpointing")
            if larger and same_recomputing and mine.moments() == theirs.moments():
                found["memory"] = max(found["memory"], known.peak_memory_bytes)
            smaller = all(a <= b for a, b in zip(mine.batches, theirs.batches, strict=True))
            if mine.batches != theirs.batches and not self._divisible:
                continue
            as_much = all(a >= b for a, b in zip(mine.done(), theirs.done(), strict=True))
            if smaller and as_much and self._level(other, "checkpointing") <= self._level(levels, "checkpointing"):
                least = self._priced(known, moved).budgets()
                found |= {name: max(found[name], least[name]) for name in ("flops", "seconds", "joules")}
        return found

    def _like(self, cell_key: tuple[Levels, int, int]) -> Iterator[tuple[Levels, ComputeCost]]:
        """Predicted candidates that differ in batch and recomputation alone."""
        for (cell, first, stage), known in self._computed.items():
            if (first, stage) == cell_key[1:] and self._line(cell) == self._line(cell_key[0]):
                yield cell, known

    def _line(self, levels: Levels) -> Levels:
        free = ("batch", "checkpointing")
        return tuple(
            level for axis, level in zip(self.axes, levels, strict=True) if axis.computes and axis.name not in free
        )

    def _level(self, levels: Levels, name: str) -> int:
        return next(level for axis, level in zip(self.axes, levels, strict=True) if axis.name == name)

    def _shape(self, levels: Levels, span: Span, stage: Stage) -> _Shape:
        cell_key = (self.cell(levels), span.first, stage.index)
        if cell_key not in self._shapes:
            work = self.planner(levels).work(self.kind, span.first, stage)[0].fitted(self._source.size)
            passes = distinct(work)
            counts = [tuple(self._source.counts(p).values()) for p in passes]
            self._shapes[cell_key] = _Shape(
                tuple(p.batch for p in passes), tuple(counts), tuple(p.train for p in passes), work.accumulation
            )
        return self._shapes[cell_key]

    def floor(self, levels: Levels, span: Span, stage: Stage) -> int:
        """Bytes of attached parameters and of the gradients of those that train: the schedule alone decides them."""
        scheduled = self._scheduled(levels)
        cell_key = (scheduled, stage.index)
        if cell_key not in self._floors:
            setup = self.setup(scheduled)
            work = setup.staged(setup.method.work(self.kind, span.first), stage)
            trains = set(work.trainable) if any(p.train for p in work.passes) else set()
            specs = setup.method.setting.kinds[self.kind].parameters()
            self._floors[cell_key] = sum(
                (1 + (name in trains)) * spec.bytes for name, spec in specs.items() if stage.attached(name)
            )
        return self._floors[cell_key]

    def smaller(self, levels: Levels, span: Span, stage: Stage) -> list[tuple[int, Levels]]:
        """Candidates that differ from this in batch alone and go through the same moments, the smallest batch first."""
        axis = next(i for i, axis in enumerate(self.axes) if axis.name == "batch")
        mine = self._shape(levels, span, stage)
        found = []
        for level in range(len(self.axes[axis].steps) + 1):
            other = (*levels[:axis], level, *levels[axis + 1 :])
            there = next((s for s in self.spans(other) if s.first == span.first), None)
            if there is None:
                continue
            shape = self._shape(other, there, stage)
            if shape.moments() == mine.moments() and sum(shape.batches) < sum(mine.batches):
                found.append((sum(shape.batches), shape.accumulation, other))
        # of equal batches the fewer to an update are predicted the sooner
        least: dict[int, Levels] = {}
        for batch, _, other in sorted(found):
            least.setdefault(batch, other)
        return sorted(least.items())


def _changes(setup: Setup, kind: str) -> dict[int, int]:
    """The rounds in which a kind takes part; equal numbers for rounds of equal work, but for the learning rate."""
    found: dict[int, int] = {}
    works: list[Work] = []
    for round in range(1, setup.schedule.rounds + 1):
        if not setup.participates(kind, round):
            continue
        work = setup.method.work(kind, round)
        if not works or work != works[-1]:
            works.append(work)
        found[round] = len(works)
    return found


def _trained(work: Work, stage: Stage, setup: Setup) -> Mapping[str, int]:
    """Versions that say of every address of a work whether it trained in an earlier stage.

    What a stage delivers when it ends is no older copy.
    """
    before = [s for s in setup.schedule.stages if s.index < stage.index and s.rounds]
    delivered = ".blocks." if setup.schedule.deliver_final else "\0"
    return {
        item.source: int(delivered not in item.name and any(s.active(item.name) for s in before))
        for payload in work.down
        for item in payload.items
    }


def excess(costs: Mapping[str, float], allowed: Mapping[str, float]) -> dict[str, float]:
    """By budget that is exceeded: how many times over, inf where nothing is allowed."""
    return {
        name: cost / allowed[name] if allowed[name] else inf for name, cost in costs.items() if cost > allowed[name]
    }
