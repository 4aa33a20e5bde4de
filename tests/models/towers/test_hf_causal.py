"""Decoders of transformers: the library's scores, published numbers of parameters, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pydantic import ValidationError

from edgefl import models
from edgefl.errors import MethodError
from edgefl.models.libraries import library_names
from edgefl.models.towers.hf_causal import CausalOptions
from edgefl.models.towers.vision import import_torchvision

import_torchvision()
import transformers  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2},
    "llama": {"model_type": "llama", **SMALL, "num_key_value_heads": 2, "rope_scaling": ROPE},
    "qwen2": {"model_type": "qwen2", **SMALL, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", **SMALL, "num_key_value_heads": 2, "head_dim": 8},
    "mistral": {"model_type": "mistral", **SMALL, "num_key_value_heads": 2, "sliding_window": 8},
    "phi": {"model_type": "phi", **SMALL, "partial_rotary_factor": 0.5, "embd_pdrop": 0.1},
    "phi3": {"model_type": "phi3", **SMALL, "num_key_value_heads": 2, "max_position_embeddings": 64,
             "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
             "original_max_position_embeddings": 16},
    "gemma3_text": {"model_type": "gemma3_text", **SMALL, "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 8,
                    "query_pre_attn_scalar": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "gemma2": {"model_type": "gemma2", **SMALL, "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 8},
    "smollm3": {"model_type": "smollm3", **SMALL, "num_key_value_heads": 2, "no_rope_layers": [1, 0]},
    "olmo2": {"model_type": "olmo2", **SMALL},
    "lfm2": {"model_type": "lfm2", **SMALL, "num_key_value_heads": 2, "layer_types": ["conv", "full_attention"]},
    "opt": {"model_type": "opt", "hidden_size": 32, "word_embed_proj_dim": 16, "ffn_dim": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4},
    "cohere": {"model_type": "cohere", **SMALL, "logit_scale": 0.5},
}  # fmt: skip
if transformers.__version__ < "5.5":  # its strict configurations refuse their own defaults
    del CONFIGS["olmo2"]
VOCABULARY = 50


def described(config: Any, vocabulary: int = VOCABULARY, **more: Any) -> dict[str, Any]:
    options = CausalOptions(config=config, tokens=20)
    fields = options.model_dump(exclude={"weights"})
    tower = {**fields, "vocabulary": vocabulary, "depth": options.blocks, "predicts": True, **more}
    return {"name": "towers", "towers": {"text": tower}, "joint": {}}


@pytest.mark.parametrize("name", CONFIGS)
def test_scores_and_gradients_are_the_librarys_and_no_token_sees_the_next(name: str, tmp_path: Path) -> None:
    given = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, **CONFIGS[name]}
    library: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**given, vocab_size=VOCABULARY)).eval()
    with torch.no_grad():  # what the library begins with at zero
        for parameter in library.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)) * 0.02)
    library.save_pretrained(tmp_path)
    description = described(str(tmp_path))
    model: Any = models.build(description).eval()
    models.load_weights(model, description, {"text": str(tmp_path)})
    x = torch.randint(0, VOCABULARY, (3, 20), generator=torch.Generator().manual_seed(1))
    scores, expected = model.next_tokens("text", x), library(x, use_cache=False).logits
    assert torch.equal(scores, expected)
    for each in (scores, expected):
        torch.nn.functional.cross_entropy(each[:, :-1].flatten(0, 1), x[:, 1:].flatten()).backward()
    spelled = library_names(model, "text", description["towers"]["text"])
    theirs = {n.removeprefix(f"{library.base_model_prefix}."): p.grad for n, p in library.named_parameters()}
    own = {spelled.get(n, "lm_head.weight"): p.grad for n, p in model.named_parameters() if "head.bias" not in n}
    assert own.keys() == theirs.keys() - {"lm_head.bias"}
    for parameter, gradient in own.items():
        torch.testing.assert_close(gradient, theirs[parameter], atol=1e-6, rtol=1e-6)
    with torch.no_grad():
        x[:, 10:] = 1
        assert torch.equal(model.next_tokens("text", x)[:, :10], scores[:, :10])
        assert not torch.equal(model.next_tokens("text", x)[:, 10:], scores[:, 10:])


def test_checkpointing_changes_no_gradient() -> None:
    x = torch.randint(0, VOCABULARY, (2, 20), generator=torch.Generator().manual_seed(1))
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(1)
        model: Any = models.build(described(CONFIGS["qwen2"], checkpointing=checkpointing))
        model.next_tokens("text", x).logsumexp(-1).sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2", 124_439_808),  # model cards: 124M, 135M, 0.49B, 1.23B, 3.21B, 1.3B
        ("smollm2-135m", 134_515_008),
        ("qwen2.5-0.5b", 494_032_768),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
        ("phi-1.5", 1_418_270_720),
        ("gemma-3-270m", 268_098_176),  # 270M, 3B
        ("smollm3-3b", 3_075_098_624),
    ],
)
def test_published_numbers_of_parameters(name: str, parameters: int) -> None:
    scenario = yaml.safe_load(
        (Path(__file__).parents[3] / "scenarios/finetune" / f"{name}.yaml").read_text(encoding="utf-8")
    )
    text = scenario["model"]["text"]
    module = models.on_meta(described(text["config"], scenario["data"]["shapes"]["text"]["vocabulary"]))
    assert sum(p.numel() for p in module.parameters()) == parameters
    assert not list(module.buffers())
    given = {**text["config"], "vocab_size": scenario["data"]["shapes"]["text"]["vocabulary"]}
    with torch.device("meta"):
        library: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**given))
    assert library.num_parameters() == parameters


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "gpt_2"}, r"model_type 'gpt_2' isn't known to transformers [\d.]+; did you mean 'gpt2'"),
        ({"n_embd": 8}, "model_type 'None' isn't known to transformers"),
        ({"model_type": "mixtral"}, "mixtral is a mixture of experts, .* take a dense model, such as llama or qwen3"),
        ({"model_type": "t5"}, "t5 is an encoder and a decoder that reads it: take a decoder alone, such as llama"),
        ({"model_type": "whisper"}, "whisper is an encoder and a decoder that reads it"),
        ({"model_type": "bert"}, "bert is an encoder, whose tokens see those after them: take tower: hf"),
        ({"model_type": "vit"}, "vit is no causal language model: take one, such as llama, qwen3 or gemma3_text"),
        ({"model_type": "gemma3"}, "take its text model alone, model_type: gemma3_text"),
        ({"model_type": "llama", "hiden_size": 8}, "llama has no field 'hiden_size'; did you mean 'hidden_size'"),
        ({"model_type": "llama", "hidden_size": 30, "num_attention_heads": 4}, r"heads"),
        ({"model_type": "gpt2", "n_positions": 8}, "20 tokens don't fit into 8 positions"),
        ({"model_type": "llama", "partial_rotary_factor": 0.5}, "llama has no field 'partial_rotary_factor'"),
        ("nowhere", "nowhere can't be read"),
        (7, "write a mapping with model_type, or a folder"),
    ],
)
def test_a_wrong_configuration_is_refused(config: Any, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        CausalOptions(config=config, tokens=20)


def test_what_the_library_refuses_only_when_it_builds_is_told() -> None:
    with pytest.raises(ValidationError, match="can't build a model of this configuration: unsupported operand"):
        CausalOptions(config={**CONFIGS["llama"], "rope_scaling": None, "rope_theta": [1, 2]}, tokens=20)


def test_a_head_that_is_unknown_is_refused() -> None:
    with pytest.raises(MethodError, match="scores of a phi have layers that aren't known here"):
        models.on_meta(described({**CONFIGS["phi"], "tie_word_embeddings": True}))


def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path) -> None:
    for text, says in (("{", "isn't JSON"), (json.dumps([1]), "holds no configuration")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValidationError, match=says):
            CausalOptions(config=str(tmp_path), tokens=20)
