"""DP-SGD at the client, against a loop by hand, opacus, plain training, chi-square and torch's allocator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgefl
from edgefl import models, seeds
from edgefl.cost.predict import predict
from edgefl.errors import MethodError, ScenarioError
from edgefl.runs import Run
from edgefl.scenario import load
from edgefl.setup.compose import compose, predictor_for
from edgefl.work import AllocatorPeak, Context, Pass, Source, Work, execute
from edgefl.work.private import PrivateGradients
from edgefl.work.steps import ClassifyStep

Tiny = Callable[..., dict[str, Any]]
CPU = torch.device("cpu")
VIT = {"tower": "vit", "blocks": 2, "width": 16, "heads": 2, "patch": 8}
TEXT = {"tower": "transformer", "blocks": 2, "width": 16, "heads": 2, "tokens": 12}
NO_CLIP = {"clip": 1e9}
TOWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("image", VIT),
    "text": ("text", TEXT),
    "hf-vit": ("image", {**VIT, "tower": "hf-vit"}),
    "timm-vit": ("image", {**VIT, "tower": "timm-vit"}),
    "distilbert": ("text", {**TEXT, "tower": "distilbert"}),
    "bert": ("text", {**TEXT, "tower": "bert"}),
    "gru": ("text", {"tower": "gru", "hidden": 16, "tokens": 12}),
    "wide vit": ("image", {**VIT, "width": 64, "patch": 4}),
}


def scenario(
    tiny: Tiny, private: Mapping[str, Any] | None, kind: str = "image", tower: Any = VIT, **more: Any
) -> dict[str, Any]:
    """One client of a kind, and SGD of rate 1 unless ``training`` says otherwise."""
    data = {"source": "glyphs", "clients": {kind: 1}, "samples": 40, "size": 16, "validation": 20, "test": 20}
    training = {"optimizer": "sgd", "lr": 0.1, "batch": 8, "private": private, **more.pop("training", {})}
    return tiny(data=data, model={kind: tower}, training=training, **more)


def parts(given: dict[str, Any]) -> tuple[Work, Source, dict[str, Tensor]]:
    """The work of client 0, its data, and the tensors that it starts from."""
    setup = compose(load(given))
    work = setup.schedule.stage(1).restrict_work(setup.method.client_work(next(iter(setup.clients.kinds)), 1))
    return work, setup.clients.client(0), dict(setup.method.at_start(1).inputs(work))


def trained(given: dict[str, Any], *, only: int | None = None) -> dict[str, Tensor]:
    """The parameters after the work of client 0, or after its first batches."""
    work, source, inputs = parts(given)
    module = models.build(work.model)
    with seeds.seeding_globals(3, CPU):
        execute(work, inputs, First(source, only) if only else source, module=module, device=CPU, seed=3)
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


class First:
    """The first batches of a source."""

    def __init__(self, source: Source, batches: int):
        self.source, self.most, self.spec, self.size = source, batches, source.spec, source.size

    def counts(self, pass_: Pass) -> dict[str, int]:
        return {pattern: min(n, self.most) for pattern, n in self.source.counts(pass_).items()}

    def batches(self, pass_: Pass, seed: int) -> Any:
        for index, each in enumerate(self.source.batches(pass_, seed)):
            if index < self.most:
                yield each


def apart(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


# gradients ------------------------------------------------------------------------------------------------------------


def first_batch(given: dict[str, Any]) -> tuple[Any, dict[str, Tensor]]:
    """The model as it starts, and its first batch."""
    work, source, inputs = parts(given)
    module = models.build(work.model).train()
    module.load_state_dict({name: tensor.clone() for name, tensor in inputs.items()})
    return module, next(iter(source.batches(work.passes[0], seeds.key(3, "shuffle", 0, 0))))[1]


CLIP = 17.0
"""Some samples of the first batch have larger gradients, and some smaller ones."""


def clipped_sum(module: Any, batch: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], int]:
    """The sum of clipped gradients by a loop over samples, and how many were clipped."""
    sums, clipped = {name: torch.zeros_like(p) for name, p in module.named_parameters()}, 0
    for image, label in zip(batch["image"], batch["label"], strict=True):
        module.zero_grad()
        F.cross_entropy(module.classify("image", {"image": image[None]}), label[None]).backward()
        norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in module.parameters()))
        clipped += norm > CLIP
        for name, p in module.named_parameters():
            sums[name] += p.grad * min(1.0, CLIP / norm)
    return sums, clipped


@pytest.mark.parametrize("micro_batch", [None, 4, 3, 1])
def test_a_step_is_that_of_a_loop_by_hand(tiny: Tiny, micro_batch: int | None) -> None:
    given = scenario(tiny, {"clip": CLIP, "micro_batch": micro_batch}, training={"lr": 0.01})
    module, batch = first_batch(given)
    sums, clipped = clipped_sum(module, batch)
    assert 0 < clipped < 8
    by_hand = {name: p.detach() - 0.01 * sums[name] / 8 for name, p in module.named_parameters()}
    assert apart(trained(given, only=1), by_hand) < 1.2e-7


@pytest.mark.filterwarnings("ignore:Full backward hook:UserWarning")
@pytest.mark.parametrize("ghost", [False, True])
def test_a_step_is_opacus(tiny: Tiny, ghost: bool) -> None:
    from opacus import GradSampleModule
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    given = scenario(tiny, {"clip": CLIP, "micro_batch": 4}, training={"lr": 0.01})
    module, batch = first_batch(given)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Tensor) -> Any:
            return self.inner.classify("image", {"image": x})

    options: Any = {"noise_multiplier": 0.0, "max_grad_norm": CLIP, "expected_batch_size": 8}
    criterion: Any = nn.CrossEntropyLoss()
    if ghost:
        model: Any = GradSampleModuleFastGradientClipping(Net(), max_grad_norm=CLIP, use_ghost_clipping=True)
        optimizer: Any = DPOptimizerFastGradientClipping(torch.optim.SGD(model.parameters(), lr=0.01), **options)
        criterion = DPLossFastGradientClipping(model, optimizer, criterion, "mean")
    else:
        model = GradSampleModule(Net())
        optimizer = DPOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), **options)
    optimizer.zero_grad()
    criterion(model(batch["image"]), batch["label"]).backward()
    optimizer.step()
    assert apart(trained(given, only=1), {n: p.detach() for n, p in module.named_parameters()}) < 1.2e-7


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"training": {"accumulation": 2}},
    "lora": {"adapter": {"name": "lora", "rank": 2}},
    "drop path": {"tower": {**VIT, "drop_path": 0.2}},
    "checkpointing": {"training": {"checkpointing": True}},
    "proximal": {"method": {"name": "fedprox", "mu": 0.5}},
    "kept activations": {"schedule": {"name": "frozen-prefix", "blocks": 1, "rounds": 1}},
    "narrower": {"schedule": {"name": "heterofl", "rounds": 1}},
    "math": {"training": {"attention": "math"}},
}


RARE = ("kept activations", "narrower", "math")


@pytest.mark.parametrize("micro_batch", [None, 1])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            marks=[pytest.mark.slow(smaller="test_a_clip_that_no_gradient_reaches_changes_no_weight")] * (case in RARE),
        )
        for case in CASES
    ],
)
def test_a_clip_that_no_gradient_reaches_changes_no_weight(tiny: Tiny, case: str, micro_batch: int | None) -> None:
    if case == "checkpointing" and micro_batch is None or case == "drop path" and micro_batch:
        return  # refused; and other draws for each sample
    plain, private = (
        trained(scenario(tiny, each, **CASES[case])) for each in (None, {**NO_CLIP, "micro_batch": micro_batch})
    )
    assert apart(plain, private) < 1e-6


def test_half_precision_computes_the_loss_alone(tiny: Tiny) -> None:
    given: dict[str, Any] = {"training": {"precision": "bfloat16"}}
    plain, private, full = (
        trained(scenario(tiny, each, **more)) for each, more in ((None, given), (NO_CLIP, given), (NO_CLIP, {}))
    )
    assert 0 < apart(plain, private) < apart(private, full) / 2  # a sample's gradient of a weight is rounded


@pytest.mark.slow(smaller="test_a_clip_that_no_gradient_reaches_changes_no_weight")
@pytest.mark.parametrize("tower", TOWERS)
def test_a_clip_that_no_gradient_reaches_changes_no_weight_of_any_tower(tiny: Tiny, tower: str) -> None:
    kind, options = TOWERS[tower]
    if tower in ("distilbert", "bert"):
        options = {**options, "dropout": 0.0}
    micro = {"micro_batch": 1} if tower == "gru" else {}
    plain, private = (trained(scenario(tiny, each, kind, options)) for each in (None, {**NO_CLIP, **micro}))
    assert apart(plain, private) < 1e-6


@pytest.mark.parametrize("micro_batch", [None, 1])
def test_poisson_batches_are_divided_by_their_mean_size(tiny: Tiny, micro_batch: int | None) -> None:
    """The free places of a batch, which repeat samples with label -1, don't count."""
    private = {"clip": CLIP, "poisson": 0.5, "micro_batch": micro_batch}
    given = scenario(tiny, private, training={"lr": 0.01})
    module, batch = first_batch(given)
    drawn = int((batch["label"] >= 0).sum())
    assert 0 < drawn < 8 and (batch["label"][drawn:] == -1).all()
    update = clipped_sum(module, {name: field[:drawn] for name, field in batch.items()})[0]
    by_hand = {name: p.detach() - 0.01 * update[name] / 4 for name, p in module.named_parameters()}
    assert apart(trained(given, only=1), by_hand) < 1.2e-7


