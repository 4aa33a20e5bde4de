"""Median, trimmed mean, clipping against brute force; compensation is damped FedAvg; equal clients stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from statistics import fmean, median

import pytest
import torch
from combining import combine
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import assert_equal_tensors
from torch import Tensor

from edgefl.methods import Update
from edgefl.methods.aggregation import robust_deltas, rules
from edgefl.methods.aggregation.options import MEAN, AggregationOptions
from edgefl.work import Item, Payload, Work
from edgefl.work.packed import is_finite

SHAPE = (3,)
BASE = {"k/a": torch.tensor([1.0, -2.0, 0.5]), "k/b": torch.zeros(SHAPE), "table/t": torch.zeros(SHAPE)}


def options(**fields: object) -> AggregationOptions:
    return AggregationOptions.model_validate(fields)


def update(client: int, samples: int, changes: Mapping[str, Tensor], kind: str = "k") -> Update:
    """A client's update by what it changes, address by address."""
    items = tuple(Item(a, tuple(t.shape), "float32", a) for a, t in changes.items())
    payload = Payload("model", items)
    values = {a: BASE.get(a, torch.zeros(t.shape)) + t for a, t in changes.items()}
    base = {a: BASE.get(a, torch.zeros(t.shape)) for a, t in changes.items()}
    return Update(
        client, kind, {kind: samples}, Work(kind, {}, (), (), (payload,), (payload,)), {"model": values}, base
    )


def own(address: str, cohort: object) -> dict[str, float]:
    return {address: 1.0}


numbers = st.floats(-10, 10, width=32, allow_subnormal=False)
rows = st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=7)


@settings(deadline=None, max_examples=25)
@given(rows, st.sampled_from([0.0, 0.1, 0.2, 0.34, 0.49]))
def test_median_and_trimmed_mean_are_taken_coordinate_by_coordinate(changes: list[list[float]], trim: float) -> None:
    updates = [update(i, 1 + i, {"k/a": torch.tensor(row)}) for i, row in enumerate(changes)]
    # what a client changed is what is left of it once it stood in float32 beside its base
    rows = [[float(x) for x in u.payloads["model"]["k/a"] - BASE["k/a"]] for u in updates]
    dropped = int(trim * len(rows) + 1e-9)
    middle = [median(column) for column in zip(*rows, strict=True)]
    trimmed = [fmean(sorted(column)[dropped : len(rows) - dropped]) for column in zip(*rows, strict=True)]
    for told, expected in ((options(rule="median"), middle), (options(rule="trimmed-mean", trim=trim), trimmed)):
        found = combine(BASE, updates, own, options=told)["k/a"]
        torch.testing.assert_close(found, BASE["k/a"] + torch.tensor(expected), rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=6), st.integers(0, 2**31),
       st.sampled_from(["mean", "median", "trimmed-mean"]))  # fmt: skip
