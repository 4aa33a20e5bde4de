"""Models of transformers by configuration: where they are cut, what a run of them takes, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import edgefl
from edgefl import registry
from edgefl.errors import EdgeflError, ScenarioError
from edgefl.models.towers import library_model
from edgefl.models.towers.hf_causal import CausalOptions
from edgefl.models.towers.hf_encoder import HFEncoderOptions
from edgefl.models.towers.library_model import trace
from edgefl.models.towers.vision import import_torchvision
from edgefl.scenario import load
from edgefl.work.meter.allocator_peak import AllocatorPeak

import_torchvision()
import transformers  # noqa: E402

Tiny = Callable[..., dict[str, Any]]
TOKENS, BATCH, WORDS = 24, 8, 100
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
GROUPED = {**SIZES, "num_key_value_heads": 2}
DECODERS: dict[str, dict[str, Any]] = {
    "gemma3_text": {**GROUPED, "head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 32,
                    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "smollm3": {**GROUPED, "no_rope_layers": [1, 1, 0]},
    "phi3": {**GROUPED, "max_position_embeddings": 64, "original_max_position_embeddings": 16,
             "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16}},
    "lfm2": {**GROUPED, "layer_types": ["conv", "full_attention", "conv"]},
    "mistral": {**GROUPED, "sliding_window": 8},
}  # fmt: skip
ENCODERS: dict[str, dict[str, Any]] = {
    "deberta-v2": {**SIZES, "relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm",
                   "share_att_key": True, "pos_att_type": "p2c|c2p", "position_biased_input": False,
                   "type_vocab_size": 0},
    "electra": {**SIZES, "embedding_size": 16},
    "albert": {**SIZES, "embedding_size": 16},
    "mobilebert": {**SIZES, "embedding_size": 16, "true_hidden_size": 16, "intra_bottleneck_size": 16},
}  # fmt: skip
RARE = [
    pytest.param(kind, marks=pytest.mark.slow)
    for kind in ("smollm3", "phi3", "lfm2", "mistral", "electra", "albert", "mobilebert")
]
OFF = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}


def config_of(kind: str) -> dict[str, Any]:
    return {"model_type": kind, **(DECODERS[kind] if kind in DECODERS else {**ENCODERS[kind], **OFF})}


def scenario_of(tiny: Tiny, kind: str, **more: Any) -> dict[str, Any]:
    decodes = kind in DECODERS
    data: dict[str, Any] = {"source": "names", "clients": {"text": 2}, "samples": 40, "validation": 40, "test": 40}
    data |= {"vocabulary": WORDS, **({"tasks": {"text": "next-token"}} if decodes else {})}
    tower = {"tower": "hf-causal" if decodes else "hf", "config": config_of(kind), "tokens": TOKENS}
    return tiny(data=data, model={"text": tower}, **{"training": {"batch": BATCH}, **more})


def made(kind: str, words: int, classes: int) -> Any:
    """The library's own model with its own scores, and what the library calls a classifier is one layer."""
    none = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = transformers.AutoConfig.for_model(**{**none, **config_of(kind)}, vocab_size=words)
    library: Any = transformers
    if kind in DECODERS:
        return library.AutoModelForCausalLM.from_config(config)
    below = library.AutoModel.from_config(config)
    if hasattr(below, "pooler"):
        below.pooler = None
    return torch.nn.ModuleDict({"below": below, "head": torch.nn.Linear(below.config.hidden_size, classes)})


def loss_of(model: Any, tokens: Tensor, classes: int) -> Tensor:
    if isinstance(model, torch.nn.ModuleDict):
        first = model["below"](tokens).last_hidden_state[:, 0]
        return F.cross_entropy(model["head"](first), tokens[:, 0] % classes)
    scores = model(tokens, use_cache=False).logits[:, :-1]
    return F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0)


@pytest.mark.parametrize("kind", ["gemma3_text", "deberta-v2", *RARE])
def test_a_run_takes_what_a_loop_around_the_librarys_own_model_takes(tiny: Tiny, kind: str) -> None:
    run = edgefl.run(scenario_of(tiny, kind, training={"batch": BATCH, "optimizer": "adamw"}))
    row = run.clients.dropna(subset="measured_peak_memory_bytes").iloc[0]
    weights: Mapping[str, Tensor] = run.weights()
    words = next(
        t.shape[0] for name, t in weights.items() if name.endswith(("embed_tokens.weight", "word_embeddings.weight"))
    )
    classes = next((t.shape[0] for name, t in weights.items() if name.endswith("head.weight")), 0)
    model = made(kind, words, classes)
    assert sum(p.numel() for p in model.parameters()) == sum(t.numel() for t in weights.values())
    with AllocatorPeak(torch.device("cpu"), [*model.parameters(), *model.buffers()]) as seen:
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for _ in range(2):
            loss_of(model, torch.randint(1, words, (BATCH, TOKENS)), classes).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert row["peak_memory_bytes"] == pytest.approx(row["measured_peak_memory_bytes"], rel=1e-3)
    assert row["peak_memory_bytes"] == pytest.approx(seen.bytes, rel=1e-3)


def structure(kind: str, tower: type[CausalOptions] | type[HFEncoderOptions], **more: Any) -> Any:
    return tower(config={"model_type": kind, **more}, tokens=8).structure  # type: ignore[call-arg]


