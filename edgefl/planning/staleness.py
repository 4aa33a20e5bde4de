"""Weights of updates that began on an older model: discounts by staleness, and FedAsync's mixing."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, model_validator

from edgefl.arrays import Floats
from edgefl.registry.part_fields import Fields

FIELDS = {"constant": (), "polynomial": ("a",), "hinge": ("a", "b")}
"""The parameters of each function, as Xie et al. 2019 name them."""


class StalenessOptions(Fields):
    """The discount s(t) of an update that is t versions old.

    FedAsync's three functions (Xie, Koyejo and Gupta 2019, section 5.2); FedBuff's 1/sqrt(1 + t) (Nguyen et al. 2022)
    is polynomial with a = 0.5, which is the default.
    """

    name: Literal["constant", "polynomial", "hinge"] = Field(
        "polynomial",
        description="discount of an update that is t versions old: 1 (constant), (1 + t)^-a (polynomial), or 1 "
        "up to t = b, then 1 / (a (t - b) + 1) (hinge)",
    )
    a: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="how fast the discount falls; null: 0.5 for polynomial, 10 for hinge",
    )
    b: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="staleness in versions up to which hinge counts an update fully; null: 4",
    )

    @model_validator(mode="after")
    def _applies(self) -> StalenessOptions:
        for field in ("a", "b"):
            if getattr(self, field) is not None and field not in FIELDS[self.name]:
                others = " and ".join(name for name, fields in FIELDS.items() if field in fields)
                raise ValueError(f"{self.name} has no {field}: it belongs to {others}")
        return self

    def discount(self, staleness: ArrayLike) -> Floats:
        """s(t) for each staleness t >= 0, in versions of the global model; the same shape, in (0, 1]."""
        t = np.asarray(staleness, dtype=float)
        if (t < 0).any():
            raise ValueError(f"staleness must be 0 or more, not {t.min():g}")
        if self.name == "constant":
            return np.ones(t.shape)
        if self.name == "polynomial":
            return np.power(1.0 + t, -_or(self.a, 0.5))
        behind = np.maximum(t - _or(self.b, 4.0), 0.0)
        return np.asarray(1.0 / (_or(self.a, 10.0) * behind + 1.0))


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def parse_staleness(value: Any) -> Any:
    """Wrap a name as a mapping of options; return other values unchanged for pydantic to validate."""
    return {"name": value} if isinstance(value, str) else value


def mixing_share(alpha: float, discount: ArrayLike) -> Floats:
    """FedAsync's alpha_t = alpha s(t): the share of an update in x_t = (1 - alpha_t) x_{t-1} + alpha_t x_new."""
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha must be in (0, 1], not {alpha:g}")
    return np.asarray(alpha * np.asarray(discount, dtype=float))
