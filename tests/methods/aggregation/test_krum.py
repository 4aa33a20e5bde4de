"""Krum and multi-Krum against a numpy version that shares no code with them, and the paper's bound on resilience."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from math import inf, nan, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from combining import combine
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import assert_equal_tensors
from torch import Tensor

from edgefl.methods import Update
from edgefl.methods.aggregation.krum import rank_updates
from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.work import Item, Payload, Work
from edgefl.work.slices import cut_between

A, B, STEPS, TABLE = "k/a", "k/b", "k/steps", "table/t"
BASE = {A: torch.tensor([1.0, -2.0, 0.5]), B: torch.zeros(2), STEPS: torch.tensor(7), TABLE: torch.zeros(3)}
SEEDS = st.integers(0, 2**31)


def options(rule: str, **fields: Any) -> AggregationOptions:
    return AggregationOptions.model_validate({"rule": rule, **fields})


def update(client: int, changes: Mapping[str, Tensor], samples: int = 1, kind: str = "k") -> Update:
    """A client's update by what it changes, address by address."""
    items = tuple(Item(a, tuple(t.shape), "float32", a) for a, t in changes.items())
    payload = Payload("model", items)
    base = {a: BASE.get(a, torch.zeros_like(t)) for a, t in changes.items()}
    values = {a: base[a] + t for a, t in changes.items()}
    return Update(
        client, kind, {kind: samples}, Work(kind, {}, (), (), (payload,), (payload,)), {"model": values}, base
    )


def own(address: str, cohort: object) -> dict[str, float]:
    return {address: 1.0}


def moved(updates: Sequence[Update], options: AggregationOptions, state: Mapping[str, Tensor] = BASE) -> dict[str, Any]:
    """What changes of each address."""
    return {a: t - state[a] for a, t in combine(state, updates, own, options=options).items()}


def rows(count: int, seed: int) -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    return [{a: torch.randn(BASE[a].shape, generator=draw) for a in (A, B)} for _ in range(count)]


# a witness ----------------------------------------------------------------------------------------------------------


def by_hand(vectors: np.ndarray, f: int) -> list[int]:
    """Rows from the best to the worst Krum score."""
    m = len(vectors)
    scores = []
    for i in range(m):
        distances = sorted(float(((vectors[i] - vectors[j]) ** 2).sum()) for j in range(m) if j != i)
        scores.append(sum(distances[: m - f - 2]))
    return sorted(range(m), key=lambda i: (scores[i], i))


@settings(deadline=None, max_examples=40)
@given(st.integers(3, 11), st.one_of(st.none(), st.integers(0, 6)), st.floats(0.1, 1000), SEEDS)
def test_krum_is_what_the_paper_says(count: int, f: int | None, spread: float, seed: int) -> None:
    changes = rows(count, seed)
    changes[0] = {a: spread * t for a, t in changes[0].items()}
    updates = [update(i, c, samples=1 + 7 * i) for i, c in enumerate(changes)]
    bases = np.concatenate([BASE[a].numpy() for a in (A, B)]).astype(float)
    sent = np.stack([np.concatenate([u.payloads["model"][a].numpy() for a in (A, B)]) for u in updates]).astype(float)
    vectors = sent - bases
    largest = max(g for g in range(count) if 2 * g + 2 < count)
    tolerated = largest if f is None else min(f, largest)
    order = by_hand(vectors, tolerated)
    for rule, kept in (("krum", order[:1]), ("multi-krum", order[: count - tolerated])):
        found = moved(updates, options(rule, attackers=f))
        expected = vectors[kept].mean(0)
        both = np.concatenate([found[A].numpy(), found[B].numpy()])
        np.testing.assert_allclose(both, expected, rtol=1e-4, atol=1e-4 * spread)


# resilience ---------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 4), st.integers(0, 3), st.booleans(), SEEDS)
def test_attackers_far_from_the_honest_are_never_kept(f: int, more: int, collude: bool, seed: int) -> None:
    honest = rows(f + 3 + more, seed)
    draw = torch.Generator().manual_seed(seed + 1)
    one = {a: 1e4 * torch.randn(BASE[a].shape, generator=draw).sign() for a in (A, B)}
    # colluders are equal to each other, so that their distances among themselves are zero
    bad = [one if collude else {a: (i + 2) * t for a, t in one.items()} for i in range(f)]
    updates = [update(i, c) for i, c in enumerate([*bad, *honest])]
    for told in (f, None):
        assert any(torch.allclose(moved(updates, options("krum", attackers=told))[A], h[A], atol=1e-5) for h in honest)
    mean = torch.stack([h[A] for h in honest]).mean(0)
    torch.testing.assert_close(moved(updates, options("multi-krum", attackers=f))[A], mean, rtol=1e-4, atol=1e-5)
    assert float(moved(updates, options("mean"))[A].abs().max()) > 100


