"""The result of a run leaves edgefl: a module and its preprocessing, which score raw samples as the run recorded."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import edgefl
from edgefl import registry
from edgefl.data.collection import Collection, DataSet, resize_images
from edgefl.errors import DataError, RunError, UnknownName
from edgefl.registry.registered import PARTS
from edgefl.runs import Run

COLOURS = {"red": (138, 118, 118), "green": (118, 138, 118), "blue": (118, 118, 138)}
SAMPLES, SIDE, TEST = 210, 12, 2


class Blots:
    """Raw samples: noisy pictures of 12 x 12 pixels, texts with their colour in other words, noisy spectrograms."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.label = np.arange(SAMPLES) % 3
        self.split = np.repeat([0, 1, TEST], [120, 30, 60])
        colours = np.array(list(COLOURS.values()))[self.label][:, None, None, :]
        self.pictures = np.clip(colours + rng.normal(0, 70, (SAMPLES, SIDE, SIDE, 3)), 0, 255).astype(np.uint8)
        words = [["rose", "fire", "sun"], ["leaf", "moss", "sun"], ["sea", "sky", "sun"]]
        self.texts = tuple(f"{rng.choice(words[c])} of {rng.choice(words[c])} in {i}" for i, c in enumerate(self.label))
        self.audio = rng.normal(-6 + 0.3 * self.label[:, None, None], 3, (SAMPLES, 24, 16)).astype(np.float32)

    def collection(self, size: int | None) -> Collection:
        """What edgefl is given."""
        rows = np.arange(SAMPLES)
        images = resize_images(self.pictures.transpose(0, 3, 1, 2), size)
        masked = self.texts
        return Collection(
            tuple(COLOURS), self.label, rows, images, rows, self.texts, masked, audio=self.audio, official=self.split
        )

    @property
    def tested(self) -> list[int]:
        """The numbers of the published test samples."""
        return [int(row) for row in np.flatnonzero(self.split == TEST)]


RAW = Blots()


