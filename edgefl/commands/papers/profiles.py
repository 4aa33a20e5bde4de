"""Profiles of the papers' scenarios: each is made once for all tables that use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgefl.commands.compose import compose
from edgefl.commands.profile.compare import compare_profiles
from edgefl.commands.profile.profile import profile
from edgefl.commands.progress import OnProgress, silent
from edgefl.scenario import load


class Profiles:
    """Results of ``edgefl.profile`` for scenarios of ``papers/``, by name and overrides.

    Predictions are remembered in the cache folder too, so that an interrupted command goes on where it was.
    """

    def __init__(self, on_progress: OnProgress = silent):
        self.on_progress = on_progress
        self._known: dict[Any, dict[str, Any]] = {}

    def of(self, name: str, *overrides: str, stage: int | None = None, kind: str | None = None) -> dict[str, Any]:
        """The profile of a scenario, of one stage or kind if they are given."""
        key = (name, overrides, stage, kind)
        if key not in self._known:
            self._known[key] = profile(
                f"papers/{name}", list(overrides), stage=stage, kind=kind, on_progress=self._named(name)
            )
        return self._known[key]

    def combinations(self, name: str, override: str, figure: Path | None = None) -> list[dict[str, Any]]:
        """The profiles of what a scenario compares with this override, in its order; ``figure`` draws them."""
        key = (name, override, "combinations")
        if key not in self._known or figure is not None:
            self._known[key] = profile(f"papers/{name}", [override], figure=figure, on_progress=self._named(name))
        return list(self._known[key]["combinations"].values())

    def compared(self, names: Sequence[str], figure: Path) -> None:
        """Draw the profiles of several scenarios side by side."""
        compare_profiles([f"papers/{name}" for name in names], figure=figure, on_progress=self.on_progress)

    def _named(self, name: str) -> OnProgress:
        def on_event(event: str, facts: Mapping[str, Any]) -> None:
            if event == "prepare":  # a scenario's combinations are only part of a page
                self.on_progress(event, facts)

        return on_event


def payloads(name: str, kind: str, round: int, *overrides: str) -> dict[str, int]:
    """Bytes that a client sends up in a round, by payload; nothing is predicted."""
    work = compose(load(f"papers/{name}", list(overrides))).method.work(kind, round)
    return {payload.name: payload.tensor_bytes for payload in work.up}


def parts_of_model(name: str, kind: str, round: int) -> dict[str, int]:
    """Bytes of the model that a client sends up in a round, by part; nothing is predicted."""
    work = compose(load(f"papers/{name}")).method.work(kind, round)
    sizes: Counter[str] = Counter()
    for payload in work.up:
        if payload.name == "model":
            for item in payload.items:
                sizes[item.name.split(".")[1]] += payload.bytes_of(item)
    return dict(sizes)