@pytest.mark.parametrize("attack", ["opposite", "huge", "collude", "close"])
def test_krum_keeps_within_the_papers_angle(attack: str) -> None:
    """Proposition 1: <E F, g> >= (1 - sin alpha) |g|^2, sin alpha = eta(n, f) sqrt(d) sigma / |g|."""
    n, f, d, sigma = 13, 3, 20, 0.05
    k = n - f - 2
    eta = sqrt(2 * (n - f + (f * k + f**2 * (k + 1)) / (n - 2 * f - 2)))
    g = torch.full((d,), 2.0, dtype=torch.float64)
    sine = eta * sqrt(d) * sigma / float(g.norm())
    assert sine < 1  # the proposition's premise
    draw = torch.Generator().manual_seed(5)
    outputs, kept_attackers = [], 0
    for _ in range(300):
        honest = g + sigma * torch.randn(n - f, d, generator=draw, dtype=torch.float64)
        bad = {
            "opposite": -g.expand(f, d),
            "huge": 1e6 * torch.randn(f, d, generator=draw, dtype=torch.float64),
            "collude": (g + 3 * sigma * sqrt(d) * torch.nn.functional.normalize(torch.ones(d).double(), dim=0)).expand(
                f, d
            ),
            # as an attacker who knows all would: beside an honest one
            "close": honest[:1].expand(f, d) - 0.5 * sigma,
        }[attack]
        vectors = torch.cat([bad, honest])
        best = rank_updates(torch.cdist(vectors, vectors).square(), f)[0]
        kept_attackers += best < f
        outputs.append(vectors[best])
    inner = float(torch.stack(outputs).mean(0) @ g)
    assert inner >= (1 - sine) * float(g @ g)
    assert (kept_attackers > 0) == (attack == "close")  # whoever is kept is as good as the honest


def test_values_that_are_none_are_not_kept() -> None:
    changes = rows(5, 1)
    for value in (nan, inf, 3e38):
        updates = [update(i, c) for i, c in enumerate(changes)]
        updates[2] = update(2, {a: torch.full_like(t, value) for a, t in changes[2].items()})
        for rule in ("krum", "multi-krum"):
            assert all(bool(t.isfinite().all()) for t in moved(updates, options(rule, non_finite="keep")).values())


# groups, weights, order -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["krum", "multi-krum"])
def test_the_order_of_updates_and_equal_scores_make_no_difference(rule: str) -> None:
    changes = rows(4, 2)
    changes[3] = changes[1]
    updates = [update(i, c) for i, c in enumerate(changes)]
    found = moved(updates, options(rule))
    for order in permutations(updates):
        assert_equal_tensors(moved(order, options(rule)), found)
    # the nearest two of three have equal scores: the first of them is kept
    three = [update(i, {B: torch.tensor([x, 0.0])}) for i, x in enumerate([9.0, 1.0, 2.0])]
    assert moved(three, options("krum"))[B].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("rule", ["krum", "multi-krum"])
@pytest.mark.parametrize("count", [1, 2])
def test_groups_of_fewer_than_three_are_kept_whole(rule: str, count: int) -> None:
    updates = [update(i, c, samples=10**i) for i, c in enumerate(rows(count, 3))]
    mean = torch.stack([u.payloads["model"][A] - BASE[A] for u in updates]).mean(0)
    torch.testing.assert_close(moved(updates, options(rule, attackers=5))[A], mean)


def test_tables_and_integers_are_not_compared_and_clients_without_samples_do_not_count() -> None:
    changes = [{B: torch.tensor([float(x), 0.0])} for x in (1.0, 1.1, 1.2, 30.0)]
    updates = [update(i, {**c, TABLE: torch.full((3,), 1e6 * (-1.0) ** i)}) for i, c in enumerate(changes)]
    assert moved(updates, options("krum"))[B].tolist() == pytest.approx([1.1, 0])
    # three copies of the far one, with no samples, bring it no neighbours
    silent = [update(4 + i, {**changes[3], TABLE: torch.zeros(3)}, samples=0) for i in range(3)]
    assert moved([*updates, *silent], options("krum"))[B].tolist() == pytest.approx([1.1, 0])
    counted = [replace(u, payloads={"model": {**u.payloads["model"], STEPS: BASE[STEPS] + 10**u.client}},
                       base={**u.base, STEPS: BASE[STEPS]}) for u in updates]  # fmt: skip
    item = Item(STEPS, (), "int64", STEPS)
    for i, u in enumerate(counted):
        payload = replace(u.work.up[0], items=(*u.work.up[0].items, item))
        counted[i] = replace(u, work=replace(u.work, up=(payload,)))
    assert moved(counted, options("krum"))[B].tolist() == pytest.approx([1.1, 0])


