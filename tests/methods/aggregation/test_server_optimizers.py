"""Server optimizers against a few steps by hand."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from torch import Tensor

from edgefl.methods.aggregation.combine import MixTerm
from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.methods.aggregation.server_optimizers import moment_address, server_step

CHANGES = (0.3, -0.2, 0.05, 0.0)


def options(**fields: object) -> AggregationOptions:
    return AggregationOptions.model_validate(fields)


def walk(told: AggregationOptions, buffers: tuple[str, ...] = ()) -> tuple[list[float], dict[str, Tensor]]:
    """Where a parameter of 1 comes to by these mean updates, of which two clients have half each."""
    tensors = {"k/a": torch.ones(2, dtype=torch.float64)}
    path = []
    for change in CHANGES:
        delta = torch.full((2,), change, dtype=torch.float64)
        tensors |= server_step(tensors, {"k/a": [MixTerm(0.5, delta), MixTerm(0.5, delta)]}, buffers, told)
        path.append(float(tensors["k/a"][0]))
        assert tensors["k/a"][0] == tensors["k/a"][1]
    return path, tensors


def by_hand(name: str, lr: float, beta1: float, beta2: float, tau: float) -> list[float]:
    """Reddi et al.'s algorithm 2, number by number."""
    x, m, v, path = 1.0, 0.0, tau * tau, []
    for d in CHANGES:
        m = beta1 * m + (1 - beta1) * d
        if name == "adagrad":
            v = v + d * d
        elif name == "adam":
            v = beta2 * v + (1 - beta2) * d * d
        else:
            v = v - (1 - beta2) * d * d * ((v > d * d) - (v < d * d))
        x = x + lr * m / (sqrt(v) + tau)
        path.append(x)
    return path


@pytest.mark.parametrize("name", ["adagrad", "adam", "yogi"])
def test_adaptive_steps_are_the_published_ones(name: str) -> None:
    beta1 = 0.0 if name == "adagrad" else 0.9
    assert walk(options(optimizer=name))[0] == pytest.approx(by_hand(name, 0.01, beta1, 0.99, 1e-3), rel=1e-12)
    told = {"lr": 0.2, "beta1": 0.5, "tau": 0.1} | ({} if name == "adagrad" else {"beta2": 0.7})
    assert walk(options(optimizer=name, **told))[0] == pytest.approx(by_hand(name, 0.2, 0.5, 0.7, 0.1), rel=1e-12)


def test_momentum_goes_on() -> None:
    x, v, path = 1.0, 0.0, []
    for d in CHANGES:
        v = 0.9 * v + d
        x = x + v
        path.append(x)
    assert walk(options(optimizer="momentum"))[0] == pytest.approx(path, rel=1e-12)
    assert walk(options(optimizer="momentum", momentum=0))[0] == pytest.approx(walk(options())[0], rel=1e-12)


def test_an_average_with_a_rate_goes_that_share_of_the_way() -> None:
    assert walk(options(lr=0.5))[0] == pytest.approx([1.15, 1.05, 1.075, 1.075])


def test_moments_are_tables_of_the_parameters_shape_and_buffers_have_none() -> None:
    _, tensors = walk(options(optimizer="yogi"))
    assert set(tensors) == {"k/a", moment_address("mean", "k/a"), moment_address("square", "k/a")}
    assert {tuple(t.shape) for t in tensors.values()} == {(2,)} and all(
        a.startswith("table/") for a in tensors if a != "k/a"
    )
    path, tensors = walk(options(optimizer="yogi", lr=5), buffers=("k/a",))
    assert set(tensors) == {"k/a"} and path == walk(options())[0]
