"""Programs of ExecuTorch are loaded by its runtime and held against torch, sizes and steps that are written by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgefl
from edgefl import registry
from edgefl.commands.export.answer import TrainingProgram
from edgefl.errors import EdgeflError, MethodError, RunError, ScenarioError, UnknownName
from edgefl.registry.registered import PARTS

there = find_spec("executorch") is not None
executorch = pytest.mark.skipif(not there, reason="the extra executorch isn't installed")
# torchao, which it imports, registers types in ways that torch no longer likes
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

WIDTH, SIZE, CLASSES, BATCH = 6, 8, 3, 4


class _Convolved(nn.Module):
    """One convolution, of which something is made, and its mean."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, WIDTH, 3, stride=2, padding=1)
        self.width = WIDTH

    def forward(self, image: Tensor) -> Tensor:
        return self.change(self.conv(image)).mean((2, 3))

    def change(self, x: Tensor) -> Tensor:
        return x.relu()


class _Pooled(_Convolved):
    def change(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, 3, 2, 1)


class _Dropped(_Convolved):
    def change(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.1, self.training)


class _Unknown(_Convolved):
    def change(self, x: Tensor) -> Tensor:
        return torch.special.erfcx(x)


class _Normalised(_Convolved):
    def __init__(self, channels: int):
        super().__init__(channels)
        self.norm = nn.BatchNorm2d(WIDTH)

    def change(self, x: Tensor) -> Tensor:
        return self.norm(x)


class _Spare(_Convolved):
    def __init__(self, channels: int):
        super().__init__(channels)
        self.spare = nn.Linear(5, 7)


class _Layers(nn.Module):
    """Linear layers, of which a schedule may freeze the first."""

    blocks = "layers"

    def __init__(self, size: int, deep: int = 2, hidden: int = 40):
        super().__init__()
        self.stem = nn.Linear(size * size, hidden)
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(deep))
        self.width = hidden

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image.flatten(1))
        for layer in self.layers:
            x = layer(x).relu()
        return x


@pytest.fixture(scope="module")
def step_of() -> Iterator[Callable[..., dict[str, Any]]]:
    """A function that makes a scenario of one kind with a tower of this module, or of edgefl."""
    for made in (_Convolved, _Pooled, _Dropped, _Unknown, _Normalised, _Spare, _Layers):
        edgefl.register("tower", f"executorch{made.__name__}".lower())(made)

    def make(tower: str | Mapping[str, Any], **sections: Any) -> dict[str, Any]:
        shape = {"channels": 1, "size": SIZE, "classes": CLASSES}
        scenario = {
            "name": "step",
            "data": {"source": "declared", "clients": {"image": 1}, "samples": 8, "shapes": {"image": shape}},
            "model": {"image": {"tower": f"executorch{tower}"} if isinstance(tower, str) else tower},
            "schedule": {"name": "end-to-end", "rounds": 1},
            "training": {"batch": BATCH},
        }
        return {**scenario, **sections}

    yield make
    PARTS.clear()
    registry.forget()


Made = Callable[..., dict[str, Any]]


def export(scenario: Mapping[str, Any], folder: Path, **options: Any) -> list[TrainingProgram]:
    answer = edgefl.export(scenario, "executorch", folder, **options)
    assert answer.files == [row.file for row in answer.programs] and not answer.runs
    return list(answer.programs)