def test_each_sample_is_in_a_poisson_batch_with_the_same_probability(tiny: Tiny) -> None:
    """Numbers of samples and of batches by chi-square; a batch of 8 of 40 has 4 on average, and never more than 8."""
    work, source, _ = parts(scenario(tiny, {"clip": 1.0, "poisson": 0.5}, training={"steps": 600}))
    asked = replace(work.passes[0], args={**work.passes[0].args, "fields": ["index", "label"]})
    batches = [each[1] for each in source.batches(asked, 5)]
    sizes = torch.tensor([int((batch["label"] >= 0).sum()) for batch in batches]).double()
    drawn = [batch["index"][batch["label"] >= 0] for batch in batches]
    assert all(len(rows.unique()) == len(rows) for rows in drawn)
    seen = torch.cat(drawn).bincount(minlength=40).double()
    chance = [math.comb(40, k) * 0.1**k * 0.9 ** (40 - k) for k in range(8)]
    expected = torch.tensor([*chance, 1 - sum(chance)], dtype=torch.double) * 600
    counted = sizes.long().bincount(minlength=9).double()
    assert float(((counted - expected).square() / expected).sum()) < 8 + 4 * 4
    mean = float(seen.mean())
    assert float(((seen - mean).square() / (mean * 0.9)).sum()) < 39 + 4 * math.sqrt(2 * 39)


