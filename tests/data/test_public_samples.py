"""Public samples: everybody sees the same ones, in one order, by field and with their place."""

from __future__ import annotations

import pytest
import torch
from tensors import assert_equal_tensors

from edgefl.data import Federation
from edgefl.errors import DataError
from edgefl.work import Pass


def look(**args: object) -> Pass:
    return Pass("any", "public", ("image-text",), 16, False, args)


def test_clients_and_server_share_them(glyph_federation: Federation) -> None:
    server, pass_ = glyph_federation.server(), look()
    assert server.size(pass_) == glyph_federation.server_samples["public"]["image-text"]
    for number in (0, len(glyph_federation.client_kind) - 1):
        client = glyph_federation.client(number)
        assert client.size(pass_) == server.size(pass_)
        for (_, a), (_, b) in zip(client.batches(pass_, 1), server.batches(pass_, 2), strict=True):
            assert {"image", "text", "label"} <= a.keys()
            assert_equal_tensors(a, b)


@pytest.mark.parametrize("train", [False, True])
def test_a_batch_has_the_fields_that_are_asked_for(glyph_federation: Federation, train: bool) -> None:
    client = glyph_federation.client(0)
    pass_ = Pass("any", "public", ("image-text",), 16, train, {"samples": 40, "fields": ["text", "index"]})
    assert client.size(pass_) == 40
    assert {name: spec.shape for name, spec in client.spec(pass_, "image-text").items()} == {
        "text": (16, 16),
        "index": (16,),
    }
    (whole,) = [b for _, b in client.batches(Pass("any", "public", ("image-text",), 40, False, {"samples": 40}), 0)]
    batches = [batch for _, batch in client.batches(pass_, 3)]
    assert [batch.keys() for batch in batches] == [{"text", "index"}] * (2 if train else 3)
    for batch in batches:
        assert_equal_tensors(batch["text"], whole["text"][batch["index"]])
    seen = torch.cat([batch["index"] for batch in batches])
    assert len(set(seen.tolist())) == (32 if train else 40)
    assert train != torch.equal(seen[:32], torch.arange(32))


def test_without_a_public_split_a_client_has_its_own_samples_only(glyph_federation: Federation) -> None:
    index = glyph_federation.kinds.index("image")
    number = int((glyph_federation.client_kind == index).argmax())
    assert glyph_federation.client(number).spec(Pass("any", "private", ("image",), 4), "image").keys() == {
        "image",
        "label",
    }


def test_a_field_that_is_not_there_is_named(glyph_federation: Federation) -> None:
    with pytest.raises(DataError, match=r"no field 'imag'; did you mean 'image'"):
        glyph_federation.client(0).spec(look(fields=["imag"]), "image-text")
