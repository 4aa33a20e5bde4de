"""Learning rates and weight decay by part of the model: the scenario's ``training.rates``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from pydantic import Field, NonNegativeFloat, PositiveFloat

from edgefl.errors import suggestion
from edgefl.modalities import MODALITIES
from edgefl.registry.part_fields import Fields
from edgefl.work.description import OptimizerSettings, PartRates, Scalar

TOWERS = (*MODALITIES, "multiway", "joint")
"""First part of a parameter's name: a tower, or ``joint`` for parameters outside of towers."""
PARTS = ("embedding", "blocks", "pooler", "norm", "rep", "head", "fusion", "exit")
"""Second part of a parameter's name; an exit is a classifier within the blocks."""


class PartRate(Fields):
    """Rate and weight decay of a part; an absent one is taken from the next key, and last from ``training``."""

    lr: PositiveFloat | list[PositiveFloat] | None = Field(
        None, description="learning rate of round 1, or a list with one for each stage of the schedule"
    )
    weight_decay: NonNegativeFloat | None = Field(None, description="weight decay of these parameters")


Rate = PositiveFloat | list[PositiveFloat] | PartRate


def check_key(key: str) -> None:
    """Raises ValueError for a key that is neither a tower, a part, nor ``<tower>.<part>``."""
    tower, dot, part = key.partition(".")
    if (tower in TOWERS and part in PARTS) if dot else key in TOWERS + PARTS:
        return
    wrong, allowed = (part, PARTS) if dot and tower in TOWERS else (tower, TOWERS if dot else TOWERS + PARTS)
    raise ValueError(f"unknown tower or part {wrong!r}{suggestion(wrong, allowed)}")


def rate_settings(rate: Rate) -> PartRates:
    """A value of ``rates`` with its settings by name."""
    return cast(PartRates, rate.model_dump(exclude_none=True)) if isinstance(rate, PartRate) else {"lr": rate}


def scale_rate(lr: float | list[float], factor: float) -> float | list[float]:
    """A rate, or every rate of a list, times ``factor``."""
    return [rate * factor for rate in lr] if isinstance(lr, list) else lr * factor


def at_stage(scalars: Mapping[str, Scalar], stage: int) -> Mapping[str, Scalar]:
    """A work's scalars, each list of rates replaced by its value for this stage (from 1)."""
    rates = cast(Mapping[str, PartRates], scalars.get("rates", {}))
    if not any(isinstance(rate.get("lr"), list) for rate in rates.values()):
        return scalars
    return {**scalars, "rates": {key: _stage_rate(rate, stage) for key, rate in rates.items()}}


def _stage_rate(rate: PartRates, stage: int) -> PartRates:
    lr = rate.get("lr")
    return {**rate, "lr": lr[min(stage, len(lr)) - 1]} if isinstance(lr, list) else rate


def keys_of(name: str) -> tuple[str, str, str]:
    """The keys that apply to a parameter, the most specific first: ``<tower>.<part>``, the part, the tower."""
    tower, part = (*name.split("."), "")[:2]
    if part == "blocks" and ".exit." in name:
        part = "exit"
    return f"{tower}.{part}", part, tower


def parameter_groups(settings: OptimizerSettings, names: Iterable[str]) -> list[tuple[dict[str, float], list[str]]]:
    """Parameters in groups with their learning rate and weight decay.

    Parameters that take both from the same keys form a group, so that groups don't depend on the values.  A list of
    rates without a stage counts as its last value: a model outside the schedule is at full depth.
    """
    rates = settings.get("rates", {})
    names_by_keys: dict[tuple[str, str], list[str]] = {}
    for name in names:
        keys = keys_of(name)
        lr, decay = (next((k for k in keys if f in rates.get(k, {})), "") for f in ("lr", "weight_decay"))
        names_by_keys.setdefault((lr, decay), []).append(name)
    groups = []
    for (lr, decay), members in names_by_keys.items():
        rate = rates[lr]["lr"] if lr else settings["lr"]
        weight_decay = rates[decay]["weight_decay"] if decay else settings.get("weight_decay", 0.0)
        groups.append(({"lr": rate[-1] if isinstance(rate, list) else rate, "weight_decay": weight_decay}, members))
    return groups
