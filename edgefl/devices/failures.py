"""Failures of clients in a round: a client drops out, its upload arrives damaged, or its computing is slow.

Which clients attack is an option too, but no draw of a round (``edgefl.devices.attackers``).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BeforeValidator, Field, SerializeAsAny, WithJsonSchema, field_validator, model_validator

from edgefl import seeds, units
from edgefl.arrays import Floats
from edgefl.devices.attackers import AttackOptions, parse_attack
from edgefl.errors import UnitError
from edgefl.registry.part_fields import Fields, OptionsOf

NONE, BEFORE, DOWNLOAD, TRAINING, UPLOAD, CORRUPTED, TRUNCATED = range(7)
"""Codes of ``Failures.phase``: the phase of a round in which a client fails, or the damage to its upload."""

_SHARES = ("before_download", "download", "training", "upload", "corrupted", "truncated")
"""Fields of FailureOptions in the order of their codes, which start at BEFORE."""

_FACTOR = units.Quantity("factor", "3", {"": Fraction(1), "x": Fraction(1)})


def _factors(value: object) -> object:
    try:
        low, high = _FACTOR.parse_range(value)
    except UnitError as error:
        raise ValueError(str(error)) from None
    if low < 1:
        raise ValueError(f"{value!r}: a slow-down factor must be at least 1; write 2 for twice as long")
    return low, high


class SlowDownOptions(Fields):
    """Clients whose computing is slower for a round, for example because the device does other work."""

    share: units.Share = Field(default=0.0, description="Share of the clients of a round that are slow.")
    factor: Annotated[
        tuple[float, float],
        BeforeValidator(_factors),
        WithJsonSchema(
            {
                "anyOf": [{"type": "number", "minimum": 1}, {"type": "string"}, {"type": "array"}],
                "examples": [3, "2..5"],
            }
        ),
    ] = Field(
        default=(2.0, 2.0),
        description="Factor on the duration of their computing: one number, or a range from which each draws.",
    )


class FailureOptions(Fields):
    """Shares of a round's invited clients that fail in each way; together at most 100 %.

    A client fails in at most one way. Whether it is slow is drawn independently, and whether it attacks once for all
    rounds.
    """

    before_download: units.Share = Field(default=0.0, description="Share that never responds: nothing is transferred.")
    download: units.Share = Field(default=0.0, description="Share that drops out while it downloads.")
    training: units.Share = Field(default=0.0, description="Share that drops out while it trains.")
    upload: units.Share = Field(default=0.0, description="Share that drops out while it uploads.")
    corrupted: units.Share = Field(
        default=0.0,
        description="Share whose upload arrives with a wrong checksum: its bytes count, but it isn't aggregated.",
    )
    truncated: units.Share = Field(
        default=0.0, description="Share whose upload ends early, which the server detects by its length."
    )
    slow_down: SlowDownOptions = Field(
        default_factory=SlowDownOptions, description="Clients whose computing takes longer."
    )

    attack: Annotated[SerializeAsAny[AttackOptions], BeforeValidator(parse_attack), OptionsOf("attack")] | None = Field(
        default=None, description="Clients that attack the training, the same ones in every round; null: none."
    )

    @field_validator("slow_down", mode="before")
    @classmethod
    def _null_is_default(cls, value: object) -> object:
        return {} if value is None else value

    @model_validator(mode="after")
    def _at_most_all(self) -> FailureOptions:
        total = sum(self.shares)
        if total > 1 + 1e-9:
            listed = ", ".join(
                f"{name} {units.show_share(share)}" for name, share in zip(_SHARES, self.shares, strict=True) if share
            )
            raise ValueError(f"the shares ({listed}) add up to {units.show_share(total)}, which is more than 100 %")
        return self

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares of all failures, in the order of their codes, which start at BEFORE."""
        return tuple(getattr(self, name) for name in _SHARES)

    @property
    def is_inactive(self) -> bool:
        """Whether no client can fail or be slow."""
        return not any(self.shares) and not self.slow_down.share


@dataclass(frozen=True)
class Failures:
    """Failures of some clients in a round; each array is `[clients]`.

    - ``phase`` is NONE, BEFORE, DOWNLOAD, TRAINING, UPLOAD, CORRUPTED or TRUNCATED.
    - ``fraction`` is the part of that phase that the client completes. It is 0 for BEFORE, 1 for NONE and CORRUPTED,
      and for TRUNCATED the share of the upload that arrives.
    - ``slow`` is the factor on the client's seconds of computing; it is 1 if the client isn't slow.
    """

    phase: NDArray[np.int8]
    fraction: Floats
    slow: Floats


def draw_failures(options: FailureOptions, seed: int, round: int, clients: ArrayLike) -> Failures:
    """Draw the failures of these clients in this round; a client's draw doesn't depend on the other clients."""
    count = len(np.asarray(clients))
    if options.is_inactive:
        return Failures(np.zeros(count, np.int8), np.ones(count), np.ones(count))
    drawn = seeds.uniforms(seed, "failures", round, of=clients)
    ends = np.cumsum(options.shares)
    # The shares are adjacent intervals starting at 0; a draw after the last interval is no failure.
    phase = (np.searchsorted(ends, drawn[:, 0], side="right") + BEFORE).astype(np.int8)
    phase[phase > TRUNCATED] = NONE
    fraction = np.where((phase == NONE) | (phase == CORRUPTED), 1.0, np.where(phase == BEFORE, 0.0, drawn[:, 1]))
    low, high = options.slow_down.factor
    slow = np.where(drawn[:, 2] < options.slow_down.share, low + drawn[:, 3] * (high - low), 1.0)
    return Failures(phase, fraction, slow)
