"""Costs of a changed scenario for one client of a kind on a device, or lower bounds where nothing was predicted.

A prediction takes up to seconds; everything else about a candidate is fast.  So traffic is always exact, and peak
memory and computation are bounded from below by the predictions of similar candidates:

- the same operators on smaller tensors hold no more: a larger batch peaks no lower, if the same moments occur;
- with several batches to an update the first batch after one meets what every batch meets with one: the optimizer's
  states and no gradients.  Only the update may come without the batch, and what its loss holds;
- recomputing adds operators, and as many samples in smaller batches are no fewer operations, each with its overhead;
- parameters, the optimizer's states, and the gradients of those that train are alive together, or the gradients one at
  a time if each takes its step alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from edgefl.cells.pricing import Pricing
from edgefl.commands.fit.changes import FitAxis, Levels, compares, plain, sets_of, steps_of
from edgefl.cost.caching_allocator import segment_bytes
from edgefl.cost.client_cost import NO_COMPUTE, ComputeCost, Traffic
from edgefl.cost.predict import Predictor
from edgefl.cost.price import price_rounds
from edgefl.devices import Device, FleetOptions, Link
from edgefl.devices.budgets import BUDGETS, amounts, budget_named
from edgefl.errors import EdgeflError
from edgefl.models.halves import in_first_half
from edgefl.operator_classes import OperatorClass
from edgefl.planning.planner import Planner
from edgefl.planning.setup import Setup
from edgefl.planning.versions import stale
from edgefl.scenario import Scenario, load
from edgefl.schedules import Stage
from edgefl.setup.compose import compose
from edgefl.work import Form, Work, distinct
from edgefl.work.optimizer.zeroth_order import without_gradients

PLANNERS = 8
"""So many planners of candidates are kept, as each holds a setup of its own.

