"""Codecs: what arrives is near what was sent, and what travels has the bytes that were foretold."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import pytest
import safetensors.torch
import torch
from edgefl_toys import make_work
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import assert_equal_tensors
from torch import Tensor

from edgefl.errors import MethodError
from edgefl.work import Codec, Item, Payload, Work
from edgefl.work.codecs import Float32
from edgefl.work.description import DTYPES

NARROW = ("float16", "bfloat16", "int8")
SHAPES = st.lists(st.integers(1, 6), max_size=3).map(tuple)
DTYPE = st.sampled_from(["float64", "float32", "float16", "bfloat16", "int64", "uint8", "bool"])
CODEC = st.tuples(st.sampled_from(["float32", *NARROW]), st.none() | st.floats(0.001, 1))
# from the smallest numbers that float16 knows as normal ones to its largest
NUMBERS = st.floats(2**-14, 65504, width=32) | st.floats(-65504, -(2**-14), width=32) | st.just(0.0)


def payload(codec: Codec | None, **shapes: tuple[int, ...]) -> Payload:
    items = tuple(Item(name, shape, "float32", f"own/{name}") for name, shape in shapes.items())
    return Payload("model", items, codec=codec)


def there_and_back(codec: Codec, value: Tensor, base: Tensor | None = None) -> Tensor:
    wire = codec.encode("w", value, base)
    return codec.decode("w", tuple(value.shape), value.dtype, wire, base)


# bytes --------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(SHAPES, DTYPE), min_size=1, max_size=4), CODEC, st.booleans(), st.integers(0, 2**32))
def test_bytes_are_those_of_a_real_file(parts: Any, codec: Any, updates: bool, seed: int) -> None:
    """Predicted from shapes and dtypes alone; what arrives has the items' own."""
    draw = torch.Generator().manual_seed(seed)
    items = tuple(Item(f"t.{i}", shape, dtype, f"own/t.{i}") for i, (shape, dtype) in enumerate(parts))
    sent = Payload("model", items, codec=Codec(codec[0], {"top_k": codec[1]} if updates else {}, exact=("t.1",)))
    tensors = {i.name: torch.randn(i.shape, generator=draw).mul(9).to(DTYPES[i.dtype]) for i in items}
    base = {i.name: torch.zeros(i.shape, dtype=DTYPES[i.dtype]) for i in items} if updates else {}
    wire = sent.encode_tensors(tensors, base)
    assert len(safetensors.torch.save(wire)) == sent.serialised_bytes
    assert sum(t.nbytes for t in wire.values()) == sent.tensor_bytes == sum(map(sent.bytes_of, items))
    arrived = sent.decode_tensors(wire, base)
    for item in items:
        value = tensors[item.name]
        assert (tuple(arrived[item.name].shape), arrived[item.name].dtype) == (item.shape, value.dtype)
        if item.name == "t.1" or not value.is_floating_point() or value.numel() == 1:
            assert wire[item.name] is arrived[item.name]
            assert_equal_tensors(wire[item.name], value)


BLOCK = {
    "norm1.weight": (384,), "norm1.bias": (384,), "norm2.weight": (384,), "norm2.bias": (384,),
    "attn.qkv.weight": (1152, 384), "attn.qkv.bias": (1152,), "attn.proj.weight": (384, 384), "attn.proj.bias": (384,),
    "mlp.fc1.weight": (1536, 384), "mlp.fc1.bias": (1536,), "mlp.fc2.weight": (384, 1536), "mlp.fc2.bias": (384,),
}  # fmt: skip
ENDS = {
    "embedding.cls": (1, 1, 384), "embedding.pos": (1, 197, 384), "embedding.patch.weight": (384, 3, 16, 16),
    "embedding.patch.bias": (384,), "norm.weight": (384,), "norm.bias": (384,),
    "head.weight": (100, 384), "head.bias": (100,),
}  # fmt: skip
VIT_S = ENDS | {f"blocks.{i}.{name}": shape for i in range(12) for name, shape in BLOCK.items()}


