"""What was in a run, as a page has it in which budgets are moved: from its records, nothing is priced again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isclose, nan

import numpy as np

from edgefl.devices import Device, Link, available_memory_bytes, load_device, load_link, with_runtime
from edgefl.errors import EdgeflError
from edgefl.records.explore import (
    Explored,
    ExploredCell,
    ExploredFleet,
    NamedDevice,
    NamedLink,
    Offer,
    PeakParts,
    Preset,
    PricedCell,
    Term,
    Turn,
)  # fmt: skip
from edgefl.records.record import UNSET, plain
from edgefl.report.charts import Records
from edgefl.report.charts.records import ShownVerdict
from edgefl.report.explore.page_columns import Columns
from edgefl.report.explore.words import budget_of
from edgefl.runs import Run

Judged = Mapping[int, ShownVerdict]
"""The verdicts of a stage by client."""


def explored_of(run: Run, records: Records, version: str) -> Explored | None:
    """The clients of a run as they were judged; None where its records can't say what other budgets would have done.

    They can't where a record stands for several clients, where the method leaves clients out, where energy is limited
    for all rounds together or a budget is another in another stage, or where a device or link isn't in the library.
    """
    stages = {stage: {v.client: v for v in records.verdicts_of(stage)} for stage in records.stages}
    clients = sorted({client for judged in stages.values() for client in judged})
    if not clients or clients != list(range(sum(records.rounds[0].clients.values()))):
        return None
    every = [v for judged in stages.values() for v in judged.values()]
    if any(v.clients > 1 or v.joules_limit is not UNSET for v in every) or len(every) < len(stages) * len(clients):
        return None
    first = next(iter(stages.values()))
    names = list(first[0].costs)
    allowed = {name: _allowed(stages, name, len(clients)) for name in names}
    library = _library(run, first)
    if library is None or any(values is None for values in allowed.values()):
        return None
    owners = (records.settings.fleet.budgets or {}).get("seconds_per_round")
    if owners is not None and any(_of_deadline(records, allowed["seconds"] or [])):
        return None  # what owners grant beyond the deadline isn't known
    return _Made(run, records, stages, {n: v for n, v in allowed.items() if v is not None}, library).explored(version)


def _allowed(stages: Mapping[int, Judged], name: str, clients: int) -> list[float] | None:
    """What each client may use of a budget; None if it isn't the same in all stages."""
    found: list[float] = []
    for client in range(clients):
        values = [_budget(judged[client], name) for judged in stages.values()]
        if max(values) > min(values) * (1 + 1e-9):
            return None
        found.append(values[0])
    return found


def _budget(verdict: ShownVerdict, name: str) -> float:
    margin = verdict.margins[name]
    return inf if margin is None else verdict.costs[name] + margin


def _library(run: Run, judged: Judged) -> tuple[list[Device], list[Link]] | None:
    """The fleet's devices in their runtime, and its links; None if one isn't in the library."""
    runtime = run.scenario["fleet"]["runtime"]
    try:
        devices = [with_runtime(load_device(name), runtime) for name in sorted({v.device for v in judged.values()})]
        return devices, [load_link(name) for name in sorted({v.link for v in judged.values()})]
    except EdgeflError:  # a file, which may be elsewhere now
        return None


def _deadline(records: Records) -> float | None:
    deadline = records.settings.round.deadline
    return float(deadline) if isinstance(deadline, int | float) else None


def _of_deadline(records: Records, seconds: Sequence[float]) -> list[bool]:
    """Whether the deadline is what limits each client's time."""
    deadline = _deadline(records)
    return [deadline is not None and isclose(each, deadline) for each in seconds]