def test_equal_clients_average_to_any_one_of_them(samples: list[int], seed: int, rule: str) -> None:
    draw = torch.Generator().manual_seed(seed)
    changes = {a: torch.randn(SHAPE, generator=draw) for a in ("k/a", "k/b")}
    updates = [update(i, n, changes) for i, n in enumerate(samples)]
    found = combine(BASE, updates, own, options=options(rule=rule))
    for address, value in updates[0].payloads["model"].items():
        torch.testing.assert_close(found[address], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
@pytest.mark.parametrize("shape", [(12289,), (137, 151), (7, 50, 47), (5,), ()])
@pytest.mark.parametrize("count", [2, 5, 16])
def test_large_tensors_are_compared_piece_by_piece(
    rule: str, shape: tuple[int, ...], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bits are those of all coordinates at once, also where tensors lie in memory in another order."""
    torch.manual_seed(count)
    changes = [torch.randn(shape) for _ in range(count)]
    updates = [update(c, c + 1, {"k/w": change}) for c, change in enumerate(changes)]
    if len(shape) == 2:
        updates = [replace(u, base={"k/w": torch.zeros(shape[::-1]).t()}) for u in updates]
    tensors = {"k/w": torch.zeros(shape)}
    expected = rules.rule(options(rule=rule)).centre(torch.stack(changes), torch.ones(count))  # type: ignore[attr-defined]
    for together in (2**22, 9000 * count, 1):
        monkeypatch.setattr(robust_deltas, "_AT_ONCE", together)
        assert torch.equal(combine(tensors, updates, own, options=options(rule=rule))["k/w"], expected)


def test_a_few_wild_clients_move_neither() -> None:
    changes = [1.0, 1.1, 0.9, 1.0, 1e30]
    updates = [update(i, 10**i, {"k/a": torch.full(SHAPE, x)}) for i, x in enumerate(changes)]
    for told in (options(rule="median"), options(rule="trimmed-mean", trim=0.2)):
        moved = combine(BASE, updates, own, options=told)["k/a"] - BASE["k/a"]
        assert ((moved >= 0.9) & (moved <= 1.1)).all()
        for order in permutations(updates):
            assert_equal_tensors(combine(BASE, order, own, options=told)["k/a"], BASE["k/a"] + moved)


def test_a_median_is_over_those_who_sent_the_parameter_and_have_samples() -> None:
    updates = [update(i, n, {"k/a": torch.full(SHAPE, x)}) for i, (n, x) in enumerate([(5, 1.0), (1, 3.0), (0, 99.0)])]
    updates.append(update(3, 50, {"k/b": torch.full(SHAPE, 7.0)}))
    changed = combine(BASE, updates, own, options=options(rule="median"))
    assert_equal_tensors(changed["k/a"], BASE["k/a"] + 2)
    assert_equal_tensors(changed["k/b"], torch.full(SHAPE, 7.0))


def test_a_weight_factor_shortens_a_clients_change_before_the_median() -> None:
    updates = [update(i, 1, {"k/b": torch.full(SHAPE, 4.0)}) for i in range(3)]
    updates[1:] = [replace(u, weight_factor=0.5) for u in updates[1:]]
    assert_equal_tensors(combine(BASE, updates, own, options=options(rule="median"))["k/b"], torch.full(SHAPE, 2.0))


@pytest.mark.parametrize(
    ("fields", "withstood"),
    [
        # Yin et al. 2018: fewer than half; Blanchard et al. 2017: 2 f + 2 < n
        ({"rule": "median"}, {1: 0, 2: 0, 3: 1, 4: 1, 5: 2, 10: 4}),
        ({"rule": "trimmed-mean", "trim": 0.2}, {4: 0, 5: 1, 9: 1, 10: 2}),
        ({"rule": "krum"}, {1: 0, 2: 0, 3: 0, 4: 0, 5: 1, 6: 1, 7: 2, 10: 3}),
        ({"rule": "multi-krum", "attackers": 1}, {4: 0, 5: 1, 10: 1}),
    ],
    ids=str,
)
def test_a_rule_says_how_many_attackers_it_withstands(fields: dict[str, object], withstood: dict[int, int]) -> None:
    made = rules.rule(options(**fields))
    assert {m: made.withstands(m) for m in withstood} == withstood


@pytest.mark.parametrize("name", ["median", "krum", "multi-krum"])
@pytest.mark.parametrize("size", range(3, 12))
def test_what_is_withstood_moves_nothing_and_one_more_does(name: str, size: int) -> None:
    """By the rules themselves: honest changes lie in [0.9, 1.1], and all attackers send the same huge one."""
    told = options(rule=name)
    most = rules.rule(told).withstands(size)
    assert most is not None

    def moved(bad: int) -> torch.Tensor:
        honest = [0.9 + 0.2 * i / size for i in range(size - bad)]
        changes = [*honest, *[1e30] * bad]
        updates = [update(i, 1, {"k/b": torch.full(SHAPE, x)}) for i, x in enumerate(changes)]
        return combine(BASE, updates, own, options=told)["k/b"]

    assert ((moved(most) >= 0.9 - 1e-6) & (moved(most) <= 1.1 + 1e-6)).all()
    if name == "median":  # of an even number the mean of two, of which one is then wild
        assert not (moved(most + 1) <= 1.1).all()


# clipping -----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.lists(numbers, min_size=3, max_size=3), st.lists(numbers, min_size=3, max_size=3), st.floats(0.1, 30))
def test_a_whole_updates_norm_is_brought_down(a: list[float], b: list[float], most: float) -> None:
    one = update(0, 3, {"k/a": torch.tensor(a), "k/b": torch.tensor(b)})
    changes = torch.cat([one.payloads["model"][x] - BASE[x] for x in ("k/a", "k/b")])
    factor = one.clipping(most)
    assert factor == pytest.approx(min(1.0, most / max(float(changes.norm()), 1e-30)), rel=1e-5)
    found = combine(BASE, [one], own, options=options(clip=most))
    moved = torch.cat([found[x] - BASE[x] for x in ("k/a", "k/b")])
    torch.testing.assert_close(moved, changes * factor, rtol=1e-4, atol=1e-4)
    assert float(moved.norm()) <= most * 1.001 + 1e-4


def test_tables_and_small_updates_are_not_clipped() -> None:
    one = update(0, 1, {"k/b": torch.tensor([0.6, 0.0, 0.8]), "table/t": torch.full(SHAPE, 1e6)})
    assert one.clipping(1.0) == pytest.approx(1) and one.clipping(None) == 1.0
    assert one.clipping(0.5) == pytest.approx(0.5)


# compensation -------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 500), st.booleans()), min_size=1, max_size=6), st.integers(0, 2**31))
def test_compensation_is_fedavg_damped_by_the_share_that_sent_it(clients: list[tuple[int, bool]], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    updates = []
    for client, (samples, sends) in enumerate(clients):
        changes = {"k/a": torch.randn(SHAPE, generator=draw), "k/b": torch.randn(SHAPE, generator=draw)}
        updates.append(update(client, samples, changes if sends else {"k/b": changes["k/b"]}))
    share = sum(n for n, sends in clients if sends) / sum(n for n, _ in clients)
    plain, damped = (combine(BASE, updates, own, options=told) for told in (MEAN, options(compensation=True)))
    assert ("k/a" in plain) == ("k/a" in damped)
    assert_equal_tensors(plain["k/b"], damped["k/b"])
    if share:
        expected = (1 - share) * BASE["k/a"] + share * plain["k/a"]
        torch.testing.assert_close(damped["k/a"], expected, rtol=1e-5, atol=1e-5)
        # who doesn't send it counts as one who sends what he received
        silent = [u if s else update(u.client, n, {"k/a": torch.zeros(SHAPE)})
                  for u, (n, s) in zip(updates, clients, strict=True)]  # fmt: skip
        torch.testing.assert_close(damped["k/a"], combine(BASE, silent, own)["k/a"], rtol=1e-5, atol=1e-5)


def test_compensation_counts_kinds_that_meet_in_a_parameter_and_send_nothing_of_it() -> None:
    base = {"k/a": torch.zeros(SHAPE), "l/a": torch.zeros(SHAPE), "l/b": torch.zeros(SHAPE)}
    updates = [update(0, 30, {"k/b": torch.full(SHAPE, 1.0)}), update(1, 10, {"l/b": torch.ones(SHAPE)}, "l")]
    told = {}

    def mix(address: str, cohort: object) -> dict[str, float]:
        told[address] = dict(cohort.by_address)  # type: ignore[attr-defined]
        return {}

    combine(base, updates, mix, options=options(compensation=True))
    assert told["k/a"] == {"k/a": 30, "k/b": 30, "l/a": 10, "l/b": 10}
    combine(base, updates, mix)
    assert told["k/a"] == {"k/b": 30, "l/b": 10}


# rejection ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_number_that_is_none_spoils_an_update_or_table(value: float) -> None:
    bad = torch.tensor([0.0, value])
    good = {"model": {"a": torch.ones(2), "steps": torch.tensor(3)}}
    assert is_finite(good) and is_finite({}) and not is_finite({**good, "prototypes": {"p": bad}})
    assert not is_finite({"model": {**good["model"], "b": bad.half()}})
