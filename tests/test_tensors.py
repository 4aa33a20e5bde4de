from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from tensors import assert_equal_tensors

A = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
MOVED = torch.tensor([[1.0, 2.5], [3.0, 4.25]])
NAN = torch.tensor([1.0, float("nan")])


@pytest.mark.parametrize("same", [
    (A, A.clone()),
    (torch.tensor(True), torch.tensor(True)),
    (torch.tensor([], dtype=torch.uint8), torch.tensor([], dtype=torch.uint8)),
    (A.t(), A.t().contiguous()),
    ({"a": A, "b": NAN[:1]}, {"b": NAN[:1].clone(), "a": torch.nn.Parameter(A)}),
    ([A, {"a": A}], (A, {"a": A})),
    (torch.empty(2, device="meta"), torch.empty(2, device="meta")),
])  # fmt: skip
def test_equal_tensors_pass(same: Any) -> None:
    assert_equal_tensors(*same)
    assert_equal_tensors(*reversed(same))


@pytest.mark.parametrize(("found", "expected", "message"), [
    (MOVED, A, "the tensor: 2 of 4 values differ, by 0.5 at most: at [0, 1] 2.5 where 2.0 is expected"),
    ({"k/a": A, "k/b": A + 1}, {"k/a": A, "k/b": A}, "k/b: 4 of 4 values differ, by 1 at most: at [0, 0] 2.0"),
    ({"a": A}, {"a": A, "b": A}, "b is missing"),
    ({"a": A, "b": A}, {"a": A}, "b is not expected"),
    ({"a": A}, {"b": MOVED}, "a is not expected\nb is missing"),
    ([A], [A, A], "[1] is missing"),
    ({"up": [A, MOVED]}, {"up": [A, A]}, "up[1]: 2 of 4 values differ"),
    ({"up": {"w": MOVED}}, {"up": {"w": A}}, "up/w: 2 of 4 values differ"),
    (A, A[:1], "the tensor: shape [2, 2] where [1, 2] is expected"),
    (A, A.flatten(), "the tensor: shape [2, 2] where [4] is expected"),
    (A, A.double(), "the tensor: torch.float32 where torch.float64 is expected"),
    (A, A.to("meta"), "the tensor: cpu where meta is expected"),
    (torch.empty(2, device="meta"), torch.empty(3, device="meta"), "shape [2] where [3]"),
    (A, torch.nextafter(A, torch.tensor(9.0)), "4 of 4 values differ, by 4.76837e-07 at most: at [1, 1] 4.0"),
    (torch.zeros(2), -torch.zeros(2), "2 of 2 values differ, by 0 at most: at [0] 0.0 where -0.0 is expected"),
    (NAN, NAN.clone(), "1 of 2 values differ, by nan at most: at [1] nan where nan is expected"),
    (torch.tensor([True, False]), torch.tensor([True, True]), "by 1 at most: at [1] False where True is expected"),
])  # fmt: skip
def test_a_difference_is_named(found: Any, expected: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(message)):
        assert_equal_tensors(found, expected)
    with pytest.raises(AssertionError):
        assert_equal_tensors(expected, found)


def test_a_tolerance_bounds_each_value() -> None:
    assert_equal_tensors({"a": MOVED}, {"a": A}, atol=0.5)
    assert_equal_tensors(MOVED, A, rtol=0.25)
    with pytest.raises(AssertionError, match="1 of 4 values differ, by 0.5 at most"):
        assert_equal_tensors(MOVED, A, atol=0.3)
    with pytest.raises(AssertionError, match="1 of 4 values differ"):
        assert_equal_tensors(MOVED, A, rtol=0.1)
    with pytest.raises(AssertionError, match="1 of 2 values differ"):
        assert_equal_tensors(NAN, NAN, atol=1)
    with pytest.raises(AssertionError, match="float32 where torch.float64"):
        assert_equal_tensors(A, A.double(), atol=1)
