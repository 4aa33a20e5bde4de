"""What a schedule adds up to: for a client that is always there, for a round's cohort, and for the server."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from edgefl.cost import ClientCost, Traffic, duration, traffic, work_key
from edgefl.data import Federation
from edgefl.devices import Device, Link
from edgefl.methods import Method, ServerState
from edgefl.planning import (
    NO_COMPUTE,
    NO_TRAFFIC,
    ClientVersions,
    Planner,
    Setup,
    client_cost,
    final_blocks,
    shapes,
    shapes_alone,
    stale,
)
from edgefl.planning.places import places
from edgefl.schedules import Stage
from edgefl.work import Work

WAYS = ("download", "upload")
ADDED_UP = ("fvcore_macs", "forward_flops", "backward_flops", "download_bytes", "upload_bytes")
"""What a round's totals add up over its clients and the server."""
COMPUTED = ADDED_UP[:3]


@dataclass(frozen=True)
class Stretch:
    """Rounds of one stage, one after the other, that cost the same: they differ in learning rates at most.

    ``works`` has the work and its key by kind that takes part; ``server`` the server's own as ``(when, work)``.
    """

    stage: Stage
    first: int
    rounds: int
    works: Mapping[str, tuple[Work, str]]
    server: tuple[tuple[str, Work], ...]

    def alike(self, other: Stretch) -> bool:
        """Whether the rounds of ``other`` cost what these do."""

        def signs(one: Stretch) -> list[Any]:
            return [(when, w.kind, w.passes, work_key(w)) for when, w in one.server]

        if self.stage is not other.stage or self.works.keys() != other.works.keys():
            return False
        for kind, (work, base) in self.works.items():
            now, key = other.works[kind]
            # the planner gives works that differ in learning rates alone the same payloads, so a look is enough
            if base != key or work.passes != now.passes or work.down is not now.down or work.up is not now.up:
                return False
        return signs(self) == signs(other)


def stretches(planner: Planner, stage: int | None = None) -> list[Stretch]:
    """The rounds of the schedule, or of the stage with this index, as few stretches."""
    setup = planner.setup
    state = _shapes(setup.method)
    found: list[Stretch] = []
    for round in range(1, setup.schedule.rounds + 1):
        now = setup.schedule.stage(round)
        if stage not in (None, now.index):
            continue
        works = {k: planner.work(k, round, now) for k in setup.clients.kinds if setup.participates(k, round)}
        one = Stretch(now, round, 1, works, _server_works(setup, state, round, now) if state else ())
        if found and found[-1].alike(one):
            found[-1] = replace(found[-1], rounds=found[-1].rounds + 1)
        else:
            found.append(one)
    return found


# --- the server ------------------------------------------------------------------------------------------------------


def _shapes(method: Method) -> ServerState | None:
    """What the server holds at first, as shapes without values; None for a method that has no work for the server."""
    if type(method).before is Method.before and type(method).after is Method.after:
        return None
    return shapes(method)


def _server_works(setup: Setup, state: ServerState, round: int, stage: Stage) -> tuple[tuple[str, Work], ...]:
    with shapes_alone(setup.method, "before() and after()"):
        works = [("before", w) for w in setup.method.before(state, round)]
        works += [("after", w) for w in setup.method.after(state, round)]
    return tuple((when, setup.staged(w, stage)) for when, w in works)


def server_rows(planner: Planner, found: Sequence[Stretch], kind: str | None = None) -> list[dict[str, Any]]:
    """What the server does in a round of each stretch, and what an evaluation takes at each stage.

    With ``kind``, what it does on the model of that kind only.
    """
    setup = planner.setup
    assert isinstance(setup.clients, Federation)
    rows = []
    for one in found:
        rows += [_server_row(planner, one, when, w) for when, w in one.server if kind in (None, w.kind)]
    split = setup.evaluation.split
    for stage in setup.schedule.stages:
        rounds = [one for one in found if one.stage is stage]
        if not rounds:
            continue
        whole = replace(rounds[0], rounds=sum(one.rounds for one in rounds))
        for work, kinds in setup.evaluations(split, stage):
            patterns = {pattern for p in work.passes for pattern in p.patterns}
            if kind in (None, *kinds) and all(setup.clients.server_samples.get(split, {}).get(p) for p in patterns):
                rows.append(_server_row(planner, whole, f"evaluate {split}", work))
    return sorted(rows, key=lambda row: (row["first_round"], row["when"].startswith("evaluate")))


