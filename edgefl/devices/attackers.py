"""Clients that attack: the same ones in every round, drawn once for a run.  What they do is a registered part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

from edgefl import registry, seeds, units
from edgefl.arrays import AnyArray, Booleans
from edgefl.registry.part_fields import Fields


class AttackOptions(Fields):
    """``attack: {share: 20%, name: sign-flip}``: clients that attack in every round in which they take part.

    Every registered attack has these fields, and fields of its own.
    """

    share: units.Share = Field(
        description="Share of all clients that attack, rounded to whole clients, but at least one; drawn once by seed."
    )
    name: str = Field(
        description="What they do: send their change with the opposite sign (sign-flip), send it enlarged (scaling), "
        "train on flipped labels (label-flip), or what another registered attack does."
    )


def parse_attack(value: Any) -> Any:
    """The options of the attack that a mapping names as its ``name``.  Raises UnknownName, ValidationError."""
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        options: type[AttackOptions] = registry.get("attack", value["name"]).Options
        return options.model_validate(dict(value))
    return value


def draw_attackers(options: AttackOptions | None, clients: int, seed: int) -> Booleans:
    """Which clients attack, `[clients]`; a larger share adds attackers to those of a smaller one."""
    attackers: AnyArray = np.zeros(clients, bool)
    if options is None or not options.share or not clients:
        return attackers
    count = min(max(int(options.share * clients + 0.5), 1), clients)
    attackers[seeds.generator(seed, "attackers").permutation(clients)[:count]] = True
    return attackers
