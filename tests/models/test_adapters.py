"""Adapters: rounds by hand, bytes in closed form, what is delivered once, merged models, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

import edgefl
from edgefl import models, seeds
from edgefl.errors import EdgeflError, ScenarioError
from edgefl.models import adapters
from edgefl.scenario import load
from edgefl.setup.compose import compose

Tiny = Callable[..., dict[str, Any]]
IMAGES = {"source": "glyphs", "clients": {"image": 3}, "samples": 40, "size": 16, "validation": 40, "test": 40}
LORA = {"name": "lora", "rank": 4, "alpha": 8, "parts": ["attn.qkv", "mlp.fc1"]}
SGD = {"optimizer": "sgd", "lr": 0.1, "batch": 8}
WIDTH, BLOCKS, CLASSES = 16, 2, 12
FACTORS = BLOCKS * 4 * ((WIDTH + 3 * WIDTH) + (WIDTH + 4 * WIDTH))
"""LoRA's parameters by hand: rank (in + out) of each layer, qkv and fc1 of each block."""
ROWS = BLOCKS * (3 * WIDTH + 4 * WIDTH)
"""DoRA's lengths by hand: one of each output."""
HEAD = (WIDTH + 1) * CLASSES


def adapted(tiny: Tiny, **more: Any) -> dict[str, Any]:
    return tiny(**{"data": IMAGES, "adapter": LORA, "training": SGD, **more})