@pytest.mark.parametrize(
    ("codec", "bytes_"),
    [
        # 295,296 + 384 + 75,648 of the embedding, 12 x 1,774,464, 768, 38,500
        (None, 4 * 21_704_164),
        (Codec("float16"), 2 * 21_704_164),
        (Codec("int8"), 21_704_164 + 4 * 152),
        # of a block 6 x 39 (norms, two biases), 44,237 + 116, 14,746, 2 x 58,983 + 154; of the rest 29,492 + 2 x 39,
        # 7,565, 2 x 39, 3,840 + 10; a place is a value and an index of 4 bytes, a tensor has a scale of 4
        (Codec("int8", {"top_k": 0.1}), (12 * 177_453 + 41_063) * 5 + 4 * 152),
        (Codec("float16", {"top_k": 0.1}), (12 * 177_453 + 41_063) * 6),
        (Codec("float32", {"top_k": 0.1}), (12 * 177_453 + 41_063) * 8),
    ],
    ids=str,
)
def test_bytes_of_a_vit_small_by_hand(codec: Codec | None, bytes_: int) -> None:
    assert payload(codec, **VIT_S).tensor_bytes == bytes_


def test_a_share_of_places_is_rounded_up_and_never_by_a_binary_fraction() -> None:
    def kept(share: float, elements: int) -> int:
        return Float32(Float32.Options(top_k=share)).sent_elements(elements)

    assert [kept(0.07, n) for n in (2, 14, 100, 101)] == [1, 1, 7, 8]
    assert [kept(share, 1000) for share in (0.001, 0.3, 0.29, 1.0)] == [1, 300, 290, 1000]


# errors of rounding -------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=200)
@given(st.lists(NUMBERS, min_size=2, max_size=20))
def test_int8_is_half_a_step_off_at_most(numbers: list[float]) -> None:
    value = torch.tensor(numbers)
    wire = Codec("int8").encode("w", value)
    scale = wire["w:scale"]
    assert scale.shape == () and wire["w:values"].min() >= -127
    assert scale == value.abs().max() / 127
    # a few float32 roundings on top of the half
    assert ((there_and_back(Codec("int8"), value) - value).abs() <= scale * (0.5 + 1e-4)).all()
    assert_equal_tensors(there_and_back(Codec("int8"), -value), 0 - there_and_back(Codec("int8"), value))


@settings(deadline=None, max_examples=200)
@given(st.lists(NUMBERS, min_size=2, max_size=20), st.sampled_from([("float16", 11), ("bfloat16", 8)]))
def test_half_precisions_keep_their_digits(numbers: list[float], kind: tuple[str, int]) -> None:
    dtype, digits = kind
    value = torch.tensor(numbers)
    assert ((there_and_back(Codec(dtype), value) - value).abs() <= value.abs() * 2.0**-digits).all()


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=8))
def test_no_number_becomes_an_infinity(numbers: list[float]) -> None:
    value = torch.tensor(numbers)
    for dtype in NARROW:
        assert there_and_back(Codec(dtype), value).isfinite().all()
        assert there_and_back(Codec(dtype), value, torch.zeros_like(value)).isfinite().all()


def test_beyond_float16_is_its_largest_number() -> None:
    value = torch.tensor([1e6, -1e6, 65519.0, 65520.0, torch.inf, -torch.inf, torch.nan])
    back = there_and_back(Codec("float16"), value)
    assert back[:6].tolist() == [65504.0, -65504.0, 65504.0, 65504.0, torch.inf, -torch.inf] and back[6].isnan()


def test_int8_of_what_has_no_largest_value_is_nan() -> None:
    for odd in (torch.inf, -torch.inf, torch.nan):
        assert there_and_back(Codec("int8"), torch.tensor([odd, 1.0])).isnan().all()
    assert_equal_tensors(there_and_back(Codec("int8"), torch.zeros(5)), torch.zeros(5))


def test_what_is_as_narrow_already_stays() -> None:
    value = torch.randn(7).to(torch.bfloat16)
    assert Codec("float16").encode("w", value) == {"w": value}
    assert Codec("int8").encode("w", value)["w:values"].dtype == torch.int8


