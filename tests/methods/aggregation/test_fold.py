"""Means that grow as updates arrive have the bits of all at once, whatever kinds, slices and weights there are."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from edgefl.methods import Update
from edgefl.methods.aggregation.combine import Fold, Folded, deltas, usual_weight
from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.work import Item, Payload, Work
from edgefl.work.slices import Cut, take

SHAPES = {"image/w": (4, 6), "image/b": (4,), "text/w": (3, 2), "pair/w": (2, 2)}
CUTS: dict[int, dict[str, Cut | None]] = {
    1: dict.fromkeys(SHAPES),
    2: {"image/w": (((0, 2),), ((0, 4),)), "image/b": (((0, 2),),), "text/w": (((0, 2),), ((0, 2),)), "pair/w": None},
    3: {"image/w": (((0, 1),), ((0, 2),)), "image/b": (((0, 1),),), "text/w": None, "pair/w": (((0, 1),), ((0, 1),))},
}
"""The part of each tensor that a client of a width sends."""


def state(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {a: torch.randn(shape, generator=generator) for a, shape in SHAPES.items()}


def updates_of(rows: list[Any], tensors: dict[str, Tensor]) -> list[Update]:
    updates = []
    for client, (kind, samples, width, parts, factor) in enumerate(rows):
        generator = torch.Generator().manual_seed(client)
        items, values, base = [], {}, {}
        for address in SHAPES:
            if not (address.startswith(f"{kind}/") or address == "pair/w") or address in parts:
                continue
            cut = CUTS[width][address]
            base[address] = take(tensors[address], cut)
            values[address] = base[address] + torch.randn(base[address].shape, generator=generator)
            items.append(Item(address, tuple(base[address].shape), "float32", address, cut))
        table = Item("t", (2,), "float32", "table/t")
        work = Work(kind, {}, (), (), (), (Payload("model", tuple(items)), Payload("tables", (table,))))
        payloads = {"model": values, "tables": {"t": torch.ones(2)}}
        updates.append(Update(client, kind, {kind: samples}, work, payloads, base, weight_factor=factor))
    return updates


def without_values(update: Update) -> Update:
    light = {name: value.to("meta") for name, value in update.payloads["model"].items()}
    return replace(update, payloads={**update.payloads, "model": light})


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["image", "text"]),
        st.integers(0, 9),
        st.sampled_from([1, 1, 2, 3]),
        st.sets(st.sampled_from(sorted(SHAPES)), max_size=2),
        st.sampled_from([1.0, 0.5]),
    ),
    min_size=1,
    max_size=6,
)
OPTIONS = st.builds(AggregationOptions, compensation=st.booleans(), clip=st.sampled_from([None, 0.5]))


@settings(deadline=None)
@given(ROWS, OPTIONS, st.integers(0, 3))
def test_the_bits_are_those_of_all_updates_at_once(rows: list[Any], options: AggregationOptions, seed: int) -> None:
    tensors = state(seed)
    updates = updates_of(rows, tensors)
    fold = Fold(tensors, [without_values(u) for u in reversed(updates)], usual_weight, options)
    for update in updates:
        fold.add(update)
    found, cohort = Folded([without_values(u) for u in reversed(updates)], fold).deltas()
    expected, counts = deltas(tensors, updates, usual_weight, options)
    assert cohort == counts
    assert found.keys() == expected.keys()
    for address, value in expected.items():
        assert torch.equal(found[address], value), address


@settings(deadline=None)
@given(ROWS, OPTIONS, st.data())
def test_sums_that_were_written_go_on_to_the_same_bits(rows: list[Any], options: AggregationOptions, data: Any) -> None:
    tensors = state(0)
    updates = updates_of(rows, tensors)
    light = [without_values(u) for u in updates]
    first = Fold(tensors, light, usual_weight, options)
    count = data.draw(st.integers(0, len(updates)))
    for update in updates[:count]:
        first.add(update)
    sums, facts = first.written()
    second = Fold(tensors, light, usual_weight, options)
    second.restore({name: value.clone() for name, value in sums.items()}, json.loads(json.dumps(facts)))
    for update in updates[count:]:
        first.add(update)
        second.add(update)
    found, expected = (Folded(light, fold).deltas()[0] for fold in (second, first))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[address], value) for address, value in expected.items())


@settings(deadline=None)
@given(ROWS, OPTIONS, st.data())
def test_refused_updates_leave_the_mean_of_the_others(rows: list[Any], options: AggregationOptions, data: Any) -> None:
    tensors = state(0)
    updates = updates_of(rows, tensors)
    refused = data.draw(st.sets(st.sampled_from(range(len(updates)))))
    fold = Fold(tensors, [without_values(u) for u in updates], usual_weight, options)
    accepted = [update for update in updates if update.client not in refused]
    for update in accepted:
        fold.add(update)
    found, cohort = Folded([without_values(u) for u in accepted], fold).deltas()
    expected, counts = deltas(tensors, accepted, usual_weight, options)
    assert cohort == counts and found.keys() == expected.keys()
    for address, value in expected.items():
        torch.testing.assert_close(found[address], value, rtol=1e-5, atol=1e-6)


def test_weights_that_a_result_decides_scale_the_mean() -> None:
    tensors = state(0)
    updates = [replace(u, updates=n) for n, u in enumerate(updates_of([("image", 4, 1, set(), 1.0)] * 3, tensors), 2)]
    options = AggregationOptions()

    def weight(update: Update) -> float:
        return update.weight / update.updates

    fold = Fold(tensors, [replace(without_values(u), updates=1) for u in updates], weight, options)
    for update in updates:
        fold.add(update)
    found, _ = Folded([without_values(u) for u in updates], fold).deltas()
    expected, _ = deltas(tensors, updates, weight, options)
    for address, value in expected.items():
        torch.testing.assert_close(found[address], value)
