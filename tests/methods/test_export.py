"""A method whose clients train low-rank adapters: what travels, and the merged model that a finished run gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgefl
from edgefl import registry
from edgefl.errors import MethodError
from edgefl.methods import Method, ServerState
from edgefl.registry.registered import PARTS
from edgefl.work import Edit, Item, Payload, Work

Tiny = Callable[..., dict[str, Any]]
RANK = 2


class LoraLinear(nn.Linear):
    lora_a: nn.Parameter
    lora_b: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + F.linear(F.linear(x, self.lora_a), self.lora_b)


class LoraEdit:
    """``args.layers`` get A [RANK, in] and B [out, RANK]."""

    @staticmethod
    def names(edit: Edit) -> set[str]:
        return {f"{layer}.{part}" for layer in edit.args["layers"] for part in ("lora_a", "lora_b")}

    @staticmethod
    def restrict(edit: Edit, active: Callable[[str], bool], received: set[str]) -> Edit | None:
        layers = [layer for layer in edit.args["layers"] if f"{layer}.lora_a" in received]
        return Edit(edit.name, {"layers": layers}) if layers else None

    @staticmethod
    def apply(edit: Edit, module: nn.Module, received: Mapping[str, Tensor]) -> None:
        for name in edit.args["layers"]:
            layer = module.get_submodule(name)
            layer.lora_a = nn.Parameter(received[f"{name}.lora_a"].clone())
            layer.lora_b = nn.Parameter(received[f"{name}.lora_b"].clone())
            layer.__class__ = LoraLinear

    @staticmethod
    def upload(edit: Edit, module: nn.Module) -> Mapping[str, Tensor]:
        return {name: module.get_parameter(name) for name in LoraEdit.names(edit)}

    @staticmethod
    def fold(edit: Edit, module: nn.Module) -> None:
        for name in edit.args["layers"]:
            layer = module.get_submodule(name)
            del layer.lora_a, layer.lora_b
            layer.__class__ = nn.Linear


class Lora(Method):
    """FedAvg of adapters; the base and the head stay as they were."""

    def layers(self, kind: str) -> list[str]:
        names = self.setting.kinds[kind].parameters()
        return [name.removesuffix(".weight") for name in names if name.endswith("attn.qkv.weight")]

    def adapters(self, kind: str) -> Payload:
        items = []
        for layer in self.layers(kind):
            out, inside = self.setting.kinds[kind].parameters()[f"{layer}.weight"].shape
            for part, shape in (("lora_a", (RANK, inside)), ("lora_b", (out, RANK))):
                name = f"{layer}.{part}"
                items.append(Item(name, shape, "float32", f"lora-{kind}/{name}"))
        return Payload("adapters", tuple(items))

    def initial(self, seed: int) -> ServerState:
        state, generator = super().initial(seed), torch.Generator().manual_seed(seed)
        items = [item for kind in self.setting.kinds for item in self.adapters(kind).items]
        values = {
            i.source: torch.zeros(i.shape) if i.name.endswith("b") else torch.randn(i.shape, generator=generator) / 4
            for i in items
        }
        return ServerState.from_tensors({**state.tensors, **values})

    def work(self, kind: str, round: int) -> Work:
        work, adapters, edit = (
            super().work(kind, round),
            self.adapters(kind),
            Edit("lora", {"layers": self.layers(kind)}),
        )
        return replace(work, trainable=adapters.names, down=(*work.down, adapters), up=(adapters,), edits=(edit,))

    def evaluate(self, kind: str, split: str) -> Work:
        work = super().evaluate(kind, split)
        edit = Edit("lora", {"layers": self.layers(kind)})
        return replace(work, down=(*work.down, self.adapters(kind)), edits=(edit,))

    def export(self, state: ServerState, kind: str) -> Mapping[str, Tensor]:
        return {
            f"{layer}.weight": state.tensors[f"{kind}/{layer}.weight"]
            + state.tensors[f"lora-{kind}/{layer}.lora_b"] @ state.tensors[f"lora-{kind}/{layer}.lora_a"]
            for layer in self.layers(kind)
        }


@pytest.fixture
def scenario(tiny: Tiny) -> Iterator[dict[str, Any]]:
    edgefl.register("edit", "lora")(LoraEdit)
    edgefl.register("method", "adapted")(Lora)
    data = {"source": "glyphs", "clients": {"image": 3}, "samples": 24, "validation": 48, "test": 48}
    yield tiny(
        data=data,
        model={"image": {"blocks": 2, "width": 16, "heads": 2}},
        method={"name": "adapted"},
        schedule={"name": "end-to-end", "rounds": 3},
        training={"batch": 8, "epochs": 2, "optimizer": "adam", "lr": 0.02},
        evaluation={"best": "image.accuracy"},
    )
    PARTS.clear()
    registry.forget()


@pytest.mark.slow(smaller="test_only_the_adapters_travel_up")
def test_a_finished_run_gives_the_model_with_its_adapters_merged(scenario: dict[str, Any], tmp_path: Path) -> None:
    run = edgefl.run(scenario, out=tmp_path / "run")
    weights, model = run.weights(), run.model("image")
    layer = "image.blocks.0.attn.qkv"
    a, b = (weights[f"lora-image/{layer}.lora_{part}"] for part in "ab")
    assert b.abs().max() > 1e-3  # it has learnt
    merged = model.get_parameter(f"{layer}.weight")
    torch.testing.assert_close(merged, weights[f"image/{layer}.weight"] + b @ a)
    PARTS.clear()
    registry.forget()
    again = edgefl.read_run(tmp_path / "run")  # without the plug-in
    assert torch.equal(again.model("image").get_parameter(f"{layer}.weight"), merged)
    best = again.weights("best")
    expected = best[f"image/{layer}.weight"] + best[f"lora-image/{layer}.lora_b"] @ best[f"lora-image/{layer}.lora_a"]
    torch.testing.assert_close(again.model("image", "best").get_parameter(f"{layer}.weight"), expected)


def test_only_the_adapters_travel_up(scenario: dict[str, Any]) -> None:
    (row,) = edgefl.profile(scenario)["rows"]
    width, blocks = 16, 2
    assert row["upload_bytes"] == blocks * 4 * (RANK * width + 3 * width * RANK)


@pytest.mark.slow(smaller="test_every_schedule_trains_the_factors_of_its_blocks")
def test_a_stage_cuts_adapters_as_their_layers(scenario: dict[str, Any], tmp_path: Path) -> None:
    """By their names alone: the block that trains sends its adapters, and those of the other one stay as they are."""
    scenario["schedule"] = {"name": "layerwise", "stages": 2, "rounds": 4}
    run = edgefl.run(scenario, out=tmp_path / "run")
    width = 16
    assert {c["upload_bytes"] for c in run.records("clients")} == {4 * (RANK * width + 3 * width * RANK)}
    weights, model = run.weights(), run.model("image")
    for block in range(2):
        layer = f"image.blocks.{block}.attn.qkv"
        a, b = (weights[f"lora-image/{layer}.lora_{part}"] for part in "ab")
        assert b.abs().max() > 1e-3
        torch.testing.assert_close(model.get_parameter(f"{layer}.weight"), weights[f"image/{layer}.weight"] + b @ a)


def test_a_wrong_export_is_refused(scenario: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lora, "export", lambda self, state, kind: {"image.blocks.0.attn.qkv.weight": torch.zeros(3)})
    with pytest.raises(MethodError, match=r"export\('image'\) gives 'image.blocks.0.attn.qkv.weight' of shape \(3,\)"):
        edgefl.run(scenario, out=tmp_path / "run")