@executorch
def test_gradients_in_its_runtime_are_those_of_a_step_written_by_hand(step_of: Made, tmp_path: Path) -> None:
    (row,) = export(step_of("_convolved"), tmp_path)
    assert Path(row.file).name == "image-stage-1.pte" and row.gradient_difference < 1e-5
    from executorch.extension.training import _load_for_executorch_for_training

    loaded = _load_for_executorch_for_training(row.file)
    image, label = torch.randn(BATCH, 1, SIZE, SIZE), torch.tensor([0, 1, 2, 1])
    (loss,) = loaded.forward_backward("forward", (image, label))
    own = {name: value.clone().requires_grad_() for name, value in loaded.named_parameters().items()}
    prefix = "model.image."
    x = F.conv2d(image, own[f"{prefix}conv.weight"], own[f"{prefix}conv.bias"], stride=2, padding=1)
    scores = x.clamp_min(0).mean((2, 3)) @ own[f"{prefix}head.weight"].T + own[f"{prefix}head.bias"]
    expected = -(scores - scores.logsumexp(1, keepdim=True))[range(BATCH), label].mean()
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    assert set(loaded.named_gradients()) == set(own)
    for name, gradient in loaded.named_gradients().items():
        torch.testing.assert_close(gradient, own[name].grad, rtol=1e-5, atol=1e-7)


@executorch
def test_a_program_begins_with_the_parameters_that_a_run_begins_with(step_of: Made, tmp_path: Path) -> None:
    scenario = step_of("_convolved", seed=5)
    (row,) = export(scenario, tmp_path / "programs")
    from executorch.extension.training import _load_for_executorch_for_training

    from edgefl.setup.compose import compose, scenario_of

    first = compose(scenario_of(scenario)).method.initial(5).tensors
    loaded = _load_for_executorch_for_training(row.file)
    loaded.forward_backward("forward", (torch.zeros(BATCH, 1, SIZE, SIZE), torch.zeros(BATCH, dtype=torch.int64)))
    held = loaded.named_parameters()  # which it knows after a step only
    assert len(held) == 4
    for name, value in held.items():
        assert torch.equal(value, first[f"image/{name.removeprefix('model.')}"])


@executorch
def test_the_arena_of_a_wide_layer_is_torchs_memory_and_a_transposed_copy(step_of: Made, tmp_path: Path) -> None:
    (row,) = export(step_of({"tower": "executorch_layers", "deep": 1, "hidden": 400}), tmp_path)
    stem, layer, head = 64 * 400 + 400, 400 * 400 + 400, 400 * CLASSES + CLASSES
    torchs = 4 * (2 * (stem + layer + head) + BATCH * (SIZE * SIZE + 3 * 400))
    assert row.constant_bytes == 0
    assert row.peak_memory_bytes == pytest.approx(torchs, rel=0.02)
    # torch's transposed weight is a view; the copy is there before the gradient of the stem is
    assert row.arena_bytes == pytest.approx(torchs + 4 * (400 * 400 - 64 * 400), rel=0.01)


@executorch
def test_parameters_without_a_gradient_are_left_out(step_of: Made, tmp_path: Path) -> None:
    (plain,) = export(step_of("_convolved"), tmp_path / "plain")
    (row,) = export(step_of("_spare"), tmp_path / "spare")
    assert (row.arena_bytes, row.constant_bytes) == (plain.arena_bytes, plain.constant_bytes)
    assert row.peak_memory_bytes == plain.peak_memory_bytes + 4 * (5 * 7 + 7)


@executorch
def test_frozen_parameters_are_constants_beside_the_arena(step_of: Made, tmp_path: Path) -> None:
    scenario = step_of("_layers", schedule={"name": "layerwise", "stages": 2, "rounds": 2})
    (row,) = export(scenario, tmp_path, stage=2)
    assert Path(row.file).name == "image-stage-2.pte"
    assert row.constant_bytes == 4 * (64 * 40 + 40 + 40 * 40 + 40)


@executorch
@pytest.mark.parametrize(
    ("tower", "said"),
    [
        (
            "_pooled",
            r"the gradient of image\.conv\.\w+ differs from torch's by .*; a kernel is wrong",
        ),
        ("_dropped", r"two runtimes draw different masks \(aten\..*dropout.*\); set the model's dropout to 0"),
        ("_unknown", "erfcx"),
    ],
)
def test_a_step_that_its_runtime_runs_otherwise_is_refused(
    step_of: Made, tmp_path: Path, tower: str, said: str
) -> None:
    with pytest.raises(MethodError, match=f"^image at stage 1 can't be a program of ExecuTorch: .*{said}"):
        export(step_of(tower), tmp_path / "out")
    assert not (tmp_path / "out").exists()


