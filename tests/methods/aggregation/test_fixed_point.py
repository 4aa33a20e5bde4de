"""Sums of integers modulo R, against Python's own integers."""

from __future__ import annotations

import pytest
import torch
from combining import usual_weight
from torch import Tensor

from edgefl.methods import Update
from edgefl.methods.aggregation.fixed_point import FixedPointMeans
from edgefl.methods.aggregation.mean import Fold
from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.work import Item, Payload, Work
from edgefl.work.slices import Cut, take

CLIP = 0.7


def update_of(client: int, tensors: dict[str, Tensor], cuts: dict[str, Cut | None], length: float) -> Update:
    generator = torch.Generator().manual_seed(client)
    base = {a: take(tensors[a], cut) for a, cut in cuts.items()}
    sent = {a: v + length * torch.randn(v.shape, generator=generator) for a, v in base.items()}
    items = [Item(a, tuple(v.shape), "float32", a, cuts[a]) for a, v in base.items()]
    work = Work("image", {}, (), (), (), (Payload("model", tuple(items)),))
    return Update(client, "image", {"image": 9}, work, {"model": sent}, base, equal=True)


def folded(tensors: dict[str, Tensor], updates: list[Update], bits: int, arrived: int) -> Fold:
    fold = Fold(tensors, updates, usual_weight, AggregationOptions(clip=CLIP, secure="secagg", bits=bits))
    for update in updates[:arrived]:
        fold.add(update)
    return fold


@pytest.mark.parametrize(("bits", "arrived"), [(16, 5), (4, 3), (32, 5)])
def test_sums_are_those_of_pythons_integers(bits: int, arrived: int) -> None:
    tensors = {"image/w": torch.randn(3, 4), "image/b": torch.randn(3)}
    updates = [update_of(i, tensors, dict.fromkeys(tensors), length) for i, length in enumerate((0.02, 1, 0.1, 3, 0.2))]
    fold = folded(tensors, updates, bits, arrived)
    levels, modulus = 2**bits - 1, 5 * (2**bits - 1) + 1
    sums = {a: [0] * t.numel() for a, t in tensors.items()}
    for update in updates[:arrived]:
        change = {a: (v.double() - tensors[a].double()).flatten().tolist() for a, v in update.payloads["model"].items()}
        norm = sum(x * x for values in change.values() for x in values) ** 0.5
        for a, values in change.items():
            for index, x in enumerate(values):
                coded = round((x * min(1.0, CLIP / norm) / CLIP + 1) * (levels / 2))
                sums[a][index] = (sums[a][index] + coded) % modulus
    assert isinstance(fold._sums, FixedPointMeans)
    found = fold._sums.sums
    for a, whole in sums.items():
        # a change is subtracted in float32 there, and the last bit of a value of 32 bits may be another
        assert all(
            abs(x - y) <= (bits == 32) * 2**10 for x, y in zip(found[a, None].flatten().tolist(), whole, strict=True)
        )
    for a, mean in fold.deltas(updates[:arrived])[0].items():
        by_hand = [(s * 2 / levels - arrived) * CLIP / arrived for s in sums[a]]
        torch.testing.assert_close(mean.flatten(), torch.tensor(by_hand), rtol=1e-5, atol=1e-6)


def test_a_narrow_client_is_in_the_sums_of_its_slice_alone() -> None:
    tensors, narrow = {"image/w": torch.zeros(4, 3)}, (((0, 2),), ((0, 3),))
    updates = [update_of(0, tensors, {"image/w": None}, 0.05), update_of(1, tensors, {"image/w": narrow}, 0.05)]
    secure = folded(tensors, updates, 24, 2).deltas()[0]["image/w"]
    plain = Fold(tensors, updates, usual_weight, AggregationOptions(clip=CLIP))
    for update in updates:
        plain.add(update)
    torch.testing.assert_close(secure, plain.deltas()[0]["image/w"], atol=1e-6, rtol=0)
