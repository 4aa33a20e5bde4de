"""Learning rates and weight decay by part of the model: the scenario's ``training.rates``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat

from edgefl.errors import suggestion
from edgefl.models import MODALITIES

TOWERS = (*MODALITIES, "multiway", "joint")
"""What a parameter's name begins with: a tower, or what no tower owns."""
PARTS = ("embedding", "blocks", "pooler", "norm", "rep", "head", "fusion", "exit")
"""What follows; an exit is a classifier within the blocks."""

Settings = Mapping[str, Any]


class PartRate(BaseModel):
    """Both settings of a part; what is absent comes from the next key, in the end from ``training``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lr: PositiveFloat | list[PositiveFloat] | None = Field(
        None, description="learning rate of round 1, or a list with one for each stage of the schedule"
    )
    weight_decay: NonNegativeFloat | None = Field(None, description="weight decay of these parameters")

    def stated(self) -> dict[str, Any]:
        """The settings that are there."""
        return self.model_dump(exclude_none=True)


Rate = PositiveFloat | list[PositiveFloat] | PartRate


def check_key(key: str) -> None:
    """Raises ValueError for a key that is neither a tower, a part, nor ``<tower>.<part>``."""
    tower, dot, part = key.partition(".")
    if dot and tower in TOWERS and part in PARTS:
        return
    if not dot and key in TOWERS + PARTS:
        return
    wrong, allowed = (part, PARTS) if dot and tower in TOWERS else (tower, TOWERS if dot else TOWERS + PARTS)
    raise ValueError(f"unknown tower or part {wrong!r}{suggestion(wrong, allowed)}")


def stated(rate: Any) -> dict[str, Any]:
    """A value of ``rates`` with its settings by name."""
    return rate.stated() if isinstance(rate, PartRate) else {"lr": rate}


def scaled(lr: float | list[float], factor: float) -> float | list[float]:
    """A rate, or every rate of a list, times ``factor``."""
    return [one * factor for one in lr] if isinstance(lr, list) else lr * factor


def at_stage(settings: Settings, stage: int) -> Settings:
    """A work's scalars with each list's value for this stage (from 1)."""
    rates: Mapping[str, Mapping[str, Any]] = settings.get("rates", {})
    if not any(isinstance(rate.get("lr"), list) for rate in rates.values()):
        return settings
    return {**settings, "rates": {key: {**rate, **_chosen(rate, stage)} for key, rate in rates.items()}}


def _chosen(rate: Mapping[str, Any], stage: int) -> dict[str, float]:
    lr = rate.get("lr")
    return {"lr": lr[min(stage, len(lr)) - 1]} if isinstance(lr, list) else {}


def keys_of(name: str) -> tuple[str, str, str]:
    """The keys that speak of a parameter, the most specific first: ``<tower>.<part>``, the part, the tower."""
    tower, part = (*name.split("."), "")[:2]
    if part == "blocks" and ".exit." in name:
        part = "exit"
    return f"{tower}.{part}", part, tower


def grouped(settings: Settings, names: Iterable[str]) -> list[tuple[dict[str, float], list[str]]]:
    """Parameters in groups with their learning rate and weight decay.

    A group is what has both from the same keys, whatever their values, so that another rate makes no other groups.
    A list that no stage has chosen from counts as its last value: a model outside the schedule is at full depth.
    """
    rates: Mapping[str, Mapping[str, Any]] = settings.get("rates", {})
    found: dict[tuple[str, str], list[str]] = {}
    for name in names:
        keys = keys_of(name)
        lr, decay = (next((k for k in keys if f in rates.get(k, {})), "") for f in ("lr", "weight_decay"))
        found.setdefault((lr, decay), []).append(name)
    groups = []
    for (lr, decay), members in found.items():
        rate = rates[lr]["lr"] if lr else settings["lr"]
        own = rates[decay]["weight_decay"] if decay else settings.get("weight_decay", 0.0)
        groups.append(({"lr": rate[-1] if isinstance(rate, list) else rate, "weight_decay": own}, members))
    return groups
