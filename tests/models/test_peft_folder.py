"""Adapters that edgefl writes are loaded by PEFT itself, and those that PEFT writes by edgefl, with equal outputs.

They train with the same losses and the same peak of the allocator.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from edgefl.errors import MethodError, ScenarioError
from edgefl.models import adapters, build, dtypes, load_weights, peft_folder, quantised
from edgefl.models.client import describe
from edgefl.models.libraries import library_names
from edgefl.models.options import ModelOptions
from edgefl.models.towers.vision import import_torchvision
from edgefl.models.weights import minilm_folder
from edgefl.work.meter.allocator_peak import AllocatorPeak

import_torchvision()

with warnings.catch_warnings(action="ignore"):  # it names its own deprecated parts
    import peft
import transformers  # noqa: E402

SIZE, VOCABULARY, TOKENS = 16, 40, 6
FACTS = {
    "image": {"channels": 3, "size": SIZE, "classes": 4},
    "text": {"vocabulary": VOCABULARY, "tokens": TOKENS, "classes": 4},
    "audio": {"bins": 16, "frames": 32, "classes": 4},
}
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
FIELDS = {"blocks": 2, "width": 16, "heads": 2}


def causal(kind: str, **more: Any) -> tuple[str, dict[str, Any]]:
    config = {"n_embd": 16, "n_layer": 2, "n_head": 2} if kind == "gpt2" else SMALL | {"num_key_value_heads": 2}
    return "text", {"tower": "hf-causal", "tokens": TOKENS, "config": {"model_type": kind, **config, **more}}


GPT2, LLAMA = causal("gpt2"), causal("llama", tie_word_embeddings=True)
BERT = ("text", {"tower": "bert", **FIELDS, "tokens": TOKENS})
VIT = ("image", {"tower": "hf-vit", **FIELDS, "patch": 8})
CASES: dict[str, tuple[tuple[str, dict[str, Any]], str, tuple[str, ...]]] = {
    "gpt2, whose layers are transposed": (GPT2, "next-token", ()),
    "llama, tied": (LLAMA, "next-token", ("embedding", "norm")),
    "llama, untied": (causal("llama", tie_word_embeddings=False), "next-token", ("head", "embedding")),
    "phi, whose scores have biases": (causal("phi"), "next-token", ("head", "norm")),
    "qwen2, with biases": (causal("qwen2"), "next-token", ("norm",)),
    "llama, names with one end": (LLAMA, "classify", ("head", "norm")),
    "bert, whose pooler has a name of a layer": (BERT, "classify", ("head", "embedding")),
    "vit": (VIT, "classify", ("head", "norm")),
}


def encoder(modality: str, kind: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return modality, {"tower": "hf", "tokens": TOKENS, "config": {"model_type": kind, **SMALL, **more}}


DINO = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8}
WHISPER = {"d_model": 24, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24}
FURTHER = {
    "mistral": causal("mistral"),
    "qwen3": causal("qwen3", head_dim=8),
    "gemma3_text": causal("gemma3_text", head_dim=8),
    "smollm3": causal("smollm3"),
    "lfm2": causal("lfm2", layer_types=["conv", "full_attention"]),
    "distilbert": ("text", {"tower": "distilbert", **FIELDS, "tokens": TOKENS}),
    "ast": ("audio", {"tower": "ast", **FIELDS}),
    **{
        name: encoder("text", name)
        for name in ("bert", "roberta", "mpnet", "modernbert", "siglip_text_model", "deberta-v2", "electra", "albert")
    },
    **{name: encoder("image", name, patch_size=8) for name in ("vit", "deit", "siglip_vision_model")},
    "dinov2": ("image", {"tower": "hf", "config": {**DINO, "model_type": "dinov2"}}),
    "whisper": ("audio", {"tower": "hf", "config": {"model_type": "whisper", **WHISPER}}),
}
"""Families whose names don't need a test in every run."""


