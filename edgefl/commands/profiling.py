"""``edgefl profile``: what one client of each kind costs at every stage, and over the whole schedule."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.commands.composing import compose, predictor_of, scenario_of
from edgefl.cost import ClientCost, duration
from edgefl.devices import Device, Link, device, link
from edgefl.scenario import Scenario
from edgefl.schedules import Stage
from edgefl.simulation import Ledger, Planner, Setup, final_blocks, stale

Observe = Callable[[str, Mapping[str, Any]], None]

ROW_FIELDS = (
    "peak_memory_bytes",
    "memory_bytes",
    "forward_flops",
    "backward_flops",
    "fvcore_macs_per_sample",
    "download_bytes",
    "upload_bytes",
    "download_bytes_by_payload",
    "upload_bytes_by_payload",
    "serialised_download_bytes",
    "serialised_upload_bytes",
    "download_seconds",
    "compute_seconds",
    "upload_seconds",
    "virtual_seconds",
    "energy_joules",
)


def _silent(event: str, facts: Mapping[str, Any]) -> None:
    return None


def profile(
    scenario: str | os.PathLike[str] | dict[str, Any] | Scenario,
    overrides: Sequence[str] = (),
    *,
    device: str | None = None,
    link: str | None = None,
    observe: Observe = _silent,
) -> dict[str, Any]:
    """What one client's round costs at each stage, by client kind, and what a whole schedule adds up to.

    ``rows`` has one entry per stage and kind: the round of the kind's client with the most samples, when it holds
    everything frozen already, on ``device`` and ``link`` (by default the fleet's most common ones).  ``totals``
    follows one client of each kind that takes part in every round, with all that travels to it.  Nothing is trained,
    so declared data will do.  If the scenario compares, ``combinations`` has rows and totals of each by label.

    Raises ScenarioError for a scenario that can't be run, UnknownName for an unknown device or link.
    """
    whole = scenario_of(scenario, overrides)
    found: dict[str, Any] = {"scenario": whole.name, **_profiled(whole, device, link, observe, whole.name)}
    if whole.compare:
        combinations = whole.combinations()
        found["combinations"] = {}
        for index, (label, each) in enumerate(combinations):
            observe("combination", {"label": label, "index": index, "of": len(combinations)})
            found["combinations"][label] = _profiled(each, device, link, observe, label)
    return found


def _profiled(
    scenario: Scenario, device_name: str | None, link_name: str | None, observe: Observe, label: str
) -> dict[str, Any]:
    def report(text: str) -> None:
        observe("prepare", {"what": text})

    setup = compose(scenario, report)
    place = device(device_name) if device_name else _commonest(setup.fleet.devices, setup.fleet.device_index)
    way = link(link_name) if link_name else _commonest(setup.fleet.links, setup.fleet.link_index)
    planner = Planner(setup, predictor_of(scenario))
    rows = []
    for stage in setup.schedule.stages:
        for kind in setup.clients.kinds:
            observe("prepare", {"what": f"{label}: stage {stage.index} of {len(setup.schedule.stages)}, {kind}"})
            rows.append(_row(planner, stage, kind, place, way))
    epochs = scenario.training.epochs
    followed = _followed(planner)
    totals = [_total(followed[kind], [r for r in rows if r["kind"] == kind], epochs) for kind in setup.clients.kinds]
    return {"rows": rows, "totals": totals}


def _commonest(profiles: Sequence[Any], index: Any) -> Any:
    """The profile that most clients have; of equally common ones the first listed."""
    return profiles[int(np.bincount(index, minlength=len(profiles)).argmax())]


def _rounds(setup: Setup, stage: Stage, kind: str) -> list[int]:
    """The rounds of a stage in which this kind takes part."""
    first = 1 + sum(s.rounds for s in setup.schedule.stages if s.index < stage.index)
    return [r for r in range(first, first + stage.rounds) if setup.method.participates(kind, r)]


def _row(planner: Planner, stage: Stage, kind: str, place: Device, way: Link) -> dict[str, Any]:
    setup = planner.setup
    rounds = _rounds(setup, stage, kind)
    # a stage without rounds has a cost all the same: the one that its work would have at that point
    before = sum(s.rounds for s in setup.schedule.stages if s.index < stage.index)
    round = rounds[0] if rounds else min(max(before, 1), setup.schedule.rounds)
    clients = setup.of_kind(kind)
    client = max(clients, key=lambda c: int(setup.clients.client_samples[c]))
    source = setup.clients.client(client)
    work, base = planner.work(kind, round, stage)
    _, computed = planner.compute(work.fitted(source.size), source, base, client)
    _, moved = planner.moved(work, base, stage, ())
    record = ClientCost(computed, moved, duration(computed, moved, place, way)).record()
    return {
        "kind": kind,
        "stage": stage.index,
        "rounds": len(rounds),
        **{field: record[field] for field in ROW_FIELDS},
        "samples": int(setup.clients.client_samples[client]),
        "device": place.name,
        "link": way.name,
    }


@dataclass
class _Follower:
    """A client of one kind that takes part in every round, and what has travelled to and from it."""

    kind: str
    ledger: Ledger
    bytes: int = 0
    serialised: int = 0


def _total(followed: _Follower, rows: Sequence[Mapping[str, Any]], epochs: int) -> dict[str, Any]:
    done = [row for row in rows if row["rounds"]]
    return {
        "kind": followed.kind,
        "peak_memory_bytes": max((row["peak_memory_bytes"] for row in done), default=0),
        "traffic_bytes": followed.bytes,
        "serialised_traffic_bytes": followed.serialised,
        "fvcore_macs_per_sample_all_rounds": sum(
            row["rounds"] * epochs * row["fvcore_macs_per_sample"] for row in done
        ),
    }


def _followed(planner: Planner) -> dict[str, _Follower]:
    """Walk the schedule with one client of each kind in every round: whatever goes up changes at the server."""
    setup = planner.setup
    followers = {kind: _Follower(kind, Ledger()) for kind in setup.clients.kinds}
    versions: Counter[str] = Counter()
    for round in range(1, setup.schedule.rounds + 1):
        stage = setup.schedule.stage(round)
        changed: set[str] = set()
        works = {}
        for kind, follower in followers.items():
            if not setup.method.participates(kind, round):
                continue
            work, base = works[kind] = planner.work(kind, round, stage)
            old = stale(work, stage, follower.ledger.held(0), versions)
            down, moved = planner.moved(work, base, stage, old)
            follower.bytes += moved.download_bytes + moved.upload_bytes
            follower.serialised += moved.serialised_download_bytes + moved.serialised_upload_bytes
            follower.ledger.sent(0, down, versions)
            changed |= {item.source for payload in work.up for item in payload.items}
        versions.update(dict.fromkeys(changed, 1))
        if setup.schedule.deliver_final and setup.schedule.ends(round):
            for kind, (work, _) in works.items():
                payload = final_blocks(work, stage)
                followers[kind].bytes += payload.tensor_bytes
                followers[kind].serialised += payload.serialised_bytes
                followers[kind].ledger.sent(0, (payload,), versions)
    return followers
