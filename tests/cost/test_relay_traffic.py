"""What a relay moves for its clients: every tensor once down, and one sum up."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from edgefl.cost.relay_traffic import shared_bytes, summed_bytes
from edgefl.planning.payload_options import PayloadOptions
from edgefl.work import Item, Payload
from edgefl.work.slices import cut_between


def model(kind: str, *names: str, rows: int = 100, dtype: str = "float32", codec: Any = None) -> Payload:
    """A payload of matrices of ``rows`` rows, of the server's with 100 rows."""
    cut = cut_between((100, 10), (rows, 10))
    return Payload("model", tuple(Item(n, (rows, 10), dtype, f"{kind}/{n}", cut) for n in names), codec=codec)


def codec(**up: Any) -> Any:
    return PayloadOptions.model_validate({"up": up}).codecs()[1]


def test_clients_of_one_kind_need_one_download() -> None:
    image = (model("image", "a", "b"),)
    assert shared_bytes([]) == 0
    assert shared_bytes([image]) == shared_bytes([image, (model("image", "a", "b"),)]) == image[0].serialised_bytes
    # one whose copy of b is up to date needs nothing more
    assert shared_bytes([(model("image", "a"),), image]) == image[0].serialised_bytes


def test_kinds_that_share_nothing_need_a_download_each() -> None:
    image, text = (model("image", "a", "b"),), (model("text", "a"),)
    assert shared_bytes([image, text]) == image[0].serialised_bytes + text[0].serialised_bytes
    shared = (model("image", "a", "b"), model("text", "a"))
    assert shared_bytes([shared, text]) == sum(payload.serialised_bytes for payload in shared)


def test_a_narrow_model_is_a_part_of_a_wide_one_unless_both_are_encoded() -> None:
    wide, narrow = (model("image", "a"),), (model("image", "a", rows=30),)
    assert shared_bytes([narrow, wide]) == wide[0].serialised_bytes
    by_int8 = codec(dtype="int8")  # each with a scale of its own
    wide, narrow = ((model("image", "a", rows=rows, codec=by_int8),) for rows in (100, 30))
    assert shared_bytes([narrow, wide]) == wide[0].serialised_bytes + narrow[0].serialised_bytes


def test_a_sum_has_every_tensor_once_in_float32_whatever_encoded_the_updates() -> None:
    plain = (model("image", "a", "b"),)
    assert summed_bytes([plain] * 3) == plain[0].serialised_bytes > 2 * 4 * 1000
    for encoded in (codec(dtype="int8"), codec(dtype="bfloat16"), codec(top_k=0.1)):
        assert summed_bytes([(model("image", "a", "b", codec=encoded),)]) == plain[0].serialised_bytes
    assert summed_bytes([(model("image", "a", "b", dtype="bfloat16"),)]) == plain[0].serialised_bytes
    doubles = (model("image", "a", "b", dtype="float64"),)
    assert summed_bytes([doubles]) == doubles[0].serialised_bytes
    assert summed_bytes([plain, (model("image", "a", rows=30),)]) == plain[0].serialised_bytes


def test_what_no_mean_is_taken_of_is_not_in_a_sum() -> None:
    counter = Item("steps", (), "int64", "image/steps")
    table = Item("means", (5, 8), "float32", "table/means")
    plain = model("image", "a")
    assert summed_bytes([(Payload("model", (*plain.items, counter, table)),)]) == plain.serialised_bytes


DOWNLOADS = st.tuples(st.sampled_from(["image", "text"]), st.sets(st.sampled_from("abcd"), min_size=1),
                      st.sampled_from([100, 50, 7]))  # fmt: skip


@given(st.lists(DOWNLOADS, min_size=1, max_size=5))
def test_no_less_than_the_largest_download_and_no_more_than_all(drawn: list[tuple[str, set[str], int]]) -> None:
    downloads = [(model(kind, *sorted(names), rows=rows),) for kind, names, rows in drawn]
    each = [payload.serialised_bytes for (payload,) in downloads]
    assert max(each) <= shared_bytes(downloads) <= sum(each)
    assert shared_bytes([*downloads, *downloads]) == shared_bytes(downloads)
    # without headers: every element of the server's tensors that anybody needs
    rows_of: dict[tuple[str, str], int] = {}
    for kind, names, rows in drawn:
        for name in names:
            rows_of[kind, name] = max(rows_of.get((kind, name), 0), rows)
    needed = 4 * 10 * sum(rows_of.values())
    assert needed <= shared_bytes(downloads) and needed <= summed_bytes(downloads)
