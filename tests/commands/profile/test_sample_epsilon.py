"""The epsilon of a sample under DP-SGD, against a closed form and opacus' accountant, and where it is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import exp, log
from statistics import NormalDist
from typing import Any

import pytest

import edgefl
from edgefl.errors import MethodError, ScenarioError

Tiny = Callable[..., dict[str, Any]]
NOISE, DELTA, ROUNDS = 1.5, 1e-3, 5
PRIVATE = {"clip": 1.0, "noise": NOISE, "poisson": 0.3, "delta": DELTA}


def scenario(tiny: Tiny, samples: int = 64, batch: int = 32, rounds: int = ROUNDS, **private: Any) -> dict[str, Any]:
    tower = {"blocks": 1, "width": 8, "heads": 2, "patch": 16}
    steps = 1 if rounds == 1 else None
    return tiny(
        data={"source": "declared", "clients": {"image": 1}, "samples": samples,
              "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}}},
        model={"image": tower},
        schedule={"name": "end-to-end", "rounds": rounds},
        training={"optimizer": "sgd", "batch": batch, "steps": steps, "mode": "none",
                  "private": {**PRIVATE, **private}},
    )  # fmt: skip


def epsilon_of(given: dict[str, Any]) -> float:
    answer: Any = edgefl.profile(given)
    return float(answer["totals"][0]["sample_epsilon"])


def by_opacus(noise: float, chance: float, batches: int) -> float:
    """The upper end of its interval, for Poisson batches that aren't cut off; the interval is .02 wide."""
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    for _ in range(batches):
        accountant.step(noise_multiplier=noise, sample_rate=chance)
    return float(accountant.get_epsilon(DELTA))


def delta_by_hand(epsilon: float, noise: float, chance: float) -> float:
    """Of one batch: the larger hockey-stick divergence between N(0, z^2) and its mixture with N(1, z^2), either way."""
    below, odds = NormalDist().cdf, (exp(epsilon) - 1 + chance) / chance
    at = noise**2 * log(odds) + 0.5
    more = (1 - chance) * below(-at / noise) + chance * below((1 - at) / noise) - exp(epsilon) * below(-at / noise)
    if (odds := (exp(-epsilon) - 1 + chance) / chance) <= 0:
        return more
    at = noise**2 * log(odds) + 0.5
    mixed = (1 - chance) * below(at / noise) + chance * below((at - 1) / noise)
    return max(more, below(at / noise) - exp(epsilon) * mixed)


def test_epsilon_of_one_batch_has_its_closed_form(tiny: Tiny) -> None:
    """A batch of 64 samples has 9.6 on average and is cut off at 32, which is as good as never."""
    epsilon = epsilon_of(scenario(tiny, samples=64, batch=32, rounds=1, noise=3.0))
    assert delta_by_hand(epsilon, 3.0, 0.15) == pytest.approx(DELTA, rel=1e-4)


@pytest.mark.slow(smaller="test_epsilon_of_one_batch_has_its_closed_form")
@pytest.mark.parametrize(("samples", "batch", "noise", "share"), [(192, 32, 0.8, 0.4), (40, 16, 1.0, 0.25)])
def test_epsilon_is_opacus(tiny: Tiny, samples: int, batch: int, noise: float, share: float) -> None:
    batches = samples // batch * ROUNDS
    given = scenario(tiny, samples, batch, noise=noise, poisson=share)
    assert epsilon_of(given) == pytest.approx(by_opacus(noise, share * batch / samples, batches), abs=0.012)


@pytest.mark.slow(smaller="test_epsilon_of_one_batch_has_its_closed_form")
def test_cutting_batches_off_costs_epsilon(tiny: Tiny) -> None:
    assert epsilon_of(scenario(tiny, 192, poisson=1.0)) > 1.5 * by_opacus(NOISE, 1 / 6, 30)


@pytest.mark.parametrize("private", [{"poisson": None}, {"noise": 0.0}])
def test_shuffled_and_plain_sums_have_no_epsilon(tiny: Tiny, private: dict[str, Any]) -> None:
    given = scenario(tiny, **private)
    with pytest.raises(ScenarioError, match="delta needs noised Poisson samples: set poisson, such as 0.5, and noise"):
        edgefl.profile(given)
    del given["training"]["private"]["delta"]
    answer: Any = edgefl.profile(given)
    assert "sample_epsilon" not in answer["totals"][0]


def test_the_accountant_is_asked_for(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(MethodError, match=r"an epsilon needs a package that isn't installed.*\[privacy\]"):
        edgefl.profile(scenario(tiny, noise=1.25))
