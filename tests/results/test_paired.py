"""Paired gaps, winners and ranks: published examples, closed forms, and scipy's tests as witnesses."""

from __future__ import annotations

from dataclasses import replace
from math import atan, inf, pi, sqrt, tan
from statistics import fmean, stdev

import numpy as np
import pytest
from drawn_bench import drawn_bench
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from edgefl.commands.bench.winners import ranks_over_seeds
from edgefl.results.paired import (
    PairedGap,
    Winner,
    holm,
    mean_ranks,
    paired_gap,
    rival_scores,
    seeds_needed,
    standing_of,
    winner_of,
)

# Student (1908): hours of sleep gained by ten patients with two drugs
FIRST = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SECOND = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]

score = st.integers(-1000, 1000).map(lambda n: n / 64)  # sums of these are exact
pairs = st.lists(st.tuples(score, score), min_size=2, max_size=12).map(
    lambda rows: tuple(map(list, zip(*rows, strict=True)))
)
table = st.integers(2, 6).flatmap(
    lambda n: st.dictionaries(st.sampled_from("abcde"), st.lists(st.none() | score, min_size=n, max_size=n), min_size=1)
)


# --- the gap of two --------------------------------------------------------------------------------------------------


def test_students_sleep_data_have_their_published_interval() -> None:
    gap = paired_gap(SECOND, FIRST)
    assert (gap.mean, gap.deviation, gap.seeds) == (pytest.approx(1.58), pytest.approx(1.23, abs=5e-3), 10)
    assert gap.student and (gap.student.low, gap.student.high) == pytest.approx((0.7001142, 2.4598858), abs=1e-7)
    assert gap.p == pytest.approx(0.002833, abs=5e-7)


@given(pairs)
def test_the_t_test_is_scipys(pair: tuple[list[float], list[float]]) -> None:
    gap, differences = paired_gap(*pair), [a - b for a, b in zip(*pair, strict=True)]
    if len(set(differences)) == 1:  # scipy has no answer, or warns
        return
    found = stats.ttest_rel(*pair)
    assert gap.p == pytest.approx(found.pvalue, rel=1e-9)
    low, high = found.confidence_interval(0.95)
    assert gap.student and (gap.student.low, gap.student.high) == pytest.approx((low, high), rel=1e-9, abs=1e-9)
    assert gap.student.holds_zero == (gap.p >= 0.05)


def test_two_seeds_have_the_closed_form_of_one_degree_of_freedom() -> None:
    gap = paired_gap([3.0, 5.0], [1.0, 1.0], level=0.9)  # differences 2 and 4: mean 3, error 1
    assert gap.p == pytest.approx(1 - 2 / pi * atan(3))
    reach = tan(pi * 0.45)
    assert gap.student and (gap.student.low, gap.student.high) == pytest.approx((3 - reach, 3 + reach))
    assert gap.detectable == pytest.approx(reach + tan(pi * 0.3))
    # a resample of two has its mean at 2, 3 or 4 with probability 1/4, 1/2, 1/4
    assert gap.bootstrap and (gap.bootstrap.low, gap.bootstrap.high) == (2, 4)


def test_the_bootstrap_interval_is_scipys() -> None:
    gap, differences = paired_gap(SECOND, FIRST), np.subtract(SECOND, FIRST)
    found = stats.bootstrap((differences,), np.mean, n_resamples=40_000, method="percentile", random_state=1)
    ends = found.confidence_interval
    assert gap.bootstrap and (gap.bootstrap.low, gap.bootstrap.high) == pytest.approx((ends.low, ends.high), abs=0.04)
    assert gap == paired_gap(SECOND, FIRST)


@pytest.mark.parametrize("n", [5, 10, 30])
def test_a_detectable_gap_is_shown_in_four_of_five_experiments(n: int) -> None:
    gap = paired_gap([(-1.0) ** i * (1 + i % 3) for i in range(n)], [0.0] * n)
    assert gap.detectable and gap.deviation
    shift, bar = gap.detectable / gap.deviation * sqrt(n), stats.t.ppf(0.975, n - 1)
    assert stats.nct.sf(bar, n - 1, shift) + stats.nct.cdf(-bar, n - 1, shift) == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize(("gap", "deviation"), [(0.025, 0.014), (-0.018, 0.028), (0.002, 0.011), (1.0, 0.1)])