def made(tower: tuple[str, dict[str, Any]], task: str, also: tuple[str, ...], name: str = "lora", **more: Any) -> Any:
    """A model whose values, with those of its factors, are all drawn anew."""
    modality, fields = tower
    described: Any = describe(ModelOptions.model_validate({modality: fields | more}), (modality,), task, FACTS)
    options = adapters.LoraOptions.model_validate({"name": name, "rank": 3, "alpha": 7.0, "also": also})
    described["adapter"] = adapters.description(options)
    dtypes.under_adapter(described, options, given=False)
    model = build(described).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) * 0.3)
    return model


def forward(model: Any, modality: str, x: Tensor) -> Tensor:
    """Scores of the vocabulary of a language model, else the last hidden state."""
    more = {"attention_mask": torch.ones_like(x)} if modality == "text" else {}
    given = {"text": "input_ids", "image": "pixel_values", "audio": "input_values"}[modality]
    if model.config.model_type == "whisper":
        given, x = "input_features", x.transpose(1, 2)
    with torch.no_grad():
        found = model(**{given: x}, **more)
    return found.logits if "logits" in found else found.last_hidden_state


def inputs(modality: str) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    if modality == "text":
        return torch.randint(0, VOCABULARY, (3, TOKENS), generator=generator)
    return torch.rand((3, 3, SIZE, SIZE) if modality == "image" else (3, 32, 16), generator=generator)


def own(model: Any, modality: str, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x) if model.gives == "next token" else model.tower(modality)(x)


@pytest.fixture
def quiet() -> Iterator[None]:
    """PEFT warns of tied weights, and of its own deprecated parts."""
    with warnings.catch_warnings(action="ignore"):
        yield


def library(folder: Path) -> Any:
    """The model of a folder, by the class that its configuration names."""
    from transformers.models.whisper import modeling_whisper

    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    made: Any = getattr(transformers, name, None) or getattr(modeling_whisper, name)
    return made.from_pretrained(folder).eval()


