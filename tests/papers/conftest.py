"""What travels under a schedule, from payloads alone: quick where a profile would predict every stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from edgefl.planning.planner import Planner
from edgefl.planning.versions import ClientVersions, final_blocks, stale
from edgefl.scenario import load
from edgefl.setup.compose import compose, predictor_of


@dataclass
class Travelled:
    """Bytes by kind: of what is active in each stage (down, up), of a client in every round, of final deliveries."""

    active: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    down: Counter[str] = field(default_factory=Counter)
    up: Counter[str] = field(default_factory=Counter)
    delivered: Counter[str] = field(default_factory=Counter)

    def both(self, kind: str) -> int:
        return self.down[kind] + self.up[kind] + self.delivered[kind]


@pytest.fixture(scope="session")
def travelled() -> Callable[..., Travelled]:
    """Follows one client of each kind through every round, with its copies and the server's versions; no prediction."""
    known: dict[Any, Travelled] = {}

    def follow(name: str, *overrides: str) -> Travelled:
        if (name, overrides) not in known:
            known[name, overrides] = _follow(name, list(overrides))
        return known[name, overrides]

    return follow


def _follow(name: str, overrides: list[str]) -> Travelled:
    scenario = load(name, overrides)
    planner = Planner(compose(scenario), predictor_of(scenario))
    schedule, kinds = planner.setup.schedule, planner.setup.clients.kinds
    found = Travelled()
    for kind in kinds:
        works = [(stage, *planner.work(kind, 1, stage)) for stage in schedule.stages]
        moved = [planner.downloads_and_traffic(work, base, stage, ())[1] for stage, work, base in works]
        found.active[kind] = [(m.download_bytes, m.upload_bytes) for m in moved]
    ledgers = {kind: ClientVersions() for kind in kinds}
    versions: Counter[str] = Counter()
    round = 0
    for stage in schedule.stages:
        # these methods do the same in every round: from the second on, a stage's rounds are alike
        for times in (1, stage.rounds - 1)[: min(stage.rounds, 2)]:
            round += times
            changed = set[str]()
            for kind in kinds:
                work, base = planner.work(kind, round, stage)
                down, moved = planner.downloads_and_traffic(
                    work, base, stage, stale(work, stage, ledgers[kind].versions_of(0), versions)
                )
                ledgers[kind].record_download(0, down, versions)
                found.down[kind] += times * moved.download_bytes
                found.up[kind] += times * moved.upload_bytes
                changed |= {item.source for payload in work.up for item in payload.items}
            versions.update(dict.fromkeys(changed, times))
        if schedule.deliver_final and stage.rounds:
            for kind in kinds:
                last = final_blocks(planner.work(kind, round, stage)[0], stage)
                found.delivered[kind] += last.tensor_bytes
                ledgers[kind].record_download(0, (last,), versions)
    return found
