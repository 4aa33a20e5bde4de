"""The mean that grows as updates arrive, against a loop by hand, whatever kinds, slices and weights there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from combining import usual_weight
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from edgefl.errors import MethodError
from edgefl.methods import Update
from edgefl.methods.aggregation.mean import Fold
from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.methods.aggregation.updates import AddedUp, Updates
from edgefl.work import Item, Payload, Work
from edgefl.work.packed import PayloadLayout
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
    return replace(update, payloads=AddedUp.of(update.work.up, update.payloads))


def by_hand(
    tensors: dict[str, Tensor],
    updates: list[Update],
    options: AggregationOptions,
    weight: Callable[[Update], float] = usual_weight,
) -> dict[str, Tensor]:
    """The mean change of each element over the clients that sent it, in float64, from whole tensors and masks."""
    found = {}
    for address in SHAPES:
        total, senders = (torch.zeros(SHAPES[address], dtype=torch.float64) for _ in range(2))
        kinds = set()
        for update in updates:
            model, sent = update.work.up[0], update.payloads["model"]
            norm = sum(float((sent[n].double() - update.base[n]).square().sum()) for n in model.names) ** 0.5
            clipped = min(1.0, options.clip / norm) if options.clip and norm else 1.0
            for item in model.items:
                if item.source == address:
                    part = tuple(slice(*ranges[0]) for ranges in item.cut) if item.cut else ()
                    change = sent[address].double() - update.base[address]
                    total[part] += weight(update) * update.weight_factor * clipped * change
                    senders[part] += weight(update)
                    kinds.add(update.kind)
        whole = senders
        if options.compensation:
            own = {address.split("/")[0]} & {update.kind for update in updates} or kinds
            whole = torch.full_like(senders, sum(weight(u) for u in updates if u.kind in own))
        if kinds and whole.any():
            found[address] = torch.where(senders > 0, total / whole.clamp_min(1e-300), 0.0)
    return found


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for address, value in expected.items():
        torch.testing.assert_close(found[address].double(), value, rtol=1e-5, atol=1e-6)


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
def test_the_mean_is_that_of_a_loop_by_hand(rows: list[Any], options: AggregationOptions, seed: int) -> None:
    tensors = state(seed)
    updates = updates_of(rows, tensors)
    fold = Fold(tensors, [without_values(u) for u in reversed(updates)], usual_weight, options)
    for update in updates:
        fold.add(update)
    found, cohort = Updates([without_values(u) for u in reversed(updates)], fold).deltas({}, usual_weight, options)
    assert_close(found, by_hand(tensors, updates, options))
    for kind in ("image", "text"):
        assert cohort.by_kind.get(kind, 0) == sum(u.total for u in updates if u.kind == kind)
    once, counts = Updates(updates[::-1]).deltas(tensors, usual_weight, options)
    assert counts == cohort and once.keys() == found.keys()
    assert all(torch.equal(once[address], value) for address, value in found.items())


def test_a_payload_that_was_narrowed_is_added_without_what_it_lacks() -> None:
    """Its tensors lie in one buffer with those that aren't sent any more."""
    tensors = state(0)
    whole = updates_of([("image", 4, 1, set(), 1.0), ("image", 2, 1, set(), 1.0)], tensors)
    narrowed = []
    for update in whole:
        model = update.work.up[0]
        packed = PayloadLayout(model).copy(update.payloads["model"])
        only = model.only(lambda item: item.name != "image/b")
        narrowed.append(replace(update, work=replace(update.work, up=(only,)), payloads={"model": packed}))
    found, _ = Updates(narrowed).deltas(tensors, usual_weight, AggregationOptions())
    expected = by_hand(tensors, whole, AggregationOptions())
    del expected["image/b"]
    assert_close(found, expected)


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
    found, _ = Updates([without_values(u) for u in accepted], fold).deltas({}, usual_weight, options)
    assert_close(found, by_hand(tensors, accepted, options))


def test_weights_that_a_result_decides_scale_the_mean() -> None:
    tensors = state(0)
    updates = [replace(u, updates=n) for n, u in enumerate(updates_of([("image", 4, 1, set(), 1.0)] * 3, tensors), 2)]
    options = AggregationOptions()

    def weight(update: Update) -> float:
        return update.weight / update.updates

    fold = Fold(tensors, [replace(without_values(u), updates=1) for u in updates], weight, options)
    for update in updates:
        fold.add(update)
    arrivals = Updates([without_values(u) for u in updates], fold)
    found, _ = arrivals.deltas({}, weight, options)
    assert_close(found, by_hand(tensors, updates, options, weight))
    with pytest.raises(MethodError, match=r"define update_weight\(\) in place of combine\(weight=\.\.\.\)"):
        arrivals.deltas({}, usual_weight, options)


def test_values_that_were_added_up_raise_where_they_are_read() -> None:
    (update,) = updates_of([("image", 4, 1, set(), 1.0)], state(0))
    light = without_values(update)
    assert not list(light.payloads["model"]) and list(light.payloads["tables"]) == ["t"]
    assert torch.equal(light.payloads["tables"]["t"], torch.ones(2))
    for read in (lambda: light.payloads["model"]["image/w"], lambda: list(light.uploaded_tensors()), light.norm):
        with pytest.raises(MethodError, match="'image/w' in the payload 'model' were added up as they arrived"):
            read()
    assert "other" not in light.payloads["model"]
