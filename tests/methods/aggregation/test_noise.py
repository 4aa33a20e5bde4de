"""Noise on sums of clipped updates, against a loop by hand and the normal distribution."""

from __future__ import annotations

import hashlib

import pytest
import torch
from combining import usual_weight
from scipy import stats
from torch import Tensor

from edgefl.methods import Update
from edgefl.methods.aggregation.mean import Fold
from edgefl.methods.aggregation.noise import ExpectedSenders, Noise
from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.methods.aggregation.updates import Updates
from edgefl.work import Item, Payload, Work
from edgefl.work.slices import Cut, take

CLIP, NOISE, SEED, ROUND = 0.7, 1.3, 5, 4


def work_of(kind: str, tensors: dict[str, Tensor], cuts: dict[str, Cut | None]) -> Work:
    items = [Item(a, tuple(take(tensors[a], cut).shape), "float32", a, cut) for a, cut in cuts.items()]
    return Work(kind, {}, (), (), (), (Payload("model", tuple(items)),))


def update_of(client: int, work: Work, tensors: dict[str, Tensor], length: float) -> Update:
    """An update whose change has about this length."""
    generator = torch.Generator().manual_seed(client)
    base = {item.source: take(tensors[item.source], item.cut) for item in work.up[0].items}
    size = sum(value.numel() for value in base.values())
    sent = {a: v + length / size**0.5 * torch.randn(v.shape, generator=generator) for a, v in base.items()}
    return Update(client, work.kind, {work.kind: 3 + client}, work, {"model": sent}, base, equal=True)


def deltas_of(
    tensors: dict[str, Tensor], updates: list[Update], senders: list[ExpectedSenders], deviation: float = NOISE * CLIP
) -> dict[str, Tensor]:
    options = AggregationOptions(clip=CLIP, noise=NOISE)
    fold = Fold(tensors, updates, usual_weight, options, Noise(SEED, ROUND, deviation, senders))
    received = Updates(mean=fold)
    for update in updates:
        received.add(update)
    return received.deltas(tensors, usual_weight, options)[0]


def drawn_by_hand(address: str, shape: torch.Size, part: int = 0) -> Tensor:
    """Standard normal numbers from the seed's own text."""
    digest = hashlib.blake2b(f"{SEED}/noise {address}/{ROUND}/{part}".encode(), digest_size=8).digest()
    return torch.randn(shape, generator=torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1))


def test_a_round_is_that_of_a_loop_by_hand() -> None:
    tensors = {"image/w": torch.randn(6, 5), "image/b": torch.randn(6), "text/w": torch.randn(3, 3)}
    image, text = (
        work_of(kind, tensors, {a: None for a in tensors if a.startswith(kind)}) for kind in ("image", "text")
    )
    updates = [update_of(i, image, tensors, length) for i, length in enumerate((0.1, 2.0, 0.6))]
    expected = [ExpectedSenders("image", image, 2.5), ExpectedSenders("text", text, 1.5)]
    found = deltas_of(tensors, updates, expected)
    assert found.keys() == tensors.keys()  # nobody sent text/w, and its noise doesn't tell so
    total = {a: torch.zeros_like(t, dtype=torch.float64) for a, t in tensors.items()}
    for update in updates:
        change = {a: v.double() - tensors[a] for a, v in update.payloads["model"].items()}
        norm = sum(float((c**2).sum()) for c in change.values()) ** 0.5
        for a, c in change.items():
            total[a] += c * min(1.0, CLIP / norm)
    for a, value in found.items():
        by_hand = (total[a] + NOISE * CLIP * drawn_by_hand(a, value.shape)) / (2.5 if a.startswith("image") else 1.5)
        torch.testing.assert_close(value.double(), by_hand, rtol=1e-5, atol=1e-6)


def test_noise_of_many_weights_is_normal_with_its_deviation() -> None:
    tensors = {"image/w": torch.zeros(400, 300), "image/v": torch.zeros(120_000)}
    work = work_of("image", tensors, dict.fromkeys(tensors))
    found = deltas_of(tensors, [], [ExpectedSenders("image", work, 8.0)])
    values = {a: value.flatten().double() / (NOISE * CLIP / 8.0) for a, value in found.items()}
    for value in values.values():
        n = len(value)
        assert stats.chi2(n).sf(float((value**2).sum())) == pytest.approx(0.5, abs=0.499)  # within 3 deviations
        assert abs(float(value.mean())) < 3 / n**0.5
        assert stats.kstest(value.numpy(), "norm").pvalue > 1e-3
    assert abs(float((values["image/w"] * values["image/v"]).mean())) < 3 / 120_000**0.5


def test_each_part_of_a_tensor_has_the_noise_of_its_own_senders() -> None:
    tensors = {"image/w": torch.zeros(60, 100)}
    narrow: Cut = ((0, 20),), ((0, 100),)
    works = [work_of("image", tensors, {"image/w": cut}) for cut in (None, narrow)]
    senders = [ExpectedSenders("image", work, number) for work, number in zip(works, (2.0, 3.0), strict=True)]
    found = deltas_of(tensors, [], senders)["image/w"] / (NOISE * CLIP)
    for rows, number in ((found[:20], 5.0), (found[20:], 2.0)):
        assert float(rows.std()) == pytest.approx(1 / number, rel=3 / (2 * rows.numel()) ** 0.5)


def test_what_has_no_values_has_no_noise() -> None:
    tensors = {"image/w": torch.zeros(4, 4, device="meta")}
    found = deltas_of(tensors, [], [ExpectedSenders("image", work_of("image", tensors, {"image/w": None}), 2.0)])
    assert found["image/w"].is_meta
