"""The fake tensors of predictions are torch's own, but where those of its kernels lie otherwise in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from edgefl_toys import FACTS, Toy, described, make_work, scoring_pass, training_pass
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from edgefl import models
from edgefl.cost import fake_tensors
from edgefl.cost.fake_tensors import PredictionMode
from edgefl.cost.predict import _predict
from edgefl.models import ModelOptions
from edgefl.plain_data import to_data
from edgefl.work import LiveMoment, Work

LLAMA = {
    "model_type": "llama", "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 32, "max_position_embeddings": 8,
}  # fmt: skip

LORA = {
    "name": "lora",
    "rank": 2,
    "alpha": 4.0,
    "scale": 2.0,
    "parts": ["q_proj"],
    "also": ["head"],
    "dtype": "float32",
}


def work_of(modality: str, tower: Mapping[str, Any], *, trained: str = "", adapter: Any = None, **more: Any) -> Work:
    """A classifier's work on this tower; only parameters with ``trained`` in their names train."""
    model = models.describe(ModelOptions(**{modality: tower}), (modality,), "classify", FACTS)
    if adapter:
        model["adapter"] = adapter
    work = make_work((modality,), (training_pass((modality,), 4),) * 2, model=model, **more)
    return replace(work, trainable=tuple(name for name in work.trainable if trained in name))


CASES: dict[str, Callable[[], Work]] = {
    "convolutions": lambda: work_of("image", {"tower": "resnet", "layers": 18}),
    "a recurrent net": lambda: work_of("text", {"tower": "gru", "hidden": 8, "embedding": 4, "tokens": 6}),
    "a decoder": lambda: work_of("text", {"tower": "hf-causal", "config": LLAMA, "tokens": 6}),
    "a decoder in bfloat16 with LoRA": lambda: work_of(
        "text", {"tower": "hf-causal", "config": LLAMA, "tokens": 6, "dtype": "bfloat16"},
        adapter=LORA, trained="lora",
    ),
    "a depthwise net": lambda: work_of("image", {"tower": "timm", "variant": "mobilenetv3_small_050"}),
    "checkpoints, clipped gradients": lambda: make_work(
        model=described(checkpointing=True, drop_path=0.1),
        optimizer={"name": "adamw", "lr": 1e-3, "implementation": "foreach", "clip": 1.0},
    ),
    "pairs, a step in the backward pass": lambda: make_work(
        ("image", "text"), (training_pass(("image", "text")), scoring_pass(("image", "text"))),
        optimizer={"name": "sgd", "lr": 1e-3, "implementation": "for-loop", "step_in_backward": True},
    ),
    "states in 8 bits": lambda: make_work(
        model=described(blocks=1, width=48), optimizer={"name": "adamw-8bit", "lr": 1e-3}
    ),
    "gates, several batches an update": lambda: make_work(
        gate="frozen", optimizer={"name": "adam", "lr": 1e-3, "implementation": "fused", "accumulation": 2}
    ),
}  # fmt: skip
LARGE = {"convolutions", "a depthwise net", "a decoder", "a recurrent net", "pairs, a step in the backward pass"}


def seen(work: Work, device: str) -> list[Any]:
    """All that a prediction says of a work: its costs with the calls of operators, and live bytes after each."""
    moments: list[LiveMoment] = []
    trace = _predict(work, Toy(), device, moments).trace()
    return [to_data(trace), moments]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] if c in LARGE else []) for c in CASES])
def test_a_prediction_is_that_for_which_torch_is_always_asked(
    case: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = CASES[case]()
    answered = seen(work, device)
    assert seen(work, device) == answered
    with monkeypatch.context() as patch:
        patch.setattr(PredictionMode, "__torch_dispatch__", PredictionMode._corrected_outputs)
        assert seen(work, device) == answered


class Log(TorchDispatchMode):
    """What is known of the outputs of every operator, with the number of the storage that each lies in."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Any] = []
        self._storages: list[torch.UntypedStorage] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            self.lines.append((str(func), self._described(each) if isinstance(each, Tensor) else type(each)))
        return out

    def _described(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        known = [s._cdata for s in self._storages]
        if storage._cdata not in known:
            self._storages.append(storage)  # held, so that no other gets its address
            known.append(storage._cdata)
        attributes = {n: v for n, v in vars(tensor).items() if n not in ("fake_mode", "_is_param")}
        return (
            tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.storage_offset(), storage.nbytes(),
            known.index(storage._cdata), tensor.requires_grad, torch._C._dispatch_keys(tensor).raw_repr(), attributes,
        )  # fmt: skip


def steps() -> None:
    """Two steps of a net with views, splits, operators in place, mixed dtypes, lists and outputs without a tensor."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(2))
    attention, table = nn.MultiheadAttention(36, 4, batch_first=True), nn.Embedding(5, 36)
    parameters = [*net.parameters(), *attention.parameters(), *table.parameters()]
    chosen = torch.optim.AdamW(parameters, foreach=True)
    for _ in range(2):
        x = net(torch.randn(4, 3, 8, 8)) + table(torch.randint(0, 5, (4, 8)))
        first, second = attention(x, x, x, need_weights=False)[0].chunk(2, -1)
        y = torch.cat([first.transpose(1, 2), second.mT.to(torch.bfloat16).float()]).expand(2, -1, -1, -1)
        mean = y.square().mul_(2).sum((-1, -2))[:, :, None].as_strided((2, 4), (2, 1))
        loss = (
            F.cross_entropy(mean, torch.zeros(2, dtype=torch.int64)) + mean[mean.new_zeros(2, dtype=torch.int64)].std()
        )
        loss.backward()
        chosen.step()
        chosen.zero_grad()


def logged(mode: FakeTensorMode) -> list[Any]:
    with mode, Log() as log:  # type: ignore[no-untyped-call]
        steps()
    return log.lines


def test_outputs_are_torchs_own_and_torch_is_not_asked_for_them_again() -> None:
    expected = logged(FakeTensorMode())
    fake_tensors._answers.clear()
    for _ in range(3):  # torch makes them, gives what it kept, and isn't asked
        before = FakeTensorMode.cache_info().hits
        assert logged(PredictionMode()) == expected
        asked = FakeTensorMode.cache_info().hits - before
    assert len(expected) > 400 and asked < 20


def test_numbers_that_are_equal_but_of_other_types_are_other_arguments() -> None:
    mode = PredictionMode()
    with mode:
        x = torch.ones(3, dtype=torch.int64)
        for _ in range(3):
            assert [(x * factor).dtype for factor in (1, 1.0, True)] == [torch.int64, torch.float32, torch.int64]
            assert torch.full((2,), True).dtype == torch.bool and torch.full((2,), 1).dtype == torch.int64


def test_what_was_answered_in_one_mode_belongs_to_the_other() -> None:
    for _ in range(3):
        mode = PredictionMode()
        with mode:
            x: Any = torch.ones(3).exp()
            assert x.fake_mode is mode and x.view(3, 1).untyped_storage()._cdata == x.untyped_storage()._cdata


def test_a_value_that_is_known_stays_known() -> None:
    """torch keeps the value of a scalar that a number was made to, and computes with it."""
    with PredictionMode():
        for value in (2, 3, 2):
            assert torch.tensor(value).add(1).item() == value + 1


def test_answers_that_become_many_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_tensors, "MOST_ANSWERS", 10)
    with PredictionMode():
        for size in range(1, 40):
            for _ in range(3):
                torch.ones(size).exp()
    assert 0 < len(fake_tensors._answers) <= 10
    assert 0 < len(FakeTensorMode.cache) <= 20  # an operator that is computed from others adds theirs too