def test_so_many_seeds_are_needed_as_have_80_percent_power(gap: float, deviation: float) -> None:
    needed = seeds_needed(gap, deviation)
    assert needed
    quantiles = {n: stats.t.ppf((0.975, 0.8), n - 1).sum() for n in (needed, needed - 1) if n > 1}
    assert quantiles[needed] * deviation / sqrt(needed) <= abs(gap)
    assert needed == 2 or quantiles[needed - 1] * deviation / sqrt(needed - 1) > abs(gap)


def test_no_number_of_seeds_shows_no_gap() -> None:
    assert seeds_needed(0.0, 0.0) is None and seeds_needed(0.0, 1.0) is None
    assert seeds_needed(0.5, 0.0) == 2
    normal = (stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) ** 2
    assert seeds_needed(1.0, sqrt(9000 / normal)) == pytest.approx(9000, abs=3)
    assert seeds_needed(1.0, sqrt(10_010 / normal)) is None


@given(pairs)
def test_a_gap_is_shown_as_the_winner_of_two_is(pair: tuple[list[float], list[float]]) -> None:
    gap = paired_gap(*pair)
    best = winner_of({"a": pair[0], "b": pair[1]}, higher=True).name
    assert best == (("a" if gap.mean > 0 else "b") if gap.is_significant else None)


def test_one_seed_has_no_interval_and_equal_differences_have_no_width() -> None:
    assert paired_gap([2.0], [0.5]) == PairedGap(1.5, 1)
    constant = paired_gap([1.0, 2.0, 4.0], [0.5, 1.5, 3.5])
    assert (constant.deviation, constant.p, constant.detectable) == (0, 0, 0)
    for interval in (constant.student, constant.bootstrap):
        assert interval and (interval.low, interval.high) == pytest.approx((0.5, 0.5)) and not interval.holds_zero
    same = paired_gap([0.1 + 0.2, 1.0], [0.3, 1.0])  # 0.1 + 0.2 is 0.3 but for rounding
    assert same.mean == 0 and same.p == 1 and same.bootstrap and same.bootstrap.holds_zero
    assert paired_gap([1e308, 1.0], [-1e308, 0.0]) == PairedGap(inf, 2)


@pytest.mark.parametrize(("first", "second"), [([1.0], [1.0, 2.0]), ([], []), ([1.0, inf], [1.0, 2.0])])
def test_scores_that_make_no_pairs_are_refused(first: list[float], second: list[float]) -> None:
    with pytest.raises(ValueError, match="a finite score each for every seed"):
        paired_gap(first, second)


@given(pairs, score)
def test_a_gap_changes_its_sign_with_the_order_and_not_with_a_shift(
    pair: tuple[list[float], list[float]], shift: float
) -> None:
    there, back = paired_gap(*pair), paired_gap(*reversed(pair))
    assert (there.mean, there.p, there.detectable) == (-back.mean, back.p, back.detectable)
    for one, other in ((there.student, back.student), (there.bootstrap, back.bootstrap)):
        assert one and other and (one.low, one.high) == pytest.approx((-other.high, -other.low), abs=1e-9)
    assert paired_gap(*[[value + shift for value in values] for values in pair]) == there


# --- the winner ------------------------------------------------------------------------------------------------------


def test_holms_adjustment_is_that_of_the_published_example() -> None:
    # https://en.wikipedia.org/wiki/Holm-Bonferroni_method: at 5 % the first and the fourth are rejected
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == [] and holm([0.6, 0.7]) == [1, 1]


