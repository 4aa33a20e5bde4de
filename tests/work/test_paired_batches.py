"""Batches of another pass beside a pass's own."""

from __future__ import annotations

import pytest
import torch
from edgefl_toys import Toy
from tensors import assert_equal_tensors

from edgefl.errors import MethodError
from edgefl.work import Pass
from edgefl.work.paired_batches import batches

OTHER = {"step": "x", "data": "public", "patterns": ["image-text"], "batch": 10, "train": True, "args": {}}


def test_a_pass_without_a_companion_is_as_it_was() -> None:
    pass_ = Pass("x", "private", ("image",), 8)
    for (_, one), (_, other) in zip(batches(Toy(), pass_, 3), Toy().batches(pass_, 3), strict=True):
        assert_equal_tensors(one, other)


def test_the_companion_goes_round_and_round_in_another_order() -> None:
    pass_ = Pass("x", "private", ("image",), 4, True, {"beside": OTHER})
    seen = [batch for _, batch in batches(Toy(), pass_, 3)]
    assert len(seen) == 10  # as many as private ones; a lap of the companion has four
    for batch in seen:
        assert set(batch) == {"image", "label", "beside.image", "beside.text", "beside.label"}
        assert len(batch["image"]) == 4 and len(batch["beside.image"]) == 10
    assert not torch.equal(seen[0]["beside.image"], seen[4]["beside.image"])
    again = next(iter(batches(Toy(), pass_, 3)))[1]
    assert_equal_tensors(again["beside.text"], seen[0]["beside.text"])


def test_a_companion_without_a_batch_is_said_rather_than_waited_for() -> None:
    pass_ = Pass("x", "private", ("image",), 4, True, {"beside": {**OTHER, "batch": 41}})
    with pytest.raises(MethodError, match="public data have no batch of 41 samples"):
        list(batches(Toy(), pass_, 3))
