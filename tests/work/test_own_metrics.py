"""Metrics of one's own: named in a scenario, written with every method, equal to scikit-learn's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import Field
from sklearn.metrics import cohen_kappa_score, fbeta_score, log_loss
from torch import Tensor

import edgefl
from edgefl import registry
from edgefl.errors import EdgeflError, PluginError
from edgefl.registry.registered import PARTS
from edgefl.scenario import json_schema, load
from edgefl.setup.compose import compose
from edgefl.work import Pass
from edgefl.work.metrics import Confusion, Metric

Tiny = Callable[..., dict[str, Any]]


def kappa(confusion: Tensor) -> Tensor:
    """Cohen's kappa."""
    n = confusion.sum().clamp_min(1)
    agreed = confusion.diagonal().sum() / n
    chance = (confusion.sum(0) * confusion.sum(1)).sum() / n**2
    return (agreed - chance) / (1 - chance).clamp_min(1e-9)


class FBeta(Metric):
    """F-beta, the mean over the classes that samples have, weighted by their samples."""

    class Options(Metric.Options):
        beta: float = Field(1.0, gt=0, description="weight of recall")

    def value(self, confusion: Confusion, total: Tensor | None) -> Tensor:
        square = self.options.beta**2
        hits, true, predicted = confusion.hits, confusion.true, confusion.predicted
        each = (1 + square) * hits / (square * true + predicted).clamp_min(1e-9)
        return (each * true).sum() / confusion.samples


class LogLoss(Metric):
    """Minus the mean logarithm of the true class's probability."""

    adds = True

    def add(self, scores: Tensor, label: Tensor, batch: Any) -> Tensor:
        return -scores.float().log_softmax(-1).gather(1, label[:, None])[:, 0]

    def value(self, confusion: Confusion, total: Tensor | None) -> Tensor:
        assert total is not None
        return total / confusion.samples


class CalibrationError(Metric):
    """Mean distance of confidence and accuracy over equal bins of confidence."""

    adds = True
    sums = (4,)

    def add(self, scores: Tensor, label: Tensor, batch: Any) -> Tensor:
        confidence, predicted = scores.float().softmax(-1).max(-1)
        over = confidence - (predicted == label).float()
        place = (confidence * 4).long().clamp_max(3)
        return over.new_zeros(len(label), 4).scatter(1, place[:, None], over[:, None])

    def value(self, confusion: Confusion, total: Tensor | None) -> Tensor:
        assert total is not None
        return total.abs().sum() / confusion.samples


class Nearest(Metric):
    """Mean similarity of the pairs."""

    task = "retrieve"

    def value(self, confusion: Confusion, total: Tensor | None) -> Tensor:
        raise AssertionError("not of classes")

    def ranking_value(self, first: Tensor, second: Tensor, group: Tensor) -> Tensor:
        return (first * second).sum(-1).mean()


@pytest.fixture(autouse=True, scope="module")
def _registered() -> Iterator[None]:
    own = {"kappa": kappa, "fbeta": FBeta, "log-loss": LogLoss, "ece": CalibrationError, "nearest": Nearest}
    for name, part in own.items():
        edgefl.register("metric", name)(part)
    yield
    PARTS.clear()
    registry.forget()


METRICS = ["kappa", {"name": "fbeta", "beta": 2}, "log-loss", "ece", "nearest"]


