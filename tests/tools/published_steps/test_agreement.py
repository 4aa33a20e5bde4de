"""Figures of agreement against scipy, against the binomial that they must follow, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, kendalltau

from tools.published_steps.agreement import agreement, factor_around, kendall_taus


def test_tau_is_scipys_with_ties_and_with_rows_drawn_several_times() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        first, second, times = (rng.integers(0, most, 12) for most in (6, 6, 4))
        signs = [np.sign(np.subtract.outer(each, each)).astype(float) for each in (first, second)]
        plain, drawn = kendall_taus(*signs, np.stack([np.ones(12, int), times]))
        assert plain == pytest.approx(kendalltau(first, second).statistic)
        assert drawn == pytest.approx(kendalltau(np.repeat(first, times), np.repeat(second, times)).statistic)


def test_figures_are_those_of_a_hand() -> None:
    known = agreement([1.0, 2.0, 4.0, 8.0], [1.5, 1.0, 4.4, 20.0], ["a", "b", "c", "d"], devices=2, draws=50)
    assert (known.rows, known.devices) == (4, 2)
    assert known.median_error.value == pytest.approx(0.5)  # of 0.1, 0.5, 0.5, 1.5
    assert known.within_factor.value == 0.5  # 1.5 itself is within; 0.5 is a factor of 2
    assert known.worst_factor == pytest.approx(2.5)
    assert known.mean_factor == pytest.approx((1.5 * 2 * 1.1 * 2.5) ** 0.25)
    assert known.share_factor == pytest.approx(2.5)  # three of four are not 80 %
    assert known.tau is not None and known.tau.value == pytest.approx(4 / 6)  # one pair of six is the wrong way


def test_a_cluster_counts_once_however_many_rows_it_has() -> None:
    """Nine rows of one cluster lie within 1.1 and the only row of another within 3: 80 % of two clusters are both."""
    known = agreement(np.ones(10), [1.1] * 9 + [3.0], ["a"] * 9 + ["b"], devices=2)
    assert known.share_factor == pytest.approx(3.0)
    assert known.mean_factor == pytest.approx((1.1 * 3) ** 0.5)
    assert factor_around(np.log([1.1, 1.2, 1.3, 1.4, 3.0]), "abcde") == pytest.approx(1.4)


def test_the_interval_of_a_share_is_that_of_a_binomial() -> None:
    count, off = 40, 12
    predicted = np.where(np.arange(count) < off, 2.0, 1.0)
    share = agreement(np.ones(count), predicted, range(count), devices=1).within_factor
    expected = binom(count, 1 - off / count).ppf([0.025, 0.975]) / count
    assert [share.low, share.high] == pytest.approx(expected, abs=1.01 / count)


def test_rows_of_a_cluster_are_drawn_together() -> None:
    """Five clusters of ten equal rows are five draws, not fifty: the interval is that of a binomial of five."""
    predicted = np.repeat([1.0, 1.0, 1.0, 2.0, 2.0], 10)
    share = agreement(np.ones(50), predicted, [row // 10 for row in range(50)], devices=5).within_factor
    assert [share.low, share.high] == pytest.approx(binom(5, 0.6).ppf([0.025, 0.975]) / 5)


def test_a_single_row_has_no_order() -> None:
    known = agreement([1.0], [1.2], ["a"], devices=1)
    assert known.tau is None
    assert known.median_error.value == pytest.approx(0.2)
    assert known.median_error.low is None and known.median_error.high is None