A choice, not measured: calls for one candidate follow each other, so that fewer would mostly do.
"""

LEAST_COMPUTE = replace(NO_COMPUTE, operators=np.array([[1.0, 0.0, 1.0, OperatorClass.POINTWISE]]))
"""The least that a work with a pass computes: one operator."""


class PredictionLimit(Exception):
    """Raised when as many works were predicted as are allowed."""


@dataclass(frozen=True)
class FitQuestion:
    """The input of a search: the scenario with its set-up, and the device and link to fit.

    ``allowed`` is what a round may use by budget (inf: unlimited).  At most ``most`` works may be predicted for a kind,
    and ``first`` solutions are searched (None: all).  With ``any_stage`` one stage that fits is enough; with ``epochs``
    fewer local epochs are allowed too.
    """

    scenario: Scenario
    setup: Setup
    predictor: Predictor
    device: Device
    link: Link
    allowed: Mapping[str, float]
    memory_of_device: bool
    """Whether the memory allowed is what the device has, and not what is granted."""
    any_stage: bool
    epochs: bool
    most: int
    first: int | None
    pricing: Pricing | None = None
    """Worker processes that price works ahead."""


@dataclass(frozen=True)
class EqualRounds:
    """Rounds of one stage in which a kind takes part with the same work, apart from its learning rate."""

    first: int
    rounds: int
    stages: tuple[Stage, ...]
    """What the schedule offers in these rounds, best first."""


@dataclass(frozen=True)
class _Shape:
    """Batch size and number of batches by pattern of each distinct pass, which decide the moments of a work."""

    batches: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]
    trains: tuple[bool, ...]
    accumulation: int

    def moments(self) -> Any:
        """Equal for works with the same kinds of moments: with gradients, with an optimizer's state."""
        k = self.accumulation
        return k > 1, [
            [min(n, 2) for n in counts] + ([sum(counts) > k, sum(counts) > k + 1] if k > 1 and train else [])
            for counts, train in zip(self.counts, self.trains, strict=True)
        ]

    def holds(self, other: _Shape) -> bool:
        """Whether a work of this shape has the moments of one that makes an update of each batch."""
        once = other.accumulation == 1 < self.accumulation and len(self.counts) == len(other.counts)
        return once and all(
            len(counts) == 1 and sum(counts) > self.accumulation
            if train
            else [min(n, 2) for n in counts] == [min(n, 2) for n in others]
            for counts, others, train in zip(self.counts, other.counts, self.trains, strict=True)
        )

    def amounts(self) -> list[int]:
        """Amounts whose growth never lowers the cost: samples, batches, updates, and batches accumulated."""
        amounts = [int(self.accumulation > 1)]  # each batch's loss is then divided
        for batch, counts in zip(self.batches, self.counts, strict=True):
            updates = -(-sum(counts) // self.accumulation)
            amounts += [batch * sum(counts), sum(counts), updates, sum(counts) - updates]
        return amounts


class Pricer:
    """Prices candidates for one client of a kind.

    Before each prediction ``on_prediction`` is called with the number of earlier ones, the candidate and the stage.
    """

    def __init__(
        self,
        question: FitQuestion,
        axes: Sequence[FitAxis],
        kind: str,
        client: int,
        on_prediction: Callable[[int, Levels, Stage], None],
    ):
        self.question, self.axes, self.kind, self.client = question, axes, kind, client
        self.most, self._on_prediction = question.most, on_prediction
        self.keys: set[str] = set()
        """Keys of the works that were predicted."""
        self._data, setup = plain(question.scenario), question.setup
        self._source = setup.clients.client(client)
        self._work_numbers = _work_numbers(setup, kind, client)
        # a loss that compares samples isn't the same work in smaller batches
        self._divisible = not compares(setup, kind)
        self._setups: dict[Levels, Setup] = {}
        self._spans: dict[Levels, list[EqualRounds]] = {}
        self._planners: dict[Levels, Planner] = {}
        self.following: Callable[[], Iterator[tuple[Levels, EqualRounds, Stage]]] = lambda: iter(())
        """The works that will be asked for unless those before decide about them, which workers price ahead."""
        self._shapes: dict[tuple[Levels, int, int], _Shape] = {}
        self._computed: dict[tuple[Levels, int, int], ComputeCost] = {}
        self._moved: dict[tuple[Levels, int, int, bool], Traffic] = {}
        self._floors: dict[tuple[Levels, int], tuple[int, int]] = {}
        self._states: dict[tuple[Levels, int], int] = {}

    # candidates -----------------------------------------------------------------------------------------------------

    def spans(self, levels: Levels) -> list[EqualRounds]:
        """This kind's spans in a candidate's schedule.  Raises EdgeflError for a candidate that can't be composed."""
        scheduled = self._training_levels(levels)
        if scheduled not in self._spans:
            self._spans[scheduled] = self._spans_of(self.setup(scheduled))
        return self._spans[scheduled]

    def _spans_of(self, setup: Setup) -> list[EqualRounds]:
        spans, last = list[EqualRounds](), None
        for round, work in self._work_numbers.items():
            stages = tuple(setup.schedule.candidates(round))
            signature = work, setup.schedule.stage(round).index, [stage.index for stage in stages]
            if signature == last:
                spans[-1] = replace(spans[-1], rounds=spans[-1].rounds + 1)
            else:
                spans.append(EqualRounds(round, 1, stages))
            last = signature
        return spans

    def cell(self, levels: Levels) -> Levels:
        """The candidate without the axes that change traffic only: candidates of one cell compute the same."""
        return tuple(level if axis.computes else 0 for axis, level in zip(self.axes, levels, strict=True))

    def moving_levels(self, levels: Levels) -> Levels:
        """The candidate without the axes that leave traffic as it is: candidates alike in these send and receive the
        same.

        Under split training a round exchanges tensors of batches, so every axis may change traffic.
        """
        if self._is_split(levels):
            return levels
        return tuple(level * axis.moves for axis, level in zip(self.axes, levels, strict=True))

    def _is_split(self, levels: Levels) -> bool:
        level = self._level(levels, "schedule")
        steps = next(axis.steps for axis in self.axes if axis.name == "schedule")
        return steps[level - 1].family == "split" if level else self.question.scenario.schedule_name == "split"

    def _training_levels(self, levels: Levels) -> Levels:
        """The candidate without any change but those of what trains, and how: schedule, adapter, optimizer and step."""
        chosen = ("schedule", "adapter", "optimizer", "step")
        return tuple(level * (axis.name in chosen) for axis, level in zip(self.axes, levels, strict=True))

    def setup(self, levels: Levels) -> Setup:
        """The set-up of a candidate, with the clients and the fleet of the scenario."""
        if levels not in self._setups:
            sets = sets_of(steps_of(self.axes, levels))
            scenario = load(self._data, sets)
            # drawing a large fleet takes time, and it would be replaced
            composed = compose(replace(scenario, fleet=FleetOptions.model_validate({})), trains=False)
            self._setups[levels] = replace(
                composed, clients=self.question.setup.clients, fleet=self.question.setup.fleet
            )
        return self._setups[levels]

    def planner(self, levels: Levels) -> Planner:
        """The planner of a candidate.  Only the latest are cached: calls for one candidate follow each other."""
        if levels not in self._planners:
            if len(self._planners) >= PLANNERS:
                del self._planners[next(iter(self._planners))]
            self._planners[levels] = Planner(self.setup(levels), self.question.predictor)
        return self._planners[levels]

    # prices ---------------------------------------------------------------------------------------------------------

    def cost(self, levels: Levels, span: EqualRounds, stage: Stage, *, late: bool = True) -> dict[str, float]:
        """What a round takes of each budget, predicted if it isn't known.

        With ``late`` the client's copies of all that earlier stages trained are stale.  Raises PredictionLimit.
        """
        cell_key = (self.cell(levels), span.first, stage.index)
        planner = self.planner(levels)
        if cell_key not in self._computed:
            if len(self.keys) >= self.most:
                raise PredictionLimit
            self._on_prediction(len(self.keys), levels, stage)
            self._shape(levels, span, stage)
            work, base = planner.work(self.kind, span.first, stage, planner.setup.variant_of(self.client))
            self._begin_ahead(levels, span, stage)
            _, key, computed = planner.compute(work.form, work.scalars, base, self.client)
            self._computed[cell_key] = computed
            self.keys.add(key)
            self._note_states(levels, stage, self._shapes[cell_key], computed)
        moved = self.round_traffic(levels, span, stage, late=late)
        return self._amounts(self._computed[cell_key], moved, self.question.allowed)

    def peak_memory(self, levels: Levels, span: EqualRounds, stage: Stage) -> int:
        """The peak of a work that was predicted."""
        return self._computed[self.cell(levels), span.first, stage.index].peak_memory_bytes

    def knows(self, levels: Levels, span: EqualRounds, stage: Stage) -> bool:
        """Whether the work of this round was predicted."""
        return (self.cell(levels), span.first, stage.index) in self._computed

    def _begin_ahead(self, levels: Levels, span: EqualRounds, stage: Stage) -> None:
        """Let workers price this work and those that follow."""
        pricing = self.question.pricing
        if pricing is None or not pricing.pays(self.question.predictor.predicted):
            return
        self._begin(pricing, levels, span, stage)
        for following in self.following():
            if pricing.idle <= 0:
                break
            try:
                self._begin(pricing, *following)
            except (EdgeflError, RuntimeError):  # told where it is asked for
                continue

    def _begin(self, pricing: Pricing, levels: Levels, span: EqualRounds, stage: Stage) -> None:
        planner = self.planner(levels)
        work, base = planner.work(self.kind, span.first, stage, planner.setup.variant_of(self.client))
        wanted = planner.price_request(work, base, self.client)
        if not self.question.predictor.knows(wanted.work, wanted.key):
            pricing.begin(wanted)

    def _note_states(self, levels: Levels, stage: Stage, shape: _Shape, computed: ComputeCost) -> None:
        """Note the states that were there at the peak of a work with one pass that trains.

        In float16 the scale of the loss lies beside them.
        """
        if shape.trains.count(True) == 1 and computed.precision != "float16":
            at = self._stateful(levels, stage)
            self._states[at] = max(self._states.get(at, 0), computed.memory_bytes["optimizer"])

    def round_traffic(self, levels: Levels, span: EqualRounds, stage: Stage, *, late: bool = True) -> Traffic:
        """The traffic of a round."""
        cell_key = (self.moving_levels(levels), span.first, stage.index, late)
        if cell_key not in self._moved:
            planner = self.planner(levels)
            work, base = planner.work(self.kind, span.first, stage, planner.setup.variant_of(self.client))
            old = stale(work, stage, {}, _trained_versions(work, stage, planner.setup)) if late else ()
            self._moved[cell_key] = planner.downloads_and_traffic(work, base, stage, old, self.client)[1]
        return self._moved[cell_key]

    def _amounts(self, computed: ComputeCost, moved: Traffic, names: Iterable[str]) -> dict[str, float]:
        question, throttling = self.question, self.question.setup.fleet.throttling
        price = price_rounds([(computed, moved)], question.device, question.link, throttling=throttling)
        return {name: values.item() for name, values in amounts(names, price).items()}

    # bounds ---------------------------------------------------------------------------------------------------------

    def least_of_traffic(self, levels: Levels, span: EqualRounds, stage: Stage) -> dict[str, float]:
        """Lower bounds of the budgets that traffic takes from, whatever is computed."""
        moved = self.round_traffic(self.moving_levels(levels), span, stage)
        return {name: least for name, least in self._amounts(NO_COMPUTE, moved, BUDGETS).items() if name != "memory"}

    def at_least(self, levels: Levels, span: EqualRounds, stage: Stage) -> dict[str, float]:
        """Lower bounds of a round's cost by budget; exact if the work was predicted."""
        cell_key = (self.cell(levels), span.first, stage.index)
        moved = self.round_traffic(levels, span, stage)
        if cell_key in self._computed:
            return self._amounts(self._computed[cell_key], moved, self.question.allowed)
        shape = self._shape(levels, span, stage)
        others = [name for name in self.question.allowed if name not in BUDGETS]
        growing = [name for name in others if budget_named(name).grows]
        bounds = self._amounts(NO_COMPUTE, moved, BUDGETS) | dict.fromkeys(others, 0.0)
        if growing:
            bounds |= self._amounts(LEAST_COMPUTE if shape.batches else NO_COMPUTE, moved, growing)
        bounds["memory"] = self.floor(levels, span, stage)
        for other, computed in self._similar(cell_key):
            other_shape = self._shapes[other, span.first, stage.index]
            if len(other_shape.batches) != len(shape.batches):
                continue
            larger = all(a >= b for a, b in zip(shape.batches, other_shape.batches, strict=True))
            same_recomputing = self._level(other, "checkpointing") == self._level(levels, "checkpointing")
            if larger and same_recomputing:
                bounds["memory"] = max(bounds["memory"], _least_peak(shape, other_shape, computed))
            smaller = all(a <= b for a, b in zip(shape.batches, other_shape.batches, strict=True))
            if shape.batches != other_shape.batches and not self._divisible:
                continue
            no_less = all(a >= b for a, b in zip(shape.amounts(), other_shape.amounts(), strict=True))
            if smaller and no_less and self._level(other, "checkpointing") <= self._level(levels, "checkpointing"):
                rise = ("flops", "seconds", "joules", *growing)
                bounds |= {n: max(bounds[n], least) for n, least in self._amounts(computed, moved, rise).items()}
        return bounds

    def _similar(self, cell_key: tuple[Levels, int, int]) -> Iterator[tuple[Levels, ComputeCost]]:
        """Predicted candidates that differ in batch and recomputation only, with their costs."""
        for (cell, first, stage), computed in self._computed.items():
            if (first, stage) == cell_key[1:] and self._fixed_levels(cell) == self._fixed_levels(cell_key[0]):
                yield cell, computed

    def _fixed_levels(self, levels: Levels) -> Levels:
        varied = ("batch", "checkpointing")
        return tuple(
            level for axis, level in zip(self.axes, levels, strict=True) if axis.computes and axis.name not in varied
        )

    def _level(self, levels: Levels, name: str) -> int:
        return next(level for axis, level in zip(self.axes, levels, strict=True) if axis.name == name)

    def _shape(self, levels: Levels, span: EqualRounds, stage: Stage) -> _Shape:
        cell_key = (self.cell(levels), span.first, stage.index)
        if cell_key not in self._shapes:
            planner = self.planner(levels)
            work, _ = planner.work(self.kind, span.first, stage, planner.setup.variant_of(self.client))
            work = work.limit_batches(self._source.size)
            passes = distinct(work)
            counts = [tuple(self._source.counts(p).values()) for p in passes]
            self._shapes[cell_key] = _Shape(
                tuple(p.batch for p in passes), tuple(counts), tuple(p.train for p in passes), work.accumulation
            )
        return self._shapes[cell_key]

    def floor(self, levels: Levels, span: EqualRounds, stage: Stage) -> int:
        """Bytes of attached parameters, of the gradients of those that train, and of the optimizer's states, which
        depend on what trains only.

        Of gradients that are freed in the backward pass it is the largest.  States are known from predicted works.  A
        GPU's allocator reserves a segment at least.
        """
        parameters, gradients = self._values(levels, span, stage)
        states = self._states.get(self._stateful(levels, stage), 0)
        least = segment_bytes(1) if self.question.scenario.executor.device_type == "cuda" else 0
        if self._in_backward(levels):  # of a single update the states come with the smallest gradient
            return max(parameters + max(gradients, states), least)
        return max(parameters + gradients + states, least)

    def _stateful(self, levels: Levels, stage: Stage) -> tuple[Levels, int]:
        """What decides the bytes of an optimizer's states: what trains, with which optimizer, in which dtype."""
        kept = ["schedule", "adapter", "optimizer", "states"]
        if self.question.scenario.training.precision == "float64":  # others don't change the parameters' dtype
            kept.append("precision")
        return tuple(level * (axis.name in kept) for axis, level in zip(self.axes, levels, strict=True)), stage.index

    def _in_backward(self, levels: Levels) -> bool:
        return self.question.scenario.training.step_in_backward or bool(self._level(levels, "step"))

    def _values(self, levels: Levels, span: EqualRounds, stage: Stage) -> tuple[int, int]:
        """Bytes of parameters, and of the gradients that are there at a time."""
        scheduled = self._training_levels(levels)
        cell_key = (scheduled, stage.index)
        if cell_key not in self._floors:
            setup = self.setup(scheduled)
            full = setup.method.client_work(self.kind, span.first, setup.variant_of(self.client))
            work = setup.restrict_to_stage(full, stage)
            training = setup.method.setting.training
            gradients = any(p.train for p in work.passes) and not without_gradients(work)
            specs = replace(setup.method.setting.kinds[self.kind], model=work.model).parameters()
            attached = {
                name: spec.bytes
                for name, spec in specs.items()
                if stage.is_attached(name) and (not work.split or in_first_half(name, work.split))
            }
            trained = [attached.get(name, 0) for name in work.trainable] if gradients else []
            together = max(trained, default=0) if training.step_in_backward else sum(trained)
            self._floors[cell_key] = sum(attached.values()), together
        return self._floors[cell_key]

    def smaller(self, levels: Levels, span: EqualRounds, stage: Stage) -> list[tuple[int, Levels]]:
        """Candidates that differ only by a smaller batch and peak no higher, the smallest batch first."""
        axis = next(i for i, axis in enumerate(self.axes) if axis.name == "batch")
        shape = self._shape(levels, span, stage)
        candidates = []
        for level in range(len(self.axes[axis].steps) + 1):
            other = (*levels[:axis], level, *levels[axis + 1 :])
            other_span = next((s for s in self.spans(other) if s.first == span.first), None)
            if other_span is None:
                continue
            try:
                other_shape = self._shape(other, other_span, stage)
            except EdgeflError:  # no accumulation beside a step in the backward pass
                continue
            same = other_shape.moments() == shape.moments()
            if (same or shape.holds(other_shape)) and sum(other_shape.batches) < sum(shape.batches):
                candidates.append((sum(other_shape.batches), other_shape.accumulation, other))
        # of equal batches the candidate with the fewest to an update is predicted
        least: dict[int, Levels] = {}
        for batch, _, other in sorted(candidates):
            least.setdefault(batch, other)
        return sorted(least.items())


def _least_peak(shape: _Shape, other: _Shape, computed: ComputeCost) -> int:
    """The least peak of a work of this shape, if the work that was ``computed`` has the ``other`` shape."""
    if shape.moments() == other.moments():
        return computed.peak_memory_bytes
    if shape.holds(other):
        of_batch = sum(computed.memory_bytes[part] for part in ("inputs", "outputs", "activations"))
        return computed.peak_memory_bytes - of_batch
    return 0


def _work_numbers(setup: Setup, kind: str, client: int) -> dict[int, int]:
    """A number for each round in which a client's kind takes part: equal for equal work but for the learning rate."""
    numbers: dict[int, int] = {}
    forms: list[Form] = []
    for round in range(1, setup.schedule.rounds + 1):
        if not setup.participates(kind, round):
            continue
        form = setup.method.client_work(kind, round, setup.variant_of(client)).form
        if not forms or form != forms[-1]:
            forms.append(form)
        numbers[round] = len(forms)
    return numbers


def _trained_versions(work: Work, stage: Stage, setup: Setup) -> Mapping[str, int]:
    """The version of each address of a work: 1 if it trained in an earlier stage, else 0.

    Blocks that a stage delivers when it ends count as 0: clients have the current copy.
    """
    earlier = [s for s in setup.schedule.stages if s.index < stage.index and s.rounds]
    delivered = ".blocks." if setup.schedule.deliver_final else "\0"
    return {
        item.source: int(delivered not in item.name and not item.fixed and any(s.is_active(item.name) for s in earlier))
        for payload in work.down
        for item in payload.items
    }


def excess(costs: Mapping[str, float], allowed: Mapping[str, float]) -> dict[str, float]:
    """Cost over allowance of each budget that is exceeded; inf where nothing is allowed."""
    return {
        name: cost / allowed[name] if allowed[name] else inf for name, cost in costs.items() if cost > allowed[name]
    }