def test_blocks_are_found_by_what_is_called_one_after_the_other() -> None:
    gpt2 = structure("gpt2", CausalOptions, n_embd=16, n_layer=3, n_head=2)
    assert (gpt2.lists, gpt2.norms, gpt2.whole) == (("h",), ("ln_f",), "")
    small = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 3}
    # a block of MobileBERT holds a longer list than the model, here of 6 layers
    inside = {"num_feedforward_networks": 6, "true_hidden_size": 8, "intra_bottleneck_size": 8, "embedding_size": 8}
    mobile = structure("mobilebert", HFEncoderOptions, **small, **inside)
    assert (mobile.lists, mobile.norms, mobile.whole) == (("encoder.layer",), (), "")
    lfm2 = {**small, "num_key_value_heads": 1, "intermediate_size": 16}
    types = {"layer_types": ["conv", "full_attention", "conv"]}
    assert structure("lfm2", CausalOptions, **lfm2, **types).whole == "its blocks differ in form"
    assert structure("lfm2", CausalOptions, **lfm2, layer_types=["conv"] * 3).whole == ""
    assert structure("albert", HFEncoderOptions, **small).whole == "its blocks share their weights"


def test_a_structure_is_found_once_for_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEFL_CACHE", str(tmp_path))
    found = []
    for times in (1, 0):
        library_model._structure.cache_clear()
        asked = iter(range(times))
        monkeypatch.setattr(library_model, "trace", lambda model, asked=asked: (next(asked), trace(model))[1])
        found.append(structure("gpt2", CausalOptions, n_embd=16, n_layer=3, n_head=2))
    assert found[0] == found[1] and found[0].lists == ("h",)
    assert len(list((tmp_path / "shapes").glob("[!.]*"))) == 1


@pytest.mark.parametrize(
    ("kind", "why"), [("albert", "its blocks share their weights"), ("lfm2", "its blocks differ in form")]
)
def test_what_cannot_be_cut_is_refused_under_schedules_that_cut_alone(tiny: Tiny, kind: str, why: str) -> None:
    for name in ("layerwise", "progressive", "elastic"):
        with pytest.raises(ScenarioError, match=f"2 stages are more than the 1 blocks .*one block, because {why}"):
            load(scenario_of(tiny, kind, schedule={"name": name, "stages": 2}))
    with pytest.raises(EdgeflError, match=f"can't recompute its activations by block, because {why}"):
        edgefl.profile(scenario_of(tiny, kind, training={"batch": BATCH, "checkpointing": True}))


@pytest.mark.parametrize("kind", ["albert", pytest.param("lfm2", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "more",
    [
        {"adapter": {"name": "lora", "rank": 2}},
        pytest.param({"training": {"batch": BATCH, "optimizer": "mezo", "lr": 1e-3}}, marks=pytest.mark.slow),
    ],
    ids=["lora", "mezo"],
)
def test_what_cannot_be_cut_trains_whole(tiny: Tiny, kind: str, more: dict[str, Any]) -> None:
    run = edgefl.run(scenario_of(tiny, kind, **more))
    row = run.clients.dropna(subset="measured_peak_memory_bytes").iloc[0]
    assert row["peak_memory_bytes"] == pytest.approx(row["measured_peak_memory_bytes"], rel=1e-3)
    assert run.clients["loss"].notna().all()


STAGES = {"name": "layerwise", "stages": 3, "rounds": 3}
LONG = [pytest.param(kind, schedule, marks=pytest.mark.slow) for kind in ("gemma3_text", "deberta-v2", "smollm3")
        for schedule in (STAGES, {"name": "frozen-prefix", "rounds": 2})]  # fmt: skip


@pytest.mark.parametrize(("kind", "schedule"), [("gemma3_text", {"name": "frozen-prefix", "rounds": 1}), *LONG])
def test_stages_and_kept_activations_take_what_was_predicted(tiny: Tiny, kind: str, schedule: dict[str, Any]) -> None:
    run = edgefl.run(scenario_of(tiny, kind, schedule=schedule))
    error = run.clients["measured_peak_memory_bytes"] / run.clients["peak_memory_bytes"] - 1
    assert error.dropna().abs().max() <= 1e-3
    assert run.clients["loss"].notna().all()


@pytest.mark.parametrize("kind", ["gemma3_text", "phi3", "deberta-v2"])
def test_it_begins_with_the_tokens_of_any_block_and_recomputes_blocks_to_the_bit(kind: str) -> None:
    options: Any = CausalOptions if kind in DECODERS else HFEncoderOptions
    fields = options(config=config_of(kind), tokens=TOKENS).model_dump()
    x = torch.randint(0, WORDS, (2, TOKENS), generator=torch.Generator().manual_seed(1))
    gradients = []
    for checkpointing in (0, 2):
        torch.manual_seed(1)
        described = {**fields, "depth": 3, "vocabulary": WORDS, "checkpointing": checkpointing}
        tower = registry.get("tower", fields["tower"]).build(described, True)
        tokens = tower(x)
        for begin in (1, 2):
            assert torch.equal(tower.run(tower.run(x, until=begin), begin), tokens)
        tokens.square().mean().backward()
        gradients.append([p.grad for p in tower.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        assert plain is recomputed is None or torch.equal(plain, recomputed)
