"""Features of the same samples by several models, against models run by hand."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import edgefl
from edgefl.commands.analyse.embeddings import models_of
from edgefl.commands.analyse.trained_federation import Trained, group_of
from edgefl.errors import RunError
from edgefl.models import build
from edgefl.scenario import load
from edgefl.setup.compose import federation_of
from edgefl.work import Pass

Tiny = Callable[..., dict[str, Any]]
Rows = list[dict[str, str]]


def rows_of(folder: Path) -> Rows:
    with (folder / "embeddings.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def places(rows: Rows, space: str, model: str) -> np.ndarray:
    return np.array([[float(r["x"]), float(r["y"])] for r in rows if (r["space"], r["model"]) == (space, model)])


def pca(points: np.ndarray) -> np.ndarray:
    """Coordinates along the two eigenvectors of the covariance with the largest eigenvalues."""
    centred = points - points.mean(0)
    return np.asarray(centred @ np.linalg.eigh(centred.T @ centred)[1][:, :-3:-1])


def assert_equal_up_to_signs(found: np.ndarray, expected: np.ndarray) -> None:
    for axis in (0, 1):
        sign = np.sign(found[:, axis] @ expected[:, axis])
        np.testing.assert_allclose(found[:, axis], sign * expected[:, axis], atol=2e-4)


def first_samples(scenario: dict[str, Any], split: Any, pattern: str, count: int) -> dict[str, torch.Tensor]:
    source = federation_of(load(scenario), lambda _: None).server()
    batch: dict[str, torch.Tensor] = next(source.batches(Pass("", split, (pattern,), count, False), 0))[1]
    return batch


def small(tiny: Tiny, clients: dict[str, int], **sections: Any) -> dict[str, Any]:
    tower = {"blocks": 1, "width": 16, "heads": 2}
    data = {**tiny()["data"], "clients": clients, "samples": 16, "size": 16, **sections.pop("data", {})}
    model = {"image": tower, "text": {**tower, "tokens": 12}}
    return tiny(data=data, **{"model": model, "schedule": {"name": "end-to-end", "rounds": 1}, **sections})


def test_equal_models_have_equal_points_by_tsne(tiny: Tiny, tmp_path: Path) -> None:
    """Clients whose rate is below the rounding of weights keep the server's model."""
    scenario = small(tiny, {"image": 2}, training={"batch": 8, "lr": 1e-30}, data={"partition": "iid", "test": 100})
    found: Any = edgefl.analyse(scenario, only=["embeddings"], out=tmp_path / "out", clients=2, samples=150)
    names = ["server, image", "image client 0", "image client 1"]
    assert found.embeddings.split == "test"
    assert [row.of for row in found.embeddings.distances] == [names[:2], names[::2], names[1:]]
    assert [row.distance for row in found.embeddings.distances] == [0, 0, 0]
    rows = rows_of(tmp_path / "out")
    server, *clients = (places(rows, "image", name) for name in names)
    assert len(server) == 150 and len(np.unique(server, axis=0)) > 90 and all((own == server).all() for own in clients)


def test_points_are_features_by_hand_and_weights_lie_apart_as_drift_says(tiny: Tiny, tmp_path: Path) -> None:
    scenario = small(tiny, {"image": 2, "text": 1}, training={"batch": 8})
    found: Any = edgefl.analyse(scenario, only=["embeddings,drift"], out=tmp_path / "out", clients=1, samples=40)
    run = edgefl.read_run(tmp_path / "out" / "everybody")
    trained = Trained.from_run(run, load(scenario), lambda _: None)
    models = {name: (model, tensors) for name, model, tensors in models_of(trained, ["image"], 1, lambda _: None)}
    server, (client,) = run.model("image"), [name for name in models if "client" in name]
    # the model of the client, whose weights lie apart from the server's as drift says
    description, tensors = models[client]
    model = build(description)
    model.load_state_dict(dict(tensors))
    own, before = (dict(each.requires_grad_(False).named_parameters()) for each in (model, server))
    moved: dict[str, list[float]] = {}
    for name, value in before.items():
        squares = moved.setdefault(group_of(name)[1], [0.0, 0.0])
        squares[0] += float((own[name] - value).double().square().sum())
        squares[1] += float(value.double().square().sum())
    drift = {row.part: row.moved for row in found.drift.within if row.kind == "image"}
    assert drift == pytest.approx({part: (a / b) ** 0.5 for part, (a, b) in moved.items()}, rel=1e-6)
    # unit features of both, and the distance of their centres
    batch = first_samples(scenario, "test", "image", 40)
    unit: list[np.ndarray] = []
    for each in (server, model.eval()):
        with torch.no_grad():
            feature = each.get_submodule("image")(batch["image"])[:, 0].double().numpy()
        unit.append(feature / np.linalg.norm(feature, axis=1, keepdims=True))
    (row,) = (row for row in found.embeddings.distances if row.space == "image")
    assert row.of == ["server, image", client] and row.distance > 0
    assert row.distance == pytest.approx(np.linalg.norm(unit[0].mean(0) - unit[1].mean(0)), rel=1e-4)
    rows = rows_of(tmp_path / "out")
    mine = np.concatenate([places(rows, "image", name) for name in row.of])
    assert_equal_up_to_signs(mine, pca(np.concatenate(unit)))
    assert [int(r["class"]) for r in rows if r["model"] == client] == batch["label"].tolist()
    assert {r["space"] for r in rows} == {"image", "text"}


