"""Discounts by staleness in closed form."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from edgefl.planning.staleness import StalenessOptions, mixing_share, parse_staleness


def test_fedasyncs_three_functions() -> None:
    t = np.arange(8)
    assert StalenessOptions(name="constant").discount(t).tolist() == [1.0] * 8
    polynomial = StalenessOptions(name="polynomial", a=2).discount(t)
    assert polynomial == pytest.approx([1 / (1 + s) ** 2 for s in range(8)])
    hinge = StalenessOptions(name="hinge", a=10, b=4).discount(t)
    assert hinge == pytest.approx([1, 1, 1, 1, 1, 1 / 11, 1 / 21, 1 / 31])
    assert StalenessOptions(name="hinge").discount(t).tolist() == hinge.tolist()


def test_fedbuffs_discount_is_the_usual_one() -> None:
    assert StalenessOptions().discount([0, 1, 3, 8]) == pytest.approx([1, 1 / sqrt(2), 1 / 2, 1 / 3])


@settings(max_examples=40)
@given(
    st.sampled_from(["constant", "polynomial", "hinge"]),
    st.floats(0, 5),
    st.floats(0, 20),
    st.lists(st.integers(0, 1000), min_size=1, max_size=20),
)
def test_what_is_current_counts_in_full_and_older_never_more(name: str, a: float, b: float, t: list[int]) -> None:
    fields = {"constant": {}, "polynomial": {"a": a}, "hinge": {"a": a, "b": b}}[name]
    found = StalenessOptions(name=name, **fields).discount(sorted(t))  # type: ignore[arg-type]
    assert ((found > 0) & (found <= 1)).all() and (np.diff(found) <= 0).all()
    assert StalenessOptions(name=name, **fields).discount(0) == 1  # type: ignore[arg-type]


def test_alpha_is_multiplied() -> None:
    """Mixing k current updates of value 1 into 0 leaves 1 - (1 - alpha)^k."""
    x = 0.0
    for share in mixing_share(0.6, StalenessOptions(name="constant").discount(np.zeros(5))):
        x = (1 - share) * x + share
    assert x == pytest.approx(1 - 0.4**5)
    with pytest.raises(ValueError, match=r"alpha must be in \(0, 1\], not 1.5"):
        mixing_share(1.5, 1.0)


def test_wrong_options() -> None:
    with pytest.raises(ValidationError, match="constant has no a: it belongs to polynomial and hinge"):
        StalenessOptions(name="constant", a=1)
    with pytest.raises(ValidationError, match="polynomial has no b: it belongs to hinge"):
        StalenessOptions(b=1)
    with pytest.raises(ValidationError):
        StalenessOptions(a=-1)
    with pytest.raises(ValueError, match="0 or more, not -1"):
        StalenessOptions().discount([2, -1])
    assert StalenessOptions.model_validate(parse_staleness("hinge")).name == "hinge"