def weights_by_hand(state: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """The weights W + scale B A of a model's plain layers; with DoRA in its lengths, their own are constants."""
    merged = {name: value for name, value in state.items() if "lora" not in name}
    for name in state:
        if name.endswith(".lora_a"):
            layer = name.removesuffix(".lora_a")
            moved = merged[f"{layer}.weight"] + scale * state[f"{layer}.lora_b"] @ state[name]
            if (length := state.get(f"{layer}.lora_m")) is not None:
                moved = length[:, None] * moved / moved.detach().square().sum(1, keepdim=True).sqrt()
            merged[f"{layer}.weight"] = moved
    return merged


@pytest.mark.parametrize("name", ["lora", "dora", "bitfit"])
def test_rounds_are_those_of_a_loop_by_hand(tiny: Tiny, tmp_path: Path, name: str) -> None:
    scenario = adapted(tiny, adapter="bitfit" if name == "bitfit" else {**LORA, "name": name})
    run = edgefl.run(scenario, out=tmp_path / "run")
    setup = compose(load(scenario))
    described = setup.method.setting.kinds["image"].model
    plain = models.build({key: value for key, value in described.items() if key != "adapter"})
    state = {a.removeprefix("image/"): t.clone() for a, t in setup.method.initial(setup.seed).tensors.items()}
    trained = [n for n in state if (n.endswith("bias") if name == "bitfit" else "lora" in n) or ".head." in f".{n}"]
    for round in (1, 2):
        changes, total = {n: torch.zeros_like(state[n]) for n in trained}, 0
        for client in range(3):
            own = {n: state[n].clone().requires_grad_(n in trained) for n in state}
            source: Any = setup.clients.client(client)
            work = setup.method.client_work("image", round).limit_batches(source.size)
            seed = seeds.key(setup.seed, "training", client, round)
            for _, batch in source.batches(work.passes[0], seeds.key(seed, "shuffle", 0, 0)):
                scores = _logits(plain, weights_by_hand(own, 2.0), batch["image"])
                gradients = torch.autograd.grad(F.cross_entropy(scores, batch["label"]), [own[n] for n in trained])
                for n, gradient in zip(trained, gradients, strict=True):
                    own[n].data -= 0.1 * gradient
            samples = int(setup.clients.client_samples[client])
            total += samples
            for n in trained:
                changes[n] += samples * (own[n].detach() - state[n])
        for n in trained:
            state[n] = state[n] + changes[n] / total
    found = {a.removeprefix("image/"): t for a, t in run.weights().items()}
    for n, value in state.items():
        if n in trained:
            assert torch.allclose(found[n], value, atol=2e-5), n
        else:
            assert torch.equal(found[n], value), n
    assert any(not torch.allclose(found[n], t, atol=1e-4) for n, t in first_of(setup).items() if n in trained)


def first_of(setup: Any) -> dict[str, Tensor]:
    return {a.removeprefix("image/"): t for a, t in setup.method.initial(setup.seed).tensors.items()}


def _logits(plain: torch.nn.Module, weights: Mapping[str, Tensor], images: Tensor) -> Tensor:
    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = plain

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.model.logits("image", x)  # type: ignore[operator]
            return scores

    named = {f"model.{n}": value for n, value in weights.items()}
    scores: Tensor = functional_call(Logits(), named, (images,))
    return scores


def test_bytes_are_the_adapters_and_the_head_s(tiny: Tiny) -> None:
    rows = {
        adapter: edgefl.profile(adapted(tiny, adapter=given))["rows"][0]
        for adapter, given in (("lora", LORA), ("dora", {**LORA, "name": "dora"}), ("none", "none"))
    }
    assert rows["dora"]["upload_bytes"] == rows["dora"]["download_bytes"] == 4 * (FACTORS + ROWS + HEAD)
    assert rows["lora"]["upload_bytes"] == rows["lora"]["download_bytes"] == 4 * (FACTORS + HEAD)
    assert rows["none"]["upload_bytes"] > 4 * rows["lora"]["upload_bytes"]
    assert rows["lora"]["memory_bytes"]["gradients"] < rows["none"]["memory_bytes"]["gradients"]


@pytest.mark.slow(smaller="test_bytes_are_the_adapters_and_the_head_s")
def test_qwen_has_the_published_number_of_trained_parameters() -> None:
    """Rank 8 on q_proj and v_proj of Qwen2.5-0.5B: 24 layers of 8 (896 + 896) + 8 (896 + 128)."""
    sets = ["adapter={name: lora, rank: 8, parts: [q_proj, v_proj]}"]
    (row,) = edgefl.profile("finetune/qwen2.5-0.5b", overrides=sets)["rows"]
    assert row["upload_bytes"] == row["download_bytes"] == 4 * 540_672 == 4 * 24 * 8 * (896 + 896 + 896 + 128)


@pytest.mark.parametrize("deliver", ["preinstalled", "first"])
def test_the_base_is_sent_once_at_most(tiny: Tiny, tmp_path: Path, deliver: str) -> None:
    scenario = adapted(tiny, adapter={**LORA, "deliver_base": deliver}, schedule={"name": "end-to-end", "rounds": 3})
    run = edgefl.run(scenario, out=tmp_path / "run")
    module: Any = run.model("image", merged=False)
    whole = sum(t.nbytes for t in module.state_dict().values())
    own = 4 * (FACTORS + HEAD)
    down = {(row["round"], row["client"]): row["download_bytes"] for row in run.records("clients")}
    for (round, _), sent in down.items():
        assert sent == (whole if deliver == "first" and round == 1 else own)


DORA = pytest.param("layerwise", "dora", marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("schedule", "name"), [("layerwise", "lora"), ("progressive", "lora"), ("elastic", "lora"), DORA]
)
def test_every_schedule_trains_the_factors_of_its_blocks(tiny: Tiny, tmp_path: Path, schedule: str, name: str) -> None:
    scenario = adapted(tiny, schedule={"name": schedule, "rounds": 2}, adapter={**LORA, "name": name})
    run = edgefl.run(scenario, out=tmp_path / "run")
    rows = run.records("clients")
    errors = [row["memory_error"] for row in rows if row.get("memory_error") is not None]
    assert errors and max(map(abs, errors)) < 1e-3
    last = {row["upload_bytes"] for row in rows if row["round"] == 2}
    own = FACTORS + (ROWS if name == "dora" else 0)
    one = own // BLOCKS if schedule == "layerwise" else own
    assert last == {4 * (one + HEAD)}


@pytest.mark.slow(smaller="test_peft_gives_the_same_outputs")
def test_a_merged_model_is_the_library_s_own(tiny: Tiny, tmp_path: Path) -> None:
    """GPT-2, whose linear layers are stored the other way round, and Llama, in transformers' own classes."""
    from edgefl.models.towers.vision import import_torchvision

    import_torchvision()
    from transformers import AutoConfig, AutoModelForCausalLM

    data = {"source": "names", "clients": {"text": 3}, "tasks": {"text": "next-token"}, "vocabulary": 100}
    configs: dict[str, dict[str, Any]] = {
        "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2},
        "llama": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2},
    }
    for name, config in configs.items():
        config |= {"model_type": name, "tie_word_embeddings": True}
        scenario = tiny(
            data=data | {"samples": 40},
            model={"text": {"tower": "hf-causal", "config": config, "tokens": 12}},
            adapter={"name": "lora", "rank": 4},
            training={"optimizer": "sgd", "lr": 0.5, "batch": 8},
        )
        run = edgefl.run(scenario, out=tmp_path / name)
        merged: Any = run.model("text")
        unmerged: Any = run.model("text", merged=False)
        assert not any("lora" in n for n, _ in merged.named_parameters())
        table = merged.text.embedding
        vocabulary = (table.wte if name == "gpt2" else table.embed_tokens).num_embeddings
        given = {"bos_token_id": None, "eos_token_id": None, **config, "vocab_size": vocabulary}
        library: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**given)).eval()
        spelled = {"embedding.wte": "wte", "embedding.wpe": "wpe", "blocks": "h", "norm": "ln_f"}
        if name == "llama":
            spelled = {"embedding.embed_tokens": "embed_tokens", "blocks": "layers", "norm": "norm"}
        state = {}
        for parameter, value in merged.state_dict().items():
            part = parameter.removeprefix("text.")
            ours = max((s for s in spelled if part.startswith(f"{s}.")), key=len)
            state[f"{library.base_model_prefix}.{spelled[ours]}{part.removeprefix(ours)}"] = value
        loaded = library.load_state_dict(state, strict=False)
        assert not loaded.unexpected_keys and loaded.missing_keys in ([], ["lm_head.weight"])
        library.tie_weights()
        x = torch.randint(0, vocabulary, (2, 12), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            assert torch.equal(library(x).logits, merged.next_tokens("text", x))
            assert torch.allclose(merged.next_tokens("text", x), unmerged.next_tokens("text", x), atol=1e-5)
            before: Any = models.build(adapters.without(run.models["text"]))
            first = {a.removeprefix("text/"): t for a, t in compose(load(scenario)).method.initial(3).tensors.items()}
            before.load_state_dict({n: t for n, t in first.items() if "lora" not in n})
            assert not torch.allclose(before.next_tokens("text", x), merged.next_tokens("text", x), atol=1e-4)


def test_pretrained_weights_load_beside_an_adapter(tiny: Tiny, tmp_path: Path) -> None:
    plain = edgefl.run(tiny(data=IMAGES), out=tmp_path / "plain")
    own = {n.removeprefix("image."): t.contiguous() for n, t in plain.model("image").state_dict().items()}
    save_file(own, tmp_path / "start.safetensors")
    tower = {"blocks": 2, "width": 16, "heads": 2, "weights": str(tmp_path / "start.safetensors")}
    setup = compose(load(adapted(tiny, model={"image": tower})))
    state = first_of(setup)
    assert torch.equal(state["image.blocks.0.attn.qkv.weight"], own["blocks.0.attn.qkv.weight"])
    assert not state["image.blocks.0.attn.qkv.lora_b"].any() and state["image.blocks.0.attn.qkv.lora_a"].any()
    dora = first_of(compose(load(adapted(tiny, model={"image": tower}, adapter={**LORA, "name": "dora"}))))
    lengths = own["blocks.0.attn.qkv.weight"].square().sum(1).sqrt()
    torch.testing.assert_close(dora["image.blocks.0.attn.qkv.lora_m"], lengths)


def test_a_fixed_head_is_never_sent(tiny: Tiny, tmp_path: Path) -> None:
    """FedBABU's head doesn't train, and clients have its first values."""
    run = edgefl.run(tiny(data=IMAGES, method="fedbabu"), out=tmp_path / "run")
    whole = sum(t.nbytes for t in run.model("image").state_dict().values())
    assert {row["download_bytes"] for row in run.records("clients")} == {whole - 4 * HEAD}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"adapter": {**LORA, "parts": ["attn.qvk"]}}, "name ends with 'attn.qvk'; did you mean 'attn.qkv'"),
        ({"adapter": {**LORA, "rank": 17}}, "rank 17 is above the smaller side of image.blocks.0.attn.qkv"),
        ({"adapter": {**LORA, "also": ["heed"]}}, "also: no model has a part 'heed'; the parts are image.blocks"),
        ({"adapter": {"name": "lorra"}}, "did you mean 'lora'"),
        ({"schedule": {"name": "heterofl", "rounds": 2}}, "a model with an adapter can't be narrowed"),
        ({"schedule": {"name": "flexlora", "ranks": [4, 2]}, "adapter": {**LORA, "name": "dora"}},
         "flexlora offers ranks of LoRA's factors: set adapter: {name: lora}"),
        ({"model": {"image": {"blocks": 2, "width": 16, "heads": 2, "quantize": "nf4"}},
          "adapter": {**LORA, "name": "dora"}}, "dora reads the lengths of whole weights: leave quantize out, or take"),
    ],
)  # fmt: skip
def test_what_can_not_be_adapted_is_refused(tiny: Tiny, more: dict[str, Any], says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        edgefl.profile(adapted(tiny, **more))


def test_fedcola_s_complementary_training_is_refused(tiny: Tiny) -> None:
    with pytest.raises(EdgeflError, match="trains whole layers, and an adapter leaves them as they are"):
        edgefl.validate(tiny(adapter=LORA, method="fedcola"))
    edgefl.validate(tiny(adapter=LORA, method={"name": "fedcola", "complementary": "none"}))


def test_the_scale_is_the_server_s_at_every_rank() -> None:
    told = adapters.description(adapters.LoraOptions(name="lora", rank=6, alpha=9.0))
    assert adapters.scale(told) == adapters.scale({**told, "rank": 2}) == 1.5


@pytest.mark.slow(smaller="test_rounds_are_those_of_a_loop_by_hand")
def test_an_adapter_is_in_the_run_s_description(tiny: Tiny, tmp_path: Path) -> None:
    run = edgefl.run(adapted(tiny), out=tmp_path / "run")
    adapter = json.loads((tmp_path / "run/models.json").read_text())["image"]["adapter"]
    assert adapter["rank"] == 4 and adapter["scale"] == 8 / 4
    again = edgefl.run(
        adapted(tiny, executor={"name": "processes", "workers": 2, "device": "cpu"}), out=tmp_path / "two"
    )
    assert all(torch.equal(t, again.weights()[a]) for a, t in run.weights().items())