def _server_row(planner: Planner, one: Stretch, when: str, work: Work) -> dict[str, Any]:
    _, computed = planner.server(work)
    device = planner.setup.fleet.server
    spent = duration(computed, NO_TRAFFIC, device, None)
    return {
        "kind": work.kind,
        "stage": one.stage.index,
        "first_round": one.first,
        "rounds": one.rounds,
        "when": when,
        "steps": [p.step for p in work.passes],
        "peak_memory_bytes": computed.peak_memory_bytes,
        "memory_bytes": dict(computed.memory_bytes),
        "runtime_overhead_bytes": device.runtime_overhead_bytes,
        "process_memory_bytes": computed.peak_memory_bytes + device.runtime_overhead_bytes,
        **{name: getattr(computed, name) for name in COMPUTED},
        "compute_seconds": spent.compute_seconds,
        "energy_joules": spent.energy_joules,
        "device": device.name,
    }


def evaluation_totals(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What one evaluation of all kinds takes, by stage; ``rows`` are the server's."""
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["when"].startswith("evaluate"):
            begun = {"stage": row["stage"], "when": row["when"], **dict.fromkeys((*COMPUTED, "compute_seconds"), 0)}
            total = found.setdefault(row["stage"], begun)
            for name in (*COMPUTED, "compute_seconds"):
                total[name] += row[name]
    return list(found.values())


# --- a round's cohort ------------------------------------------------------------------------------------------------


def round_totals(planner: Planner, found: Sequence[Stretch], rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a round costs all its clients and the server together, for each stretch; ``rows`` are the server's.

    Expected over a uniform draw of the cohort from all clients that the method lets take part, eligible or not:
    places of the kind times the mean over the kind's clients.  A client moves what is active, as in its row.  Clients
    do full batches only, in each epoch.  Evaluation isn't in it.
    """
    rows = list(rows)
    totals = []
    for one in found:
        selected, parts = _seats(planner.setup, one.works), {}
        for kind, (work, base) in one.works.items():
            _, moved = planner.moved(work, base, one.stage, ())
            parts[kind] = {
                **{n: selected[kind] * v for n, v in _mean(planner, kind, work, base).items()},
                "download_bytes": selected[kind] * moved.download_bytes,
                "upload_bytes": selected[kind] * moved.upload_bytes,
            }
        parts["server"] = dict.fromkeys(ADDED_UP, Fraction(0))
        for row in rows:
            if row["first_round"] == one.first and not row["when"].startswith("evaluate"):
                for name in COMPUTED:
                    parts["server"][name] += Fraction(row[name])
        totals.append(
            {
                "stage": one.stage.index,
                "first_round": one.first,
                "rounds": one.rounds,
                "selected": {kind: _plain(n) for kind, n in selected.items()},
                **{name: _plain(sum(part[name] for part in parts.values())) for name in ADDED_UP},
                "by_kind": {kind: {n: _plain(part[n]) for n in ADDED_UP} for kind, part in parts.items()},
            }
        )
    return totals


def _plain(value: Fraction | int) -> int | float:
    return int(value) if value == int(value) else float(value)


def _seats(setup: Setup, kinds: Iterable[str]) -> dict[str, Fraction]:
    """How many clients of each kind a round selects on average."""
    population = {kind: len(setup.of_kind(kind)) for kind in kinds}
    together = sum(population.values())
    if not setup.round.stratify and together:
        all_places = min(places(setup.round.cohort, {"": together})[""], together)
        return {kind: Fraction(all_places * n, together) for kind, n in population.items()}
    seats = places(setup.round.cohort, population) if together else {}
    return {kind: Fraction(min(seats.get(kind, 0), n)) for kind, n in population.items()}


def _mean(planner: Planner, kind: str, work: Work, base: str) -> dict[str, Fraction]:
    """What computing a round costs a client of the kind, on average over all of them."""
    setup = planner.setup
    clients = np.asarray(setup.of_kind(kind))
    _, first, counts = np.unique(
        np.asarray(setup.clients.client_samples)[clients], return_index=True, return_counts=True
    )
    sums = dict.fromkeys(COMPUTED, Fraction(0))
    for index, count in zip(first, counts, strict=True):
        _, _, cost = planner.compute(work, base, int(clients[index]))
        for name in COMPUTED:
            sums[name] += int(count) * Fraction(getattr(cost, name))
    return {name: total / max(len(clients), 1) for name, total in sums.items()}


# --- one client in every round ---------------------------------------------------------------------------------------


@dataclass
class _Follower:
    """A client that takes part in every round of its kind, and what it has spent."""

    client_versions: ClientVersions = field(default_factory=ClientVersions)
    rounds: int = 0
    peak: int = 0
    per_sample: float = 0.0
    spent: dict[str, Any] = field(default_factory=lambda: defaultdict(int))
    by: dict[str, Counter[str]] = field(
        default_factory=lambda: {f"{way}_bytes_by_{what}": Counter() for way in WAYS for what in ("payload", "part")}
    )

    def spends(self, cost: ClientCost, times: int) -> None:
        self.peak = max(self.peak, cost.compute.peak_memory_bytes)
        for name in COMPUTED:
            self.spent[name] += times * getattr(cost.compute, name)
        for name in ("virtual_seconds", "energy_joules"):
            self.spent[name] += times * getattr(cost.duration, name)

    def moves(self, moved: Traffic, times: int) -> None:
        for name, counted in self.by.items():
            for key, n in getattr(moved, name).items():
                counted[key] += times * n
        for way in WAYS:
            self.spent[f"{way}_bytes"] += times * getattr(moved, f"{way}_bytes")
            self.spent[f"serialised_{way}_bytes"] += times * getattr(moved, f"serialised_{way}_bytes")


def followed(
    planner: Planner, found: Sequence[Stretch], clients: Mapping[str, int], device: Device, link: Link
) -> list[dict[str, Any]]:
    """Walk the whole schedule with one client of each kind in every round: whatever goes up changes at the server.

    ``clients`` has that client by kind, for the kinds that are asked for.
    """
    setup = planner.setup
    followers = {kind: _Follower() for kind in setup.clients.kinds}
    versions: Counter[str] = Counter()
    epochs = setup.method.setting.training.epochs
    for one in found:
        computed = {k: planner.compute(*one.works[k], clients[k])[2] for k in one.works if k in clients}
        # after a round only what that round changed is newer at the server than at the client, so that from the second
        # on all rounds of a stretch are alike
        for times in (1, one.rounds - 1)[: min(one.rounds, 2)]:
            changed: set[str] = set()
            for kind, (work, base) in one.works.items():
                follower = followers[kind]
                old = stale(work, one.stage, follower.client_versions.held(0), versions)
                down, moved = planner.moved(work, base, one.stage, old)
                follower.client_versions.sent(0, down, versions)
                changed |= {item.source for payload in work.up for item in payload.items}
                follower.moves(moved, times)
                if kind in computed:
                    cost = client_cost(computed[kind], moved, device, link, throttling=setup.fleet.throttling)
                    follower.rounds += times
                    follower.per_sample += times * epochs * cost.compute.fvcore_macs_per_sample
                    follower.spends(cost, times)
            versions.update(dict.fromkeys(changed, 1))
        if setup.schedule.deliver_final and setup.schedule.ends(one.first + one.rounds - 1):
            for kind, (work, _) in one.works.items():
                payload = final_blocks(work, one.stage)
                moved = traffic((payload,), (), planner.buffers)
                followers[kind].moves(moved, 1)
                followers[kind].spends(client_cost(NO_COMPUTE, moved, device, link), 1)
                followers[kind].client_versions.sent(0, (payload,), versions)
    return [_total(kind, followers[kind]) for kind in clients]


def _total(kind: str, follower: _Follower) -> dict[str, Any]:
    spent = follower.spent
    return {
        "kind": kind,
        "rounds": follower.rounds,
        "peak_memory_bytes": follower.peak,
        **{name: spent[name] for name in COMPUTED},
        "fvcore_macs_per_sample_all_rounds": follower.per_sample,
        "traffic_bytes": spent["download_bytes"] + spent["upload_bytes"],
        "serialised_traffic_bytes": spent["serialised_download_bytes"] + spent["serialised_upload_bytes"],
        **{f"{form}{way}_bytes": spent[f"{form}{way}_bytes"] for form in ("", "serialised_") for way in WAYS},
        **{name: dict(counted) for name, counted in follower.by.items()},
        "virtual_seconds": spent["virtual_seconds"],
        "energy_joules": spent["energy_joules"],
    }