@pytest.mark.slow(smaller="test_every_methods_evaluations_have_them")
def test_they_are_scikit_learns(tiny: Tiny, tmp_path: Path) -> None:
    evaluation = {"every": 10, "metrics": METRICS, "clients": "25%"}
    run = edgefl.run(tiny(evaluation=evaluation, training={"batch": 8, "lr": 5e-3}), out=tmp_path / "run")
    clients: Any = compose(load(run.path / "scenario.yaml")).clients
    for kind in ("image", "text"):
        model, label, scores = run.model(kind), [], []
        for _, batch in clients.server().batches(Pass("score-classify", "test", (kind,), 1, False), 0):
            label.append(int(batch["label"]))
            scores.append(model(batch[kind])[0].detach().double().numpy())
        label_, scores_ = np.array(label), np.stack(scores)
        found = run.result["metrics"][kind]
        predicted = scores_.argmax(1)
        assert found["kappa"] == pytest.approx(cohen_kappa_score(label_, predicted), abs=1e-6)
        expected = fbeta_score(label_, predicted, beta=2, average="weighted", zero_division=0)
        assert found["fbeta"] == pytest.approx(expected, abs=1e-6)
        chances = np.exp(scores_ - scores_.max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        expected = log_loss(label_, chances, labels=range(scores_.shape[1]))
        assert found["log-loss"] == pytest.approx(expected, abs=1e-5)
        best, right = chances.max(1), predicted == label_
        bins = np.digitize(best, [0.25, 0.5, 0.75])
        gaps = [abs(best[bins == b].mean() - right[bins == b].mean()) * (bins == b).mean() for b in {*bins.tolist()}]
        assert found["ece"] == pytest.approx(sum(gaps), abs=1e-6)
        assert "nearest" not in found
    pairs = run.result["metrics"]["image-text"]
    assert -1 <= pairs["nearest"] <= 1 and "kappa" not in pairs and "r@10" in pairs
    assert {"metrics.kappa.mean", "metrics.nearest.mean"} <= set(run.client_metrics)
    assert "image.kappa" in {f"image.{name}" for name in run.records("rounds")[-1]["metrics"]["image"]}


@pytest.mark.slow(smaller="test_the_best_is_the_first_of_equal_values")
def test_a_best_round_is_chosen_by_one(tiny: Tiny, tmp_path: Path) -> None:
    evaluation = {"every": 1, "metrics": ["kappa"], "best": "image.kappa"}
    run = edgefl.run(tiny(evaluation=evaluation), out=tmp_path / "run")
    values = [record["watched"]["image.kappa"] for record in run.records("rounds")]
    assert run.best["metric"] == "image.kappa" and run.best["value"] == max(values)


@pytest.mark.parametrize("method", [name for name in registry.names("method") if name not in ("mezo", "fediot")])
def test_every_methods_evaluations_have_them(tiny: Tiny, method: str) -> None:
    """In each pass that scores classes or pairs, whatever step the method scores with."""
    needs = dict(registry.get("method", method).needs)
    sections = tiny(method=method, evaluation={"metrics": METRICS})
    sections["data"] = {**sections["data"], "public": 60}
    sections |= {key: {**(sections.get(key) or {}), **value} for key, value in needs.items() if isinstance(value, dict)}
    if "multiway" in sections["model"]:
        sections["model"] = {"multiway": {"blocks": 2, "width": 16, "heads": 2, "patch": 8, "tokens": 12}}
    setup = compose(load(sections))
    stage = setup.schedule.stages[-1]
    scored = {pass_.step for work, _ in setup.evaluations("test", stage) for pass_ in work.passes if not pass_.train}
    assert any(step.startswith("score-") for step in scored)
    for work, _ in setup.evaluations("test", stage):
        for pass_ in (each for each in work.passes if each.step.startswith("score-")):
            names = [given["name"] for given in pass_.args["metrics"]]
            assert names == (["nearest"] if pass_.step == "score-retrieve" else ["kappa", "fbeta", "log-loss", "ece"])


def test_what_is_no_metric_is_refused(tiny: Tiny) -> None:
    for given, reason in (
        ({"metrics": ["kapa"]}, "did you mean 'kappa'"),
        ({"metrics": ["kappa", "kappa"]}, "kappa is listed twice"),
        ({"metrics": [{"name": "fbeta", "beta": 0}]}, "greater than 0"),
        ({"metrics": ["classes"]}, "classes is written by every evaluation"),
        ({"metrics": [{"beta": 1}]}, "a metric is a name or a mapping"),
    ):
        with pytest.raises(EdgeflError, match=reason):
            load(tiny(evaluation=given))
    with pytest.raises(PluginError, match=r"is no subclass of .*Metric and no function"):
        edgefl.register("metric", "five")(5)
    edgefl.register("metric", "wide")(lambda confusion: confusion)
    with pytest.raises(
        EdgeflError,
        match=r"metric 'wide' of .* must give a scalar tensor, not a tensor of shape \[\d+, \d+\]",
    ):
        edgefl.profile(tiny(evaluation={"metrics": ["wide"]}))


def test_the_list_and_the_schema_have_them() -> None:
    from edgefl.commands.parts.schema_parts import parts_of

    listed = {entry["name"]: entry for entry in parts_of(["metric"]).sections["metric"]}
    assert {"classes", "top5", "soft", "kappa"} <= set(listed)
    assert listed["kappa"]["summary"] == "Cohen's kappa"
    assert [option["name"] for option in listed["fbeta"]["options"]] == ["beta"]
    assert "metrics" in json_schema()["$defs"]["evaluation"]["properties"]
