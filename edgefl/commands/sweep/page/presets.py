"""Cells to begin with: of those with equally many changes of the scenario the one that lets most clients in."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from edgefl.drawing.sliders.page_data import Preset, SliderAxis


class PresetCandidate(NamedTuple):
    """A cell, its choices, and who fits by what the scenario grants."""

    cell: int
    at: Sequence[int]
    eligible: int
    clients: int
    seconds: float | None


TIERS = ("training.checkpointing", "training.loss_chunk", "training.precision", "payload", "schedule", "adapter")
"""Fields by how little they change training, as ``edgefl fit`` orders them; others follow."""


def presets_of(candidates: Sequence[PresetCandidate], axes: Sequence[SliderAxis]) -> list[Preset]:
    """The scenario, or the cell nearest to it, and then cells with more changes that let more clients in.

    Of cells with equally many changes and clients the one whose changes change training least comes first, then the one
    with the shortest rounds.
    """

    def changes(candidate: PresetCandidate) -> list[int]:
        return [axis for axis, (choice, mine) in enumerate(zip(candidate.at, axes, strict=True)) if choice != mine.own]

    def order(candidate: PresetCandidate) -> tuple[int, int, list[int], float]:
        changed = changes(candidate)
        tiers = sorted((_tier(axes[axis].path) for axis in changed), reverse=True)
        return len(changed), -candidate.eligible, tiers, inf if candidate.seconds is None else candidate.seconds

    found: list[Preset] = []
    for candidate in sorted(candidates, key=order):
        if not found or candidate.eligible > found[-1].eligible:
            found.append(
                Preset(
                    cell=candidate.cell,
                    changes=changes(candidate),
                    eligible=candidate.eligible,
                    clients=candidate.clients,
                )
            )
    return found


def _tier(path: str) -> int:
    return next((i for i, field in enumerate(TIERS) if path == field or path.startswith(f"{field}.")), len(TIERS))
