"""What a cell's clients would do before any device, and who of them can do it on a fleet.

Predicting is slow and knows no device; judging is fast and needs nothing but the predicted costs.  So a fleet with
other numbers is judged without predicting again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.cost import ComputeCost, Predictor, Traffic, duration, energy, transfer_seconds, watts_of
from edgefl.devices import Device, Fleet, Link
from edgefl.planning import Planner, Setup
from edgefl.planning.eligibility import BUDGETS, gate, nearness
from edgefl.schedules import Stage

Integers = NDArray[Any]
Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]

LEFT_OUT = -1
"""The work of clients that the method leaves out of a stage."""


@dataclass(frozen=True)
class Workload:
    """The works that a schedule gives to the clients, each with its cost before any device.

    ``stages`` are those with rounds, once for each turn in which other parts are offered, with the rounds of that turn.
    ``candidates[i]`` lists for stage i, for each way that the schedule offers, best first, the work `[groups]` of each
    group of clients that cost the same: an index into ``costs``, or LEFT_OUT.  Clients hold everything frozen already.
    """

    setup: Setup
    costs: tuple[tuple[ComputeCost, Traffic], ...]
    stages: tuple[Stage, ...]
    candidates: tuple[tuple[Integers, ...], ...]

    @cached_property
    def table(self) -> dict[str, Floats]:
        """Numbers of each work that no device changes: `[works]`."""
        columns: dict[str, Callable[[ComputeCost, Traffic], float]] = {
            "memory": lambda c, _: c.peak_memory_bytes,
            "flops": lambda c, _: c.forward_flops + c.backward_flops,
            "bytes": lambda _, t: t.serialised_download_bytes + t.serialised_upload_bytes,
            "download_bytes": lambda _, t: t.download_bytes,
            "upload_bytes": lambda _, t: t.upload_bytes,
        }
        return {name: np.array([of(*cost) for cost in self.costs], dtype=float) for name, of in columns.items()}


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
    costs: list[tuple[ComputeCost, Traffic]] = []
    kinds = np.asarray(setup.clients.client_kind)[setup.representative]
    stages, candidates = [], []
    known: dict[tuple[int, int], Integers] = {}
    turns = [(stage, turn) for stage in setup.schedule.stages for turn in setup.schedule.turns(stage)]
    for stage, (offered, rounds) in turns:
        stages.append(replace(stage, rounds=len(rounds)))
        first, ways = _first(setup, stage), []
        for way in offered:
            if (stage.index, way.index) in known:
                ways.append(known[stage.index, way.index])
                continue
            works = known[stage.index, way.index] = np.full(len(kinds), LEFT_OUT, np.int32)
            for group, client in enumerate(setup.representative):
                kind = setup.clients.kinds[int(kinds[group])]
                if setup.participates(kind, first):
                    work, base = planner.work(kind, first, way)
                    source = setup.clients.client(int(client))
                    _, computed = planner.compute(work.fitted(source.size), source, base, int(client))
                    _, moved = planner.moved(work, base, way, ())
                    works[group] = len(costs)
                    costs.append((computed, moved))
            ways.append(works)
        candidates.append(tuple(ways))
    return Workload(setup, tuple(costs), tuple(stages), tuple(candidates))


def _first(setup: Setup, stage: Stage) -> int:
    """The first round of a stage."""
    return 1 + sum(s.rounds for s in setup.schedule.stages if s.index < stage.index)


class Prices:
    """Seconds and joules of works on devices and over links, each computed once however often it is asked for."""

    def __init__(self, workload: Workload):
        self.costs = workload.costs
        self._compute: dict[tuple[bool, Device], Floats] = {}
        self._moved: dict[Link, tuple[Floats, Floats]] = {}

    def compute(self, device: Device, link: Link, throttling: bool) -> Floats:
        """Seconds of loading and computing each work: `[works]`.  Any link will do."""
        # what it draws changes no time
        key = (throttling, replace(device, compute_watts=0.0, idle_watts=0.0))
        if key not in self._compute:
            spent = [duration(c, t, device, link, throttling=throttling).compute_seconds for c, t in self.costs]
            self._compute[key] = np.array(spent, dtype=float)
        return self._compute[key]

    def moved(self, link: Link) -> tuple[Floats, Floats]:
        """Seconds of the download and of the upload of each work: `[works]`."""
        if link not in self._moved:
            moved = [t for _, t in self.costs]
            down = [transfer_seconds(t.serialised_download_bytes, link.download_goodput, link) for t in moved]
            up = [transfer_seconds(t.serialised_upload_bytes, link.upload_goodput, link) for t in moved]
            self._moved[link] = np.array(down, dtype=float), np.array(up, dtype=float)
        return self._moved[link]

    def spent(self, device: Device, link: Link, throttling: bool) -> tuple[Floats, Floats]:
        """Seconds and joules of each work on this device and link: `[works]`."""
        down, up = self.moved(link)
        busy = self.compute(device, link, throttling)
        return down + busy + up, energy(down, busy, up, watts_of(device, link))


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
    budgets = setup.budgets(slice(None), fleet)
    found = []
    for stage, ways in zip(workload.stages, workload.candidates, strict=True):
        clients = len(group)
        judged = Judged(
            stage, np.full(clients, LEFT_OUT, np.int32), np.zeros(clients, bool), np.full(clients, -1, np.int8),
            np.zeros(clients), np.zeros(clients),
        )  # fmt: skip
        left: Integers = np.arange(clients)
        nearest = np.full(clients, -np.inf)
        for number, works in enumerate(ways):
            work = works[group[left]]
            left, work = left[work != LEFT_OUT], work[work != LEFT_OUT]
            spent = {name: workload.table[name][work] for name in ("memory", "flops", "bytes")}
            spent |= {"seconds": seconds[place[left], work], "joules": joules[place[left], work]}
            allowed = {name: values[left] for name, values in budgets.items()}
            if why:
                verdicts = gate(spent, allowed)
                able, taken = verdicts.eligible, verdicts.eligible | (number == 0)
                if len(ways) > 1:
                    # as a run's roster has it: of equally near ones the later stage, whose works have higher numbers
                    near = nearness(verdicts)
                    taken |= (near > nearest[left]) | ((near == nearest[left]) & (work > judged.work[left]))
                    nearest[left[taken]] = near[taken]
                judged.binding[left[taken]] = verdicts.binding[taken]
            else:
                able = np.logical_and.reduce([spent[name] <= allowed[name] for name in spent])
                taken = able | (number == 0)
            chosen = left[taken]
            judged.work[chosen], judged.eligible[chosen] = work[taken], able[taken]
            judged.seconds[chosen], judged.joules[chosen] = spent["seconds"][taken], spent["joules"][taken]
            left = left[~able]
        found.append(judged)
    return found


def _places(fleet: Fleet, prices: Prices) -> list[tuple[Floats, Floats]]:
    """Seconds and joules `[works]` on every device over every link, links running fastest."""
    return [prices.spent(device, link, fleet.throttling) for device in fleet.devices for link in fleet.links]


def counts_of(works: Integers, workload: Workload) -> Integers:
    """How many of these clients do each work: `[works]`."""
    return np.bincount(works, minlength=len(workload.costs))


def binding_counts(binding: Integers) -> dict[str, int]:
    """How many clients each budget binds, the most frequent first."""
    counts = np.bincount(binding[binding >= 0], minlength=len(BUDGETS))
    order = sorted(range(len(BUDGETS)), key=lambda i: -counts[i])
    return {BUDGETS[i]: int(counts[i]) for i in order if counts[i]}
