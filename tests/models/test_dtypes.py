"""Weights in half precisions: where they lie, how they are averaged, what they cost, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch.nn import functional as F

import edgefl
from edgefl import models, seeds
from edgefl.errors import ScenarioError
from edgefl.runs import read_run
from edgefl.scenario import load
from edgefl.setup.compose import compose, federation_of
from edgefl.work.description import Pass
from edgefl.work.sums import WeightedMeans

Make = Callable[..., dict[str, Any]]
IMAGES = {"source": "glyphs", "clients": {"image": 2}, "samples": 24, "validation": 20, "test": 20}
TEXTS = {"source": "names", "clients": {"text": 2}, "samples": 20, "validation": 20, "test": 20, "vocabulary": 200,
         "tasks": {"text": "next-token"}}  # fmt: skip
LLAMA = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}  # fmt: skip
VIT = {"blocks": 2, "width": 16, "heads": 2}


def llama(tiny: Make, given: str, adapter: Any = "none", **more: Any) -> dict[str, Any]:
    text = {"tower": "hf-causal", "config": {**LLAMA, **more}, "tokens": 8, **({"dtype": given} if given else {})}
    return tiny(data=TEXTS, model={"text": text}, adapter=adapter, training={"batch": 8, "measure": "all"})


def dtypes_of(scenario: dict[str, Any]) -> dict[str, torch.dtype]:
    setup = compose(load(scenario))
    return {name: value.dtype for name, value in setup.method.at_start(setup.seed).tensors.items()}


def test_bfloat16_training_is_a_loop_by_hand_whose_mean_is_taken_in_float32(tiny: Make, tmp_path: Path) -> None:
    image = {**VIT, "dtype": "bfloat16"}
    training = {"batch": 8, "optimizer": "sgd", "lr": 0.1, "measure": "all", "implementation": "foreach"}
    scenario = load(tiny(data=IMAGES, model={"image": image}, training=training))
    setup, federation = compose(scenario), federation_of(scenario, str)
    run = tmp_path / "run"
    edgefl.run(scenario, out=run, overrides=["executor.checkpoints=2"])
    module = models.build(setup.method.setting.kinds["image"].model)
    first = setup.method.at_start(setup.seed).tensors
    server = {name: first[f"image/{name}"] for name, _ in module.named_parameters()}
    assert {value.dtype for value in server.values()} == {torch.bfloat16}
    pass_ = Pass("classify", "private", ("image",), 8, True, {})
    counts = [int(n) for n in federation.client_samples]
    for round in (1, 2):
        total = {name: value.float() for name, value in server.items()}
        for client, samples in enumerate(counts):
            module.load_state_dict(server)
            key = seeds.key(seeds.key(setup.seed, "training", client, round), "shuffle", 0, 0)
            for _, batch in federation.client(client).batches(pass_, key):
                scores = module.classify("image", {"image": batch["image"].bfloat16()}, "zero")
                F.cross_entropy(scores.float(), batch["label"]).backward()
                with torch.no_grad():
                    for parameter in module.parameters():
                        assert parameter.grad is not None and parameter.grad.dtype == torch.bfloat16
                        parameter.copy_(parameter.float() - 0.1 * parameter.grad.float())
                        parameter.grad = None
            for name, value in module.named_parameters():
                total[name] += (value.detach().float() - server[name].float()) * (samples / sum(counts))
        server = {name: value.bfloat16() for name, value in total.items()}
    found = safetensors.torch.load_file(run / "weights.safetensors")
    for name, value in server.items():
        assert found[f"image/{name}"].dtype == torch.bfloat16
        torch.testing.assert_close(found[f"image/{name}"], value, rtol=2**-6, atol=2e-3)
    state = safetensors.torch.load_file(run / "checkpoints" / "round-000001" / "state.safetensors")
    assert {t.dtype for t in state.values() if t.is_floating_point()} == {torch.bfloat16}
    whole = sum(value.numel() * 2 for value in server.values())
    for row in map(json.loads, (run / "clients.jsonl").read_text().splitlines()):
        assert row["measured_peak_memory_bytes"] == pytest.approx(row["peak_memory_bytes"], abs=16)
        assert row["memory_bytes"]["parameters"] == whole == row["upload_bytes"]
    (sent,) = setup.method.client_work("image", 1, None).up
    stored = {item.name: server[item.name] for item in sent.items}
    assert sent.serialised_bytes == len(safetensors.torch.save(stored))
    exported = read_run(run).model("image")
    assert exported(torch.zeros(2, 1, 32, 32)).dtype == torch.bfloat16


def test_a_mean_of_many_small_changes_is_not_lost_to_rounding() -> None:
    from edgefl.work import Item, Payload

    payload = Payload("model", (Item("w", (3,), "bfloat16", "image/w"),))
    base, clients = {"image/w": torch.zeros(3, dtype=torch.bfloat16)}, 1000
    sums = WeightedMeans({"image/w": [None]}, {("image/w", None): float(clients)}, frozenset({"image/w"}))
    values = torch.rand(clients, 3, generator=torch.Generator().manual_seed(1)).bfloat16()
    for value in values:
        sums.add((payload,), {"model": {"w": value}}, base, 1.0, 1.0)
    torch.testing.assert_close(sums.means["image/w", None], values.float().mean(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("also", [None, ["embedding", "norm"]])
def test_an_adapter_trains_in_float32_over_a_half_precision_base(tiny: Make, tmp_path: Path, also: Any) -> None:
    scenario = llama(tiny, "bfloat16", {"name": "lora", "rank": 4, "also": also})
    own = () if also is None else ("text.embedding.embed_tokens.weight", "norm.weight")
    trained = ("lora_a", "lora_b", *own)
    found = dtypes_of(scenario)
    for name, dtype in found.items():
        of_adapter = name.endswith(trained) and ("lora" in name or "blocks" not in name)
        assert dtype == (torch.float32 if of_adapter else torch.bfloat16), name
    edgefl.run(scenario, out=tmp_path / "run")
    for row in map(json.loads, (tmp_path / "run" / "clients.jsonl").read_text().splitlines()):
        assert row["measured_peak_memory_bytes"] == pytest.approx(row["peak_memory_bytes"], abs=256)
    merged = read_run(tmp_path / "run").model("text")
    assert {value.dtype for value in merged.parameters()} == {torch.bfloat16}
    tokens = torch.randint(0, 200, (2, 8), generator=torch.Generator().manual_seed(1))
    kept = read_run(tmp_path / "run").model("text", merged=False)
    torch.testing.assert_close(merged(tokens).float(), kept(tokens).float(), rtol=0.1, atol=0.05)


def test_an_adapter_in_the_dtype_of_its_base_trains_in_it(tiny: Make, tmp_path: Path) -> None:
    scenario = llama(tiny, "bfloat16", {"name": "lora", "rank": 4, "dtype": "bfloat16"})
    found = dtypes_of(scenario)
    assert any("lora" in name for name in found) and {*found.values()} == {torch.bfloat16}
    edgefl.run(scenario, out=tmp_path / "run")
    factors = sum(value.numel() for name, value in read_run(tmp_path / "run").weights().items() if "lora" in name)
    for row in map(json.loads, (tmp_path / "run" / "clients.jsonl").read_text().splitlines()):
        assert row["upload_bytes"] == 2 * factors
        assert row["measured_peak_memory_bytes"] == pytest.approx(row["peak_memory_bytes"], abs=256)


@pytest.mark.slow(smaller="test_bfloat16_training_is_a_loop_by_hand_whose_mean_is_taken_in_float32")
@pytest.mark.parametrize("executor", ["processes", "ray"])
def test_a_run_in_workers_that_was_cut_off_has_the_bytes_of_one_that_was_not(
    tiny: Make, tmp_path: Path, executor: str
) -> None:
    pytest.importorskip("ray" if executor == "ray" else "edgefl")
    scenario = llama(tiny, "bfloat16", {"name": "lora", "rank": 4, "also": ["embedding"], "dtype": "float32"})
    whole = edgefl.run(scenario, out=tmp_path / "whole")

    def stop(event: str, facts: Mapping[str, Any]) -> None:
        if event == "record" and facts["round"] == 2:
            raise KeyboardInterrupt

    workers = {"executor": {"name": executor, "workers": 2, "device": "cpu"}}
    with pytest.raises(KeyboardInterrupt):
        edgefl.run({**scenario, **workers}, out=tmp_path / "cut", on_progress=stop)
    resumed = edgefl.run(resume=tmp_path / "cut")
    for name in ("rounds.jsonl", "clients.jsonl", "result.json", "weights.safetensors"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_lora_over_bfloat16_is_computed_as_peft_does(tiny: Make) -> None:
    setup = compose(load(llama(tiny, "bfloat16", {"name": "lora", "rank": 4, "parts": ["q_proj"]})))
    module = models.build(setup.method.setting.kinds["text"].model)
    layer = module.get_submodule("text.blocks.0.self_attn.q_proj")
    torch.nn.init.normal_(layer.lora_b)
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    change = x.float() @ layer.lora_a.T @ layer.lora_b.T * (16 / 4)
    expected = (F.linear(x, layer.weight, layer.bias) + change).bfloat16()
    torch.testing.assert_close(layer(x), expected)


def test_what_towers_share_follows_the_widest_unless_said(tiny: Make) -> None:
    data = {"source": "glyphs", "clients": {"image-text": 2}, "samples": 20, "validation": 20, "test": 20}
    model = {"image": {**VIT, "dtype": "bfloat16"}, "text": {**VIT, "tokens": 8}, "dimension": 8}
    for said, expected in (({}, torch.float32), ({"dtype": "bfloat16"}, torch.bfloat16)):
        found = dtypes_of(tiny(data=data, model={**model, **said}))
        for name, dtype in found.items():
            if ".rep." in name or "joint." in name:
                assert dtype == expected
            else:
                assert dtype == (torch.bfloat16 if "/image." in name else torch.float32)


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_a_configurations_dtype_is_taken_unless_the_scenario_says_another(tiny: Make, name: str) -> None:
    assert set(dtypes_of(llama(tiny, "", **{name: "bfloat16"})).values()) == {torch.bfloat16}
    assert set(dtypes_of(llama(tiny, "float32", **{name: "bfloat16"})).values()) == {torch.float32}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": {"image": {**VIT, "dtype": "float8"}}}, "'float32', 'bfloat16' or 'float16'"),
        ({"model": {"image": {**VIT, "dtype": "float16"}}}, "trains in float16"),
    ],
)
def test_what_cannot_train_is_refused_with_its_line(tiny: Make, tmp_path: Path, change: Any, told: str) -> None:
    import yaml

    file = tmp_path / "half.yaml"
    file.write_text(yaml.safe_dump({"edgefl": 1, **tiny(data=IMAGES, **change)}))
    with pytest.raises(ScenarioError, match=told) as refused:
        compose(load(file))
    assert "\n" not in str(refused.value)
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if "dtype" in text)
    assert f"half.yaml:{line}" in str(refused.value)


def test_a_configuration_of_an_unknown_dtype_is_refused(tiny: Make) -> None:
    with pytest.raises(ScenarioError, match="dtype 'float8_e4m3fn' isn't known here"):
        load(llama(tiny, "", torch_dtype="float8_e4m3fn"))


def test_an_optimizer_without_a_half_precision_is_refused(tiny: Make) -> None:
    class InFloat32(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            if any(p.dtype != torch.float32 for group in self.param_groups for p in group["params"]):
                raise RuntimeError("not implemented for 'BFloat16'")
            super().step(closure)

    edgefl.register("optimizer", "in-float32")(InFloat32)
    training = {"batch": 8, "optimizer": "in-float32"}
    with pytest.raises(ScenarioError, match="in-float32 .* has no step .* in bfloat16 on a CPU"):
        compose(load(tiny(data=IMAGES, model={"image": {**VIT, "dtype": "bfloat16"}}, training=training)))


def test_an_implementation_that_steps_wrongly_is_refused(tiny: Make) -> None:
    value = torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    value.grad = torch.ones_like(value)
    torch.optim.SGD([value], 0.25, fused=True).step()
    training = {"batch": 8, "optimizer": "sgd", "implementation": "fused"}
    scenario = load(tiny(data=IMAGES, model={"image": {**VIT, "dtype": "bfloat16"}}, training=training))
    if bool((value == 0.75).all()):
        compose(scenario)
    else:
        with pytest.raises(ScenarioError, match="sgd .fused. makes wrong steps in bfloat16 on a CPU"):
            compose(scenario)
