"""Missing modalities of clients' samples, and of the server's samples in a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from edgefl import seeds
from edgefl.arrays import Integers
from edgefl.errors import UnitError
from edgefl.modalities import KINDS
from edgefl.units import SHARE

if TYPE_CHECKING:
    from edgefl.work.description import MissingRates

PATTERNS = "patterns"
DROPPED = -1
PAIRS = tuple(kind for kind in KINDS if "-" in kind)
"""The kinds with two modalities."""


def patterns_of(kind: str) -> tuple[str, ...]:
    """The modality patterns that samples of this kind may have, the whole one first: image-text, image, text."""
    modalities = tuple(kind.split("-"))
    return (kind, *modalities) if len(modalities) > 1 else (kind,)


def parse_rates(kind: str, value: Any) -> MissingRates:
    """Validate ``missing`` of one kind: ``{image: 0.3, text: 0.3}`` or ``{patterns: {image-text: 0.5, ...}}``.

    Raises ValueError for an invalid share, for a modality or pattern that the kind doesn't have, and for shares of
    patterns that don't add up to 1.
    """
    modalities = kind.split("-")
    if not isinstance(value, Mapping):
        return _some_left(kind, dict.fromkeys(modalities, _share(value)))
    if set(value) == {PATTERNS} and isinstance(value[PATTERNS], Mapping):
        allowed = patterns_of(kind)
        shares = {str(name): _share(share) for name, share in value[PATTERNS].items()}
        if unknown := [name for name in shares if name not in allowed]:
            raise ValueError(f"{kind} samples have no pattern {unknown[0]!r}; possible: {', '.join(allowed)}")
        if abs(sum(shares.values()) - 1) > 1e-9:
            raise ValueError(f"the shares of patterns add up to {sum(shares.values()):g}, not 1")
        return {"patterns": shares}
    if unknown := [str(name) for name in value if name not in modalities]:
        raise ValueError(f"{kind} samples have no modality {unknown[0]!r}; they have: {', '.join(modalities)}")
    return _some_left(kind, {str(name): _share(rate) for name, rate in value.items()})


def _some_left(kind: str, rates: dict[str, float]) -> MissingRates:
    if all(rates.get(modality) == 1 for modality in kind.split("-")):
        raise ValueError(f"no {kind} sample would be left: samples that lack both modalities are dropped")
    return cast("MissingRates", rates)


def has_whole_samples(kind: str, rates: MissingRates) -> bool:
    """Whether some samples keep all modalities."""
    if "patterns" in rates:
        return rates["patterns"].get(kind, 0.0) > 0
    return all(cast(float, rate) < 1 for rate in rates.values())


def parse_missing(value: Any) -> dict[str, MissingRates]:
    """Missing rates of each kind with two modalities, from one share for all, shares by modality, or rates by kind.

    Raises ValueError for any other value.
    """
    if isinstance(value, Mapping) and any("-" in str(name) for name in value):
        if unknown := [str(name) for name in value if name not in PAIRS]:
            raise ValueError(f"{unknown[0]!r} is not a kind with two modalities; allowed: {', '.join(PAIRS)}")
        return {kind: parse_rates(kind, rates) for kind, rates in value.items()}
    if isinstance(value, Mapping):
        known = {m for kind in PAIRS for m in kind.split("-")}
        if unknown := [str(name) for name in value if name not in known]:
            raise ValueError(f"{unknown[0]!r} is not a modality; allowed: {', '.join(sorted(known))}")

    def rates_of(kind: str) -> Any:
        return {m: v for m, v in value.items() if m in kind.split("-")} if isinstance(value, Mapping) else value

    return {kind: parse_rates(kind, rates_of(kind)) for kind in PAIRS}


def _share(value: Any) -> float:
    try:
        return float(SHARE.parse(value))
    except UnitError as error:
        raise ValueError(str(error)) from None


def draw(kind: str, rates: MissingRates, n: int, rng: np.random.Generator) -> Integers:
    """Draw the pattern of ``n`` samples: indices [n] into ``patterns_of(kind)``, or DROPPED without both.

    Modalities are missing independently (Bernoulli): at rate q for both, (1 - q)^2 of the samples are whole and q^2
    are dropped.  Shares of ``patterns`` are met to within one sample, in random order.
    """
    patterns = patterns_of(kind)
    if "patterns" in rates:
        shares = np.array([rates["patterns"].get(pattern, 0.0) for pattern in patterns])
        ends = np.round(np.cumsum(shares) * n).astype(np.int64)
        ends[-1] = n
        return rng.permutation(np.repeat(np.arange(len(patterns)), np.diff(ends, prepend=0))).astype(np.int8)
    uniform = rng.random((2, n))
    lacks = [cast(float, rates.get(modality, 0.0)) for modality in kind.split("-")]
    available = uniform >= np.array(lacks)[:, None]
    code: Integers = np.array([[DROPPED, 2], [1, 0]], np.int8)
    pattern_index: Integers = code[available[0].astype(np.int64), available[1].astype(np.int64)]
    return pattern_index


def lacking_in_a_test(kind: str, rates: MissingRates, n: int) -> Integers:
    """``draw`` for the first ``n`` samples of a server split, equal in every round and for every method."""
    return draw(kind, rates, n, seeds.generator(0, "missing in a test"))