# noise ----------------------------------------------------------------------------------------------------------------


def test_the_noise_has_its_deviation(tiny: Tiny) -> None:
    """By chi-square: a batch's noise over its deviation, z C lr / B, for all weights."""
    private = {"clip": 0.5, "noise": 1.5, "micro_batch": 4}
    noised, plain = (
        trained(scenario(tiny, each, tower={**VIT, "width": 32}, training={"lr": 1.0}), only=1)
        for each in (private, {**private, "noise": 0.0})
    )
    drawn = torch.cat([(noised[name] - plain[name]).flatten() for name in noised]).double() / (1.5 * 0.5 / 8)
    n = drawn.numel()
    assert n > 20_000
    assert abs(float(drawn.square().sum()) - n) < 4 * math.sqrt(2 * n)
    assert abs(float(drawn.mean())) < 4 / math.sqrt(n)
    assert abs(float(drawn.pow(4).mean()) - 3) < 4 * math.sqrt(96 / n)


def test_each_client_and_batch_has_noise_of_its_own(tiny: Tiny) -> None:
    def noise(batches: int) -> Tensor:
        given = [
            trained(scenario(tiny, {"clip": 1e-9, "noise": z}, training={"lr": 1e9}), only=batches) for z in (1.0, 0.0)
        ]
        return torch.cat([(given[0][name] - given[1][name]).flatten() for name in given[0]])

    once, twice = noise(1), noise(2)
    second = twice - once
    assert abs(float(torch.corrcoef(torch.stack([once, second]))[0, 1])) < 4 / math.sqrt(len(once))


