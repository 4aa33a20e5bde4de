"""What ``edgefl fit`` may change in a scenario: axes of steps, each with how much it changes what is learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from edgefl.data import KINDS
from edgefl.errors import EdgeflError
from edgefl.planning import Setup
from edgefl.scenario import Scenario, load
from edgefl.work import Pass

TIERS = ("computation", "numerics", "payload", "schedule", "batch loss", "effective batch", "epochs")
"""What a step changes, least first.

computation: the same updates, computed otherwise; batch loss: of how many samples a loss that compares samples, or a
batch norm, sees at once.
"""
COMPUTATION, NUMERICS, PAYLOAD, SCHEDULE, BATCH_LOSS, EFFECTIVE_BATCH, EPOCHS = range(len(TIERS))

MOST_ACCUMULATION = 64
NARROWER = ("float32", "bfloat16", "float16", "int8")
"""Dtypes of payloads, each no wider than the one before."""

Levels = tuple[int, ...]
"""How far each axis is taken; 0 leaves the scenario as it is."""


@dataclass(frozen=True)
class Step:
    """One change: the fields that it sets, and its tier with its place (from 1) among the steps of that tier."""

    what: str
    tier: int
    weight: int
    sets: Mapping[str, Any]


@dataclass(frozen=True)
class Axis:
    """Steps that exclude each other, the least first; ``computes`` is False where only what travels is changed."""

    name: str
    steps: tuple[Step, ...]
    computes: bool = True


def steps_of(axes: Sequence[Axis], levels: Levels) -> list[Step]:
    """The steps that these levels take, in the order of the axes."""
    return [axis.steps[level - 1] for axis, level in zip(axes, levels, strict=True) if level]


def sets_of(steps: Sequence[Step]) -> list[str]:
    """The steps as ``path=value`` of an override."""
    return [f"{path}={_flow(value)}" for step in steps for path, value in step.sets.items()]


def _flow(value: Any) -> str:
    """Plain data as YAML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def candidates(axes: Sequence[Axis]) -> list[Levels]:
    """All combinations, those first that change least: by the steps of the gravest tier, then of the next."""

    def gravity(levels: Levels) -> tuple[list[int], Levels]:
        weights = [0] * len(TIERS)
        for step in steps_of(axes, levels):
            weights[step.tier] += step.weight
        return weights[::-1], levels

    return sorted(product(*(range(len(axis.steps) + 1) for axis in axes)), key=gravity)


def within(one: Levels, other: Levels) -> bool:
    """Whether ``other`` takes every axis at least as far as ``one``."""
    return all(a <= b for a, b in zip(one, other, strict=True))


# --- the axes of a scenario ------------------------------------------------------------------------------------------


def axes_of(scenario: Scenario, setup: Setup, kind: str, samples: int, *, growing: bool, epochs: bool) -> list[Axis]:
    """What may be changed for clients of this kind, of which the one that is priced has ``samples``.

    With ``growing`` schedules whose last stage is the whole model are among it; with ``epochs`` fewer local epochs.
    Steps that the scenario doesn't take are left out.
    """
    training = scenario.training
    axes = [
        Axis("checkpointing", () if training.checkpointing else (Step("checkpointing", COMPUTATION, 1,
                                                                       {"training.checkpointing": True}),)),
        Axis("batch", _batches(scenario, setup, kind, samples)),
        Axis("precision", _precisions(training.precision)),
        Axis("download", _dtypes("download", scenario.payload.down, "payload.down"), computes=False),
        Axis("upload", _uploads(scenario), computes=False),
        Axis("schedule", _schedules(scenario, setup, growing)),
        Axis("epochs", _epochs(training.epochs) if epochs else ()),
    ]  # fmt: skip
    data = plain(scenario)
    return [Axis(a.name, tuple(s for s in a.steps if _valid(data, s)), a.computes) for a in axes]


def plain(scenario: Scenario) -> dict[str, Any]:
    """The scenario as it is written, without what it compares."""
    return {key: value for key, value in scenario.resolved().items() if key != "compare"}


def _valid(data: dict[str, Any], step: Step) -> bool:
    try:
        load(data, sets_of([step]))
    except EdgeflError:
        return False
    return True


def _precisions(now: str) -> tuple[Step, ...]:
    known = ["float32", "bfloat16", "float16"]
    left = known[known.index(now) + 1 :]
    return tuple(Step(name, NUMERICS, i, {"training.precision": name}) for i, name in enumerate(left, start=1))


def _dtypes(way: str, now: str, path: str) -> tuple[Step, ...]:
    left = [name for name in NARROWER[NARROWER.index(now) + 1 :] if name != "bfloat16"]
    left = [name for name in left if not (now == "bfloat16" and name == "float16")]  # no bytes less
    return tuple(Step(f"{way} {name}", PAYLOAD, i, {path: name}) for i, name in enumerate(left, start=1))


