"""Profiles of the papers' scenarios: each is made once for all tables that use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.commands.profile.answer import Profile, ProfileRow, Tables
from edgefl.commands.profile.command import profile
from edgefl.cost.caching_allocator import CachingAllocator
from edgefl.cost.predict import storage_events, timeline
from edgefl.planning.planner import Planner
from edgefl.planning.subjects import largest, shown_round
from edgefl.runs.progress import OnProgress, silent
from edgefl.scenario import load
from edgefl.setup.compose import compose, planner_of
from edgefl.work import Source, Work
from edgefl.work.meter.trace import PARTS

LIVE = "live_memory_bytes"
"""The memory of all tables: live tensors, as published tables count.

A row's ``peak_memory_bytes`` also has what kernels take for themselves.  For a GPU that this machine lacks it is
assumed, up to twice the kernels' arguments.
"""


class Profiles:
    """Results of ``edgefl.profile`` for scenarios of ``papers/``, by name and overrides.

    Predictions are remembered in the cache folder too, so that an interrupted command goes on where it was.
    """

    def __init__(self, on_progress: OnProgress = silent):
        self.on_progress = on_progress
        self._known: dict[Any, Any] = {}

    def profile_of(self, name: str, *overrides: str, stage: int | None = None, kind: str | None = None) -> Profile:
        """The profile of a scenario, of one stage or kind if they are given."""
        key = (name, overrides, stage, kind)
        if key not in self._known:
            self._known[key] = profile(
                f"papers/{name}", list(overrides), stage=stage, kind=kind, on_progress=self._page_progress(name)
            )
        found: Profile = self._known[key]
        return found

    def live_parts(self, name: str, kind: str, stage: int, *overrides: str) -> dict[str, int]:
        """Bytes by part at the peak of live memory, of the kind's client that a row of the profile is of."""
        planner, work, source = self._profiled_work(name, kind, stage, overrides)
        return dict(planner.predictor.trace(work, source).live_parts)

    def after_step(self, name: str, kind: str, *overrides: str) -> dict[str, int]:
        """Bytes of live memory by part at the end of a step in the first stage, before gradients are freed."""
        planner, work, source = self._profiled_work(name, kind, 1, overrides)
        moments = timeline(work, source, planner.predictor.device).moments
        updates = [dict(zip(PARTS, moment.totals, strict=True)) for moment in moments if moment.phase == "optimizer"]
        return max(updates, key=lambda parts: (parts["optimizer"], parts["gradients"], -sum(parts.values())))

    def reserved_bytes(self, name: str, kind: str, *overrides: str) -> int:
        """The most bytes that torch's CUDA caching allocator reserves in the steps that are predicted, replayed."""
        key = (name, overrides, "reserved")
        if key not in self._known:
            planner, work, source = self._profiled_work(name, kind, 1, overrides)
            allocator = CachingAllocator()
            allocator.add(storage_events(work, source, planner.predictor.device))
            self._known[key] = allocator.peak
        return int(self._known[key])

    def _profiled_work(
        self, name: str, kind: str, stage: int, overrides: tuple[str, ...]
    ) -> tuple[Planner, Work, Source]:
        """The work and the data of the kind's client that a row of the profile is of."""
        key = (name, overrides, "planner")
        if key not in self._known:
            self._known[key] = planner_of(load(f"papers/{name}", list(overrides)))
        planner: Planner = self._known[key]
        setup, offered = planner.setup, planner.setup.schedule.offered[stage - 1]
        work, _ = planner.work(kind, shown_round(setup, offered, kind), offered)
        source = setup.clients.client(largest(setup, kind))
        return planner, work.limit_batches(source.size), source

    def combinations(self, name: str, override: str) -> Mapping[str, Tables]:
        """The profiles of what a scenario compares with this override, by label."""
        return self.profile_of(name, override).combinations or {}

    def _page_progress(self, name: str) -> OnProgress:
        def on_event(event: str, facts: Mapping[str, object]) -> None:
            if event == "prepare":  # a scenario's combinations are only part of a page
                self.on_progress(event, facts)

        return on_event


def payloads(name: str, kind: str, round: int, *overrides: str) -> dict[str, int]:
    """Bytes that a client sends up in a round, by payload; nothing is predicted."""
    work = compose(load(f"papers/{name}", list(overrides)), trains=False).method.client_work(kind, round)
    return {payload.name: payload.tensor_bytes for payload in work.up}


def parts_of_model(name: str, kind: str, round: int) -> dict[str, int]:
    """Bytes of the model that a client sends up in a round, by part; nothing is predicted."""
    work = compose(load(f"papers/{name}"), trains=False).method.client_work(kind, round)
    sizes: Counter[str] = Counter()
    for payload in work.up:
        if payload.name == "model":
            for item in payload.items:
                sizes[item.name.split(".")[1]] += payload.bytes_of(item)
    return dict(sizes)


def highest(rows: Sequence[ProfileRow]) -> int:
    """The peak of live memory over the stages that have rounds, in bytes."""
    return max(row.live_memory_bytes for row in rows if row.rounds)