VIT = {"tower": "vit", "blocks": 1, "width": 8, "heads": 2, "patch": 4}


@pytest.mark.parametrize(
    ("tower", "sections", "said"),
    [
        ("_normalised", {}, r"no kernel of BatchNorm that trains \(image\.norm\); freeze it or use GroupNorm"),
        (VIT, {"training": {"batch": 4, "precision": "bfloat16"}}, "set training.precision: float32"),
        (VIT, {"training": {"batch": 4, "checkpointing": True}}, "set training.checkpointing: false"),
        (VIT, {"training": {"batch": 4, "private": {"clip": 1.0}}}, "set training.private: null"),
        ({**VIT, "blocks": 2}, {"schedule": {"name": "frozen-prefix", "blocks": 1, "rounds": 1}}, "activations that"),
        (VIT, {"method": {"name": "fedprox", "mu": 0.1}}, "more than a model and a batch; take fedavg"),
    ],
)
def test_a_step_that_can_be_no_program_is_refused_without_executorch(
    step_of: Made, tmp_path: Path, tower: str | Mapping[str, Any], sections: dict[str, Any], said: str
) -> None:
    with pytest.raises(MethodError, match=f"^image at stage 1 can't be a program of ExecuTorch: .*{said}"):
        export(step_of(tower, **sections), tmp_path)


@pytest.mark.parametrize(
    ("sections", "options", "kind", "said"),
    [
        (
            {"method": "mezo", "training": {"batch": 4, "optimizer": "mezo"}},
            {},
            MethodError,
            "image at stage 1 trains nothing by a backward pass",
        ),
        ({}, {"kind": "imago"}, UnknownName, "unknown client kind 'imago'.*image"),
        ({}, {"stage": 2}, ScenarioError, "there is no stage 2: the schedule has stage 1 only"),
        ({}, {"overrides": ["training.batsh=2"]}, EdgeflError, "batch"),
    ],
)
def test_what_a_scenario_lacks_is_said(
    step_of: Made, tmp_path: Path, sections: dict[str, Any], options: dict[str, Any], kind: type[EdgeflError], said: str
) -> None:
    with pytest.raises(kind, match=said):
        export(step_of(VIT, **sections), tmp_path, **options)


@pytest.mark.skipif(there, reason="executorch is installed")
def test_executorch_missing_is_said_with_the_command(step_of: Made, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"1\.5\.1 is needed, and none is .*: pip install executorch==1\.5\.1 .*orch\]"):
        export(step_of(VIT), tmp_path)


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("1.4.0", "1.5.1 is needed, and 1.4.0 is installed: pip install"),
        ("1.5.1", "can't be loaded beside torch 2.*_Z9"),
    ],
)
def test_another_executorch_is_said(
    step_of: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, said: str
) -> None:
    """A package of that version whose compiled part lacks a symbol, as one for another torch does."""
    for file, text in {
        f"executorch-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: executorch\nVersion: {version}\n",
        "executorch/__init__.py": "",
        "executorch/extension/__init__.py": "",
        "executorch/extension/training.py": "raise ImportError('training.so: undefined symbol: _Z9')\n",
    }.items():
        (tmp_path / "site" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / file).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "site")
    for name in [name for name in sys.modules if name.partition(".")[0] == "executorch"]:
        monkeypatch.delitem(sys.modules, name)
    try:
        with pytest.raises(RunError, match=said):
            export(step_of(VIT), tmp_path / "out")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "executorch"]:
            del sys.modules[name]


def test_options_go_with_the_forms_that_they_are_for(step_of: Made, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="a scenario has no folder of its own: .*--out DIR"):
        edgefl.export(step_of(VIT), "executorch")
    for given, options in ((step_of(VIT), {}), (tmp_path, {"kind": "image"}), (tmp_path, {"stage": 1})):
        with pytest.raises(RunError, match="csv takes the folder of a run alone"):
            edgefl.export(given, "csv", tmp_path / "out", **options)
