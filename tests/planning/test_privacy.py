"""What rounds with noise spend, against opacus and formulas by hand."""

from __future__ import annotations

import sys
from math import inf, log

import pytest

from edgefl.errors import MethodError
from edgefl.planning.privacy import PrivacyAccount, PrivacyOptions, RoundDraw

TABLE = [
    (0.8, RoundDraw(1, 100), 1000, 1e-6, 4.2935, 3.7062),
    (1.0, RoundDraw(1, 10), 100, 1e-5, 7.9039, 7.0466),
    (1.1, RoundDraw(256, 60000), 14062, 1e-5, 2.5966, 2.3817),
]
"""Noise, draw, rounds, delta, and the epsilons of docs/guides/privacy.md by rdp and by pld."""


def account(
    draws: list[RoundDraw], noise: float | None, sampling: str = "poisson", **options: object
) -> PrivacyAccount:
    given = PrivacyOptions.model_validate({"delta": 1e-5, "accountant": "rdp", **options})
    return PrivacyAccount(given, sampling, draws, noise)  # type: ignore[arg-type]


@pytest.mark.parametrize(("noise", "draw", "rounds", "delta", "rdp", "_"), TABLE)
def test_renyi_divergences_give_opacus_epsilon(
    noise: float, draw: RoundDraw, rounds: int, delta: float, rdp: float, _: float
) -> None:
    from opacus.accountants import RDPAccountant

    theirs = RDPAccountant()
    theirs.history = [(noise, draw.places / draw.clients, rounds)]
    ours = account([draw] * rounds, noise, delta=delta).epsilon(rounds)
    assert ours == pytest.approx(theirs.get_epsilon(delta), rel=1e-3)
    assert ours == pytest.approx(rdp, abs=6e-5)


@pytest.mark.slow(smaller="test_renyi_divergences_give_opacus_epsilon")
@pytest.mark.parametrize(("noise", "draw", "rounds", "delta", "_", "pld"), TABLE)
def test_distributions_of_the_loss_give_opacus_epsilon(
    noise: float, draw: RoundDraw, rounds: int, delta: float, _: float, pld: float
) -> None:
    from opacus.accountants import PRVAccountant

    theirs = PRVAccountant()
    theirs.history = [(noise, draw.places / draw.clients, rounds)]
    ours = account([draw] * rounds, noise, delta=delta, accountant="pld").epsilon(rounds)
    assert ours == pytest.approx(theirs.get_epsilon(delta), abs=0.012)
    assert ours == pytest.approx(pld, abs=6e-5)


@pytest.mark.parametrize("accountant", ["rdp", pytest.param("pld", marks=pytest.mark.slow)])
def test_rounds_with_other_draws_add_up_in_any_order(accountant: str) -> None:
    few, many = RoundDraw(1, 20), RoundDraw(1, 4)
    mixed, sorted_ = ([few, many, few, many], [few, few, many, many])
    ours = account(mixed, 1.0, accountant=accountant)
    assert ours.epsilon(4) == account(sorted_, 1.0, accountant=accountant).epsilon(4)
    assert 0.0 == ours.epsilon(0) < ours.epsilon(1) < ours.epsilon(4)
    assert account([few, RoundDraw(0, 9)], 1.0).epsilon(2) == account([few], 1.0).epsilon(1)


def test_replacing_a_client_moves_the_sum_by_twice_the_clip() -> None:
    noise, rounds, delta = 2.0, 3, 1e-5
    ours = account([RoundDraw(7, 7)] * rounds, noise, "without replacement", delta=delta)
    # a round of all clients is a Gaussian mechanism of sensitivity 2, whose Rényi divergence is order 2^2 / (2 noise^2)
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [128, 256, 512, 1024]
    by_hand = inf
    for order in orders:
        divergence = rounds * order * 2**2 / (2 * noise**2)
        by_hand = min(by_hand, divergence + log((order - 1) / order) - (log(delta) + log(order)) / (order - 1))
    assert ours.epsilon(rounds) == pytest.approx(by_hand, rel=1e-6)
    assert ours.neighbours == "one client replaced"
    assert ours.epsilon(rounds) > account([RoundDraw(7, 7)] * rounds, noise, delta=delta).epsilon(rounds)


def test_noise_is_found_that_keeps_to_epsilon_and_no_more() -> None:
    ours = account([RoundDraw(1, 10)] * 100, None, epsilon=8)
    assert account([RoundDraw(1, 10)] * 100, ours.noise - 2e-3).epsilon(100) > 8 >= ours.epsilon(100)
    assert ours.noise == round(ours.noise, 3) and not any(ours.ends_after(rounds) for rounds in (99, 100))
    assert account([RoundDraw(1, 100)], None, epsilon=500).noise == 0.1  # the least that is searched
    with pytest.raises(MethodError, match=r"no noise up to 10000 keeps 3 rounds within 1e-09"):
        _ = account([RoundDraw(1, 1)] * 3, None, epsilon=1e-9).noise


@pytest.mark.slow(smaller="test_noise_is_found_that_keeps_to_epsilon_and_no_more")
@pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha")
def test_the_noise_is_opacus_noise() -> None:
    from opacus.accountants.utils import get_noise_multiplier

    ours = account([RoundDraw(1, 10)] * 100, None, epsilon=8)
    theirs = get_noise_multiplier(target_epsilon=8, target_delta=1e-5, sample_rate=0.1, steps=100, accountant="rdp")
    assert ours.noise == pytest.approx(theirs, abs=2e-3)
    tight = account([RoundDraw(1, 10)] * 100, None, epsilon=8, accountant="pld")
    assert tight.epsilon(100) <= 8 and tight.noise < ours.noise


@pytest.mark.slow(smaller="test_renyi_divergences_give_opacus_epsilon")
def test_wide_pieces_of_a_large_loss_change_it_by_little() -> None:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    fine = PLDAccountant()
    event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(0.5))
    fine.compose(event, 1000)
    ours = account([RoundDraw(1, 10)] * 1000, 0.5, accountant="pld").epsilon(1000)
    assert ours > 100 and ours == pytest.approx(fine.get_epsilon(1e-5), rel=1e-4)


def test_the_last_round_is_the_one_before_epsilon_is_passed() -> None:
    draws, target = [RoundDraw(1, 10)] * 9, 2.7
    ours = account(draws, 1.0, epsilon=target)
    last = next(rounds for rounds in range(1, 9) if ours.ends_after(rounds))
    assert 1 < last < 8 and ours.epsilon(last) <= target < ours.epsilon(last + 1)
    assert not account(draws, 1.0).ends_after(last)


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(MethodError, match=r"pip install dp-accounting \(or, .*'\.\[privacy\]'\)"):
        account([RoundDraw(1, 10)], 1.0).check()
