"""Samples that clients hold out of their training (``evaluation.clients``)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from edgefl.arrays import Integers
from edgefl.data import DataOptions, Federation, open_federation
from edgefl.data.split import held_out_counts, held_out_samples
from edgefl.errors import DataError
from edgefl.work import Pass

SHARE = 0.2


@pytest.fixture(scope="module")
def whole(glyph_federation: Federation) -> Federation:
    return glyph_federation


@pytest.fixture(scope="module")
def divided(whole: Federation) -> Federation:
    return whole.with_held_out(SHARE, seed=1)


def test_held_out_and_training_samples_are_all_samples_and_share_none(whole: Federation, divided: Federation) -> None:
    assert divided.held_out is not None
    for client in range(len(whole.client_kind)):
        train, held = divided.rows(client), divided.held_out.rows(client)
        assert not set(train) & set(held)
        assert sorted([*train, *held]) == sorted(whole.rows(client))
        assert len(train) == divided.client_samples[client] and len(held) == divided.held_out.client_samples[client]
        assert len(held) <= SHARE * whole.client_samples[client]
    assert divided.held_out.client_samples.sum() > 0.8 * SHARE * whole.client_samples.sum()


def test_samples_that_belong_together_stay_together(divided: Federation) -> None:
    assert divided.held_out is not None
    for client in range(len(divided.client_kind)):
        part, _ = divided._part_offsets[divided.kinds[divided.client_kind[client]]]
        group = part.arrays["group"]
        assert not set(group[divided.rows(client)]) & set(group[divided.held_out.rows(client)])


def test_no_batch_of_training_has_a_sample_that_is_held_out(whole: Federation, divided: Federation) -> None:
    client = int(np.flatnonzero(whole.client_kind == 0)[0])
    kind = whole.kinds[0]
    assert divided.held_out is not None
    part, _ = divided._part_offsets[kind]

    def batches(data: str) -> Counter[bytes]:
        pass_ = Pass("any", data, (kind,), 1, data == "private", {"fields": [kind]})  # type: ignore[arg-type]
        return Counter(batch[kind].numpy().tobytes() for _, batch in divided.client(client).batches(pass_, 3))

    def pictures(rows: Integers) -> Counter[bytes]:
        return Counter(part.load(kind, rows[i : i + 1], (kind,))[kind].numpy().tobytes() for i in range(len(rows)))

    assert batches("private") == pictures(divided.rows(client))
    assert batches("held-out") == pictures(divided.held_out.rows(client))


def test_which_samples_are_held_out_is_a_function_of_the_seed(whole: Federation, divided: Federation) -> None:
    again, other = whole.with_held_out(SHARE, seed=1).held_out, whole.with_held_out(SHARE, seed=2).held_out
    assert again is not None and other is not None and divided.held_out is not None
    clients = range(len(whole.client_kind))
    assert all(np.array_equal(again.rows(c), divided.held_out.rows(c)) for c in clients)
    assert any(not np.array_equal(other.rows(c), divided.held_out.rows(c)) for c in clients)
    assert whole.with_held_out(0.0, seed=1) is whole


def test_a_client_with_few_samples_holds_none_out() -> None:
    samples = np.array([0, 1, 4, 5, 9, 10, 100])
    assert held_out_counts(samples, 0.2).tolist() == [0, 0, 0, 1, 1, 2, 20]
    assert held_out_counts(np.array([100]), 0.29).tolist() == [29]  # 28.999... in floating point
    owner = np.repeat(np.arange(len(samples)), samples)
    mask = held_out_samples(owner, np.arange(len(owner)), 0.2, np.random.default_rng(1))
    assert np.bincount(owner[mask], minlength=7).tolist() == [0, 0, 0, 1, 1, 2, 20]


def test_groups_that_do_not_fit_are_passed_over() -> None:
    # ten samples in groups of 3, 3, 2, 1 and 1: of the two that may be held out, a group of 3 is never one
    group = np.array([0, 0, 0, 1, 1, 1, 2, 2, 3, 4])
    found = set()
    for seed in range(30):
        mask = held_out_samples(np.zeros(10, int), group, 0.2, np.random.default_rng(seed))
        assert mask.sum() == 2
        found.add(tuple(np.unique(group[mask]).tolist()))
    assert found == {(2,), (3, 4)}


def test_missing_modalities_are_held_out_too(data_cache: Path) -> None:
    options = DataOptions(
        source="glyphs", clients={"image-text": 3}, samples=40, missing={"image-text": {"image": 0.3, "text": 0.3}}
    )
    whole = open_federation(options, seed=1, tokens=8, cache=data_cache)
    divided = whole.with_held_out(0.5, seed=1)
    held = divided.held_out
    assert held is not None and held.client_patterns is not None and divided.client_patterns is not None
    assert np.array_equal(held.client_patterns + divided.client_patterns, whole.client_patterns)
    assert np.array_equal(held.client_patterns.sum(1), held.client_samples)
    source = divided.client(0)
    for index, pattern in enumerate(divided.patterns("image-text")):
        assert source.size(Pass("any", "held-out", (pattern,), 1, False)) == held.client_patterns[0, index]


def test_without_a_share_a_client_has_no_held_out_samples(whole: Federation) -> None:
    kind = whole.kinds[whole.client_kind[0]]
    with pytest.raises(DataError, match="private image samples only, not held-out image"):
        whole.client(0).size(Pass("any", "held-out", (kind,), 1, False))


def test_a_declared_federation_divides_its_counts() -> None:
    options = DataOptions.model_validate({"source": "declared", "clients": {"image": 4}, "samples": 23})
    divided = open_federation(options, seed=1, tokens=8).with_held_out(0.2, seed=1)
    assert divided.held_out is not None
    assert divided.held_out.client_samples.tolist() == [4] * 4 and divided.client_samples.tolist() == [19] * 4
    source = divided.client(2)
    assert source.size(Pass("any", "held-out", ("image",), 1, False)) == 4
    assert source.size(Pass("any", "private", ("image",), 1)) == 19