def test_a_private_client_has_the_model_with_which_it_represented_the_public_samples(
    tiny: Tiny, tmp_path: Path
) -> None:
    """CreamFL: the only image client's table is the target of images."""
    scenario = small(
        tiny, {"image": 1, "text": 1}, data={"public": 20}, training={"batch": 8},
        method={"name": "reamfl-mean", "public_batch": 10, "pairs": 20},
    )  # fmt: skip
    scenario["model"] = {**scenario["model"], "dimension": 12, "dimension_for": "all"}
    found: Any = edgefl.analyse(scenario, only=["embeddings"], out=tmp_path / "out", samples=20)
    run = edgefl.read_run(tmp_path / "out" / "everybody")
    weights = run.weights()
    method: Any = Trained.from_run(run, load(scenario), lambda _: None).setup.method
    model: Any = build(method.server.model).eval()
    model.load_state_dict({n.removeprefix("server/"): t for n, t in weights.items() if n.startswith("server/")})
    batch = first_samples(scenario, "public", "image-text", 20)
    assert found.embeddings.split == "public" and [row.of[0] for row in found.embeddings.distances] == ["server"] * 2
    rows = rows_of(tmp_path / "out")
    for (space, name), row in zip((("image", "image client 0"), ("text", "text client 1")), found.embeddings.distances):
        with torch.no_grad():
            server, client = model.embed(space, batch[space]).numpy(), weights[f"table/target.{space}"].numpy()
        mine = np.concatenate([places(rows, space, "server"), places(rows, space, name)])
        assert_equal_up_to_signs(mine, pca(np.concatenate([server, client])))
        assert row.distance == pytest.approx(np.linalg.norm(server.mean(0) - client.mean(0)), rel=1e-4)


def test_prototypes_stand_among_the_features_of_their_classes(tiny: Tiny, tmp_path: Path) -> None:
    """The client's model is the server's, because its rate is below the rounding of weights."""
    scenario = small(
        tiny, {"image-text": 1}, method="pmcmfl", training={"batch": 20, "lr": 1e-30},
        data={"tasks": {"image-text": "classify"}, "samples": 60, "validation": 40, "test": 40},
        model={"multiway": {"blocks": 1, "width": 12, "heads": 2, "patch": 8, "tokens": 8}},
    )  # fmt: skip
    edgefl.analyse(scenario, only=["embeddings"], out=tmp_path / "out", classes=3, samples=12)
    run, rows = edgefl.read_run(tmp_path / "out" / "everybody"), rows_of(tmp_path / "out")
    batch = first_samples(scenario, "test", "image-text", 40)
    labels = batch["label"].tolist()
    named = list(dict.fromkeys(labels))[:3]
    chosen = [row for row, label in enumerate(labels) if label in named][:12]
    model: Any = run.model("image-text")
    with torch.no_grad():
        features = dict(model.features({m: batch[m][chosen] for m in ("image", "text")}))
        features["fused"] = model.fuse(features["image"], features["text"])
    for space, feature in features.items():
        table = run.weights()[f"table/prototypes.{space}"]
        there = [c for c in sorted(set(named)) if table[c].any()]
        unit = [(value / value.norm(dim=1, keepdim=True)).numpy() for value in (feature, feature, table[there])]
        names = ("server, image-text", "image-text client 0", "prototypes")
        mine = [places(rows, space, name) for name in names]
        assert [len(each) for each in mine] == [12, 12, len(there)] and len(there) > 1
        assert_equal_up_to_signs(np.concatenate(mine), pca(np.concatenate(unit)))
        for name, classes in zip(names, ([labels[row] for row in chosen],) * 2 + (there,), strict=True):
            assert [int(r["class"]) for r in rows if (r["space"], r["model"]) == (space, name)] == classes
    assert (tmp_path / "out" / "embeddings.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"samples": 1}, "samples must be 2 or more, not 1"),
        ({"classes": 0}, "classes must be 1 or more, not 0"),
        ({}, r"embeddings needs scikit-learn: pip install scikit-learn \(or, in edgefl's checkout, "),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_runs(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], told: str
) -> None:
    if not change:
        monkeypatch.setattr("edgefl.commands.analyse.analysed_run.find_spec", lambda _: None)
    assert importlib.util.find_spec("sklearn") is not None
    with pytest.raises(RunError, match=told):
        edgefl.analyse(tiny(), only=["gaps", "embeddings,landscape"], out=tmp_path / "none", **change)
    assert not (tmp_path / "none").exists()
