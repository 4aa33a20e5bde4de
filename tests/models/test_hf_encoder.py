"""The tower ``hf`` against transformers' own models: outputs, parameters, weights; what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import edgefl
from edgefl import models
from edgefl.errors import EdgeflError
from edgefl.models.libraries import library_names
from edgefl.models.towers.hf_encoder import HFEncoder, HFEncoderOptions
from edgefl.models.towers.vision import import_torchvision
from edgefl.scenario import load

import_torchvision()
import transformers  # noqa: E402

Tiny = Callable[..., dict[str, Any]]
TEXTS = ("bert", "roberta", "xlm-roberta", "mpnet", "distilbert", "modernbert", "siglip_text_model", "deberta-v2",
         "electra", "albert", "mobilebert")  # fmt: skip
FAMILIES = {
    **dict.fromkeys(TEXTS, "text"),
    **dict.fromkeys(("vit", "deit", "dinov2", "siglip_vision_model"), "image"),
    **dict.fromkeys(("audio-spectrogram-transformer", "whisper"), "audio"),
}
NEW = {"siglip_text_model"} if "siglip_text_model" not in transformers.CONFIG_MAPPING else set()
KNOWN = [kind for kind in FAMILIES if kind not in NEW]  # transformers 5.4 doesn't know it
USUAL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
OWN: dict[str, dict[str, Any]] = {
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    "modernbert": {**USUAL, "local_attention": 4},
    "deberta-v2": {**USUAL, "relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm",
                   "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False,
                   "type_vocab_size": 0},
    "electra": {**USUAL, "embedding_size": 8},
    "albert": {**USUAL, "embedding_size": 8},
    "mobilebert": {**USUAL, "embedding_size": 8, "true_hidden_size": 8, "intra_bottleneck_size": 8},
    "dinov2": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
    "whisper": {"d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 32,
                "decoder_attention_heads": 2},
}  # fmt: skip
DATA = {"vocabulary": 50, "channels": 1, "size": 16, "bins": 32, "frames": 64}


def config_of(kind: str) -> dict[str, Any]:
    patch = {"patch_size": 8} if FAMILIES[kind] == "image" else {}
    return {"model_type": kind, **OWN.get(kind, USUAL), **patch}


def described(kind: str, **more: Any) -> dict[str, Any]:
    options = HFEncoderOptions(config=config_of(kind), tokens=12, **more)
    return {**options.model_dump(), "depth": options.blocks, **DATA}


def inputs(kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if FAMILIES[kind] == "text":
        return torch.randint(3, 50, (2, 12), generator=generator)
    return torch.randn((2, 1, 16, 16) if FAMILIES[kind] == "image" else (2, 64, 32), generator=generator)


def library(kind: str) -> Any:
    """The library's own model of the same configuration, made without the tower."""
    more: dict[str, Any] = {"text": {"vocab_size": 50}, "image": {"num_channels": 1, "image_size": 16}}.get(
        FAMILIES[kind], {"num_mel_bins": 32}
    )
    if kind == "whisper":
        more |= {"max_source_positions": 32, "decoder_layers": 1}
    elif FAMILIES[kind] == "audio":
        more["max_length"] = 64
    if FAMILIES[kind] == "text" and "roberta" not in kind and kind != "mpnet":
        more["pad_token_id"] = None  # the library's is of its vocabulary
    config = transformers.AutoConfig.for_model(**config_of(kind), **more)
    name = {"siglip_text_model": "SiglipTextModel", "whisper": "WhisperModel"}.get(kind)
    model = getattr(transformers, name)(config) if name else transformers.AutoModel.from_config(config)
    return model.eval()


def called(model: Any, kind: str, x: Tensor) -> Tensor:
    if kind == "whisper":
        return model.encoder(x.transpose(1, 2)).last_hidden_state  # type: ignore[no-any-return]
    return model(x).last_hidden_state  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", KNOWN)
def test_weights_of_a_folder_give_the_librarys_outputs_and_gradients(kind: str, tmp_path: Path) -> None:
    tower = HFEncoder.build(described(kind), True).eval()
    torch.manual_seed(5)
    model = library(kind)
    with torch.no_grad():  # what the library begins with at zero
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    model.save_pretrained(tmp_path)
    HFEncoder.load(tower, str(tmp_path), described(kind))
    found, expected = tower(inputs(kind)), called(model, kind, inputs(kind))
    assert found.shape[-1] == tower.width
    assert torch.allclose(found, expected, rtol=0, atol=1e-6), float((found - expected).abs().max())
    for each in (found, expected):
        each.square().mean().backward()
    theirs = {id(p): p.grad for p in model.parameters() if p.grad is not None}
    names = library_names(torch.nn.ModuleDict({"x": tower}), "x", described(kind))
    whole = model.encoder if kind == "whisper" else model
    for name, parameter in tower.named_parameters():
        gradient = theirs.get(id(whole.get_parameter(names[f"x.{name}"])))
        assert (gradient is None) == (parameter.grad is None)
        if gradient is not None:
            torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", KNOWN)
