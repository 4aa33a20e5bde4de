"""Frozen layers in 4 and 8 bits: their values and gradients, what they cost, how they travel, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor
from torch.nn import functional as F

import edgefl
from edgefl import models
from edgefl.errors import MethodError, ScenarioError
from edgefl.models import quantised
from edgefl.models.peft_folder import adapter_bytes, write_adapter
from edgefl.runs import read_run
from edgefl.scenario import load
from edgefl.setup.compose import compose

Make = Callable[..., dict[str, Any]]
TEXTS = {"source": "names", "clients": {"text": 2}, "samples": 20, "validation": 20, "test": 20, "vocabulary": 200,
         "tasks": {"text": "next-token"}}  # fmt: skip
LLAMA = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "resid_pdrop": 0.0, "attn_pdrop": 0.0,
        "embd_pdrop": 0.0}  # fmt: skip
IMAGES = {"source": "glyphs", "clients": {"image": 2}, "samples": 24, "validation": 20, "test": 20}
VIT = {"blocks": 2, "width": 16, "heads": 2}
LORA = {"name": "lora", "rank": 4}
KINDS = ["nf4", "nf4-double", "int8"]
CODES = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
         -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
         0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]  # fmt: skip
"""NF4's values as QLoRA's paper prints them (Dettmers et al. 2023, appendix E)."""


def llama(tiny: Make, to: str | None, adapter: Any = LORA, dtype: str = "float32", **more: Any) -> dict[str, Any]:
    text = {"tower": "hf-causal", "config": LLAMA, "tokens": 8, "dtype": dtype, **({"quantize": to} if to else {})}
    sections = {"data": TEXTS, "model": {"text": text}, "adapter": adapter, "training": {"batch": 8, "measure": "all"}}
    return tiny(**{**sections, **more})


def first_values(scenario: dict[str, Any]) -> dict[str, Tensor]:
    setup = compose(load(scenario))
    return dict(setup.method.at_start(setup.seed).tensors)


def layer_of(weight: Tensor, to: Any) -> Any:
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
    quantised._quantise(layer, to)
    return layer


def by_hand(weight: Tensor, block: int) -> np.ndarray[Any, Any]:
    """NF4 one block after the other: each weight becomes the nearest of the 16 values times the largest magnitude."""
    flat, codes = weight.numpy().reshape(-1).astype(np.float64), np.array(CODES)
    out = np.zeros_like(flat)
    for start in range(0, len(flat), block):
        values = flat[start : start + block]
        largest = np.abs(values).max()
        for i, value in enumerate(values):
            out[start + i] = codes[np.abs(value / largest - codes).argmin()] * largest
    return out.reshape(weight.shape)


@pytest.mark.parametrize("shape", [(96, 128), (10, 30), (7, 9), (3, 6)])
def test_nf4_is_the_papers_values_block_by_block(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    found = layer_of(weight, "nf4").dequantise(torch.float32)
    np.testing.assert_allclose(found.numpy(), by_hand(weight, 64), rtol=1e-6)
    levels = found.reshape(-1)[:64] / found.reshape(-1)[:64].abs().max()
    assert {round(value, 6) for value in levels.tolist()} <= {round(value, 6) for value in CODES}


def test_double_quantisation_holds_the_magnitudes_in_8_bits() -> None:
    weight = torch.randn(300, 128, generator=torch.Generator().manual_seed(1))
    plain, double = layer_of(weight, "nf4"), layer_of(weight, "nf4-double")
    assert torch.equal(plain.weight_packed, double.weight_packed)
    bits = {
        layer: 8 * sum(p.numel() * p.element_size() for n, p in layer.named_parameters() if n != "bias")
        / weight.numel() for layer in (plain, double)
    }  # fmt: skip
    assert bits[plain] == pytest.approx(4 + 32 / 64)
    # 8 bits for each block of weights, 32 for 256 blocks, and a mean
    assert bits[double] == pytest.approx(4 + 8 / 64 + 32 * (-(-600 // 256) + 1) / weight.numel())
    largest = weight.reshape(-1, 64).abs().amax(1)
    packed = double.dequantise(torch.float32).reshape(-1, 64).abs().amax(1)
    assert 0 < float((packed / largest - 1).abs().max()) < 0.02


def test_int8_is_rounded_by_row() -> None:
    weight = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    rows = weight.numpy().astype(np.float64)
    largest = np.abs(rows).max(1, keepdims=True)
    expected = np.round(rows * 127 / largest) * largest / 127
    np.testing.assert_allclose(layer_of(weight, "int8").dequantise(torch.float32).numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("to", KINDS)
@pytest.mark.parametrize("tower", ["llama", "gpt2"])
def test_gradients_are_those_of_dense_layers_with_the_dequantised_weights(tiny: Make, to: str, tower: str) -> None:
    scenario = llama(tiny, to)
    scenario["model"]["text"]["config"] = GPT2 if tower == "gpt2" else LLAMA
    description = compose(load(scenario)).method.setting.kinds["text"].model
    module = models.build(description)
    dense = models.build(quantised.without(description))
    held = [name for name, layer in module.named_modules() if isinstance(layer, quantised.Quantised)]
    assert len(held) == (8 if tower == "gpt2" else 14)
    with torch.no_grad():
        for name, parameter in dense.named_parameters():
            own = module.get_submodule(name.rpartition(".")[0])
            if name.endswith("lora_b"):
                torch.nn.init.normal_(own.lora_b, std=0.1)
            parameter.copy_(getattr(own, name.rpartition(".")[2]))
    tokens = torch.randint(0, 200, (2, 8), generator=torch.Generator().manual_seed(1))
    for each in (module, dense):
        for name, parameter in each.named_parameters():
            parameter.requires_grad_(name.endswith(("lora_a", "lora_b")))
        F.cross_entropy(each(tokens).flatten(0, 1), tokens.flatten()).backward()
    expected = {n: p.grad for n, p in dense.named_parameters() if p.grad is not None}
    found = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys() and len(found) == 2 * len(held)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("to", "dtype", "more"),
    [
        ("nf4", "float32", {}),
        pytest.param("nf4-double", "bfloat16", {}, marks=pytest.mark.slow),
        ("int8", "bfloat16", {}),
        ("nf4", "float32", {"training": {"batch": 8, "measure": "all", "checkpointing": True}}),
        pytest.param(
            "nf4",
            "float32",
            {"training": {"batch": 8, "measure": "all", "precision": "bfloat16"}},
            marks=pytest.mark.slow,
        ),
        ("int8", "float32", {"adapter": "bitfit"}),
        ("nf4", "bfloat16", {"adapter": "none", "schedule": {"name": "frozen-prefix", "blocks": 1, "rounds": 2}}),
    ],
)
def test_a_run_takes_the_memory_that_was_predicted(
    tiny: Make, tmp_path: Path, to: str, dtype: str, more: dict[str, Any]
) -> None:
    scenario = llama(tiny, to, dtype=dtype, **more)
    if more.get("adapter") == "bitfit":
        scenario["model"]["text"]["config"] = GPT2
    edgefl.run(scenario, out=tmp_path / "run", overrides=["executor.checkpoints=2"])
    start = first_values(scenario)
    held = {name for name in start if quantised.is_part(name)}
    assert held
    rows = list(map(json.loads, (tmp_path / "run" / "clients.jsonl").read_text().splitlines()))
    for row in rows:
        assert row["measured_peak_memory_bytes"] == pytest.approx(row["peak_memory_bytes"], abs=256)
        assert row["memory_bytes"]["parameters"] == sum(t.numel() * t.element_size() for t in start.values())
    stored = safetensors.torch.load_file(tmp_path / "run" / "weights.safetensors")
    assert all(torch.equal(stored[name], start[name]) for name in held)  # nobody trains them, nobody averages them
    assert not all(torch.equal(stored[name], start[name]) for name in start)
    whole = read_run(tmp_path / "run").model("text")
    assert {value.dtype for value in whole.parameters()} == {getattr(torch, dtype)}
    kept = read_run(tmp_path / "run").model("text", merged=False)
    tokens = torch.randint(0, 200, (2, 8), generator=torch.Generator().manual_seed(1))
    near = {"rtol": 1e-3, "atol": 1e-4} if dtype == "float32" else {"rtol": 0.1, "atol": 0.05}
    torch.testing.assert_close(whole(tokens).float(), kept(tokens).float(), **near)
    for model in (whole, kept):  # as another process gets it
        make, given = model.__reduce__()
        assert torch.equal(make(*given)(tokens), model(tokens))


def test_flops_are_those_of_the_dense_model_and_the_base_travels_once_as_it_is_packed(
    tiny: Make, tmp_path: Path
) -> None:
    adapter = {**LORA, "deliver_base": "first"}
    found = {}
    for to in (None, "nf4"):
        edgefl.run(llama(tiny, to, adapter), out=tmp_path / str(to))
        found[to] = list(map(json.loads, (tmp_path / str(to) / "clients.jsonl").read_text().splitlines()))
    for dense, row in zip(found[None], found["nf4"], strict=True):
        assert row["forward_flops"] == dense["forward_flops"] and row["backward_flops"] == dense["backward_flops"]
        assert row["fvcore_macs"] == dense["fvcore_macs"] and row["upload_bytes"] == dense["upload_bytes"]
    setup = compose(load(llama(tiny, "nf4", adapter)))
    start = setup.method.at_start(setup.seed).tensors
    sizes = {name: t.numel() * t.element_size() for name, t in start.items()}
    weights = sum(2 * (32 * 32 + 16 * 32) + 3 * 32 * 64 for _ in range(2))
    assert sum(size for n, size in sizes.items() if quantised.is_part(n)) == weights // 2 + 4 * weights // 64
    trained = sum(sizes[n] for n in sizes if "lora" in n)
    first, later = (next(r for r in found["nf4"] if r["round"] == n)["download_bytes"] for n in (1, 2))
    assert (first, later) == (sum(sizes.values()), trained)
    (sent,) = setup.method.client_work("text", 1, None).down
    stored = {item.name: start[item.source] for item in sent.items}
    assert sent.serialised_bytes == len(safetensors.torch.save(stored))


def test_an_adapter_leaves_for_peft_with_the_dequantised_base(tiny: Make, tmp_path: Path) -> None:
    module: Any = models.build(compose(load(llama(tiny, "nf4"))).method.setting.kinds["text"].model)
    write_adapter(module, "text", tmp_path / "adapter", None)
    base = safetensors.torch.load_file(tmp_path / "adapter" / "base" / "model.safetensors")
    for name, layer in module.named_modules():
        if isinstance(layer, quantised.Quantised):
            there = name.replace("text.blocks.", "model.layers.")
            assert torch.equal(base[f"{there}.weight"], layer.weight)
    factors = safetensors.torch.load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert len(factors) == 2 * 14 and not (tmp_path / "adapter" / "read_out.safetensors").exists()
    assert adapter_bytes(module, "text") == (tmp_path / "adapter" / "adapter_model.safetensors").stat().st_size
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], len(config["target_modules"])) == ("base", 7)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"adapter": "none"}, "quantised weights that should train, of text.blocks.0, text.blocks.1: add an adapter"),
        (
            {"adapter": "none", "schedule": {"name": "layerwise", "stages": 2, "rounds": 2}},
            "quantised weights that should train, of text.blocks.0, text.blocks.1",
        ),
        ({"adapter": {**LORA, "also": ["text.blocks.1"]}}, "that should train, of text.blocks.1: leave them out of"),
        ({"training": {"batch": 8, "precision": "float64"}}, "compute in 32 or 16 bits"),
        ({"model": {"text": {"tower": "gru", "quantize": "nf4"}}, "adapter": {"name": "bitfit"},
          "data": {**TEXTS, "tasks": {}}}, "a gru has no linear layers"),
        ({"model": {"image": {"tower": "resnet", "quantize": "int8"}}, "adapter": {"name": "bitfit"}, "data": IMAGES},
         "a resnet has no linear layers"),
        ({"model": {"image": {**VIT, "quantize": "nf3"}}, "data": IMAGES}, "'nf4', 'nf4-double' or 'int8'"),
    ],
)  # fmt: skip
def test_what_cannot_be_quantised_is_refused_with_its_line(
    tiny: Make, tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    import yaml

    file = tmp_path / "packed.yaml"
    file.write_text(yaml.safe_dump({"edgefl": 1, **llama(tiny, "nf4", **change)}))
    with pytest.raises(ScenarioError, match=told) as refused:
        compose(load(file))
    assert "\n" not in str(refused.value)
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if "quantize" in text)
    assert f"packed.yaml:{line}" in str(refused.value)


def test_without_the_package_it_is_told_how_to_install_it(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    description = compose(load(llama(tiny, None))).method.setting.kinds["text"].model
    module = models.on_meta(description)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "site-packages" not in p])
    monkeypatch.setattr(sys, "modules", {n: m for n, m in sys.modules.items() if n.partition(".")[0] != "bitsandbytes"})
    with pytest.raises(MethodError, match=r"pip install bitsandbytes \(or, .*'.\[quant\]'\)"):
        quantised.describe(description, module, {"text": "nf4"}, lambda name: False)


def test_a_scenario_that_quantises_nothing_is_what_it_was(tiny: Make) -> None:
    assert load(llama(tiny, None)).to_data()["model"]["text"]["quantize"] is None
    (plain,) = compose(load(llama(tiny, None))).method.setting.kinds.values()
    assert "quantize" not in json.dumps(plain.model)
    again = load(llama(tiny, "nf4")).to_data()
    assert again["model"]["text"]["quantize"] == "nf4" and load(again).to_data() == again