def _uploads(scenario: Scenario) -> tuple[Step, ...]:
    up = scenario.payload.up
    if isinstance(up, str):
        return _dtypes("upload", up, "payload.up")
    return _dtypes("upload", up.dtype, "payload.up.dtype")  # as sparse as it is


def _epochs(now: int) -> tuple[Step, ...]:
    found: list[Step] = []
    left = now // 2
    while left:
        what = f"{left} local epoch{'s' if left > 1 else ''} instead of {now}"
        found.append(Step(what, EPOCHS, len(found) + 1, {"training.epochs": left}))
        left //= 2
    return tuple(found)


def _schedules(scenario: Scenario, setup: Setup, growing: bool) -> tuple[Step, ...]:
    """More stages than now, all with as many blocks; layer-wise isn't taken back."""
    name, options = scenario.schedule_name, scenario.schedule_options
    now, rounds = len(setup.schedule.stages), setup.schedule.rounds
    blocks = min(scenario.model.blocks.values(), default=1)
    counts = [n for n in range(2, blocks + 1) if blocks % n == 0 and n <= rounds]
    kept: dict[str, Any] = {}
    if isinstance(allocation := getattr(options, "allocation", "uniform"), str) and allocation != "uniform":
        kept["allocation"] = allocation
    found: list[Step] = []
    for other in ("progressive", "layerwise"):
        # the last stage of a growing model is the whole of it, and costs what it costs end to end
        if other == "progressive" and (not growing or name == "layerwise"):
            continue
        if other == "layerwise" and getattr(options, "deliver_final", False):
            kept["deliver_final"] = True
        for n in (n for n in counts if n > now or name != other):
            value = {"name": other, "stages": n, "rounds": rounds, **kept}
            found.append(Step(f"{other} in {n} stages", SCHEDULE, len(found) + 1, {"schedule": value}))
    return tuple(found)


def _batches(scenario: Scenario, setup: Setup, kind: str, samples: int) -> tuple[Step, ...]:
    """Halved with as many more to an update, as far as that goes evenly; then halved for this kind alone."""
    training = scenario.training
    kinds = setup.method.setting.kinds
    patterns: list[str] = [known for known in KINDS if all(m in scenario.model.modalities for m in known.split("-"))]
    if isinstance(training.batch, dict):
        patterns = list(dict.fromkeys([*(k.pattern for k in kinds.values()), *training.batch]))
    now = {pattern: training.batch_of(pattern) for pattern in patterns}
    together = any(compares(setup, name) for name in kinds)
    least = {k.pattern: 2 if compares(setup, name) else 1 for name, k in kinds.items()}
    found, times = [], 2
    while training.accumulation * times <= MOST_ACCUMULATION and all(
        now[p] % times == 0 and now[p] // times >= n for p, n in least.items()
    ):
        value = _batch(training.batch, {p: max(n // times, 1) for p, n in now.items()})
        whole = now[kinds[kind].pattern] <= samples  # a smaller client has one batch of what it has
        tier = EFFECTIVE_BATCH if not whole else BATCH_LOSS if together else COMPUTATION
        many = training.accumulation * times
        what = f"batch {now[kinds[kind].pattern] // times}, {many} to an update"
        weight = times.bit_length() - 1
        found.append(Step(what, tier, weight, {"training.batch": value, "training.accumulation": many}))
        times *= 2
    own, times = kinds[kind].pattern, 2
    while now[own] // times >= least[own]:
        value = _batch(training.batch if len(kinds) == 1 else {}, {**now, own: now[own] // times})
        # after all the steps above, of which some may be of this tier
        weight = MOST_ACCUMULATION + times.bit_length()
        what = f"batch {now[own] // times} instead of {now[own]}"
        found.append(Step(what, EFFECTIVE_BATCH, weight, {"training.batch": value}))
        times *= 2
    return tuple(found)


def _batch(now: Any, by_pattern: dict[str, int]) -> int | dict[str, int]:
    """In the form in which it is written now; one number says it for every pattern alike."""
    return next(iter(by_pattern.values())) if isinstance(now, int) else by_pattern


def compares(setup: Setup, kind: str) -> bool:
    """Whether a kind's training isn't a mean over samples: a loss that compares them, a norm over the batch."""
    described, method = setup.method.setting.kinds[kind], setup.method
    rounds = range(1, setup.schedule.rounds + 1)
    first = [r for r in rounds if setup.participates(kind, r)][:2]
    passes = [p for r in first for p in method.work(kind, r).passes if p.train]
    norms = any(name.endswith("running_mean") for name in described.parameters())
    return norms or not all(_mean_over_samples(p) for p in passes)


def _mean_over_samples(pass_: Pass) -> bool:
    return pass_.step == "classify" or (pass_.step == "classify-completed" and not pass_.args.get("contrast"))