class Stopped(Exception):
    """The user has had enough."""


def files(run: Run) -> dict[str, bytes]:
    names = ("rounds.jsonl", "clients.jsonl", "result.json", "weights.safetensors")
    return {name: (run.path / name).read_bytes() for name in names}


def cut_and_whole(given: dict[str, Any], folder: Path, **more: Any) -> tuple[Run, Run]:
    """A run that was stopped in its second round and continued, with sections of its own; and one that wasn't."""

    def stop(event: str, facts: Mapping[str, Any]) -> None:
        if event == "record" and facts["round"] == 2:
            raise Stopped

    with pytest.raises(Stopped):
        edgefl.run({**given, **more}, out=folder / "cut", on_progress=stop)
    return edgefl.run(resume=folder / "cut"), edgefl.run(given, out=folder / "whole")


def test_a_resumed_run_draws_the_same_noise(tiny: Tiny, tmp_path: Path) -> None:
    cut, whole = cut_and_whole(scenario(tiny, {"clip": 1.0, "noise": 1.0, "micro_batch": 4}), tmp_path)
    assert files(cut) == files(whole)


@pytest.mark.slow(smaller="test_a_resumed_run_draws_the_same_noise")
def test_workers_draw_the_same_noise(tiny: Tiny, tmp_path: Path) -> None:
    given = scenario(tiny, {"clip": 1.0, "noise": 1.0, "micro_batch": 4})
    given["data"]["clients"]["image"] = 3
    workers = {"executor": {"name": "processes", "workers": 2, "device": "cpu"}}
    cut, whole = cut_and_whole(given, tmp_path, **workers)
    assert files(cut) == files(whole)


# cost -----------------------------------------------------------------------------------------------------------------


PEAKS = [(tower, size) for tower in TOWERS for size in (None, 4, 1) if tower != "gru" or size == 1]
QUICK = [("vit", None), ("text", 4)]


@pytest.mark.parametrize(
    ("tower", "micro_batch"),
    [
        pytest.param(*each, marks=[pytest.mark.slow(smaller="test_the_peak_is_the_allocators")] * (each not in QUICK))
        for each in PEAKS
    ],
)
def test_the_peak_is_the_allocators(tiny: Tiny, tower: str, micro_batch: int | None) -> None:
    work, source, inputs = parts(
        scenario(tiny, {"clip": 1.0, "noise": 1.0, "micro_batch": micro_batch}, *TOWERS[tower])
    )
    module = models.build(work.model)
    watch = AllocatorPeak(CPU, [*module.parameters(), *module.buffers()])
    with watch:
        execute(work, inputs, Owned(source), module=module, device=CPU, seed=3)
    assert abs(predictor_for("cpu").trace(work, source).peak_memory_bytes - watch.bytes) <= 64


class Owned:
    """A source whose batches torch's allocator made."""

    def __init__(self, source: Source):
        self.source, self.spec, self.counts, self.size = source, source.spec, source.counts, source.size

    def batches(self, pass_: Pass, seed: int) -> Any:
        for pattern, batch in self.source.batches(pass_, seed):
            cloned = {name: t if t.untyped_storage().resizable() else t.clone() for name, t in batch.items()}
            del batch
            yield pattern, cloned
            del cloned


def test_smaller_micro_batches_peak_lower_and_compute_the_same(tiny: Tiny) -> None:
    traces = []
    for micro_batch in (None, 1):
        work, source, _ = parts(scenario(tiny, {"clip": 1.0, "micro_batch": micro_batch}))
        traces.append(predict(work, source, brief=True))
    assert traces[0].peak_memory_bytes > 2 * traces[1].peak_memory_bytes
    steps = [next(step for key, step in trace.steps.items() if key[1] == "image") for trace in traces]
    assert len({step.backward_flops for step in steps}) == 1