@pytest.mark.slow(smaller="test_peft_gives_the_same_outputs")
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", FURTHER)
def test_peft_gives_the_same_outputs_of_further_families(name: str, tmp_path: Path) -> None:
    tower, task = FURTHER[name], "next-token" if FURTHER[name][1]["tower"] == "hf-causal" else "classify"
    model, modality = made(tower, task, ("head",)), tower[0]
    peft_folder.write_adapter(model, modality, tmp_path, None)
    loaded = peft.PeftModel.from_pretrained(library(tmp_path / "base"), tmp_path).eval()
    x = inputs(modality)
    torch.testing.assert_close(forward(loaded, modality, x), own(model, modality, x), atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("case", CASES)
def test_peft_gives_the_same_outputs(case: str, tmp_path: Path) -> None:
    tower, task, also = CASES[case]
    model, modality = made(tower, task, also), tower[0]
    peft_folder.write_adapter(model, modality, tmp_path, None)
    if not also:  # nothing is in the file beside the factors
        assert peft_folder.adapter_bytes(model, modality) == (tmp_path / peft_folder.FACTORS).stat().st_size
    loaded = peft.PeftModel.from_pretrained(library(tmp_path / "base"), tmp_path).eval()
    x = inputs(modality)
    torch.testing.assert_close(forward(loaded, modality, x), own(model, modality, x), atol=1e-5, rtol=1e-5)
    with loaded.disable_adapter():  # the base alone gives others
        assert not torch.allclose(forward(loaded, modality, x), own(model, modality, x), atol=1e-2)

    again = made(tower, task, also)
    with torch.no_grad():
        for name, value in again.named_parameters():
            if adapters.trains(model.description["adapter"], name):
                value.zero_()
    loaded_names = peft_folder.load(again, again.description, modality, str(tmp_path))
    assert loaded_names >= {n for n in model.state_dict() if adapters.trains(model.description["adapter"], n)}
    for name, value in again.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("tower", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_dora_has_the_outputs_and_gradients_of_peft_and_comes_back(tower: Any, tmp_path: Path) -> None:
    model = made(tower, "next-token", (), "dora").train()
    peft_folder.write_adapter(model, "text", tmp_path, None)
    assert peft_folder.adapter_bytes(model, "text") == (tmp_path / peft_folder.FACTORS).stat().st_size
    loaded = peft.PeftModel.from_pretrained(library(tmp_path / "base"), tmp_path, is_trainable=True)
    x = inputs("text")
    model.eval()
    scores, expected = model(x), loaded(input_ids=x).logits
    torch.testing.assert_close(scores, expected, atol=1e-6, rtol=1e-6)
    for each in (scores, expected):
        each.logsumexp(-1).mean().backward()
    theirs = {name: p.grad for name, p in loaded.named_parameters() if p.requires_grad}
    names = library_names(model, "text", model.description["towers"]["text"])
    own = {name: p.grad for name, p in model.named_parameters() if ".lora_" in name}
    ends = {"lora_a": "lora_A.default.weight", "lora_b": "lora_B.default.weight",
            "lora_m": "lora_magnitude_vector.default.weight"}  # fmt: skip
    assert len(own) == len(theirs)
    for name, gradient in own.items():
        layer, _, last = name.rpartition(".")
        prefix = "base_model.model." + ("transformer." if tower is GPT2 else "model.")
        spelled = f"{prefix}{names[f'{layer}.weight'].removesuffix('weight')}{ends[last]}"
        torch.testing.assert_close(gradient, theirs[spelled], atol=1e-6, rtol=1e-5)

    again = made(tower, "next-token", (), "dora")
    with torch.no_grad():
        for name, value in again.named_parameters():
            if ".lora_" in name:
                value.zero_()
    peft_folder.load(again, again.description, "text", str(tmp_path))
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.state_dict().items())
    with pytest.raises(MethodError, match="its use_dora is True: set adapter.name: dora"):
        peft_folder.load(
            made(tower, "next-token", ()), made(tower, "next-token", ()).description, "text", str(tmp_path)
        )
    merged = adapters.merge(model, model.description["adapter"])
    plain = build(adapters.without(model.description)).eval()
    plain.load_state_dict(merged)
    torch.testing.assert_close(plain(x), scores, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("quiet")
def test_a_base_in_bfloat16_stays_one(tmp_path: Path) -> None:
    model = made(GPT2, "next-token", (), dtype="bfloat16")
    peft_folder.write_adapter(model, "text", tmp_path, None)
    loaded = peft.PeftModel.from_pretrained(library(tmp_path / "base"), tmp_path).eval()
    found = forward(loaded, "text", inputs("text"))
    assert found.dtype == torch.bfloat16 and torch.equal(found, own(model, "text", inputs("text")))
    kinds = {name.split(".")[-3]: value.dtype for name, value in loaded.named_parameters() if "lora" in name}
    assert kinds == {"lora_A": torch.float32, "lora_B": torch.float32}


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("to", ["nf4", "int8"])
def test_a_quantised_base_leaves_with_the_values_that_it_computes_with(to: str, tmp_path: Path) -> None:
    plain = made(LLAMA, "next-token", ())
    described: Any = {**plain.description, "quantize": {"text": {"to": to, "blocks": [0, 1]}}}
    quantised.quantise(plain, described)
    x = inputs("text")
    ours = own(plain, "text", x)
    quantised.restore(plain)
    peft_folder.write_adapter(plain, "text", tmp_path, None)
    loaded = peft.PeftModel.from_pretrained(library(tmp_path / "base"), tmp_path).eval()
    torch.testing.assert_close(forward(loaded, "text", x), ours, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(own(made(LLAMA, "next-token", ()), "text", x), ours, atol=1e-3)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("stabilised", [False, True])
def test_an_adapter_of_peft_gives_the_same_outputs(tmp_path: Path, stabilised: bool) -> None:
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, **SMALL, num_key_value_heads=2, tie_word_embeddings=True)
    torch.manual_seed(5)
    base = transformers.LlamaForCausalLM(config).eval()
    base.save_pretrained(tmp_path / "base")
    chosen = peft.LoraConfig(
        r=4, lora_alpha=6, use_rslora=stabilised, target_modules=["q_proj", "v_proj"], lora_dropout=0.1,
        init_lora_weights=False, modules_to_save=["model.norm"], task_type="CAUSAL_LM",
    )  # fmt: skip
    theirs = peft.get_peft_model(base, chosen).eval()
    with torch.no_grad():
        for name, value in theirs.named_parameters():
            if "modules_to_save" in name:
                value.add_(0.5)
    theirs.save_pretrained(tmp_path / "adapter")

    described: Any = describe(ModelOptions.model_validate({"text": LLAMA[1]}), ("text",), "next-token", FACTS)
    fields = {"rank": 4, "alpha": 12.0 if stabilised else 6.0, "parts": ["q_proj", "v_proj"], "also": ["norm"]}
    described["adapter"] = adapters.description(adapters.LoraOptions.model_validate({"name": "lora", **fields}))
    model: Any = build(described).eval()
    load_weights(model, described, {"text": str(tmp_path / "base")})
    peft_folder.load(model, described, "text", str(tmp_path / "adapter"))
    x = inputs("text")
    torch.testing.assert_close(own(model, "text", x), forward(theirs, "text", x), atol=1e-5, rtol=1e-5)


def two_steps(module: nn.Module, x: Tensor, y: Tensor, half: bool) -> float:
    """The loss after two passes whose gradients are added, each under autocast if ``half``."""
    loss = torch.zeros(())
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            loss = nn.functional.cross_entropy(module(x).mean(1).float(), y)
        loss.backward()
    return loss.item()


@pytest.mark.parametrize("name", ["lora", "dora"])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_takes_the_memory_of_pefts_and_has_its_losses(dtype: torch.dtype, half: bool, name: str) -> None:
    torch.manual_seed(0)
    blocks = [[nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)] for _ in range(4)]
    base = nn.Sequential(*(layer for block in blocks for layer in block), nn.Linear(64, 10)).to(dtype)
    linear = [name for name, layer in base.named_children() if isinstance(layer, nn.Linear)][:-1]
    x, y = torch.randn(8, 32, 64).to(dtype), torch.randint(0, 10, (8,))

    ours = copy.deepcopy(base).requires_grad_(False)
    adapters.attach(ours, {"name": name, "rank": 8, "scale": 2.0, "parts": linear, "also": []})
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=linear, lora_dropout=0.0, use_dora=name == "dora")
    theirs = peft.get_peft_model(copy.deepcopy(base), config, autocast_adapter_dtype=False)
    with torch.no_grad():
        for layer in linear:
            mine, other = ours.get_submodule(layer), theirs.base_model.model.get_submodule(layer)
            mine.lora_b.normal_(std=0.02)
            if name == "dora":
                assert torch.equal(mine.lora_m, other.lora_magnitude_vector["default"].weight)  # at the start
            other.lora_A["default"].weight.copy_(mine.lora_a)
            other.lora_B["default"].weight.copy_(mine.lora_b)

    found = []
    for module in (ours, theirs):
        two_steps(module, x, y, half)  # what is allocated once in a process isn't of a step
        module.zero_grad()
        with AllocatorPeak(torch.device("cpu"), list(module.parameters())) as peak:
            loss = two_steps(module, x, y, half)
        found.append((loss, peak.bytes))
    assert found[0] == found[1]