def test_a_winner_is_ahead_of_every_other_one() -> None:
    base = [0.1, 0.5, 0.3, 0.7, 0.2]
    ahead = [value + step for value, step in zip(base, (0.10, 0.12, 0.11, 0.09, 0.10), strict=True)]
    near = [value + step for value, step in zip(ahead, (-0.01, 0.01, 0.0, -0.02, 0.01), strict=True)]
    won = winner_of({"base": base, "ahead": ahead}, higher=True)
    assert (won.name, won.tied) == ("ahead", ()) and won.gap and won.gap.mean == pytest.approx(0.104)
    assert won.gap.seeds == 5 and won.detectable == won.gap.detectable
    # unpaired intervals overlap: the seeds differ more than the variants
    assert fmean(base) + stdev(base) > fmean(ahead) - stdev(ahead)
    tie = winner_of({"base": base, "near": near, "ahead": ahead}, higher=True)
    assert (tie.name, tie.tied) == (None, ("ahead", "near")) and tie.gap == paired_gap(ahead, near)
    assert tie.detectable == tie.gap.detectable
    least = winner_of({"base": base, "near": near, "ahead": ahead}, higher=False)
    assert least.name == "base" and least.gap and least.gap.mean == pytest.approx(0.102)


def test_several_comparisons_ask_for_more_than_one() -> None:
    gaps = [0.0, 1.0, 2.0, 1.0, 0.9]  # p = 0.04 by scipy
    p = float(stats.ttest_1samp(gaps, 0).pvalue)
    assert 0.025 < p < 0.05
    best, zeros = [gap + 10 for gap in gaps], [10.0] * 5
    assert winner_of({"best": best, "other": zeros}, higher=True).name == "best"
    three = winner_of({"best": best, "other": zeros, "another": zeros}, higher=True)
    assert (three.name, three.tied) == (None, ("best", "another", "other"))


def test_the_bootstrap_has_a_say_too() -> None:
    gaps, zeros = [1.0] * 20 + [-3.5] * 2, [0.0] * 22
    assert stats.ttest_1samp(gaps, 0).pvalue < 0.05
    # the mean of a resample is below 0 if it has five of the low ones or more: 22 - 4.5 * 5 < 0
    assert stats.binom.sf(4, 22, 2 / 22) > 0.025
    assert winner_of({"a": gaps, "b": zeros}, higher=True).tied == ("a", "b")


def test_who_has_no_score_is_behind_and_one_seed_has_no_winner() -> None:
    scores: dict[str, list[float | None]] = {
        "cannot": [None, None, None],
        "diverged": [9.0, None, 9.0],
        "inf": [inf] * 3,
    }
    assert winner_of(scores, higher=True) == Winner(None)
    assert winner_of(scores | {"trains": [0.1, 0.2, 0.3]}, higher=True) == Winner("trains")
    one = winner_of({"a": [1.0], "b": [2.0]}, higher=True)
    assert (one.name, one.tied, one.gap, one.detectable) == (None, ("b", "a"), PairedGap(1.0, 1), None)
    assert winner_of({}, higher=True) == Winner(None) == winner_of({"a": []}, higher=True)
    with pytest.raises(ValueError, match="a score for each seed"):
        winner_of({"a": [1.0], "b": [1.0, 2.0]}, higher=True)


def of_three_seeds(gaps: list[float]) -> tuple[float, float]:
    """The paired t test by hand: p, and the gap that could be shown at 5 % in three comparisons.

    Student's distribution with two degrees of freedom has a closed form, F(t) = 1/2 + t / (2 sqrt(2 + t^2)).
    """
    centre = sum(gaps) / 3
    error = sqrt(sum((gap - centre) ** 2 for gap in gaps) / 2) / sqrt(3)
    t = centre / error
    quantiles = [(2 * q - 1) * sqrt(2 / (1 - (2 * q - 1) ** 2)) for q in (1 - 0.05 / 3 / 2, 0.8)]
    return 1 - t / sqrt(2 + t * t), sum(quantiles) * error


def test_the_two_quantiles_of_two_degrees_of_freedom_are_the_published_ones() -> None:
    # of the table in any textbook: t(0.975; 2) = 4.303, t(0.8; 2) = 1.061
    q = 0.975
    assert (2 * q - 1) * sqrt(2 / (1 - (2 * q - 1) ** 2)) == pytest.approx(4.303, abs=5e-4)
    assert 0.6 * sqrt(2 / (1 - 0.36)) == pytest.approx(1.061, abs=5e-4)


