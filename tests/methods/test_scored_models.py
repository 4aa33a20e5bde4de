"""Which model a client scores on its held-out samples under ditto and fedbabu, against hand-written evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

import edgefl
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.work import Pass

Tiny = Callable[..., dict[str, Any]]
Weights = Mapping[str, Tensor]
LR, EPOCHS, CLIENTS = 0.2, 3, 5


class Played:
    """A run in which each client's samples are one batch, and the means to score by hand."""

    def __init__(self, scenario: dict[str, Any], folder: Path):
        self.run = edgefl.run(scenario, out=folder)
        self.setup = compose(load({"edgefl": 1, **scenario}))
        self.module = edgefl.models.build(self.setup.method.setting.kinds["image"].model).eval()
        self.module.forward = lambda modality, x: self.module.logits(modality, x)
        self.last: Weights = {
            a.removeprefix("image/"): t for a, t in self.run.weights().items() if a.startswith("image/")
        }

    def logits(self, weights: Weights, image: Tensor) -> Tensor:
        return functional_call(self.module, dict(weights), ("image", image), tie_weights=False)

    def batch(self, client: int, held_out: bool) -> Mapping[str, Tensor]:
        source = (self.setup.held_out if held_out else self.setup.clients).client(client)
        size = source.size(Pass("classify", "private", ("image",), 1))
        return next(iter(source.batches(Pass("classify", "private", ("image",), size, False), 0)))[1]

    def accuracy(self, weights: Weights, client: int) -> float:
        batch = self.batch(client, held_out=True)
        right = self.logits(weights, batch["image"]).argmax(1) == batch["label"]
        return float(right.double().mean())

    def recorded(self) -> dict[int, float]:
        rows = self.run.client_evaluations
        rows = rows[rows["round"] == rows["round"].max()]
        return dict(zip(rows["client"], rows["metrics.accuracy"], strict=True))


@pytest.fixture
def play(tiny: Tiny, tmp_path: Path) -> Callable[..., Played]:
    def make(method: Any, **training: Any) -> Played:
        scenario = tiny(
            data={"source": "glyphs", "clients": {"image": CLIENTS}, "partition": {"dirichlet": 0.3}, "size": 8,
                  "samples": 40, "validation": 20, "test": 20},
            model={"image": {"blocks": 1, "width": 8, "heads": 2, "patch": 4}},
            method=method,
            schedule={"name": "end-to-end", "rounds": 2},
            training={"batch": 500, "epochs": EPOCHS, "optimizer": "sgd", "lr": LR, "implementation": "for-loop",
                      **training},
            round={"cohort": 2},
            evaluation={"clients": "25%"},
        )  # fmt: skip
        return Played(scenario, tmp_path / "run")

    return make


@pytest.mark.slow(smaller="test_under_fedbabu_a_client_fine_tunes_before_it_is_scored")
def test_under_ditto_a_client_scores_its_own_model(play: Callable[[Any], Played]) -> None:
    played = play("ditto")
    kept = played.run.client_tensors()
    assert 0 < len(kept) < CLIENTS
    own = {
        client: {name.removeprefix("own."): value for name, value in values.items()} for client, values in kept.items()
    }
    recorded = played.recorded()
    assert recorded == {c: pytest.approx(played.accuracy(own.get(c, played.last), c)) for c in recorded}
    assert any(played.accuracy(own[c], c) != played.accuracy(played.last, c) for c in own)


def fine_tuned(played: Played, client: int, tune: str, lr: float) -> Weights:
    """The run's final weights after EPOCHS steps of plain SGD on all of a client's samples."""
    batch, weights = played.batch(client, held_out=False), dict(played.last)
    for _ in range(EPOCHS):
        leaves = {n: w.clone().requires_grad_() for n, w in weights.items()}
        loss = F.cross_entropy(played.logits(leaves, batch["image"]), batch["label"])
        gradients = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        weights |= {n: weights[n] - lr * g for n, g in gradients.items() if tune == "all" or ".head." in n}
    return weights


@pytest.mark.parametrize("tune", ["all", "head"])
def test_under_fedbabu_a_client_fine_tunes_before_it_is_scored(play: Callable[[Any], Played], tune: str) -> None:
    played = play({"name": "fedbabu", "tune": tune})
    first = played.setup.method.initial(played.setup.seed).tensors
    for name, value in played.last.items():
        assert torch.equal(value, first[f"image/{name}"]) == (".head." in name)  # only the body has learnt

    recorded = played.recorded()
    assert len(recorded) >= 3
    tuned = {c: played.accuracy(fine_tuned(played, c, tune, LR), c) for c in recorded}
    assert recorded == pytest.approx(tuned)
    assert any(tuned[c] != played.accuracy(played.last, c) for c in recorded)


def test_fine_tuning_takes_the_learning_rate_of_its_round(play: Callable[..., Played]) -> None:
    """Both rounds are evaluated; the rate of the second is a hundredth of the first one's."""
    played = play("fedbabu", lr_schedule={"name": "step", "every": 1, "factor": 0.01})
    recorded = played.recorded()
    by_rate = {
        rate: {c: played.accuracy(fine_tuned(played, c, "all", rate), c) for c in recorded} for rate in (LR, LR / 100)
    }
    assert recorded == pytest.approx(by_rate[LR / 100])
    assert by_rate[LR] != by_rate[LR / 100]
