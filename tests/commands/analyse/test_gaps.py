"""Gaps between data sets, with a tiny CLIP of transformers whose weights are random."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from split_texts import texts_in

import edgefl
from edgefl.commands.analyse.gaps import pairs_of
from edgefl.errors import RunError
from edgefl.models.towers.vision import import_torchvision
from edgefl.scenario import load
from edgefl.setup.compose import federation_of
from tests.toys import miniatures

import_torchvision()
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPTokenizer  # noqa: E402

Tiny = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clip")
    letters = [chr(code) for code in range(97, 123)]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    CLIPTokenizer(vocab=vocabulary, merges=[]).save_pretrained(folder)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**small, "vocab_size": 54, "max_position_embeddings": 12, "bos_token_id": 52, "eos_token_id": 53}
    config = CLIPConfig(
        text_config=text, vision_config={**small, "image_size": 16, "patch_size": 8}, projection_dim=8
    )  # fmt: skip
    torch.manual_seed(0)
    CLIPModel(config).save_pretrained(folder)
    size = {"height": 16, "width": 16}
    CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=size).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Miniatures of published sets in their own formats."""
    root = tmp_path_factory.mktemp("sets")
    miniatures.medmnist(root / "organcmnist" / "organcmnist.npz")
    miniatures.ag_news(root / "ag-news")
    miniatures.mtsamples(root / "mtsamples")
    miniatures.flickr(root / "flickr30k", pictures=20)
    return root