class _Made:
    """A run's record in the making."""

    def __init__(
        self, run: Run, records: Records, stages: Mapping[int, Judged], allowed: Mapping[str, Sequence[float]],
        library: tuple[Sequence[Device], Sequence[Link]],
    ):  # fmt: skip
        self.run, self.records, self.stages, self.allowed = run, records, stages, allowed
        self.devices, links = library
        self.columns = Columns()
        judged = next(iter(stages.values()))
        self.clients = [judged[client] for client in range(len(judged))]
        self.kinds = [kind for kind in records.kinds if any(v.kind == kind for v in self.clients)]
        self.named_links = [NamedLink(name=link.name, title=link.title) for link in links]
        self.device_names, self.links = [each.name for each in self.devices], [each.name for each in links]
        costs = [[tuple(judged[i].costs[name] for name in allowed) for judged in stages.values()]
                 for i in range(len(self.clients))]  # fmt: skip
        self.spots = list(dict.fromkeys((v.device, v.link, *cost) for v, cost in zip(self.clients, costs, strict=True)))
        at = {spot: i for i, spot in enumerate(self.spots)}
        self.spot = [at[(v.device, v.link, *cost)] for v, cost in zip(self.clients, costs, strict=True)]

    def explored(self, version: str) -> Explored:
        """The record, of a single cell."""
        fleet, turns = self._fleet(), []
        for index, stage in enumerate(self.records.facts.stages):
            turns.append(Turn(stage=stage.stage, rounds=stage.rounds, offers=[index]))
        offers = [self._offer(index, stage) for index, stage in enumerate(self.stages)]
        indices = np.arange(len(self.spots))
        pairs = [self.device_names.index(str(device)) * len(self.links) + self.links.index(str(link))
                 for device, link, *_ in self.spots]  # fmt: skip
        cell = PricedCell(
            fleet=0, spot=self.columns.add(np.array(self.spot)), group=self.columns.add(indices),
            pair=self.columns.add(np.array(pairs)), deadline=_deadline(self.records), offers=offers, turns=turns,
        )  # fmt: skip
        fewest = min(sum(v.eligible for v in judged.values()) for judged in self.stages.values())
        every = [v for judged in self.stages.values() for v in judged.values()]
        spans = {name: [v.costs[name] for v in every] for name in self.allowed}
        return Explored(
            scenario=self.records.settings.name, given=str(self.run.path / "scenario.yaml"), overrides=[],
            compares=bool(self.records.settings.compare), edgefl=version, axes=[],
            cells=[ExploredCell(label=self.records.label, at=[], priced=cell)], start=0,
            budgets=[budget_of(name, min(taken), max(taken)) for name, taken in spans.items()], fleets=[fleet],
            presets=[Preset(cell=0, changes=[], eligible=fewest, clients=len(self.clients))],
            columns=self.columns.untold(), predictions=0,
        )  # fmt: skip

    def _fleet(self) -> ExploredFleet:
        def indices(names: Sequence[str], of: Sequence[str]) -> str:
            return self.columns.add(np.array([names.index(each) for each in of]))

        return ExploredFleet(
            clients=len(self.clients), rows=len(self.clients), counts=self.columns.add(np.ones(len(self.clients), int)),
            kinds=self.kinds, kind=indices(self.kinds, [v.kind for v in self.clients]),
            devices=[
                NamedDevice(name=device.name, title=device.title, ram_bytes=device.ram_bytes,
                            runtime_overhead_bytes=device.runtime_overhead_bytes,
                            available_memory_bytes=available_memory_bytes(device))
                for device in self.devices
            ],
            device=indices(self.device_names, [v.device for v in self.clients]),
            links=self.named_links,
            link=indices(self.links, [v.link for v in self.clients]),
            samples=self.columns.add(np.array([int(v.samples) for v in self.clients])),
            granted={name: self.columns.add(np.array(self._granted(name))) for name in self.allowed},
            energy_total=None, within_device=bool((self.records.settings.fleet.budgets or {}).get("within_device")),
            classes=None,
        )  # fmt: skip

    def _granted(self, name: str) -> list[float]:
        """What owners grant: no limit where the device or the deadline is the limit, which the page knows itself."""
        theirs = [False] * len(self.clients)
        if name == "memory":
            theirs = [v.memory_limit == "device" for v in self.clients]
        elif name == "seconds":
            theirs = _of_deadline(self.records, self.allowed[name])
        return [inf if other else value for value, other in zip(self.allowed[name], theirs, strict=True)]

    def _offer(self, index: int, stage: int) -> Offer:
        costs = np.array([spot[2 + index] for spot in self.spots], dtype=float)
        taken = {name: self.columns.add(costs[:, b]) for b, name in enumerate(self.allowed)}
        unknown = self.columns.add(np.full(len(self.spots), nan))
        everyone = self.columns.add(np.ones(len(self.spots), int))
        return Offer(
            stage=stage, takes_part=everyone, transfer=self.columns.add(np.arange(len(self.spots))),
            costs={name: [Term(by="spot", values=values)] for name, values in taken.items()},
            download_bytes=unknown, upload_bytes=unknown, peaks=self._peaks(stage),
        )  # fmt: skip

    def _peaks(self, stage: int) -> list[PeakParts]:
        """Of the largest client of each kind that was sent off in a stage."""
        peaks = []
        numbers = {r.round for r in self.records.rounds if r.stage == stage}
        for kind, name in enumerate(self.kinds):
            mine = [flight for flight in self.records.flights if flight.kind == name and flight.round in numbers]
            if mine:
                largest = max(mine, key=lambda flight: flight.peak_memory_bytes)
                parts = plain(largest.memory_bytes)
                peaks.append(PeakParts(kind=kind, group=self.spot[largest.client], batch=None, parts=parts))
        return peaks