def test_it_has_the_librarys_parameters_without_poolers_and_heads(kind: str) -> None:
    own = {n: tuple(p.shape) for n, p in HFEncoder.build(described(kind), True).named_parameters()}
    model = library(kind)
    whole = model.encoder if kind == "whisper" else model
    theirs = [tuple(p.shape) for n, p in whole.named_parameters() if not {"pooler", "head"} & set(n.split("."))]
    assert sorted(own.values()) == sorted(theirs)
    unequal = kind == "modernbert"  # its first block has one norm less
    blocks = 1 if kind == "albert" else 2
    assert sum(".blocks." in f".{n}" for n in own) == blocks * sum(n.startswith("blocks.0.") for n in own) + unequal
    assert not list(HFEncoder.build(described(kind), True).named_buffers())
    assert all(t.is_meta for t in models.on_meta({"name": "towers", "towers": {FAMILIES[kind]: described(kind)},
                                                  "joint": {}}).parameters())  # fmt: skip


def of_images(tiny: Tiny, kind: str = "dinov2", **more: Any) -> dict[str, Any]:
    data = {"source": "glyphs", "clients": {"image": 3}, "samples": 40, "size": 16, "validation": 40, "test": 40}
    model = {"image": {"tower": "hf", "config": config_of(kind)}}
    return tiny(**{"data": data, "model": model, **more})


def of_texts(tiny: Tiny, kind: str = "roberta", **more: Any) -> dict[str, Any]:
    data = {"source": "names", "clients": {"text": 3}, "samples": 40, "validation": 40, "test": 40}
    model = {"text": {"tower": "hf", "config": config_of(kind), "tokens": 12, "read": "mean"}}
    return tiny(**{"data": data, "model": model, **more})


LAYERWISE = {"name": "layerwise", "stages": 2, "rounds": 2}


def of_modern(tiny: Tiny, **more: Any) -> dict[str, Any]:
    return of_texts(tiny, "modernbert", **more)


MADE = [of_images, of_texts, *([] if NEW else [of_modern])]


TRAININGS: dict[str, dict[str, Any]] = {
    "whole": {}, "layerwise": {"schedule": LAYERWISE}, "lora": {"adapter": {"name": "lora", "rank": 2}},
    "elastic": {"schedule": {"name": "elastic"}},
}  # fmt: skip
QUICK = (("whole", of_images), ("layerwise", of_texts), ("whole", of_modern))


@pytest.mark.parametrize(
    ("more", "made"),
    [
        pytest.param(more, made, marks=[] if (name, made) in QUICK else pytest.mark.slow, id=f"{name}-{made.__name__}")
        for name, more in TRAININGS.items()
        for made in MADE
    ],
)
def test_it_trains_and_its_peak_is_the_allocators(tiny: Tiny, made: Any, more: dict[str, Any]) -> None:
    run = edgefl.run(made(tiny, **more))
    measured = run.clients.dropna(subset="measured_peak_memory_bytes")
    assert len(measured)
    assert (abs(measured["measured_peak_memory_bytes"] - measured["peak_memory_bytes"]) <= 4096).all()
    assert run.clients["loss"].notna().all()