# updates ------------------------------------------------------------------------------------------------------------

UPDATES = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=30)


@settings(deadline=None, max_examples=150)
@given(UPDATES, st.floats(0.01, 1))
def test_the_largest_changes_arrive_to_the_bit_and_nothing_else_changes(pairs: Any, share: float) -> None:
    base, value = torch.tensor(pairs).unbind(1)
    back = there_and_back(Codec("float32", {"top_k": share}), value, base)
    count = ceil(share * len(base)) if share < 1 else len(base)
    sent = torch.tensor(sorted(range(len(base)), key=lambda i: (-abs(float(value[i] - base[i])), i))[:count])
    expected = base.clone()
    expected[sent] = value[sent]
    assert_equal_tensors(back, expected)


@settings(deadline=None, max_examples=100)
@given(UPDATES, st.sampled_from(NARROW))
def test_all_changes_are_the_whole_update(pairs: Any, dtype: str) -> None:
    base, value = torch.tensor(pairs).unbind(1)
    assert_equal_tensors(there_and_back(Codec("float32", {"top_k": 1.0}), value, base), value)
    assert_equal_tensors(
        there_and_back(Codec(dtype, {"top_k": 1.0}), value, base), there_and_back(Codec(dtype), value, base)
    )


def test_of_equal_changes_the_first_travel() -> None:
    base = torch.zeros(2, 500)
    value = base + 1
    value[1, 499] = -3
    wire = Codec("int8", {"top_k": 0.01}).encode("w", value, base)
    assert wire["w:indices"].tolist() == [*range(9), 999]
    assert wire["w:values"].tolist() == [42] * 9 + [-127]


def test_a_diverged_value_is_among_the_largest() -> None:
    value = torch.tensor([5.0, torch.nan, 7.0, 1.0])
    back = there_and_back(Codec("float32", {"top_k": 0.25}), value, torch.zeros(4))
    assert back[1].isnan() and back[[0, 2, 3]].tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", NARROW)
def test_a_narrowed_upload_is_a_difference(dtype: str) -> None:
    """So its error is of the size of the update, not of the weights."""
    draw = torch.Generator().manual_seed(1)
    base = torch.randn(50, 40, generator=draw)
    value = base + 1e-4 * torch.randn(50, 40, generator=draw)
    as_values = (there_and_back(Codec(dtype), value) - value).abs().max()
    as_update = (there_and_back(Codec(dtype), value, base) - value).abs().max()
    assert as_update < 3e-6 < 1e-4 < as_values


def test_an_update_needs_a_base() -> None:
    with pytest.raises(MethodError, match="only the largest changes of 'w'"):
        Codec("float32", {"top_k": 0.5}).encode("w", torch.ones(3))


# works --------------------------------------------------------------------------------------------------------------


def test_a_work_keeps_its_codecs_in_json() -> None:
    plain = make_work()
    work = replace(
        plain,
        down=tuple(replace(p, codec=Codec("int8", exact=("a", "b"))) for p in plain.down),
        up=tuple(replace(p, codec=Codec("float16", {"top_k": 0.25})) for p in plain.up),
    )
    assert Work.decode(work.encode()) == work != plain
    assert Work.decode(plain.encode()).down[0].codec is None
    assert work.down[0].only(lambda item: item.name.endswith("bias")).codec == work.down[0].codec


def test_a_work_receives_what_is_encoded_beside_what_is_there() -> None:
    work = make_work()
    work = replace(work, down=tuple(replace(p, codec=Codec("int8")) for p in work.down), keep=("image.head.bias",))
    tensors = {i.name: torch.randn(i.shape) for p in work.down for i in p.items}
    held = ("image.head.bias", "image.norm.weight")
    wire = work.down[0].encode_tensors(tensors, {}, held)
    inputs = work.starting_tensors(wire)
    assert inputs.keys() == tensors.keys()
    assert all(torch.equal(inputs[name], tensors[name]) == (name in held) for name in tensors)
    assert work.bases(inputs).keys() == tensors.keys() - {"image.head.bias"}
