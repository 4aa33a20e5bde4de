"""Pre-training at the server: what towers start from, where it is kept, and what can't be pre-trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tensors import assert_equal_tensors

import edgefl
from edgefl.commands import compose as composing
from edgefl.commands.compose import compose
from edgefl.errors import EdgeflError, ScenarioError
from edgefl.scenario import load

Make = Callable[..., dict[str, Any]]


@pytest.fixture
def few(tiny: Make) -> Make:
    """A federation with public samples: 64 groups of names, 70 texts."""

    def make(**sections: Any) -> dict[str, Any]:
        data = {"source": "names", "clients": {"text": 2}, "samples": 20, "validation": 40, "test": 40, "public": 64}
        model = {"text": {"blocks": 2, "width": 16, "heads": 2, "tokens": 12}}
        return tiny(**{"data": data, "model": model, "training": {"batch": 8}, **sections})

    return make


def first_values(scenario: dict[str, Any]) -> dict[str, torch.Tensor]:
    setup = compose(load(scenario))
    return dict(setup.method.initial(setup.seed).tensors)


def test_a_pretrained_tower_starts_every_run_and_its_head_does_not(few: Make, tmp_path: Path) -> None:
    plain = first_values(few())
    scenario = few(pretrain={"text": {"epochs": 2, "batch": 16, "parts": ["embedding", "blocks"]}})
    trained = first_values(scenario)
    moved = {name.split(".")[1] for name in plain if not torch.equal(plain[name], trained[name])}
    assert moved == {"embedding", "blocks"}
    edgefl.run(
        {**scenario, "schedule": {"name": "layerwise", "stages": 2, "allocation": [0, 1]}}, output=tmp_path / "run"
    )
    # a stage without rounds keeps what the tower learned beforehand
    kept = safetensors.torch.load_file(tmp_path / "run" / "weights.safetensors")
    early = [name for name in kept if ".blocks.0." in name or ".embedding." in name]
    assert_equal_tensors({name: kept[name] for name in early}, {name: trained[name] for name in early})
    for name in kept:
        if ".blocks.1.mlp.fc1.weight" in name:
            assert not torch.equal(kept[name], trained[name])
    told = json.loads((tmp_path / "run" / "pretrained.json").read_text())["text"]
    assert told["epochs"] == 2 and told["samples"] == 70 and len(told["losses"]) == 2 and told["flops"] > 0
    assert 0 <= told["validation_accuracy"] <= 1
    # what a run kept can be read by another
    again = first_values(few(seed=9, pretrain={"text": {"from": str(tmp_path / "run"), "parts": ["blocks"]}}))
    weights = [n for n in again if n.endswith("weight") and "norm" not in n]
    assert {n.split(".")[1] for n in weights if torch.equal(again[n], trained[n])} == {"blocks"}


def test_what_was_learned_is_trained_once(few: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGEFL_CACHE", str(tmp_path))
    scenario = few(pretrain={"text": {"epochs": 1, "batch": 32}})
    one = first_values(scenario)
    (kept,) = (tmp_path / "pretrained").iterdir()
    before = kept.stat().st_mtime_ns
    two = first_values(scenario)
    assert kept.stat().st_mtime_ns == before
    assert_equal_tensors(two, one)
    first_values(few(seed=4, pretrain={"text": {"epochs": 1, "batch": 32}}))
    assert len(list((tmp_path / "pretrained").iterdir())) == 2


def test_what_was_learned_from_a_folder_is_not_kept_for_other_files_in_it(
    tiny: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EDGEFL_CACHE", str(tmp_path / "cache"))
    table = tmp_path / "table.csv"
    data = {"source": "table", "folders": {"table": str(table)}, "clients": {"text": 1}, "partition": "iid"}
    scenario = tiny(
        data={**data, "validation": 4, "test": 4, "public": 16},
        model={"text": {"blocks": 1, "width": 8, "heads": 1, "tokens": 4}},
        training={"batch": 4},
        pretrain={"text": {"epochs": 1, "batch": 8}},
    )
    found = []
    for words in ("abcdefgh", "ponmlkji"):
        rows = [f"{words[i % 8]}{i} {words[i // 8]},{i % 2}" for i in range(64)]
        table.write_text("\n".join(["text,label", *rows]) + "\n")
        found.append(first_values(scenario))
        composing._federations.clear()
    assert len(list((tmp_path / "cache" / "pretrained").iterdir())) == 2
    assert any(not torch.equal(t, found[1][n]) for n, t in found[0].items() if ".blocks." in n)


def test_without_training_nothing_is_pretrained(few: Make, tmp_path: Path) -> None:
    scenario = few(pretrain={"text": {"epochs": 500, "batch": 16}}, training={"mode": "none", "batch": 8})
    edgefl.run(scenario, output=tmp_path / "run")  # 500 epochs would take minutes
    assert not (tmp_path / "run" / "pretrained.json").exists()


@pytest.mark.parametrize(
    ("pretrain", "told"),
    [
        ({"text": {}}, "give either epochs, to train the tower, or from"),
        ({"text": {"epochs": 1, "from": "x"}}, "give either epochs, to train the tower, or from"),
        ({"image": {"epochs": 1}}, "no image tower to pre-train; it has: text"),
        ({"text": {"epochs": 1, "batch": 71}}, "at least one batch of 71 public samples, but there are 70"),
        ({"text": {"from": "nowhere.safetensors"}}, "no file or folder nowhere.safetensors"),
        ({"text": {"epochs": 1, "parts": ["head"]}}, "embedding"),
        ({"smell": {"epochs": 1}}, "smell"),
    ],
)
def test_what_cannot_be_pretrained_is_said_before_anything_is(few: Make, pretrain: Any, told: str) -> None:
    with pytest.raises(ScenarioError, match=told):
        compose(load(few(pretrain=pretrain)))


def test_a_file_that_does_not_fit_is_said(few: Make, tmp_path: Path) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"no such format")
    with pytest.raises(EdgeflError, match="is not a safetensors file"):
        first_values(few(pretrain={"text": {"from": str(tmp_path / "bad.safetensors")}}))
    safetensors.torch.save_file({"text.blocks.0.norm1.weight": torch.zeros(3)}, tmp_path / "wide.safetensors")
    with pytest.raises(EdgeflError, match=r"has shape \(3,\), but the model's has \(16,\)"):
        first_values(few(pretrain={"text": {"from": str(tmp_path / "wide.safetensors")}}))
    safetensors.torch.save_file({"text.blocks.0.norm1.weight": torch.zeros(16)}, tmp_path / "few.safetensors")
    with pytest.raises(EdgeflError, match="has no text.embedding"):
        first_values(few(pretrain={"text": {"from": str(tmp_path / "few.safetensors")}}))
    (tmp_path / "empty").mkdir()
    with pytest.raises(EdgeflError, match="0 .safetensors files"):
        compose(load(few(pretrain={"text": {"from": str(tmp_path / "empty")}})))