@pytest.mark.parametrize("higher", [True, False])
def test_who_is_behind_is_said_with_each_gap_where_nobody_is_ahead(higher: bool) -> None:
    scores = {"end-to-end": [0.86, 0.93, 0.898], "layerwise": [0.29, 0.38, 0.38], "progressive": [0.99, 0.97, 0.995]}
    pairs = (("progressive", "layerwise"), ("end-to-end", "layerwise"), ("progressive", "end-to-end"))
    gaps = {(a, b): [x - y for x, y in zip(scores[a], scores[b], strict=True)] for a, b in pairs}
    found = {pair: of_three_seeds(by) for pair, by in gaps.items()}
    first, second, third = sorted(found, key=lambda pair: found[pair][0])
    # Holm: three times the least p, twice the next, once the largest
    assert third == ("progressive", "end-to-end") and max(3 * found[first][0], 2 * found[second][0]) < 0.05
    assert found[third][0] > 0.05
    by, could = {pair: fmean(each) for pair, each in gaps.items()}, found[third][1]
    if not higher:
        scores = {name: [-value for value in of] for name, of in scores.items()}
    assert standing_of(scores, higher=higher) == (
        f"layerwise is behind progressive and end-to-end by {by['progressive', 'layerwise']:.3f} and "
        f"{by['end-to-end', 'layerwise']:.3f} (paired over 3 seeds, beyond chance); "
        f"end-to-end is not shown to be behind progressive: by {by[third]:.3f}, where 3 seeds could show {could:.3f}"
    )


def test_behind_a_winner_are_all_others_and_of_many_gaps_the_ends_are_said() -> None:
    base = [0.1, 0.5, 0.3, 0.7, 0.2]
    steps = {"a": 0.5, "b": 0.3, "c": 0.2, "d": 0.1, "e": 0.0}
    wobble = {name: [(-1) ** i * place * 1e-3 for i in range(5)] for place, name in enumerate(steps)}
    scores = {name: [x + step + w for x, w in zip(base, wobble[name], strict=True)] for name, step in steps.items()}
    assert standing_of({name: scores[name] for name in "abc"}, higher=True) == (
        "b and c are behind a by 0.200 and 0.300 (paired over 5 seeds, beyond chance)"
    )
    least, most = (0.5 - 0.3 - 1e-3 / 5, 0.5 - 4e-3 / 5)
    assert standing_of(scores, higher=True) == (
        f"b, c, d and e are behind a by {least:.3f} to {most:.3f} (paired over 5 seeds, beyond chance)"
    )
    assert standing_of({"a": [0.1], "b": [0.2]}, higher=True) == standing_of({"a": [0.1, 0.2]}, higher=True) == ""
    assert standing_of({"a": [0.1, 0.2], "b": [0.1, None]}, higher=True) == standing_of({}, higher=True) == ""


def test_rows_of_other_budgets_and_those_in_which_nobody_trained_are_not_held_against_each_other() -> None:
    rows = {"a": ([1, 2, 3], (0.1, 0.2, 0.3)), "b": ([2, 1], (0.5, 0.4)), "c": ([1, 2], (9.0, 9.0)), "d": ([1], (0.0,))}
    seeds, values = zip(*rows.values(), strict=True)
    assert list(rival_scores(rows, seeds, values, ["3 MiB", "3 MiB", "9 MiB", None])) == [
        {"a": [0.1, 0.2], "b": [0.4, 0.5]},
        {"c": [9.0, 9.0]},
    ]


@given(table, st.booleans())
def test_a_star_and_who_is_behind_say_the_same(scores: dict[str, list[float | None]], higher: bool) -> None:
    winner, words = winner_of(scores, higher=higher), standing_of(scores, higher=higher)
    assert words == standing_of(dict(reversed(scores.items())), higher=higher)
    if winner.gap is not None and winner.name is not None:
        assert f" behind {winner.name} by" in words and "not shown" not in words
    elif winner.gap is not None:
        assert f"not shown to be behind {winner.tied[0]}" in words


