"""The changes that ``edgefl fit`` may make to a scenario: axes of steps, ordered by how much they change training."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import product
from typing import Any

from edgefl import registry
from edgefl.devices import FleetOptions
from edgefl.errors import EdgeflError
from edgefl.modalities import KINDS
from edgefl.planning.setup import Setup
from edgefl.scenario import Scenario, load
from edgefl.scenario.overrides import LeftOut
from edgefl.setup.compose import compose
from edgefl.work import Pass
from edgefl.work.steps import says
from edgefl.yaml_lines import flow

TIERS = (
    "computation", "numerics", "payload", "schedule", "parameters", "batch loss", "effective batch", "epochs",
    "gradients",
)  # fmt: skip
"""What a step changes, the smallest change first.

computation: the same updates, computed differently; parameters: an adapter trains in place of the model; batch loss:
the number of samples that a loss which compares samples, or a batch norm, sees at once; gradients: they are estimated
along random directions.
"""
COMPUTATION, NUMERICS, PAYLOAD, SCHEDULE, PARAMETERS, BATCH_LOSS, EFFECTIVE_BATCH, EPOCHS, GRADIENTS = range(len(TIERS))

MOST_ACCUMULATION = 64
"""Batches whose gradients a proposed change adds up. A choice, not measured: each doubling is a candidate more."""
CHUNKS = 8
"""Parts of a batch's tokens whose loss is proposed to be computed at a time, as torchtune's."""
MICRO_BATCHES = 4
"""Parts of a batch of which private gradients are proposed to be computed at a time: a quarter of 16 takes .7 to
1.5 times the peak of plain training, all of them 2.3 to 4.5 times (docs/guides/private-clients.md)."""
MOST_PARTS = 4
"""Most stages of a proposed elastic schedule: each part that it offers takes a prediction."""
NARROWER = ("float32", "bfloat16", "float16", "int8")
"""Dtypes of payloads, each no wider than the one before."""

Levels = tuple[int, ...]
"""The step that is taken on each axis, from 1; 0 leaves the scenario as it is."""


@dataclass(frozen=True)
class FitChange:
    """A change: the fields that it sets, its tier, and its weight, the rank (from 1) among the steps of that tier.

    A step goes further than the earlier ones of its axis that have its ``family``; others are alternatives to it.
    """

    what: str
    tier: int
    weight: int
    sets: Mapping[str, object]
    family: str = ""


@dataclass(frozen=True)
class FitAxis:
    """Steps that exclude each other, the smallest first; ``computes`` is False if they change traffic only, ``moves``
    if they leave it as it is."""

    name: str
    steps: tuple[FitChange, ...]
    computes: bool = True
    moves: bool = False


def steps_of(axes: Sequence[FitAxis], levels: Levels) -> list[FitChange]:
    """The steps that these levels take, in the order of the axes."""
    return [axis.steps[level - 1] for axis, level in zip(axes, levels, strict=True) if level]


def sets_of(steps: Sequence[FitChange]) -> list[str]:
    """The steps as ``path=value`` of an override."""
    return [f"{path}={flow(value)}" for step in steps for path, value in step.sets.items()]


def candidates(axes: Sequence[FitAxis]) -> list[Levels]:
    """All combinations, the smallest change first: compared by the last tier's weights, then by the tier before."""

    def severity(levels: Levels) -> tuple[list[int], Levels]:
        weights = [0] * len(TIERS)
        for step in steps_of(axes, levels):
            weights[step.tier] += step.weight
        return weights[::-1], levels

    return sorted(product(*(range(len(axis.steps) + 1) for axis in axes)), key=severity)


def within(axes: Sequence[FitAxis], inner: Levels, outer: Levels) -> bool:
    """Whether ``outer`` takes every axis at least as far as ``inner``."""
    return all(
        not a or (a <= b and axis.steps[a - 1].family == axis.steps[b - 1].family)
        for axis, a, b in zip(axes, inner, outer, strict=True)
    )


# --- the axes of a scenario ------------------------------------------------------------------------------------------