class Strides(TorchDispatchMode):
    """Name, shape and strides of every operator's first output."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        first = next((each for each in tree_leaves(out) if isinstance(each, Tensor)), None)
        if first is not None and str(func) != "prim.device.default":
            self.lines.append((str(func), first.shape, first.stride()))
        return out


def block_step(size: int, dtype: torch.dtype) -> list[Any]:
    """A step of ConvNeXt's block, channels last after its norm, under a residual connection and a second block."""
    with torch.device("cpu"):
        x = torch.ones(3, 8, size, size, dtype=dtype)
        blocks = [
            (nn.Conv2d(8, 8, 7, padding=3, groups=8, dtype=dtype), nn.LayerNorm(8, dtype=dtype),
             nn.Conv2d(8, 32, 1, dtype=dtype), nn.Conv2d(32, 8, 1, dtype=dtype), nn.Parameter(torch.ones(1, 8, 1, 1)))
            for _ in range(2)
        ]  # fmt: skip
    with Strides() as log:  # type: ignore[no-untyped-call]
        for depthwise, norm, wide, narrow, scale in blocks:
            inside = norm(depthwise(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            x = x + narrow(F.gelu(wide(inside))) * scale.to(dtype)
        x.backward(torch.ones_like(x))
    return [line for line in log.lines if line[0] != "aten.detach.default"]  # gradients of parameters


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 4])
def test_a_step_lies_in_memory_as_on_real_tensors(size: int, dtype: torch.dtype) -> None:
    """A convolution's scratch depends on the strides, those of dimensions of size 1 too."""
    with PredictionMode():
        predicted = block_step(size, dtype)
    assert predicted == block_step(size, dtype)


POINTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu, "silu": F.silu, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "relu": F.relu,
    "relu6": F.relu6, "tanh": torch.tanh, "leaky_relu": F.leaky_relu, "elu": F.elu, "mish": F.mish,
    "softplus": F.softplus, "square": torch.square, "power": lambda x: x**2, "dropout": F.dropout,
    "sum": lambda x: x + x, "a number more": lambda x: x + 1, "a number times": lambda x: 2 * x,
    "product": lambda x: x * x, "copy": lambda x: x.clone() * x, "by channel": lambda x: x * x[:1],
    "one more for all": lambda x: x + torch.ones(()), "where": lambda x: torch.where(x > x.exp(), x, x.sin()),
    "in another dtype": lambda x: x.to(torch.bfloat16) * 3,
}  # fmt: skip

LAYOUTS = [
    ((3, 8, 1, 1), (8, 1, 8, 8)), ((3, 8, 1, 1), (8, 1, 1, 1)), ((3, 1, 4, 4), (16, 1, 4, 1)),
    ((1, 8, 4, 4), (128, 1, 32, 8)), ((3, 8, 4, 1), (32, 1, 8, 8)), ((3, 8, 4, 4), (128, 16, 4, 1)),
]  # fmt: skip
"""Shapes and strides: channels last and row-major, of which the first three are both."""


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise_operators_lay_out_as_their_kernels(name: str) -> None:
    def seen_in(x: Tensor) -> list[Any]:
        with Strides() as log:  # type: ignore[no-untyped-call]
            y = POINTWISE[name](x.requires_grad_())
            y.backward(torch.ones_like(y))
        return log.lines

    for shape, strides in LAYOUTS:
        with PredictionMode():
            predicted = seen_in(torch.empty_strided(shape, strides))
        assert predicted == seen_in(torch.empty_strided(shape, strides).fill_(1))