def test_a_clip_and_a_noise_of_another_size_cost_the_same(tiny: Tiny) -> None:
    forms = [
        parts(scenario(tiny, {"clip": clip, "noise": noise}))[0].form
        for clip, noise in ((1.0, 1.0), (2.0, 0.5), (1.0, 0.0))
    ]
    assert forms[0] == forms[1] != forms[2]


# refusals -------------------------------------------------------------------------------------------------------------

ONE = {"clip": 1.0, "noise": 1.0}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "noise alone": ({"private": {"noise": 1.0}}, "private: noise hides a sample only where .* set clip"),
    "mezo": ({"training": {"optimizer": "mezo"}}, "mezo has no gradients"),
    "step in backward": ({"training": {"step_in_backward": True}}, "step_in_backward frees .* leave it out"),
    "float16": ({"training": {"precision": "float16"}}, "float16 scales a loss .* write bfloat16"),
    "checkpointing": (
        {"training": {"checkpointing": True}},
        "checkpointing takes one sample .* set private.micro_batch: 1",
    ),
    "a kind's mezo": ({"training": {"by": {"image": {"optimizer": "mezo"}}}}, "by.image: private: optimizer: mezo"),
    "batch norm": ({"tower": {"tower": "resnet", "layers": 18}}, "a BatchNorm2d, mixes .* LayerNorm or GroupNorm"),
    "gru": ({"kind": "text", "tower": TOWERS["gru"][1]}, "a GRU, .* set training.private.micro_batch: 1"),
    "split": (
        {"schedule": {"name": "split", "after": 1, "rounds": 1}},
        "known to neither half: leave training.private",
    ),
    "chunks": (
        {"training": {"loss_chunk": 4}},
        "loss_chunk takes one sample at a time: set private.micro_batch: 1",
    ),
    "half weights": (
        {"tower": {**VIT, "dtype": "bfloat16"}, "training": {"optimizer": "adamw"}},
        "trains in half precision, which rounds noise away",
    ),
    "central": ({"method": "central"}, "no client trains .* take method: fedavg"),
    "a loss without noise": ({"method": "qfedavg"}, "'classify' tells about samples without noise"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cant_be_private_is_refused_by_name(tiny: Tiny, case: str) -> None:
    more, why = REFUSED[case]
    given = scenario(tiny, more.get("private", ONE), **{n: value for n, value in more.items() if n != "private"})
    with pytest.raises(ScenarioError, match=why):
        compose(load(given))


def test_a_loss_that_compares_samples_is_refused(tiny: Tiny) -> None:
    given = tiny(training={"batch": 8, "private": ONE})
    given["data"] = {**given["data"], "tasks": {"image-text": "retrieve"}}
    with pytest.raises(ScenarioError, match="'contrast', by which image-text clients train, .* each seen alone"):
        compose(load(given))


class Counts(ClassifyStep):
    """Counts its samples in a tensor that it captured."""

    def __init__(self) -> None:
        self.seen = torch.zeros(())

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """Cross-entropy."""
        loss = super().loss(ctx, batch, pattern, pass_)
        self.seen += loss.detach()
        return loss


def test_what_torch_cant_differentiate_at_once_is_told_with_the_remedy(tiny: Tiny) -> None:
    work, source, inputs = parts(scenario(tiny, ONE))
    module = models.build(work.model)
    module.load_state_dict(inputs)
    ctx = Context(work, module, source, CPU, trained=dict(module.named_parameters()))
    batch = next(iter(source.batches(work.passes[0], 1)))[1]
    with pytest.raises(MethodError, match=r"several samples at once .* set training.private.micro_batch: 1"):
        PrivateGradients(Counts()).loss(ctx, batch, "image", work.passes[0])
    alone = replace(work.passes[0], args={**work.passes[0].args, "micro_batch": 1})  # type: ignore[typeddict-unknown-key]
    assert PrivateGradients(Counts()).loss(ctx, batch, "image", alone).requires_grad
