"""Losses and metrics against closed forms and hand counts."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log

import pytest
import torch
from edgefl_toys import CPU, Toy, described, do, inputs_of, make_work, training_pass

from edgefl import models
from edgefl.methods.fedprox import Proximal
from edgefl.work import Context, Pass, Step, run
from edgefl.work.steps import CLIP_SCALE, clip_loss


def test_clip_loss_of_two_pairs() -> None:
    pairs = torch.eye(2)
    assert float(clip_loss(pairs, pairs)) == pytest.approx(log(1 + exp(-CLIP_SCALE)), abs=1e-6)
    assert float(clip_loss(pairs, pairs.flip(0))) == pytest.approx(log(1 + exp(CLIP_SCALE)))
    assert float(clip_loss(pairs, pairs, scale=1.0)) == pytest.approx(log(1 + exp(-1)))


def test_clip_loss_averages_both_directions() -> None:
    """a_1 = a_2 = b_1, b_2 orthogonal: rows see (s, 0), columns see equal scores."""
    a, b = torch.tensor([[1.0, 0], [1, 0]]), torch.eye(2)
    rows = (log(1 + exp(-1)) + log(1 + exp(1))) / 2
    assert float(clip_loss(a, b, scale=1.0)) == pytest.approx((rows + log(2)) / 2)


class Constant(Step):
    """A step whose loss is a constant."""

    def __init__(self, value: float):
        self.value = torch.tensor(value)

    def loss(self, ctx: Context, batch: Mapping[str, torch.Tensor], pattern: str, pass_: Pass) -> torch.Tensor:
        return self.value


@pytest.mark.parametrize("norm", ["squared", "tensor"])
def test_the_proximal_term(norm: str) -> None:
    module = models.build(described())
    trained = {n: p for n, p in module.named_parameters() if "head" in n}
    reference = {n: p.detach() - (2.0 if n.endswith("bias") else 1.0) for n, p in module.named_parameters()}
    pass_ = training_pass(proximal=0.5, proximal_norm=norm)
    ctx = Context(make_work(), module, Toy(), CPU, {}, reference, trained=trained)
    with torch.no_grad():
        value = float(Proximal(Constant(7.0)).loss(ctx, {}, "image", pass_)) - 7
    weights, biases = 5 * 16, 5  # of the head, the only part that trains: distances 1 and 2
    squared = weights * 1.0 + biases * 4.0
    assert value == pytest.approx(0.25 * (squared if norm == "squared" else weights**0.5 + (biases * 4.0) ** 0.5))


def test_the_proximal_pull_is_towards_what_was_received() -> None:
    """With a large mu the weights end nearer to where they began."""

    def moved(mu: float) -> float:
        work = make_work(
            passes=(training_pass(proximal=mu),) * 3,
            reference=True,
            optimizer={"name": "sgd", "lr": 0.05, "implementation": "for-loop"},
        )
        inputs, result = inputs_of(work), do(work)
        return sum(float((v - inputs[n]).square().sum()) for n, v in result.payloads["model"].items())

    assert moved(10.0) < 0.5 * moved(0.0)


def test_classification_loss_is_the_mean_cross_entropy() -> None:
    """A head of zeros says log(classes)."""
    work = make_work(passes=(training_pass(),), optimizer={"name": "sgd", "lr": 1e-30, "implementation": "for-loop"})
    inputs = inputs_of(work)
    inputs["image.head.weight"].zero_()
    inputs["image.head.bias"].zero_()
    result = run(work, inputs, Toy(), module=models.build(work.model), device=CPU, seed=1)
    assert result.loss == pytest.approx(log(5), abs=1e-6)