def test_macs_are_those_of_the_same_model_by_its_own_tower(tiny: Tiny) -> None:
    """Its blocks run inside the library's model, and count as blocks: what is frozen there has no backward MACs."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    by_config = {"tower": "hf", "config": {"model_type": "bert", **sizes}, "tokens": 12}
    by_name = {"tower": "bert", "blocks": 2, "width": 16, "heads": 2, "mlp_ratio": 2, "tokens": 12}
    for more in ({}, {"adapter": {"name": "lora", "rank": 2}}, {"schedule": LAYERWISE}):
        rows = [edgefl.profile(of_texts(tiny, model={"text": tower}, **more)).rows for tower in (by_config, by_name)]
        macs, expected = ([row.fvcore_macs_per_sample for row in each] for each in rows)
        assert macs == expected


@pytest.mark.parametrize(("made", "modality"), [(of_images, "image"), *((made, "text") for made in MADE[1:])])
def test_a_stage_sends_its_own_blocks(tiny: Tiny, made: Any, modality: str) -> None:
    run = edgefl.run(made(tiny, schedule=LAYERWISE))
    sizes = {address.partition(f"/{modality}.")[2]: 4 * t.numel() for address, t in run.weights().items()}
    top = sum(size for name, size in sizes.items() if name.startswith(("norm.", "head.")))
    for stage, parts in ((1, ("embedding.", "blocks.0.")), (2, ("blocks.1.",))):
        sent = run.clients.loc[run.clients["stage"] == stage, "upload_bytes"]
        assert len(sent)
        assert set(sent) == {top + sum(size for name, size in sizes.items() if name.startswith(parts))}


@pytest.mark.slow(smaller="test_a_stage_sends_its_own_blocks")
def test_fedcola_pairs_it_with_other_towers(tiny: Tiny) -> None:
    data = {"clients": {"image": 2, "text": 2}, "samples": 40, "size": 16, "validation": 40, "test": 40}
    fedcola = {
        "name": "fedcola",
        "collaborate": "attention",
        "complementary": "blocks",
        "range": "all",
        "compensation": False,
    }
    peaks = {}
    queries = {"bert": "attention.self.query", "mpnet": "attention.attn.q", "siglip_text_model": "self_attn.q_proj"}
    for kind, query in ((kind, query) for kind, query in queries.items() if kind in KNOWN):
        text = {"tower": "hf", "config": config_of(kind), "tokens": 12}
        model = {"image": {"tower": "hf", "config": config_of("siglip_vision_model"), "read": "mean"}, "text": text}
        run = edgefl.run(tiny(data=data, model=model, method=fedcola))
        assert run.clients["loss"].notna().all()
        error = run.clients["measured_peak_memory_bytes"] - run.clients["peak_memory_bytes"]
        peaks[kind] = float(error.abs().max())
        own = run.weights()["image/image.blocks.0.self_attn.q_proj.weight"]
        assert torch.equal(own, run.weights()[f"text/text.blocks.0.{query}.weight"])
    assert max(peaks.values()) <= 4096


@pytest.mark.slow(smaller="test_inline_and_processes_give_the_same_reports")
@pytest.mark.usefixtures("one_worker")
def test_workers_give_the_same_bytes(tiny: Tiny) -> None:
    inline = edgefl.run(of_texts(tiny)).weights()
    workers = edgefl.run(of_texts(tiny, executor={"name": "processes", "workers": 2, "device": "cpu"})).weights()
    assert all(torch.equal(t, workers[a]) for a, t in inline.items())


@pytest.mark.parametrize(
    ("tower", "message"),
    [
        (
            {"config": {"model_type": "robertta"}},
            r"isn't known to transformers [\d.]+; did you mean 'roberta'",
        ),
        ({"config": {"model_type": "swin"}}, "timm has it"),
        ({"config": {"model_type": "t5"}}, "take one alone, such as roberta or deberta-v2"),
        ({"config": {"model_type": "llama"}}, "llama is a decoder, .* take tower: hf-causal"),
        ({"config": {"model_type": "wav2vec2"}}, "wav2vec2 doesn't read spectrograms: take audio-spectrogram-transf"),
        ({"config": {"model_type": "roberta"}}, "the tower hf with a roberta takes text, not image"),
        ({"config": "nowhere"}, "nowhere can't be read"),
        ({"config": {"model_type": "vit", "hiden_size": 16}}, "vit has no field 'hiden_size'"),
        ({"config": {"model_type": "vit", "hidden_size": 15}}, "width 15 can't be split over 12 heads"),
    ],
)
def test_bad_input(tiny: Tiny, tower: dict[str, Any], message: str) -> None:
    with pytest.raises(EdgeflError, match=message):
        load(of_images(tiny, model={"image": {"tower": "hf", **tower}}))


def test_sizes_of_the_data_that_do_not_fit(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(EdgeflError, match="patch of 7 doesn't divide images of 16 pixels"):
        edgefl.profile(
            of_images(tiny, model={"image": {"tower": "hf", "config": {**config_of("vit"), "patch_size": 7}}})
        )
    short = {**config_of("roberta"), "max_position_embeddings": 13}
    with pytest.raises(EdgeflError, match="12 tokens don't fit into 11 positions"):
        load(of_texts(tiny, model={"text": {"tower": "hf", "config": short, "tokens": 12}}))
    library("vit").save_pretrained(tmp_path / "vit")
    wider = {"tower": "hf", "config": {**config_of("vit"), "intermediate_size": 48}, "weights": str(tmp_path / "vit")}
    with pytest.raises(EdgeflError, match=r"(fc1|dense)\.bias is \(32,\), and \(48,\) is needed"):
        edgefl.run(of_images(tiny, model={"image": wider}))
    tower = {"tower": "hf", "config": config_of("vit"), "weights": str(tmp_path)}
    with pytest.raises(EdgeflError, match=r"a folder with config\.json and model\.safetensors is needed"):
        edgefl.run(of_images(tiny, model={"image": tower}))