@given(table, st.booleans())
def test_a_winner_depends_neither_on_the_order_of_names_nor_on_the_sign(
    scores: dict[str, list[float | None]], higher: bool
) -> None:
    found = winner_of(scores, higher=higher)
    assert found == winner_of(dict(reversed(scores.items())), higher=higher)
    turned = {name: [None if x is None else -x for x in of] for name, of in scores.items()}
    assert found == winner_of(turned, higher=not higher)
    assert found.name is None or not found.tied


def test_variants_that_differ_by_chance_have_a_winner_in_one_experiment_of_twenty() -> None:
    draws = np.random.default_rng(5).normal(size=(1000, 2, 5))
    named = sum(winner_of({"a": a.tolist(), "b": b.tolist()}, higher=True).name is not None for a, b in draws)
    assert named <= 1000 * 0.05 + 2.33 * sqrt(1000 * 0.05 * 0.95)


# --- ranks -----------------------------------------------------------------------------------------------------------

# Demšar (2006), table 6: AUC of C4.5 with its parameters m and cf, m, cf and neither, on 14 data sets
DEMSAR = """
0.763 0.768 0.771 0.798
0.599 0.591 0.590 0.569
0.954 0.971 0.968 0.967
0.628 0.661 0.654 0.657
0.882 0.888 0.886 0.898
0.936 0.931 0.916 0.931
0.661 0.668 0.609 0.685
0.583 0.583 0.563 0.625
0.775 0.838 0.866 0.875
1.000 1.000 1.000 1.000
0.940 0.962 0.965 0.962
0.619 0.666 0.614 0.669
0.972 0.981 0.9751 0.975
0.957 0.978 0.946 0.970
"""
EXAMPLE = [
    dict(zip(("C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf"), map(float, line.split()), strict=True))
    for line in DEMSAR.split("\n")
    if line
]


def test_demsars_example_has_its_mean_ranks() -> None:
    assert mean_ranks(EXAMPLE, higher=True) == pytest.approx(
        {"C4.5": 3.143, "C4.5+m": 2.0, "C4.5+cf": 2.893, "C4.5+m+cf": 1.964}, abs=5e-4
    )


rows = st.integers(3, 5).flatmap(
    lambda k: st.lists(st.lists(st.integers(0, 5).map(float), min_size=k, max_size=k), min_size=3, max_size=8)
)


@given(rows, st.booleans())
def test_mean_ranks_are_scipys(blocks: list[list[float]], higher: bool) -> None:
    found = mean_ranks([dict(zip("abcde", block, strict=False)) for block in blocks], higher=higher)
    expected = stats.rankdata(blocks if not higher else np.negative(blocks), axis=1).mean(axis=0)
    assert list(found.values()) == pytest.approx(expected)


def test_fleets_that_share_their_seeds_are_no_more_evidence_than_one() -> None:
    once = drawn_bench(names=("a", "b", "c"), shares=(1.0,), seeds=4)
    found = ranks_over_seeds(once.fleets, higher=True)
    assert found == once.ranks is not None
    twice = ranks_over_seeds([*once.fleets, *once.fleets], higher=True)
    assert twice == replace(found, fleets=2 * found.fleets)  # the same winner, and intervals as wide
    for name, width in found.half_widths.items():
        of_seeds = [
            np.mean([stats.rankdata([np.inf if r.scores[seed] is None else -r.scores[seed] for r in fleet.rows])
                     for fleet in once.fleets], axis=0)["abc".index(name)]
            for seed in range(4)
        ]  # fmt: skip
        assert found.ranks[name] == pytest.approx(np.mean(of_seeds))
        assert width == pytest.approx(stats.t.ppf(0.975, 3) * np.std(of_seeds, ddof=1) / 2)


def test_who_has_no_score_shares_the_last_rank() -> None:
    found = mean_ranks([{"a": None, "b": 0.1, "c": None}, {"a": 0.3, "b": 0.2, "c": None}], higher=True)
    assert found == {"b": 1.5, "a": 1.75, "c": 2.75}
    for blocks in ([], [{"a": 1.0}, {"b": 1.0}]):
        with pytest.raises(ValueError, match="one block or more with the same variants"):
            mean_ranks(blocks, higher=True)