def test_what_a_task_adds_starts_too_where_it_fits(tmp_path: Path) -> None:
    model = made(VIT, "classify", ("head",))
    peft_folder.write_adapter(model, "image", tmp_path, None)
    described = {**model.description, "towers": {"image": {**model.description["towers"]["image"], "classes": 5}}}
    other: Any = build(described)
    before = other.image.head.weight.clone()
    peft_folder.load(other, described, "image", str(tmp_path))
    assert torch.equal(other.image.head.weight, before)  # of other classes
    factors = {name: value for name, value in model.image.blocks.named_parameters() if "lora_b" in name}
    loaded = dict(other.image.blocks.named_parameters())
    assert factors and all(torch.equal(loaded[name], value) for name, value in factors.items())


def test_a_run_starts_from_a_folder(tiny: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    import edgefl
    from edgefl.scenario import load
    from edgefl.setup.compose import compose

    def scenario(**adapter: Any) -> dict[str, Any]:
        found = tiny(model={"image": VIT[1]}, adapter={"name": "lora", "rank": 3, "also": ["norm"], **adapter})
        return {**found, "data": {**found["data"], "clients": {"image": 2}}}

    method = compose(load(scenario()), lambda message: None).method
    model: Any = build(method.setting.kinds["image"].model)
    with torch.no_grad():
        for value in model.parameters():
            value.normal_(generator=torch.Generator().manual_seed(1))
    peft_folder.write_adapter(model, "image", tmp_path, None)
    method = compose(load(scenario(weights=str(tmp_path))), lambda message: None).method
    state, values = method.initial(5).tensors, model.state_dict()
    equal = {name for name, value in values.items() if torch.equal(state[f"image/{name}"], value)}
    assert equal == {name for name in values if name.startswith(("image.norm.", "image.head.")) or ".lora_" in name}
    message = "adapter.weights: weights .*: its rank is 3: set adapter.rank, which is 2"
    with pytest.raises(ScenarioError, match=message):
        edgefl.run(scenario(weights=str(tmp_path), rank=2), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


WHOLE = "PEFT can't keep {} whole, because {}: train it without, by adapter.also"


@pytest.mark.parametrize(
    ("tower", "also", "message"),
    [
        (VIT, ("embedding",), WHOLE.format("embeddings", "it holds other layers")),
        (BERT, ("text.blocks.1",), WHOLE.format("encoder.layer.1.attention.output.dense", "it has factors")),
    ],
)
def test_what_peft_cannot_hold_is_refused(
    tower: tuple[str, dict[str, Any]], also: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(MethodError, match=f"^{message}$"):
        peft_folder.write_adapter(made(tower, "classify", also), tower[0], tmp_path, None)


def test_the_base_is_named_where_a_folder_has_all_of_it(tmp_path: Path) -> None:
    model = made(LLAMA, "next-token", ())
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    peft_folder.write_adapter(model, "text", tmp_path / "first", None)
    base = str(tmp_path / "first" / "base")
    peft_folder.write_adapter(model, "text", tmp_path / "second", base)
    config = json.loads((tmp_path / "second" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == base and not (tmp_path / "second" / "base").exists()
    shallow = made(causal("llama", tie_word_embeddings=True, num_hidden_layers=1), "next-token", ())
    peft_folder.write_adapter(shallow, "text", tmp_path / "second", base)  # of the folder's base one block alone
    assert (tmp_path / "second" / "base").exists()


@pytest.mark.slow(smaller="test_the_base_is_named_where_a_folder_has_all_of_it")
@pytest.mark.usefixtures("quiet")
def test_minilm_is_the_base_that_its_repository_names(tmp_path: Path) -> None:
    tower = {"tower": "bert", "read": "mean", "tokens": TOKENS}
    facts = {"text": {**FACTS["text"], "vocabulary": 30_522}}
    described: Any = describe(ModelOptions.model_validate({"text": tower}), ("text",), "classify", facts)
    described["adapter"] = adapters.description(adapters.LoraOptions.model_validate({"name": "lora", "rank": 4}))
    model: Any = build(described).eval()
    load_weights(model, described, {"text": "minilm"})
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("lora_b"):
                value.normal_(std=0.05, generator=torch.Generator().manual_seed(1))
    peft_folder.write_adapter(model, "text", tmp_path, "minilm")
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert not (tmp_path / "base").exists()
    loaded = peft.PeftModel.from_pretrained(transformers.AutoModel.from_pretrained(minilm_folder()), tmp_path).eval()
    x = inputs("text")
    torch.testing.assert_close(forward(loaded, "text", x), own(model, "text", x), atol=1e-5, rtol=1e-5)


Edit = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c.update(peft_type="IA3"), "its peft_type is 'IA3', and only LORA is known here"),
        (lambda c: c.update(r=4), "its rank is 4: set adapter.rank, which is 3"),
        (lambda c: c.update(lora_alpha=8), "it takes adapter.alpha: 8, which is 7"),
        (lambda c: c.update(lora_alpha="x"), "its lora_alpha is no number of this kind: 'x'"),
        (lambda c: c.update(lora_alpha=10**400), "its lora_alpha is no number of this kind: 10+"),
        (lambda c: c.update(use_dora=True), "its use_dora is True: set adapter.name: dora"),
        (lambda c: c.update(rank_pattern={"q": 2}), r"its rank_pattern: {'q': 2} is no part of LoRA here"),
        (lambda c: c.update(bias="all"), "its bias: 'all' is no part of LoRA here"),
        (lambda c: c.update(init_lora_weights="pissa"), "its init_lora_weights: 'pissa' is no part of LoRA here"),
        (lambda c: c.update(of_another_version=[1]), r"its of_another_version: \[1\] is no part of LoRA here"),
    ],
)
def test_another_adapter_is_refused(edit: Edit, message: str, tmp_path: Path) -> None:
    model = made(LLAMA, "next-token", ())
    peft_folder.write_adapter(model, "text", tmp_path, None)
    file = tmp_path / "adapter_config.json"
    config = json.loads(file.read_text())
    edit(config)
    file.write_text(json.dumps(config))
    with pytest.raises(MethodError, match=f": {message}$"):
        peft_folder.read_peft_folder(model, model.description, "text", str(tmp_path))


@pytest.mark.parametrize(
    ("tower", "task", "also", "message"),
    [
        (causal("llama", hidden_size=20), "next-token", (), "it is of another base"),
        (causal("llama", num_hidden_layers=3), "next-token", (), r"it lacks layers.2.mlp.down_proj.lora_A.weight "),
        (causal("llama", num_hidden_layers=1), "next-token", (), r"it has layers.1.mlp.down_proj.lora_A.weight "),
        (GPT2, "next-token", (), r"it has model.layers.0.mlp.down_proj.lora_A.weight \(and 27 more\), which is no"),
        (("text", {"tower": "transformer", **FIELDS, "tokens": TOKENS}), "classify", (), "is no model of transformers"),
    ],
)  # fmt: skip
def test_an_adapter_of_another_base_is_refused(
    tower: tuple[str, dict[str, Any]], task: str, also: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    peft_folder.write_adapter(made(LLAMA, "next-token", ()), "text", tmp_path, None)
    other = made(tower, task, also)
    with pytest.raises(MethodError, match=message):
        peft_folder.read_peft_folder(other, other.description, "text", str(tmp_path))


def test_an_embedding_apart_from_the_scores_that_read_it_is_refused(tmp_path: Path) -> None:
    model = made(LLAMA, "next-token", ("embedding",))
    peft_folder.write_adapter(model, "text", tmp_path, None)
    from safetensors.torch import load_file, save_file

    tensors = load_file(tmp_path / "adapter_model.safetensors")
    del tensors["base_model.model.lm_head.weight"]
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    with pytest.raises(MethodError, match="its embed_tokens.weight isn't its lm_head.weight, and is here"):
        peft_folder.read_peft_folder(model, model.description, "text", str(tmp_path))


@pytest.mark.parametrize("content", [b"[1]", b"{", b"[" * 100_000, b"\xff"])
def test_files_that_hold_something_else_are_refused(content: bytes, tmp_path: Path) -> None:
    model = made(LLAMA, "next-token", ())
    peft_folder.write_adapter(model, "text", tmp_path, None)
    for name in ("read_out.safetensors", "adapter_model.safetensors", "adapter_config.json"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(MethodError, match=f"{name} (isn't JSON|is no file)|peft_type is None"):
            peft_folder.read_peft_folder(model, model.description, "text", str(tmp_path))
