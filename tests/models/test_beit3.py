"""BEiT-3's published weights: a miniature with every name of its files gives what its authors' forward pass gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tensors import assert_equal_tensors
from torch import Tensor
from torch.nn import functional as F

import edgefl
from edgefl import models
from edgefl.errors import EdgeflError, MethodError
from edgefl.models.multiway import MultiwayOptions, describe_multiway
from edgefl.scenario import load
from edgefl.setup.compose import compose

Tiny = Callable[..., dict[str, Any]]
WIDTH, LAYERS, HEADS, WORDS, PATCH = 8, 2, 2, 24, 4
FACTS = {
    "image": {"channels": 3, "size": 12, "classes": 3},
    "text": {"vocabulary": WORDS - 3, "tokens": 5, "classes": 3},
}


def published(side: int = 3, words: int = WORDS, channels: int = 3) -> dict[str, Tensor]:
    """Random tensors with the names of BEiT-3's files, those of heads included, for squares of ``side`` patches."""
    draw, width = torch.Generator().manual_seed(1), WIDTH
    shapes: dict[str, tuple[int, ...]] = {
        "text_embed.weight": (words, width),
        "vision_embed.mask_token": (1, 1, width), "vision_embed.cls_token": (1, 1, width),
        "vision_embed.proj.weight": (width, channels, PATCH, PATCH), "vision_embed.proj.bias": (width,),
        "encoder.embed_positions.A.weight": (2 + 1 + side**2, width), "encoder.embed_positions.B.weight": (20, width),
        "encoder.layer_norm.A.weight": (width,), "encoder.layer_norm.A.bias": (width,),
    }  # fmt: skip
    for layer in range(LAYERS):
        for expert in "AB":
            linear = {f"self_attn.{n}_proj.{expert}": (width, width) for n in "kvq"}
            linear |= {f"self_attn.out_proj.{expert}": (width, width), f"ffn.{expert}.fc1": (4 * width, width)}
            linear |= {f"ffn.{expert}.fc2": (width, 4 * width)}
            norms = {f"self_attn.inner_attn_ln.{expert}": width, f"self_attn_layer_norm.{expert}": width,
                     f"final_layer_norm.{expert}": width, f"ffn.{expert}.ffn_layernorm": 4 * width}  # fmt: skip
            for name, shape in {**linear, **{n: (s,) for n, s in norms.items()}}.items():
                shapes |= {
                    f"encoder.layers.{layer}.{name}.weight": shape,
                    f"encoder.layers.{layer}.{name}.bias": shape[:1],
                }
    tensors = {f"beit3.{name}": torch.randn(shape, generator=draw) / 2 for name, shape in shapes.items()}
    return {**tensors, "mlm_head.weight": torch.randn(words, width, generator=draw)}


def hidden(tensors: Mapping[str, Tensor], image: Tensor | None, text: Tensor | None) -> Tensor:
    """The hidden states before the last LayerNorm ``[batch, tokens, dim]``, by hand."""
    of = {name.removeprefix("beit3."): value for name, value in tensors.items()}
    parts: list[tuple[str, Tensor]] = []
    if image is not None:
        x = F.conv2d(image, of["vision_embed.proj.weight"], of["vision_embed.proj.bias"], stride=PATCH)
        x = torch.cat([of["vision_embed.cls_token"].repeat(len(x), 1, 1), x.flatten(2).mT], 1)
        parts.append(("A", x + of["encoder.embed_positions.A.weight"][2:][: x.shape[1]]))
    if text is not None:
        x = of["text_embed.weight"][text]
        parts.append(("B", x + of["encoder.embed_positions.B.weight"][2:][: x.shape[1]]))

    def each(what: str, xs: list[Tensor], shape: tuple[int, ...] = ()) -> list[Tensor]:
        found = []
        for (expert, _), y in zip(parts, xs, strict=True):
            weight, bias = (of[f"{what.format(expert)}.{part}"] for part in ("weight", "bias"))
            found.append(y @ weight.T + bias if weight.dim() == 2 else F.layer_norm(y, weight.shape, weight, bias))
        return found

    states, lengths = [x for _, x in parts], [x.shape[1] for _, x in parts]
    for layer in range(LAYERS):
        at = f"encoder.layers.{layer}."
        normed = each(at + "self_attn_layer_norm.{}", states)
        q, k, v = (torch.cat(each(at + f"self_attn.{n}_proj.{{}}", normed), 1) for n in "qkv")
        heads = []
        for head in torch.arange(WIDTH).chunk(HEADS):
            odds = (q[..., head] @ k[..., head].mT / sqrt(WIDTH / HEADS)).softmax(-1)
            heads.append(odds @ v[..., head])
        attended = each(at + "self_attn.inner_attn_ln.{}", list(torch.cat(heads, -1).split(lengths, 1)))
        states = [x + y for x, y in zip(states, each(at + "self_attn.out_proj.{}", attended), strict=True)]
        inner = each(at + "ffn.{}.fc1", each(at + "final_layer_norm.{}", states))
        inner = each(at + "ffn.{}.ffn_layernorm", [y * (1 + torch.erf(y / sqrt(2))) / 2 for y in inner])
        states = [x + y for x, y in zip(states, each(at + "ffn.{}.fc2", inner), strict=True)]
    return torch.cat(states, 1)