def test_kinds_and_depths_are_compared_among_themselves() -> None:
    def near(*values: float) -> list[dict[str, Tensor]]:
        return [{B: torch.tensor([v, 0.0])} for v in values]

    deep = [{**c, A: torch.ones(3)} for c in near(5.0, 5.1, 5.3, -80.0)]
    shallow = near(1.0, 1.1, 1.3)
    updates = [update(i, c) for i, c in enumerate([*deep, *shallow])]
    found = moved(updates, options("krum"))
    # one of each depth is kept, and stands for all of its depth: 4 and 3 clients
    assert found[B].tolist() == pytest.approx([(4 * 5.1 + 3 * 1.0) / 7, 0], rel=1e-5)
    torch.testing.assert_close(found[A], torch.ones(3))
    # another kind that sends the same address is a group of its own
    others = [update(9 + i, c, kind="l") for i, c in enumerate(near(90.0, 90.1, 90.3))]
    mixed = moved([*updates[4:], *others], options("krum"))
    assert mixed[B].tolist() == pytest.approx([(1.0 + 90.0) / 2, 0])


def test_slices_of_equal_width_are_compared_and_meet_element_by_element() -> None:
    state = {"k/w": torch.zeros(4)}
    cut = cut_between((4,), (2,))

    def narrow(client: int, value: float) -> Update:
        one = update(client, {"k/w": torch.full((2,), value)})
        payload = Payload("model", (Item("k/w", (2,), "float32", "k/w", cut),))
        return replace(one, work=replace(one.work, up=(payload,)))

    wide = [update(i, {"k/w": torch.full((4,), v)}) for i, v in enumerate((2.0, 2.1, 50.0))]
    updates = [*wide, *(narrow(3 + i, v) for i, v in enumerate((4.0, 4.1, -70.0)))]
    found = combine(state, updates, own, options=options("krum"))["k/w"]
    assert found.tolist() == pytest.approx([3.0, 3.0, 2.0, 2.0])
    both = combine(state, updates, own, options=options("krum", compensation=True))["k/w"]
    assert both.tolist() == pytest.approx([3.0, 3.0, 1.0, 1.0])  # half of the samples sent the outer elements


def test_clips_and_weight_factors_shorten_an_update_before_it_is_compared() -> None:
    updates = [update(i, {B: torch.tensor([v, 0.0])}) for i, v in enumerate((8.0, 8.4, 9.0, 2.0))]
    assert moved(updates, options("krum"))[B].tolist() == pytest.approx([8.4, 0])
    stale = [replace(u, weight_factor=0.25) if u.client < 3 else u for u in updates]
    assert moved(stale, options("krum"))[B].tolist() == pytest.approx([2.0, 0])
    assert moved(updates, options("krum", clip=2.0))[B].tolist() == pytest.approx([2.0, 0])


def test_large_updates_are_compared_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = [update(i, c) for i, c in enumerate(rows(6, 4))]
    whole = moved(updates, options("multi-krum", attackers=1))
    monkeypatch.setattr("edgefl.methods.aggregation.rules._AT_ONCE", 2)
    assert_equal_tensors(moved(updates, options("multi-krum", attackers=1)), whole)


@pytest.mark.parametrize("rule", ["krum", "multi-krum"])
def test_without_values_all_are_kept(rule: str) -> None:
    changes = [{B: torch.zeros(2), TABLE: torch.zeros(3)} for _ in range(4)]
    with torch.device("meta"):
        updates = []
        for one in (update(i, c) for i, c in enumerate(changes)):
            sent = {"model": {a: torch.empty_like(t, device="meta") for a, t in one.payloads["model"].items()}}
            base = {a: torch.empty_like(t, device="meta") for a, t in one.base.items()}
            updates.append(replace(one, payloads=sent, base=base))
        assert combine({B: torch.empty(2)}, updates, own, options=options(rule))[B].is_meta
        tables = [update(i, {TABLE: torch.zeros(3, device="cpu")}) for i in range(4)]
        assert combine({B: torch.empty(2)}, tables, own, options=options(rule)) == {}