def axes_of(scenario: Scenario, setup: Setup, kind: str, samples: int, *, growing: bool, epochs: bool) -> list[FitAxis]:
    """The axes for a kind whose priced client has ``samples``.

    ``growing`` adds schedules whose last stage is the whole model, ``epochs`` fewer local epochs.  Steps that make the
    scenario invalid are left out.
    """
    training = scenario.training
    axes = [
        FitAxis("checkpointing", () if training.checkpointing is True else (FitChange("checkpointing", COMPUTATION, 1,
                                                                       {"training.checkpointing": True}),)),
        FitAxis("batch", _batches(scenario, setup, kind, samples)),
        FitAxis("micro-batch", _micro_batches(scenario, setup, kind)),
        FitAxis("loss", _chunks(scenario, setup, kind)),
        FitAxis("precision", _precisions(training.precision)),
        FitAxis("download", _transfers("download", scenario.payload.down, "payload.down"), computes=False, moves=True),
        FitAxis("upload", _transfers("upload", scenario.payload.up, "payload.up"), computes=False, moves=True),
        FitAxis("schedule", schedules_of(scenario, setup, growing), moves=True),
        FitAxis("adapter", _adapters(scenario), moves=True),
        FitAxis("epochs", _epochs(int(training.epochs)) if epochs and training.steps is None else (),
                moves=True),
        FitAxis("step", () if training.step_in_backward else (FitChange("step in backward", COMPUTATION, 1,
                                                                 {"training.step_in_backward": True}),)),
        FitAxis("states", () if training.offload_states or scenario.executor.device_type != "cuda" else (
            FitChange("states offloaded", COMPUTATION, 2, {"training.offload_states": True}),)),
        FitAxis("optimizer", _optimizers(scenario), moves=True),
    ]  # fmt: skip
    data = plain(scenario)
    return [replace(axis, steps=tuple(step for step in axis.steps if _valid(data, step))) for axis in axes]


def plain(scenario: Scenario) -> dict[str, object]:
    """The scenario as a dictionary, without its ``compare`` section."""
    return {key: value for key, value in scenario.to_data().items() if key != "compare"}


def _valid(data: dict[str, object], step: FitChange) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", LeftOut)  # a step changes what it says, and nothing else
            scenario = load(data, sets_of([step]))
        if step.family:  # not every model has parts for it
            compose(replace(scenario, fleet=FleetOptions.model_validate({})), trains=False)
    except (EdgeflError, LeftOut):
        return False
    return True


