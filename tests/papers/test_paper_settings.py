"""The papers' settings that are to be trained: on miniatures of their data, with towers of two narrow blocks."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import miniatures
import pytest

import edgefl
from edgefl.data import open_federation
from edgefl.errors import DataError
from edgefl.scenario import library_folder, load
from edgefl.scenario.document import read_file

VIT = {"tower": "vit", "blocks": 2, "width": 16, "heads": 2, "patch": 16}
TEXT = {"tower": "transformer", "blocks": 2, "width": 16, "heads": 2, "tokens": 12}
AUDIO = {"tower": "ast", "blocks": 2, "width": 16, "heads": 2}
TOWERS = {"image": VIT, "text": TEXT}
# how each setting is made small: its towers, its clients, and what else a miniature needs
SMALL: dict[str, dict[str, Any]] = {
    "fedcola-flickr30k": {"model": TOWERS},
    "mcfl-cifar100-agnews": {"model": TOWERS, "method.warmup": None},
    "mcfl-organamnist-mtsamples": {"model": TOWERS},
    "creamfl-coco": {
        "model": {**TOWERS, "dimension": 8, "dimension_for": "all"},
        "method.model": {**TOWERS, "dimension": 8},
        "training.lr_schedule": "constant",  # whose steps come after more rounds than a miniature has
    },
    "pmcmfl-vqa": {
        "model": {"multiway": {"blocks": 2, "width": 16, "heads": 2, "patch": 16, "tokens": 12}},
        "data.draw": {"image-text": 60, "test": 10},
        "data.test": 8,
        "training.accumulation": 1,
        "training.precision": "bfloat16",
    },
    "lw-fedmml-coco-train": {
        "model": {**TOWERS, "dimension": 8, "projection": {"hidden": [16]}},
        "schedule": {"name": "layerwise", "stages": 2, "rounds": 2},
        "training.rates": {"image": 1e-3},
    },
    "lw-fedmml-advance-train": {
        "model": {"image": VIT, "audio": AUDIO, "dimension": 8, "projection": {"hidden": [16]}},
        "data.partition": "iid",
        "schedule": {"name": "layerwise", "stages": 2, "rounds": 2},
        "training.rates": {"image": 1e-3},
    },
}
CLIENTS = {"image": 2, "text": 2, "image-text": 2, "image-audio": 2}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sets")
    miniatures.cifar100(root / "cifar100", 60, 20)
    miniatures.ag_news(root / "ag-news", 60, 20)
    miniatures.flickr(root / "flickr30k", 16)
    miniatures.coco(root / "coco", train=16, val=8)
    miniatures.vqa(root / "vqa", 40, 10)
    miniatures.medmnist(root / "organamnist" / "organamnist.npz")
    miniatures.mtsamples(root / "mtsamples")
    miniatures.advance(root / "advance", of_class=16)
    return root


def small(name: str) -> dict[str, Any]:
    """The scenario as it is shipped, with what makes it small put in the place of what is there."""
    scenario = copy.deepcopy(dict(read_file(library_folder() / f"papers/{name}.yaml", name).data))
    overrides = {
        "data.size": 32,
        "data.vocabulary": 60,
        "data.clients": {kind: CLIENTS[kind] for kind in scenario["data"]["clients"]},
        "data.samples": 20,
        "schedule.rounds": 1,
        "training.batch": 4,
        "training.epochs": 1,
        "round": {"cohort": 1.0},
        "evaluation.batch": 8,
        "executor": {"name": "inline", "device": "cpu"},
    }
    for path, value in (overrides | SMALL[name]).items():
        section, _, key = path.partition(".")
        if key and isinstance(scenario[section], dict):
            scenario[section][key] = value
        else:
            scenario[section] = value
    return scenario


@pytest.mark.slow(smaller="test_clients_of_three_kinds_hold_samples_of_three_folders")
@pytest.mark.parametrize("name", SMALL)
def test_a_papers_setting_trains_on_miniatures_of_its_data(name, folders, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEFL_DATA", str(folders))
    monkeypatch.setenv("EDGEFL_CACHE", str(tmp_path / "cache"))
    run = edgefl.run(small(name), out=tmp_path / "run")
    assert run.is_finished
    assert [name for name in run.rounds.columns if name.startswith("metrics")]


def test_clients_of_three_kinds_hold_samples_of_three_folders(folders, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEFL_DATA", str(folders))
    options = load(small("fedcola-flickr30k")).data
    made = open_federation(options, seed=1, tokens=12, cache=tmp_path)
    assert made.facts["image"] | made.facts["text"] == {
        "channels": 3, "size": 32, "vocabulary": 60, "tokens": 12, "classes": made.facts["text"]["classes"],
    }  # fmt: skip
    assert made.server_samples["test"] == {"image": 20, "text": 20, "image-text": 5}
    kinds = [made.kinds[kind] for kind in made.client_kind]
    assert kinds == ["image"] * 2 + ["text"] * 2 + ["image-text"] * 2
    assert made.client_samples.tolist() == [20] * 6


def test_without_its_data_a_setting_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EDGEFL_DATA", raising=False)
    with pytest.raises(DataError, match=f"cifar100 is read .* tried {tmp_path}/data/cifar100 .EDGEFL_DATA is not set"):
        open_federation(load("papers/fedcola-flickr30k").data, seed=1, tokens=40, cache=tmp_path / "cache")