def loaded(source: Path, **options: Any) -> Any:
    given = {"blocks": LAYERS, "width": WIDTH, "heads": HEADS, "patch": PATCH, "tokens": 5, "positions": 20, **options}
    description = describe_multiway(MultiwayOptions(**given), ("image", "text"), "classify", FACTS)
    module = models.build(description).eval()
    models.load_weights(module, description, {"multiway": str(source)})
    return module


@pytest.mark.parametrize("modalities", [("image", "text"), ("image",), ("text",)], ids="-".join)
@pytest.mark.parametrize("prefix", ["", "model."])
def test_hidden_states_are_those_of_the_published_network(modalities: Any, prefix: str, tmp_path: Path) -> None:
    tensors, file = published(), tmp_path / "beit3.safetensors"
    save_file({f"{prefix}{name}": value for name, value in tensors.items()}, file)
    batch = {"image": torch.randn(2, 3, 12, 12), "text": torch.randint(0, WORDS - 3, (2, 5))}
    given = {m: batch[m] for m in modalities}
    found = torch.cat(list(loaded(file, positions=12).multiway(given).values()), 1)
    torch.testing.assert_close(found, hidden(tensors, given.get("image"), given.get("text")), rtol=1e-4, atol=1e-5)


def test_positions_of_another_size_are_interpolated(tmp_path: Path) -> None:
    tensors, file = published(side=2), tmp_path / "beit3.safetensors"
    save_file(tensors, file)
    table = tensors["beit3.encoder.embed_positions.A.weight"]
    grid = table[3:].reshape(1, 2, 2, WIDTH).permute(0, 3, 1, 2)
    larger = F.interpolate(grid, (3, 3), mode="bicubic", align_corners=False).permute(0, 2, 3, 1).reshape(9, WIDTH)
    found = loaded(file).multiway.embedding.image_position.weight
    torch.testing.assert_close(found, torch.cat([table[:3], larger]))
    # linear in both directions, so that an interpolated table has the mean of the one that it comes from
    torch.testing.assert_close(found[3:].mean(0), table[3:].mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        ({"beit3.encoder.layers.1.ffn.B.fc1.bias": None}, {}, "there is no tensor for blocks.1.ffn.text.fc1.bias"),
        ({}, {"width": 16}, r"beit3\.vision_embed\.cls_token is \[1, 1, 8\], but the model's .* \[1, 1, 16\]"),
        ({}, {"blocks": 3}, r"there is no tensor for blocks\.2\.norm1\.image\.weight"),
        ({}, {"shared_attention": True}, "projections for each modality: set shared_attention: false"),
        ({"beit3.text_embed.weight": torch.zeros(99, WIDTH)}, {}, "vectors of 99 tokens, and data.vocabulary 21"),
        ({"beit3.encoder.embed_positions.A.weight": torch.zeros(8, WIDTH)}, {}, r"is \[8, 8\], but the model's"),
    ],
    ids=["missing", "width", "depth", "shared", "vocabulary", "positions"],
)
def test_a_file_that_does_not_fit_is_refused(change: Any, options: Any, says: str, tmp_path: Path) -> None:
    tensors = {name: value for name, value in {**published(), **change}.items() if value is not None}
    save_file(tensors, tmp_path / "beit3.safetensors")
    with pytest.raises(MethodError, match=says):
        loaded(tmp_path / "beit3.safetensors", **options)


def test_what_is_no_file_of_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "published.pth").write_bytes(b"PK as torch.save begins")
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    for name, says in (
        ("published.pth", "not a safetensors file"),
        ("other.safetensors", "no tensor belongs to this tower"),
        ("absent.safetensors", "there is no file"),
        ("pretrained", "download one, such as beit3_base_patch16_224.pth .* convert it to safetensors"),
    ):
        with pytest.raises(MethodError, match=says):
            loaded(tmp_path / name if name != "pretrained" else Path(name))


def test_a_run_begins_with_them(tiny: Tiny, tmp_path: Path) -> None:
    file = tmp_path / "beit3.safetensors"
    multiway = {"blocks": LAYERS, "width": WIDTH, "heads": HEADS, "patch": PATCH, "tokens": 5, "positions": 20}
    data = {"source": "glyphs", "clients": {"image-text": 2}, "samples": 20, "validation": 10, "test": 10, "size": 12}
    plain = tiny(data=data, model={"multiway": multiway})
    given = {**plain, "model": {"multiway": {**multiway, "weights": str(file)}}}
    setup = compose(load(plain))
    tensors = published(words=setup.method.setting.facts["text"]["vocabulary"] + 8, channels=1)
    save_file(tensors, file)
    state = compose(load(given)).method.initial(1).tensors
    found = state["image-text/multiway.blocks.1.attn.out.text.weight"]
    assert_equal_tensors(found, tensors["beit3.encoder.layers.1.self_attn.out_proj.B.weight"])
    assert edgefl.profile(given)["rows"] == edgefl.profile(plain)["rows"]
    save_file(published(channels=1), file)
    with pytest.raises(EdgeflError, match=r"model\.multiway\.weights: weights .*beit3.*vectors of 24 tokens, and data"):
        edgefl.run(given, out=tmp_path / "run")
