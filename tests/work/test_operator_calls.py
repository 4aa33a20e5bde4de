"""Calls of operators as text: an equal call is made of it, and numbers that don't matter don't change it."""

from __future__ import annotations

import gc
import json
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgefl.work.meter.operator_calls import Call, call_of

aten = torch.ops.aten


def test_a_call_is_made_with_the_layout_that_it_had() -> None:
    x = torch.randn(4, 6)[:, 1:].t()  # a view with an offset and other strides
    operator, args, kwargs = call_of(aten.addmm.default, (x[0, :3], x, x.t()), {"beta": 0.25}).make("cpu")
    bias, first, second = args
    assert operator is aten.addmm.default and kwargs == {"beta": 0.5}
    assert (first.shape, first.stride(), first.storage_offset()) == (x.shape, x.stride(), x.storage_offset())
    assert bias.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()  # still views of one tensor
    assert second.untyped_storage().nbytes() == x.untyped_storage().nbytes()
    assert not first.any()


def test_one_tensor_twice_is_another_call_than_two_equal_tensors() -> None:
    x, y = torch.ones(3), torch.ones(3)
    assert call_of(aten.mul.Tensor, (x, x), {}) != call_of(aten.mul.Tensor, (x, y), {})
    assert call_of(aten.mul.Tensor, (x, y), {}) == call_of(aten.mul.Tensor, (y.clone(), x), {})


def test_values_of_floats_do_not_matter_but_zero_and_small_integers_do() -> None:
    def key(value: float) -> str:
        return call_of(aten.mul.Scalar, (torch.ones(2), value), {}).key

    assert key(1e-3) == key(3e-4) != key(0.0)
    assert key(-0.1) == key(-0.2) != key(0.1)
    assert len({key(2.0), key(0.0), key(1.0), key(float("inf"))}) == 4


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.sampled_from(["float32", "bfloat16", "int64", "bool"]))
def test_every_dtype_and_shape_comes_back(shape: list[int], dtype: str) -> None:
    x = torch.zeros(shape, dtype=getattr(torch, dtype))
    call = call_of(aten.clone.default, (x,), {"memory_format": torch.contiguous_format})
    _, (made,), kwargs = call.make("cpu")
    assert made.shape == x.shape and made.dtype == x.dtype and made.stride() == x.stride()
    assert kwargs["memory_format"] is torch.contiguous_format
    assert call.argument_bytes == x.nbytes
    assert json.loads(call.arguments)[0] == [x.nbytes]


def test_a_call_on_lists_is_cut_to_its_largest_entry() -> None:
    small, large = [torch.ones(2), torch.ones(2)], [torch.ones(7), torch.ones(7)]
    call = call_of(aten._foreach_add.List, ([small[0], large[0]], [small[1], large[1]]), {"alpha": 1})
    assert call.takes_lists
    cut = call.largest_entry()
    operator, (first, second), kwargs = cut.make("cpu")
    assert [t.shape for t in (*first, *second)] == [(7,), (7,)] and cut.argument_bytes == 2 * 28
    assert [t.shape for t in operator(first, second, **kwargs)] == [(7,)]


def test_equal_parts_of_a_large_tensor_are_one_call() -> None:
    x, y = torch.ones(1000), torch.ones(1000)
    calls = {call_of(aten.add.Tensor, (x[i : i + 32], y[i : i + 32]), {}) for i in (0, 32, 320)}
    (call,) = calls
    assert call.argument_bytes == 2 * 4 * 32
    assert call_of(aten.add.Tensor, (x[3:35], y[3:35]), {}) not in calls  # not aligned as the others
    _, (first, second), _ = call_of(aten.add.Tensor, (x[160:170], x[165:175]), {}).make("cpu")
    assert first.storage_offset() == 0 and second.storage_offset() == 5
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def test_an_operator_of_another_torch_is_named() -> None:
    with pytest.raises(LookupError, match="has no operator aten.no_such_thing.default"):
        Call("aten.no_such_thing.default", "[[],[],{}]").make("cpu")


def test_arguments_are_freed_with_the_last_reference_to_them() -> None:
    call = call_of(torch.ops.aten.mm.default, [torch.zeros(3, 4), torch.zeros(4, 5)], {})
    gc.disable()  # a cycle of references would hold them until the next collection
    try:
        made = call.make("cpu")
        held = [weakref.ref(argument.untyped_storage()) for argument in made[1]]
        assert all(reference() is not None for reference in held)
        del made
        assert [reference() for reference in held] == [None, None]
    finally:
        gc.enable()