@pytest.fixture
def scenario(tiny: Tiny, folders: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Grey pictures, news and pairs of three sets; nothing trains."""
    monkeypatch.setenv("EDGEFL_DATA", str(folders))
    tower = {"blocks": 1, "width": 16, "heads": 2}
    data = {
        "source": {"image": "organcmnist", "text": "ag-news", "image-text": "flickr30k"}, "size": 28, "channels": 3,
        "clients": {"image": 2, "text": 2, "image-text": 2}, "partition": "iid", "validation": 2, "test": 4,
    }  # fmt: skip
    model = {"image": {**tower, "patch": 14}, "text": {**tower, "tokens": 12}}
    return tiny(data=data, model=model, training={"batch": 4, "mode": "none"})


def means_by_hand(folders: Path, clip: Path, train: set[str]) -> dict[str, torch.Tensor]:
    """Mean projected features of each set, from its files by the library's own ``get_..._features``."""
    model, tokens = CLIPModel.from_pretrained(clip).eval(), CLIPTokenizer.from_pretrained(clip)
    pixels = CLIPImageProcessor.from_pretrained(clip)

    def features(found: Any) -> torch.Tensor:
        return getattr(found, "pooler_output", found).detach().double()

    def of_images(pictures: list[Image.Image]) -> torch.Tensor:
        return torch.stack(
            [features(model.get_image_features(**pixels(picture, return_tensors="pt")))[0] for picture in pictures]
        ).mean(0)

    def of_texts(texts: list[str]) -> torch.Tensor:
        found = []
        for text in texts:
            given = tokens(text, truncation=True, max_length=12, return_tensors="pt")
            found.append(features(model.get_text_features(**given))[0])
        return torch.stack(found).mean(0)

    with np.load(folders / "organcmnist" / "organcmnist.npz") as stored:
        grey = [Image.fromarray(image).convert("RGB") for image in stored["train_images"]]
    with (folders / "ag-news" / "train.csv").open(newline="") as file:
        news = [text for row in csv.reader(file) if (text := f"{row[1]} {row[2]}".replace("\\", " ")) is not None]
    fields = {re.search(r"field (\d+)", text)[1] for text in train if "field" in text}  # type: ignore[index]
    pictures = [folders / "flickr30k" / "flickr30k-images" / f"{1000 + int(field)}.jpg" for field in fields]
    paired = [Image.open(path).convert("RGB").resize((28, 28)) for path in pictures]
    captions = [text for text in train if "field" in text]
    return {
        "image": of_images(grey), "text": of_texts(news),
        "images of pairs": of_images(paired), "captions": of_texts(captions),
    }  # fmt: skip


def test_a_gap_is_the_distance_of_the_means_computed_by_hand(
    scenario: dict[str, Any], folders: Path, clip: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    found = edgefl.analyse(scenario, only=["gaps"], encoder=clip, out=out, figure=tmp_path / "figure.png")
    train = set(texts_in(federation_of(load(scenario), lambda _: None), "train"))
    means = means_by_hand(folders, clip, train)
    image = float((means["image"] - means["images of pairs"]).norm())
    text = float((means["text"] - means["captions"]).norm())
    assert [(row.modality, row.set) for row in found.gaps.rows] == [("image", "organcmnist"), ("text", "ag-news")]
    assert found.gaps.rows[0].gap == pytest.approx(image, rel=2e-3)  # of pictures as JPEG, which are scaled
    assert found.gaps.rows[1].gap == pytest.approx(text, rel=1e-5)
    assert found.gaps.total == pytest.approx(found.gaps.rows[0].gap + found.gaps.rows[1].gap)
    assert found.run is None and not [path for path in out.iterdir() if path.is_dir()]  # nothing was trained
    assert json.loads((out / "analysis.json").read_text())["gaps"]["total"] == found.gaps.total
    # a picture with five captions counts once
    assert found.gaps.rows[1].pair_samples == 5 * found.gaps.rows[0].pair_samples
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_gaps_of_settings_add_up(scenario: dict[str, Any], clip: Path, tmp_path: Path) -> None:
    """FedCola's Fig. 4: text replaced, image replaced and both replaced."""

    def gap(*overrides: str) -> float:
        out = tmp_path / f"{len([*tmp_path.iterdir()])}"
        total: float = edgefl.analyse(scenario, only=["gaps"], encoder=clip, out=out, overrides=overrides).gaps.total
        return total

    text = "data.source.text=mtsamples"
    image, alone = "data.clients.text=0", "data.clients.image=0"
    sums = gap(image) + gap(alone, text)
    assert gap(text) == pytest.approx(sums, abs=1e-9) and gap() == pytest.approx(gap(image) + gap(alone), abs=1e-9)
    assert gap(text) != pytest.approx(gap())


def test_gaps_are_between_one_modality_and_the_first_pairs_that_have_it() -> None:
    assert pairs_of(["image", "text", "image-text"]) == {"image": "image-text", "text": "image-text"}
    assert pairs_of(["image", "audio", "image-audio"]) == {"image": "image-audio"}
    assert pairs_of(["image", "text"]) == pairs_of(["image-text"]) == {}


def test_an_encoder_that_lacks_something_is_refused_before_data_are_opened(
    scenario: dict[str, Any], clip: Path, tmp_path: Path
) -> None:
    def refused(told: str, encoder: Path | None, *overrides: str) -> None:
        with pytest.raises(RunError, match=told) as error:
            edgefl.analyse(scenario, only=["gaps"], encoder=encoder, out=tmp_path / "out", overrides=overrides)
        assert error.value.exit_code == 2 and "\n" not in str(error.value) and not (tmp_path / "out").exists()

    refused(r"needs --encoder FOLDER: a CLIPModel of transformers has config.json, preprocessor_config.json, ", None)
    refused("nowhere lacks config.json, preprocessor_config.json, tokenizer.json, model.safe", tmp_path / "nowhere")
    refused("not of image and text", clip, "data.clients.image-text=0")
    cut = tmp_path / "cut"
    shutil.copytree(clip, cut)
    config = json.loads((cut / "config.json").read_text())
    (cut / "config.json").write_text(json.dumps({**config, "projection_dim": 9}))
    refused("there is no tensor for .*projection.weight as its config.json says", cut)
    (cut / "config.json").write_text("{")
    refused("isn't a valid JSON|not a valid JSON", cut)
    (cut / "tokenizer.json").unlink()
    refused("cut lacks tokenizer.json; a CLIPModel", cut)
    with pytest.raises(RunError, match="--encoder is only for gaps: add --only gaps"):
        edgefl.analyse(scenario, only=["drift"], encoder=clip)