@pytest.fixture(autouse=True, scope="module")
def blots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    edgefl.register("data set", "blots")(DataSet(lambda size, on_message: RAW.collection(size)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEFL_CACHE", str(tmp_path_factory.mktemp("cache")))  # which would keep an older collection
        yield
    PARTS.clear()
    registry.forget()


TOWER = {"blocks": 2, "width": 16, "heads": 2}
MODEL = {
    "image": {**TOWER, "patch": 4},
    "text": {**TOWER, "tokens": 8},
    "audio": {"tower": "ast", **TOWER, "patch": 8, "stride": 8},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    runs: dict[str, Run] = {}

    def run(kind: str, **tasks: str) -> Run:
        name = f"{kind} {tasks}"
        if name not in runs:
            scenario = {
                "name": "blots",
                "seed": 2,
                "data": {"source": "blots", "clients": {kind: 3}, "size": 8, "partition": "iid", "tasks": tasks},
                "model": {m: MODEL[m] for m in kind.split("-")},
                "schedule": {"name": "end-to-end", "rounds": 3},
                "training": {"optimizer": "adamw", "lr": 3e-3, "batch": 8},
                "round": {"cohort": 1.0},
                "executor": {"name": "inline", "device": "cpu"},
            }
            runs[name] = edgefl.run(scenario, out=tmp_path_factory.mktemp(kind) / "run")
        return runs[name]

    return run


def raw_of(kind: str) -> list[list[Any]]:
    """The raw test samples of each modality."""
    raw = {
        "image": [Image.fromarray(RAW.pictures[row]) for row in RAW.tested],
        "text": [RAW.texts[row] for row in RAW.tested],
        "audio": [RAW.audio[row] for row in RAW.tested],
    }
    return [raw[modality] for modality in kind.split("-")]


@pytest.mark.parametrize(
    ("kind", "tasks"),
    [
        ("image", {}),
        ("text", {}),
        pytest.param("audio", {}, marks=pytest.mark.slow),
        pytest.param("image-text", {"image-text": "classify"}, marks=pytest.mark.slow),
    ],
)
def test_raw_samples_of_the_test_split_score_the_recorded_accuracy(
    trained: Callable[..., Run], kind: str, tasks: dict[str, str]
) -> None:
    run = trained(kind, **tasks)
    model, prepare = run.model(kind), run.preprocessing(kind)
    assert prepare.classes == tuple(COLOURS)
    hits = 0
    for sample, label in zip(zip(*raw_of(kind), strict=True), RAW.label[RAW.tested], strict=True):
        scores = model(*prepare(*sample))
        hits += int(scores[0].argmax()) == label
    recorded = run.result["metrics"][kind]["accuracy"]
    assert float(np.float32(hits) / np.float32(len(RAW.tested))) == recorded
    assert 0.4 < recorded < 1.0  # it has learnt, and there are errors to count


def test_another_normalisation_scores_otherwise(trained: Callable[..., Run]) -> None:
    run = trained("image")
    model, (images,) = run.model("image"), run.preprocessing("image")(*raw_of("image"))
    halved = torch.stack([torch.from_numpy(np.array(i.resize((8, 8)))).permute(2, 0, 1) for i in raw_of("image")[0]])
    label = torch.from_numpy(RAW.label[RAW.tested])
    accuracy, guessed = (
        float((model(x).argmax(-1) == label).float().mean()) for x in (images, halved.float() / 255 * 2 - 1)
    )
    assert accuracy == pytest.approx(run.result["metrics"]["image"]["accuracy"])
    assert guessed != pytest.approx(accuracy)


def test_what_it_says_is_what_the_training_samples_are(trained: Callable[..., Run]) -> None:
    """Mean and deviation by torch, over the pictures that PIL scaled."""
    prepare = trained("image").preprocessing("image").image
    assert prepare is not None
    train = [Image.fromarray(p).resize((8, 8), Image.Resampling.BILINEAR) for p in RAW.pictures[RAW.split == 0]]
    bytes_ = torch.stack([torch.from_numpy(np.asarray(picture).copy()) for picture in train]).double().flatten(0, 2)
    torch.testing.assert_close(torch.tensor(prepare.mean).double(), bytes_.mean(0), atol=1e-4, rtol=1e-6)
    torch.testing.assert_close(
        torch.tensor(prepare.deviation).double(), bytes_.std(0, unbiased=False), atol=1e-4, rtol=1e-6
    )
    assert (prepare.channels, prepare.size) == (3, 8)


def test_pictures_come_in_many_forms(trained: Callable[..., Run]) -> None:
    prepare = trained("image").preprocessing("image").image
    assert prepare is not None
    one = RAW.pictures[0]
    expected = prepare(Image.fromarray(one))
    assert expected.shape == (1, 3, 8, 8) and expected.dtype == torch.float32
    for other in (one, one.transpose(2, 0, 1), [one], one[None], torch.from_numpy(one)):
        assert torch.equal(prepare(other), expected)
    for wrong, reason in (
        (one / 255, "bytes from 0 to 255"),
        (one[..., :2], "3 channels"),
        (np.zeros((2, 2, 2, 2, 2), np.uint8), "3 channels"),
    ):
        with pytest.raises(DataError, match=reason):
            prepare(wrong)
    with pytest.raises(DataError, match="takes image: 2 inputs"):
        trained("image").preprocessing("image")(one, one)


@pytest.mark.slow(smaller="test_raw_samples_of_the_test_split_score_the_recorded_accuracy")
def test_a_model_that_retrieves_gives_an_embedding_of_each_input(trained: Callable[..., Run]) -> None:
    run = trained("image-text")
    model, prepare = run.model("image-text"), run.preprocessing("image-text")
    assert prepare.classes == ()
    images, texts = model(*prepare(*raw_of("image-text")))
    near = images @ texts.T
    rank = (near > near.diagonal()[:, None]).sum(1)
    recorded = run.result["metrics"]["image-text"]["image_to_text_r@10"]
    assert float((rank < 10).float().mean()) == pytest.approx(recorded, abs=1e-6)
    assert torch.equal(model.embed("text", prepare.text(raw_of("image-text")[1])), texts)  # type: ignore[operator, misc]
    with pytest.raises(TypeError, match="takes image and text: 1 inputs"):
        model(images)


@pytest.mark.parametrize(
    ("kind", "tasks"),
    [
        ("image", {}),
        pytest.param("image-text", {"image-text": "classify"}, marks=pytest.mark.slow),
        pytest.param("image-text", {}, marks=pytest.mark.slow),
    ],
)
def test_it_is_exported_by_torch(trained: Callable[..., Run], kind: str, tasks: dict[str, str]) -> None:
    run = trained(kind, **tasks)
    model, inputs = run.model(kind), run.preprocessing(kind)(*raw_of(kind))
    batch = torch.export.Dim("batch", min=2, max=100)
    first = tuple(x[:4] for x in inputs)
    program = torch.export.export(model, first, dynamic_shapes=tuple({0: batch} for _ in inputs)).module()
    for found, expected in zip(_tuple(program(*inputs)), _tuple(model(*inputs)), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


def _tuple(given: Any) -> tuple[torch.Tensor, ...]:
    return given if isinstance(given, tuple) else (given,)


@pytest.mark.slow(smaller="test_the_file_is_covered_and_read")
def test_another_process_reads_its_pickle(trained: Callable[..., Run], tmp_path: Path) -> None:
    run = trained("image")
    (inputs,) = run.preprocessing("image")(*raw_of("image"))
    torch.save({"model": run.model("image"), "inputs": inputs}, tmp_path / "model.pt")  # noqa: TID251  # as a user may
    code = (
        "import sys, torch; loaded = torch.load(sys.argv[1], weights_only=False);"
        "torch.save(loaded['model'](loaded['inputs']), sys.argv[2])"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "model.pt", tmp_path / "scores.pt"], check=True)
    scores = torch.load(tmp_path / "scores.pt")  # noqa: TID251  # of the test's own
    assert torch.equal(scores, run.model("image")(inputs))


def test_the_file_is_covered_and_read(trained: Callable[..., Run]) -> None:
    run = trained("text")
    written = json.loads((run.path / "preprocessing.json").read_text())
    assert written == {"text": {"text": {"tokens": 8, "tokenizer": "tokenizer.json"}, "classes": list(COLOURS)}}
    assert "preprocessing.json" in json.loads((run.path / "files.json").read_text())["files"]


def test_folders_without_it_or_with_another_say_so(trained: Callable[..., Run], tmp_path: Path) -> None:
    import shutil

    shutil.copytree(trained("image").path, tmp_path / "old")
    old = edgefl.read_run(tmp_path / "old")
    with pytest.raises(UnknownName, match="did you mean 'image'"):
        old.preprocessing("imag")
    file = old.path / "preprocessing.json"
    facts = json.loads(file.read_text())
    for changed, reason in (
        ({"image": {"image": {**facts["image"]["image"], "mean": [1.0]}}}, "3 channels need as many means"),
        ({"image": {"image": {**facts["image"]["image"], "size": "big"}}}, "image.image.size.*found 'big'"),
        ({}, "doesn't say how inputs of 'image' are made; it has no kind"),
    ):
        file.write_text(json.dumps(changed))
        with pytest.raises(RunError, match=reason):
            old.preprocessing("image")
    file.unlink()
    with pytest.raises(RunError, match=r"preprocessing.json isn't there: runs without training don't write it"):
        old.preprocessing("image")
    texts = tmp_path / "texts"
    shutil.copytree(trained("text").path, texts)
    (texts / "tokenizer.json").unlink()
    with pytest.raises(RunError, match="can't read .*tokenizer.json"):
        edgefl.read_run(texts).preprocessing("text")("a leaf")


@pytest.mark.slow(smaller="test_the_file_is_covered_and_read")
def test_a_copy_in_memory_keeps_what_was_added(trained: Callable[..., Run]) -> None:
    import copy

    model = trained("image").model("image")
    model.image.extra = torch.nn.Linear(2, 2)  # type: ignore[union-attr]
    assert "image.extra.weight" in copy.deepcopy(model).state_dict()
    with pytest.raises(RuntimeError, match="extra"):
        torch.load(io.BytesIO(_saved(model)), weights_only=False)  # noqa: TID251  # of the test's own


def _saved(model: torch.nn.Module) -> bytes:
    file = io.BytesIO()
    torch.save(model, file)  # noqa: TID251  # as a user may
    return file.getvalue()
