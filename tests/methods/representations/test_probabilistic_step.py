"""PCME's loss by loops over pairs and samples, and its regularisers by closed forms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from edgefl_toys import CPU, Toy, described
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from edgefl import models
from edgefl.methods.representations.probabilistic_step import (
    ContrastProbabilistic,
    divergence,
    sample_gaussian,
    soft_contrast,
)
from edgefl.work import Context, Pass, Work


@settings(deadline=None, max_examples=25)
@given(batch=st.integers(1, 4), samples=st.integers(1, 3), seed=st.integers(0, 2**31))
def test_the_soft_contrast_is_that_of_every_pair_of_samples(batch: int, samples: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(batch, samples, 3, generator=draw) for _ in range(2))
    found = soft_contrast(a, b, torch.tensor([1.5]), torch.tensor([0.7]))
    expected = 0.0
    for i in range(batch):
        for k in range(batch):
            odds = [
                1 / (1 + math.exp(1.5 * float((a[i, s] - b[k, t]).norm()) - 0.7))
                for s in range(samples)
                for t in range(samples)
            ]
            chance = sum(odds) / samples**2
            expected -= math.log(chance if i == k else 1 - chance)
    assert float(found) == pytest.approx(expected / batch, rel=1e-3, abs=1e-3)


def test_the_divergence_is_that_of_normal_distributions() -> None:
    mean, spread = torch.tensor([[0.3, -1.0], [0.0, 0.5]]), torch.tensor([[-1.0, 0.2], [0.0, -0.5]])
    points = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    total = 0.0
    for m, s in zip(mean.flatten().tolist(), spread.flatten().tolist(), strict=True):
        log_p = -((points - m) ** 2) / (2 * math.exp(2 * s)) - s
        total += float((log_p.exp() * (log_p + points**2 / 2)).sum()) * (24 / 20_000) / math.sqrt(2 * math.pi)
    assert float(divergence(mean, spread)) == pytest.approx(total / 2, rel=1e-4)


def test_samples_have_the_deviations_they_are_drawn_with() -> None:
    torch.manual_seed(0)
    mean, spread = torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5, -3.0]])
    points = sample_gaussian(mean, spread, 20_000)[0]
    torch.testing.assert_close(points.mean(0), mean[0], atol=0.05, rtol=0)
    torch.testing.assert_close(points.std(0), spread[0].exp(), rtol=0.03, atol=0)


def pairs() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(4)
    return {
        "image": torch.rand(6, 1, 16, 16, generator=draw),
        "text": torch.randint(0, 40, (6, 6), generator=draw),
    }


def test_training_brings_pairs_together_and_moves_every_deviation() -> None:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        description: dict[str, Any] = {**described(("image", "text")), "name": "probabilistic"}
        model = models.build(description)
        pass_ = Pass("any", "private", ("image-text",), 6, True, {"samples": 7, "kl": 1e-3})
        ctx = Context(Work("any", {}, (), (pass_,)), model, Toy(), CPU)
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for _ in range(40):
            loss = ContrastProbabilistic().loss(ctx, pairs(), "image-text", pass_)
            losses.append(float(loss.detach()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert losses[-1] < 0.5 * losses[0]
    heads = {n: p for n, p in model.named_parameters() if n.startswith("joint.head.")}
    width = ctx.client_model.dimension
    assert sum(p.numel() for p in heads.values()) == 2 * (width * width + width) + 2
    assert all(not torch.equal(p, before[n]) for n, p in heads.items())
    image = model.eval().embed("image", pairs()["image"])
    torch.testing.assert_close(image.norm(dim=1), torch.ones(6))
