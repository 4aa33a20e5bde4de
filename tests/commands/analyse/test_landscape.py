"""Curvature and losses around a model, against closed forms and whole Hessians."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F

import edgefl
from edgefl.commands.analyse.landscape import STEPS, hessian_times, losses_around, top_eigenvectors
from edgefl.errors import RunError
from edgefl.scenario import load
from edgefl.setup.compose import federation_of
from edgefl.work import Pass

Tiny = Callable[..., dict[str, Any]]


def assert_parallel(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert abs(float(found @ expected)) == pytest.approx(float(found.norm() * expected.norm()), rel=1e-6)
    assert float(found.norm()) == pytest.approx(1)


def test_a_quadratic_has_the_eigenvectors_and_losses_that_it_was_made_of() -> None:
    torch.manual_seed(1)
    basis = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    matrix = basis @ torch.diag(torch.tensor([1.0, -3.0, 5.0, 0.5, 0.1, 0.0], dtype=torch.float64)) @ basis.T
    start = torch.randn(6, dtype=torch.float64)
    parts = [start[:2].clone().reshape(2, 1).requires_grad_(), start[2:].clone().requires_grad_()]

    def losses() -> list[torch.Tensor]:
        """Two batches, whose mean is the quadratic."""
        each = (torch.cat([part.flatten() for part in parts]) for _ in range(2))
        return [x @ matrix @ x / 2 + sign * x[0] * x[1] for x, sign in zip(each, (7, -7), strict=True)]

    values, vectors = top_eigenvectors(losses, parts, seed=2, iterations=80)
    assert values == pytest.approx([5, -3], rel=1e-6)
    assert_parallel(vectors[0], basis[:, 2])
    assert_parallel(vectors[1], basis[:, 1])
    grid = losses_around(losses, parts, vectors)
    assert len(grid) == 21 * 21 and [place[0] for place in grid[:21]] == STEPS and {y for _, y, _ in grid} == {*STEPS}
    for x, y, loss in grid:
        at = start + x * vectors[0] + y * vectors[1]
        assert loss == pytest.approx(float(at @ matrix @ at / 2), abs=1e-9)
    assert torch.equal(torch.cat([part.detach().flatten() for part in parts]), start)


def test_a_small_net_has_the_eigenvectors_of_its_whole_hessian() -> None:
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    unused = torch.ones(2, dtype=torch.float64, requires_grad=True)
    data, labels = torch.randn(10, 3, dtype=torch.float64), torch.randint(2, (10,))
    names, parameters = [name for name, _ in net.named_parameters()], [*net.parameters(), unused]
    sizes = [parameter.numel() for parameter in net.parameters()]

    def mean_loss(vector: torch.Tensor) -> torch.Tensor:
        pieces = zip(names, vector.split(sizes), net.parameters(), strict=True)
        values = {name: piece.view(parameter.shape) for name, piece, parameter in pieces}
        return F.cross_entropy(functional_call(net, values, (data,)), labels)

    centre = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
    hessian = F.pad(torch.autograd.functional.hessian(mean_loss, centre), (0, 2, 0, 2))
    expected, basis = torch.linalg.eigh(hessian)

    def losses() -> list[torch.Tensor]:
        return [F.cross_entropy(net(data[i : i + 5]), labels[i : i + 5]) for i in (0, 5)]

    vector = torch.randn(len(hessian), dtype=torch.float64)
    torch.testing.assert_close(hessian_times(vector, losses, parameters), hessian @ vector)
    values, vectors = top_eigenvectors(losses, parameters, seed=4, iterations=400)
    largest = expected.abs().argsort(descending=True)[:2]
    assert values == pytest.approx(expected[largest].tolist(), rel=1e-6)
    for found, index in zip(vectors, largest.tolist(), strict=True):
        assert_parallel(found, basis[:, index])


def small(tiny: Tiny, **sections: Any) -> dict[str, Any]:
    tower = {"blocks": 1, "width": 8, "heads": 2}
    data = {**tiny()["data"], "clients": {"image": 1, "text": 1}, "samples": 40, "size": 8, "partition": "iid"}
    model = {"image": {**tower, "patch": 4}, "text": {**tower, "tokens": 8}}
    schedule = {"name": "end-to-end", "rounds": 1}
    return tiny(**{"data": data, "model": model, "schedule": schedule, "training": {"batch": 40}, **sections})


def test_the_loss_and_the_distance_of_sets_are_those_by_hand(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgefl.commands.analyse.landscape.STEPS", [-1.0, 0.0, 1.0])  # all of them take two seconds
    scenario = small(tiny)
    found: Any = edgefl.analyse(scenario, only=["landscape"], out=tmp_path / "out")
    run, federation = edgefl.read_run(tmp_path / "out" / "everybody"), federation_of(load(scenario), lambda _: None)
    with (tmp_path / "out" / "landscape.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    unit: list[np.ndarray] = []
    for client, row in enumerate(found.landscape.kinds):
        ((_, batch),) = federation.client(client).batches(Pass("", "private", (row.kind,), 40, False), 0)
        model: Any = run.model(row.kind)
        with torch.no_grad():
            loss = float(F.cross_entropy(model.classify(row.kind, batch), batch["label"]))
            feature = model.get_submodule(row.kind)(batch[row.kind])[:, 0].double().numpy()
        unit.append(feature / np.linalg.norm(feature, axis=1, keepdims=True))
        assert row.samples == 40 and row.loss == pytest.approx(loss, rel=1e-5)
        grid = {(float(r["x"]), float(r["y"])): float(r["loss"]) for r in rows if r["panel"] == f"loss, {row.kind}"}
        assert len(grid) == 9 and grid[0, 0] == row.loss and len(set(grid.values())) == 9
        assert len(row.eigenvalues) == 2 and abs(row.eigenvalues[0]) > 0
    assert [row.kind for row in found.landscape.kinds] == ["image", "text"]
    # of two sets Fisher's discriminant has one axis, and the distance is Mahalanobis'
    between = unit[0].mean(0) - unit[1].mean(0)
    # versions of scikit-learn divide by the 80 samples, or by these less the sets
    within = sum((each - each.mean(0)).T @ (each - each.mean(0)) for each in unit) / 79
    (row,) = found.landscape.distances
    assert row.of == ["image of image", "text of text"]
    assert row.distance == pytest.approx((between @ np.linalg.solve(within, between)) ** 0.5, rel=1e-2)
    assert len([r for r in rows if r["panel"] == "image of image"]) == 40
    assert (tmp_path / "out" / "landscape.png").read_bytes().startswith(b"\x89PNG")


def test_models_that_never_reach_the_server_have_no_landscape(tiny: Tiny, tmp_path: Path) -> None:
    scenario = small(tiny, method="reamfl-mean")
    scenario["data"] |= {"public": 20}
    scenario["model"] |= {"dimension": 8, "dimension_for": "all"}
    with pytest.raises(RunError, match="no landscape: no clients' models reach the server"):
        edgefl.analyse(scenario, only=["landscape"], out=tmp_path / "out")