def _micro_batches(scenario: Scenario, setup: Setup, kind: str) -> tuple[FitChange, ...]:
    """A quarter of a batch, and a single sample, whose private gradients are in memory at a time."""
    private, batch = scenario.training.private, scenario.training.batch_of(setup.method.setting.kinds[kind].pattern)
    now = 0 if private is None else private.micro_batch or batch
    sizes = enumerate((size for size in dict.fromkeys((now // MICRO_BATCHES, 1)) if 0 < size < now), start=1)
    sets = "training.private.micro_batch"
    return tuple(FitChange(f"micro-batches of {size}", COMPUTATION, i, {sets: size}) for i, size in sizes)


def _chunks(scenario: Scenario, setup: Setup, kind: str) -> tuple[FitChange, ...]:
    """The loss of an eighth of a batch's tokens at a time, for a kind that predicts tokens."""
    described = setup.method.setting.kinds[kind]
    if described.like != "next-token":
        return ()
    tokens = scenario.training.batch_of(described.pattern) * scenario.model.towers[described.pattern].tokens
    chunk = max(tokens // CHUNKS, 1)
    if chunk >= (scenario.training.loss_chunk or tokens):
        return ()
    return (FitChange(f"loss of {chunk} tokens at a time", COMPUTATION, 1, {"training.loss_chunk": chunk}),)


def _precisions(current: str) -> tuple[FitChange, ...]:
    dtypes = ["float64", "float32", "bfloat16", "float16"]
    narrower = dtypes[dtypes.index(current) + 1 :]
    return tuple(FitChange(name, NUMERICS, i, {"training.precision": name}) for i, name in enumerate(narrower, start=1))


def _dtypes(direction: str, current: str, path: str) -> tuple[FitChange, ...]:
    if current not in NARROWER:  # a codec of a plug-in
        return ()
    narrower = [name for name in NARROWER[NARROWER.index(current) + 1 :] if name != "bfloat16"]
    narrower = [name for name in narrower if not (current == "bfloat16" and name == "float16")]  # no fewer bytes
    return tuple(FitChange(f"{direction} {name}", PAYLOAD, i, {path: name}) for i, name in enumerate(narrower, start=1))


def _transfers(direction: str, given: Any, path: str) -> tuple[FitChange, ...]:
    if isinstance(given, str):
        return _dtypes(direction, given, path)
    return _dtypes(direction, given.dtype, f"{path}.dtype")  # the sparsity stays


def _epochs(current: int) -> tuple[FitChange, ...]:
    steps: list[FitChange] = []
    epochs = current // 2
    while epochs:
        what = f"{epochs} local epoch{'s' if epochs > 1 else ''} instead of {current}"
        steps.append(FitChange(what, EPOCHS, len(steps) + 1, {"training.epochs": epochs}))
        epochs //= 2
    return tuple(steps)


def _adapters(scenario: Scenario) -> tuple[FitChange, ...]:
    """LoRA, BitFit, LoRA over layers in nf4, for models that don't begin with random weights; under an adapter nf4."""
    plain = [m for m, tower in scenario.model.encoders.items() if not getattr(tower, "quantize", None)]
    nf4: dict[str, object] = {f"model.{modality}.quantize": "nf4" for modality in plain}
    if scenario.adapter_name != "none":
        return (FitChange("frozen layers in nf4", NUMERICS, 4, nf4, "nf4"),) if nf4 else ()
    if not _has_pretrained_weights(scenario):
        return ()
    lora = {"adapter": {"name": "lora", "rank": 8}}
    return (
        FitChange("LoRA of rank 8", PARAMETERS, 1, lora),
        FitChange("BitFit", PARAMETERS, 2, {"adapter": {"name": "bitfit"}}),
        FitChange("LoRA of rank 8 over nf4", PARAMETERS, 3, {**lora, **nf4}, "nf4"),
    )


def _optimizers(scenario: Scenario) -> tuple[FitChange, ...]:
    """AdamW's states in 8 bits; zeroth order, for models that don't begin with random weights."""
    steps = []
    if scenario.training.optimizer == "adamw" and find_spec("bitsandbytes") is not None:
        steps.append(FitChange("8-bit AdamW", NUMERICS, 1, {"training.optimizer": "adamw-8bit"}))
    if scenario.training.optimizer != "mezo" and _has_pretrained_weights(scenario):
        steps.append(FitChange("zeroth order (MeZO)", GRADIENTS, 1, {"training.optimizer": "mezo"}, "mezo"))
    return tuple(steps)


def _has_pretrained_weights(scenario: Scenario) -> bool:
    """Whether a model has weights to begin with, or is one that nobody trains without."""
    towers = scenario.model.towers.values()
    return bool(
        scenario.model.weights or scenario.pretrain.towers or any(t.tower in ("hf-causal", "hf") for t in towers)
    )


def schedules_of(scenario: Scenario, setup: Setup, growing: bool) -> tuple[FitChange, ...]:
    """Schedules of more stages than the current one, each of equally many blocks; layer-wise stays layer-wise.

    Beside them schedules under which a client trains the part that fits it: FlexLoRA, HeteroFL and elastic.
    """
    name, options = scenario.schedule_name, scenario.schedule_options
    current, rounds = len(setup.schedule.stages), setup.schedule.rounds
    blocks = min(scenario.model.blocks.values(), default=1)
    equal = [n for n in range(2, blocks + 1) if blocks % n == 0]
    counts = [n for n in equal if n <= rounds]
    carried: dict[str, object] = {}
    if isinstance(allocation := getattr(options, "allocation", "uniform"), str) and allocation != "uniform":
        carried["allocation"] = allocation
    steps: list[FitChange] = []
    for schedule in ("progressive", "layerwise"):
        # the last stage of a growing model is the whole model and costs as much as training end to end
        if schedule == "progressive" and (not growing or name == "layerwise"):
            continue
        if schedule == "layerwise" and getattr(options, "deliver_final", False):
            carried["deliver_final"] = True
        for n in (n for n in counts if n > current or name != schedule):
            value = {"name": schedule, "stages": n, "rounds": rounds, **carried}
            steps.append(FitChange(f"{schedule} in {n} stages", SCHEDULE, len(steps) + 1, {"schedule": value}))
    rank = scenario.adapter_options.rank if scenario.adapter_name == "lora" else 0
    if name != "flexlora" and rank > 1:
        ranks = sorted({rank, max(1, rank // 2), max(1, rank // 4)}, reverse=True)
        value = {"name": "flexlora", "ranks": ranks, "rounds": rounds}
        steps.append(FitChange("flexlora", SCHEDULE, len(steps) + 1, {"schedule": value}, "flexlora"))
    if name not in ("elastic", "heterofl"):
        value = {"name": "heterofl", "rounds": rounds}
        steps.append(FitChange("heterofl", SCHEDULE, len(steps) + 1, {"schedule": value}, "heterofl"))
    if name != "heterofl":
        for n in (n for n in equal if n <= MOST_PARTS and (name != "elastic" or n > options.stages)):
            value = {"name": "elastic", "stages": n, "rounds": rounds}
            steps.append(FitChange(f"elastic in {n} stages", SCHEDULE, len(steps) + 1, {"schedule": value}, "elastic"))
    if name in ("end-to-end", "split"):  # the same updates, of which the server computes a part
        given = getattr(options, "after", blocks)
        most = given if isinstance(given, int) else min(given.values())
        for cut in splits_of(scenario, rounds):
            if (after := cut["after"]) < most:
                what = f"split after {after} block{'s' if after > 1 else ''}"
                steps.append(FitChange(what, SCHEDULE, len(steps) + 1, {"schedule": cut}, "split"))
    return tuple(steps)


def splits_of(scenario: Scenario, rounds: int) -> list[dict[str, Any]]:
    """Split training after half and a quarter of the blocks and after the first, with the scenario's halves, if any."""
    options: Any = scenario.schedule_options
    halves = {"server": options.server} if scenario.schedule_name == "split" else {}
    blocks = min(scenario.model.blocks.values(), default=1)
    cuts = dict.fromkeys(n for n in (blocks // 2, blocks // 4, 1) if 0 < n < blocks)
    return [{"name": "split", "after": after, **halves, "rounds": rounds} for after in cuts]


def _batches(scenario: Scenario, setup: Setup, kind: str, samples: int) -> tuple[FitChange, ...]:
    """Batches halved with twice as many to an update, while they divide evenly; then halved for this kind alone."""
    training = scenario.training
    kinds = setup.method.setting.kinds
    patterns: list[str] = [
        pattern for pattern in KINDS if all(m in scenario.model.modalities for m in pattern.split("-"))
    ]
    if isinstance(training.batch, dict):
        patterns = list(dict.fromkeys([*(k.pattern for k in kinds.values()), *training.batch]))
    current = {pattern: training.batch_of(pattern) for pattern in patterns}
    compared = any(compares(setup, name) for name in kinds)
    least = {k.pattern: 2 if compares(setup, name) else 1 for name, k in kinds.items()}
    steps, divisor = [], 2
    # several private batches to an update are another one, because each has noise of its own
    while (
        training.private is None
        and training.accumulation * divisor <= MOST_ACCUMULATION
        and all(current[p] % divisor == 0 and current[p] // divisor >= n for p, n in least.items())
    ):
        value = _batch(training.batch, {p: max(n // divisor, 1) for p, n in current.items()})
        full = current[kinds[kind].pattern] <= samples  # a client with fewer samples has one smaller batch
        tier = EFFECTIVE_BATCH if not full else BATCH_LOSS if compared else COMPUTATION
        accumulation = training.accumulation * divisor
        what = f"batch {current[kinds[kind].pattern] // divisor}, {accumulation} to an update"
        weight = divisor.bit_length() - 1
        steps.append(FitChange(what, tier, weight, {"training.batch": value, "training.accumulation": accumulation}))
        divisor *= 2
    own_pattern, divisor = kinds[kind].pattern, 2
    while current[own_pattern] // divisor >= least[own_pattern]:
        value = _batch(
            training.batch if len(kinds) == 1 else {}, {**current, own_pattern: current[own_pattern] // divisor}
        )
        # ranks after the steps above, some of which may be in this tier
        weight = MOST_ACCUMULATION + divisor.bit_length()
        what = f"batch {current[own_pattern] // divisor} instead of {current[own_pattern]}"
        steps.append(FitChange(what, EFFECTIVE_BATCH, weight, {"training.batch": value}))
        divisor *= 2
    return tuple(steps)


def _batch(current: Any, by_pattern: dict[str, int]) -> int | dict[str, int]:
    """``by_pattern`` in the form of the current value: a number that holds for every pattern, or a dictionary."""
    return next(iter(by_pattern.values())) if isinstance(current, int) else by_pattern


def compares(setup: Setup, kind: str) -> bool:
    """Whether a kind's training couples the samples of a batch, by a loss that compares them or a batch norm."""
    described, method = setup.method.setting.kinds[kind], setup.method
    rounds = range(1, setup.schedule.rounds + 1)
    first = [r for r in rounds if setup.participates(kind, r)][:2]
    works = [method.client_work(kind, r, variant) for r in first for variant in method.variants[kind]]
    passes = [p for work in works for p in work.passes if p.train]
    norms = any(name.endswith("running_mean") for name in described.parameters())
    return norms or not all(_mean_over_samples(p) for p in passes)


def _mean_over_samples(pass_: Pass) -> bool:
    if pass_.step == "classify-completed":
        return not pass_.args.get("contrast")
    return says(registry.get("step", pass_.step), "averages_samples")
