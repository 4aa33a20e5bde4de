"""What a cell's clients would do before any device, and who of them can do it on a fleet.

Predicting is slow and knows no device; judging is fast and needs nothing but the predicted costs.  So a fleet with
other numbers is judged without predicting again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgefl.cost import Predictor, energy, watts_of
from edgefl.devices import Device, Fleet, Link
from edgefl.planning import BUDGETS, NO_COMPUTE, NO_TRAFFIC, Demand, Planner, Setup, choose_stages, client_cost
from edgefl.schedules import Stage

Integers = NDArray[Any]
Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]
One = TypeVar("One")

LEFT_OUT = -1
"""The work of clients that the method leaves out of a stage."""


@dataclass(frozen=True)
class Workload:
    """The works that a schedule gives to the clients, each with what it asks of any device.

    ``stages`` are those with rounds, once for each turn in which other parts are offered, with the rounds of that turn.
    ``candidates[i]`` has for stage i, by index of each way that the schedule offers, best first, the work `[groups]` of
    each group of clients that cost the same: an index into ``demands``, or LEFT_OUT, which holds for all ways of a
    stage.  Clients hold everything frozen already.
    """

    setup: Setup
    demands: tuple[Demand, ...]
    stages: tuple[Stage, ...]
    candidates: tuple[Mapping[int, Integers], ...]

    @cached_property
    def table(self) -> dict[str, Floats]:
        """Numbers of each work that no device changes: `[works]`."""
        columns: dict[str, Callable[[Demand], float]] = {
            "memory": lambda d: d.compute.peak_memory_bytes,
            "flops": lambda d: d.compute.forward_flops + d.compute.backward_flops,
            "bytes": lambda d: d.traffic.serialised_download_bytes + d.traffic.serialised_upload_bytes,
            "download_bytes": lambda d: d.traffic.download_bytes,
            "upload_bytes": lambda d: d.traffic.upload_bytes,
        }
        return {name: np.array([of(d) for d in self.demands], dtype=float) for name, of in columns.items()}


@dataclass(frozen=True)
class Judged:
    """Who can take part in a stage: arrays `[clients]`.

    ``work`` is the first offered that fits, or the one that comes nearest to it; ``binding`` indexes BUDGETS (-1:
    unlimited); ``seconds`` and ``joules`` are a round's, without jitter.  What the method leaves out is not eligible
    and costs nothing.
    """

    stage: Stage
    work: Integers
    eligible: Booleans
    binding: Integers
    seconds: Floats
    joules: Floats


def workload_of(setup: Setup, predictor: Predictor) -> Workload:
    """Predict every work of the schedule, each once for all clients of one kind with as many samples."""
    planner = Planner(setup, predictor)
    demands, stages, candidates = list[Demand](), [], []
    known: dict[tuple[int, int], Integers] = {}
    turns = [(stage, turn) for stage in setup.schedule.stages for turn in setup.schedule.turns(stage)]
    for stage, (offered, rounds) in turns:
        stages.append(replace(stage, rounds=len(rounds)))
        first = _first(setup, stage)
        for way in offered:
            if (stage.index, way.index) in known:
                continue
            works = known[stage.index, way.index] = np.full(len(setup.representative), LEFT_OUT, np.int32)
            for group, client in enumerate(setup.representative.tolist()):
                if setup.participates(setup.kind_of(client), first):
                    works[group] = len(demands)
                    demands.append(planner.demand(client, first, way))
        candidates.append({way.index: known[stage.index, way.index] for way in offered})
    return Workload(setup, tuple(demands), tuple(stages), tuple(candidates))


def _first(setup: Setup, stage: Stage) -> int:
    """The first round of a stage."""
    return 1 + sum(s.rounds for s in setup.schedule.stages if s.index < stage.index)


class Prices:
    """Seconds and joules of works on devices and over links, each computed once however often it is asked for.

    Computing takes as long over any link, and travelling on any device; works that share either share its price.
    """

    def __init__(self, workload: Workload):
        self._computes, self._compute_of = _distinct([d.compute for d in workload.demands])
        self._traffics, self._traffic_of = _distinct([d.traffic for d in workload.demands])
        self._busy: dict[tuple[bool, Device], Floats] = {}
        self._moving: dict[Link, tuple[Floats, Floats]] = {}

    def spent(self, device: Device, link: Link, throttling: bool) -> tuple[Floats, Floats]:
        """Seconds and joules of each work on this device and link: `[works]`."""
        # what it draws changes no time
        key = (throttling, replace(device, compute_watts=0.0, idle_watts=0.0))
        if key not in self._busy:
            costs = [client_cost(c, NO_TRAFFIC, device, link, throttling=throttling) for c in self._computes]
            self._busy[key] = np.array([c.duration.compute_seconds for c in costs])[self._compute_of]
        if link not in self._moving:
            spent = [client_cost(NO_COMPUTE, t, device, link).duration for t in self._traffics]
            down, up = np.array([(s.download_seconds, s.upload_seconds) for s in spent]).reshape(-1, 2).T
            self._moving[link] = down[self._traffic_of], up[self._traffic_of]
        busy, (down, up) = self._busy[key], self._moving[link]
        return down + busy + up, energy(down, busy, up, watts_of(device, link))


def _distinct(values: Sequence[One]) -> tuple[list[One], Integers]:
    """The distinct objects among these, and which of them stands at each place."""
    known = {id(one): one for one in values}
    places = {key: place for place, key in enumerate(known)}
    return list(known.values()), np.array([places[id(one)] for one in values], np.int64)


def evaluated(
    workload: Workload, fleet: Fleet | None = None, prices: Prices | None = None, *, why: bool = True
) -> list[Judged]:
    """Who of the clients can take part in each stage on this fleet, by default the scenario's.

    A client takes the first work offered that fits all its budgets, a round's deadline among them.  Without ``why`` no
    ``binding`` is found, which is most of the work.
    """
    setup = workload.setup
    fleet = fleet or setup.fleet
    prices = prices or Prices(workload)
    group = np.asarray(setup.clients.client_group)
    seconds, joules = (np.stack(table) for table in zip(*_places(fleet, prices), strict=True))
    place = fleet.device_index.astype(np.int32) * len(fleet.links) + fleet.link_index

    def judged(stage: Stage, ways: Mapping[int, Integers]) -> Judged:
        clients = np.flatnonzero(next(iter(ways.values()))[group] != LEFT_OUT)
        mine, where = group[clients], place[clients]

        def offer(works: Integers, left: Integers) -> tuple[Integers, dict[str, Floats]]:
            work = works[mine[left]]
            spent = {name: workload.table[name][work] for name in ("memory", "flops", "bytes")}
            return work, spent | {"seconds": seconds[where[left], work], "joules": joules[where[left], work]}

        def everyone(values: NDArray[Any], nothing: Any) -> NDArray[Any]:
            whole = np.full(len(group), nothing, values.dtype)
            whole[clients] = values
            return whole

        offers = {index: partial(offer, works) for index, works in ways.items()}
        chosen = choose_stages(offers, setup.budgets(clients, fleet), why=why)
        return Judged(
            stage,
            everyone(chosen.row, LEFT_OUT),
            everyone(chosen.eligible, False),
            everyone(chosen.binding, -1),
            everyone(seconds[where, chosen.row], 0),
            everyone(joules[where, chosen.row], 0),
        )

    return [judged(stage, ways) for stage, ways in zip(workload.stages, workload.candidates, strict=True)]


def _places(fleet: Fleet, prices: Prices) -> list[tuple[Floats, Floats]]:
    """Seconds and joules `[works]` on every device over every link, links running fastest."""
    return [prices.spent(device, link, fleet.throttling) for device in fleet.devices for link in fleet.links]


def counts_of(works: Integers, workload: Workload) -> Integers:
    """How many of these clients do each work: `[works]`."""
    return np.bincount(works, minlength=len(workload.demands))


def binding_counts(binding: Integers) -> dict[str, int]:
    """How many clients each budget binds, the most frequent first."""
    counts = np.bincount(binding[binding >= 0], minlength=len(BUDGETS))
    order = sorted(range(len(BUDGETS)), key=lambda i: -counts[i])
    return {BUDGETS[i]: int(counts[i]) for i in order if counts[i]}
