from __future__ import annotations

import io
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from miniatures import picture, write
from rich.console import Console
from safetensors.torch import save_file

import edgefl
from edgefl import models, registry
from edgefl.commands.validate.table import print_validation
from edgefl.errors import EdgeflError, ScenarioError
from edgefl.methods import Kind
from edgefl.methods.fedcola.stacks import PARTS, WORKING, Stack
from edgefl.scenario import load

DECLARED = {"source": "declared", "clients": {"image": 2, "text": 2}, "samples": 40,
            "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}, "text": {"vocabulary": 200}}}  # fmt: skip

Tiny = Callable[..., dict[str, Any]]


def test_the_summary_says_what_a_run_would_be_made_of(tiny: Tiny) -> None:
    scenario = tiny(
        data=DECLARED,
        training="none",
        fleet={"devices": {"raspberry-pi-4-4gb": 3, "phone-mid": 1}, "links": "lte"},
        compare={"schedule": ["end-to-end", {"name": "layerwise", "stages": 2, "rounds": 6}]},
    )
    found = edgefl.validate(scenario)
    assert (found["scenario"], found["seed"]) == ("tiny", 3)
    one, two = found["combinations"]
    assert (one["label"], one["rounds_by_stage"]) == ("end-to-end", [2])
    assert (two["label"], two["rounds_by_stage"]) == ("layerwise", [3, 3])
    assert two["clients"] == {"image": 2, "text": 2} and two["samples"] == {"image": 80, "text": 80}
    assert two["devices"] == {"raspberry-pi-4-4gb": 3, "phone-mid": 1} and two["links"] == {"lte": 4}
    assert load(found["resolved"]) == load(scenario)


def test_towers_that_a_method_cannot_pair_are_found(tiny: Tiny) -> None:
    models = {
        "image": {"blocks": 2, "width": 16, "heads": 2},
        "text": {"blocks": 2, "width": 32, "heads": 2, "tokens": 12},
    }
    with pytest.raises(ScenarioError, match="method: .*blocks of the same shape"):
        edgefl.validate(tiny(data=DECLARED, model=models, method="fedcola"))


def test_towers_without_gates_are_said_with_those_that_have_them(tiny: Tiny) -> None:
    model = {**tiny()["model"], "text": {"tower": "gru", "hidden": 8, "tokens": 12}}
    with pytest.raises(ScenarioError) as caught:
        edgefl.validate(tiny(data=DECLARED, training="none", model=model, method="fedcola"))
    said = caught.value.message
    assert "blocks of the tower gru of text clients have no query, key, value, proj, fc1, fc2; towers" in said
    fits = "transformer, bert or distilbert for texts; ast for audio; hf for each of them"
    assert said.endswith(f"{fits}; or set complementary: none")
    free = {"name": "fedcola", "complementary": "none", "collaborate": "none"}
    assert edgefl.validate(tiny(data=DECLARED, training="none", model=model, method=free))["combinations"]


@pytest.mark.slow(smaller="test_towers_without_gates_are_said_with_those_that_have_them")
def test_the_named_towers_are_those_with_the_layers() -> None:
    working = []
    needed = {
        "hf-causal": {"config": {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2}},
        "hf": {"config": {"model_type": "siglip_text_model", "hidden_size": 16, "num_attention_heads": 2}},
    }
    facts = {
        "image": {"channels": 1, "size": 32, "classes": 5}, "text": {"vocabulary": 60, "classes": 5},
        "audio": {"bins": 32, "frames": 32, "classes": 5},
    }  # fmt: skip
    for name in registry.names("tower"):
        modality = getattr(registry.get("tower", name), "modality", "text")
        if registry.origin("tower", name).package != "edgefl":
            continue
        options = models.ModelOptions.model_validate({modality: {"tower": name, **needed.get(name, {})}})
        kind = Kind(modality, (modality,), "classify", models.describe(options, (modality,), "classify", facts))
        stack = Stack(kind, modality)
        if all(f"0.{part}.weight" in stack.places for part in PARTS["blocks"]):
            working.append(name)
    assert working == ["ast", "bert", "distilbert", "hf", "hf-vit", "timm-vit", "transformer", "vit"]
    assert all(name in WORKING for name in working)


@pytest.mark.parametrize(
    "given", [3, None, [], object(), b"quickstart", {1, 2}, 2.5], ids=lambda value: type(value).__name__
)
def test_an_object_that_is_no_scenario_gets_a_sentence(given: Any) -> None:
    for command in (edgefl.validate, edgefl.profile, edgefl.sweep, edgefl.analyse, edgefl.run):
        if given is None and command is edgefl.run:
            continue
        with pytest.raises(ScenarioError, match="a scenario is a file, the name of a shipped one, or a dictionary"):
            command(given)
    with pytest.raises(ScenarioError, match=r'overrides are a list such as \["training.lr=1e-3"\], not'):
        edgefl.validate("quickstart", "training.lr=1e-3")


def test_data_that_cannot_be_opened_are_found(tiny: Tiny) -> None:
    with pytest.raises(EdgeflError, match="vocabulary"):
        edgefl.validate(tiny(data={**DECLARED, "vocabulary": 300}))


# --- what run refuses, validate refuses ------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "missing weights": ({}, ["model.image.weights=nowhere"], "model.image.weights: .*there is no file nowhere"),
    "a file of other weights": ({}, ["model.image.weights=other.safetensors"], "other.safetensors: no tensor belongs"),
    "a tower without weights": ({}, ["model.text={tower: gru, weights: x}"], "model.text"),
    "no samples": ({"data": DECLARED}, [], "no samples to train on"),
    "a missing folder": ({}, ["data.source=cifar10", "data.folders.cifar10=nowhere"], "nowhere"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_run_refuses_is_not_valid_and_leaves_nothing(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    sections, overrides, message = REFUSED[what]
    monkeypatch.chdir(tmp_path)
    save_file({"head.weight": torch.zeros(2, 2)}, "other.safetensors")
    with pytest.raises(EdgeflError, match=message) as by_validate:
        edgefl.validate(tiny(**sections), overrides)
    with pytest.raises(EdgeflError, match=message) as by_run:
        edgefl.run(tiny(**sections), overrides=overrides)
    assert str(by_run.value) == str(by_validate.value) and by_run.value.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["other.safetensors"]


# --- steps without a price -------------------------------------------------------------------------------------------

TOWERS = """
import edgefl
import torch
from torch import nn


class Plain(nn.Module):
    blocks = "layers"

    def __init__(self, channels: int, size: int, hidden: int = 8):
        super().__init__()
        self.inp = nn.Linear(channels * size * size, hidden)
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(3))
        self.end, self.width = nn.Bilinear(hidden, hidden, hidden), hidden

    def forward(self, image):
        x = self.inp(image.flatten(1))
        for layer in self.layers:
            x = x + layer(x).relu()
        return self.read(x)

    def read(self, x):
        return x


@edgefl.register("tower", "vectors")
class Vectors(Plain):
    def read(self, x):
        return self.end(x, x) * torch.mv(x, self.end.weight[0, 0])[:, None]


@edgefl.register("tower", "distances")
class Distances(Plain):
    def read(self, x):
        return x + torch.cdist(x, x).mean()


@edgefl.register("tower", "third")
class Third(Plain):
    def read(self, x):
        if len(self.layers) == 2 and self.layers[1].weight.requires_grad:
            raise RuntimeError("not at two layers")
        return x


@edgefl.register("tower", "single")
class Single(Plain):
    def read(self, x):
        return x * x[1]
"""


@pytest.fixture
def towers(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "odd.py"
    file.write_text(TOWERS)
    registry.load_plug_in(file)
    yield file
    registry.unload_plug_ins()


PICTURES = {"source": "glyphs", "clients": {"image": 3}, "samples": 40, "size": 16, "validation": 40, "test": 40}
ALONE = {**PICTURES, "partition": "iid", "samples": 1}
LAYERWISE = {"name": "layerwise", "stages": 3, "rounds": 3}

WITHOUT_PRICE: dict[str, tuple[dict[str, Any], str]] = {
    "distances": ({}, r"kind 'image' \(distances, .*odd.py:35\): operator aten._cdist_forward of image is of matmul"),
    "third": ({"schedule": LAYERWISE}, r"model: a work of kind 'image' \(third, .*odd.py:42\): .*: not at two layers"),
    "single": ({"data": ALONE}, r"odd.py:49, in Single.read\) failed: IndexError"),
}


@pytest.mark.parametrize("tower", WITHOUT_PRICE)
def test_a_step_without_a_price_is_refused_before_anything_is_written(
    tiny: Tiny, tmp_path: Path, towers: Path, tower: str
) -> None:
    sections, message = WITHOUT_PRICE[tower]
    scenario = tiny(**{"data": PICTURES, "model": {"image": {"tower": tower}}, **sections})
    with pytest.raises(EdgeflError, match=message) as by_validate:
        edgefl.validate(scenario)
    with pytest.raises(EdgeflError, match=message) as by_run:
        edgefl.run(scenario, out=tmp_path / "run")
    assert str(by_run.value) == str(by_validate.value) and by_run.value.exit_code == 2
    assert not (tmp_path / "run").exists()


def test_a_step_of_edgefls_own_parts_is_tried(tiny: Tiny, tmp_path: Path) -> None:
    resnet = {"image": {"tower": "resnet"}}
    scenario = tiny(data=PICTURES, model=resnet, training={"batch": 1})
    for command in (edgefl.validate, edgefl.run):
        with pytest.raises(ScenarioError, match="model: .* single value per channel from a batch of 1"):
            command(scenario)


def test_products_with_vectors_and_of_two_inputs_have_a_price(tiny: Tiny, tmp_path: Path, towers: Path) -> None:
    scenario = tiny(data=PICTURES, model={"image": {"tower": "vectors"}}, schedule=LAYERWISE)
    assert edgefl.validate(scenario)["combinations"]
    assert edgefl.run(scenario, out=tmp_path / "run").is_finished


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_split_that_is_scored_needs_samples(tiny: Tiny, tmp_path: Path, split: str) -> None:
    model = {"image": {"blocks": 1, "width": 8, "heads": 1}}
    scenario = tiny(data={**PICTURES, split: 0}, model=model, evaluation={})
    said = f"data.{split}: the server .glyphs. has no {split} image samples; set data.{split} to give it some, or eval"
    for command in (edgefl.validate, edgefl.run):
        with pytest.raises(ScenarioError, match=said):
            command(scenario)
    other = "evaluation.split=test" if split == "validation" else "evaluation.final=validation"
    assert edgefl.validate(scenario, [other])["combinations"]
    # a run whose every evaluation is the last scores no validation split
    for only_last in ("evaluation.every=2", "schedule.rounds=1"):
        assert split == "test" or edgefl.validate(scenario, [only_last])["combinations"]


@pytest.mark.parametrize("lacking", ["validation", "test"])
def test_a_published_split_has_samples_whatever_its_size_says(tiny: Tiny, tmp_path: Path, lacking: str) -> None:
    places = itertools.product(("train", "validation", "test"), ("red", "blue"), range(10))
    for seed, (split, name, number) in enumerate(places):
        write(tmp_path / split / name / f"{number}.png", picture(seed, kind="PNG"))
    data = {"source": "images", "folders": {"images": str(tmp_path)}, "clients": {"image": 2}, "size": 16}
    scenario = tiny(
        data={**data, "validation": 0, "test": 0}, evaluation={}, model={"image": {"blocks": 1, "width": 8}}
    )
    assert edgefl.validate(scenario)["combinations"]
    shutil.rmtree(tmp_path / lacking)
    with pytest.raises(ScenarioError, match=f"has no {lacking} image samples; set data.{lacking} to give it some, or "):
        edgefl.validate(scenario)


def test_costs_without_training_need_no_weights(tiny: Tiny) -> None:
    found = edgefl.validate(tiny(training="none"), ["model.image.weights=nowhere"])
    assert found["combinations"][0]["parameters"]["image"] > 0


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("method=scaffold", "scaffold counts steps of plain SGD"),
        ("method=mezo", "mezo sends steps along random directions"),
        ("schedule=flexlora", "flexlora offers ranks of LoRA's factors"),
    ],
)
def test_sections_that_contradict_each_other_are_told_before_data_are_built(
    override: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEFL_CACHE", str(tmp_path))
    with pytest.raises(ScenarioError, match=said) as caught, pytest.warns(UserWarning, match="leaves out"):
        edgefl.validate("quickstart", [override])
    assert str(caught.value).startswith(f"--set {override}: ") and not [*tmp_path.iterdir()]


def test_refusals_of_all_combinations_come_before_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEFL_CACHE", str(tmp_path))
    for command in (edgefl.validate, edgefl.run):
        with pytest.raises(ScenarioError, match="scaffold counts steps of plain SGD"):
            command("quickstart", overrides=["compare={method: [fedavg, scaffold]}"])
        assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("sections", "override", "said"),
    [
        ({}, "model.image.patch=7", "model.image: patch 7 doesn't divide the image size 32"),
        (
            {"method": "scaffold", "training": {"optimizer": "sgd", "batch": 8}},
            "training.optimizer=adam",
            "method: scaffold",
        ),
        ({"method": "scaffold", "training": {"optimizer": "sgd"}}, "training.optimizer=adam", "method: scaffold"),
        ({"method": "scaffold", "training": {"optimizer": "sgd"}}, "fleet.relays=2", "fleet.relays: "),
    ],
)
def test_what_is_found_once_data_are_open_is_told_at_the_override_that_causes_it(
    tiny: Tiny, sections: dict[str, Any], override: str, said: str
) -> None:
    scenario = tiny(data=DECLARED, **sections)
    with pytest.raises(ScenarioError) as caught:
        edgefl.validate(scenario, [override, "training.epochs=2"])
    assert str(caught.value).startswith(f"--set {override}: {said}")


def test_relays_are_listed_and_what_combinations_share_is_printed_once(tiny: Tiny) -> None:
    scenario = tiny(
        data=DECLARED, training="none", fleet={"devices": "phone-mid", "links": "lte", "relays": {"count": 3}},
        compare={"seed": [1, 2, 3], "method": ["fedavg", "fedprox"]},
    )  # fmt: skip
    found = edgefl.validate(scenario)
    assert all(row.relays == {"fibre": 3} for row in found.combinations)
    assert all("relays" not in row for row in edgefl.validate(tiny(data=DECLARED, training="none"))["combinations"])
    console = Console(file=io.StringIO(), width=80)
    print_validation(found, console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0] == "tiny is valid: 6 combinations, several seeds"
    assert lines[2:6] == ["fedavg, 3 seeds", "  fedavg under end-to-end, 2 rounds",
                          "fedprox, 3 seeds", "  fedprox under end-to-end, 2 rounds"]  # fmt: skip
    assert lines[-1] == "  relays: fibre 3" and sum(line.startswith("  2 image clients") for line in lines) == 1
