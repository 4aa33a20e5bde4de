"""What was in a run, as a page has it in which budgets are moved: from its records, nothing is priced again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import inf, isclose, nan, prod
from typing import NamedTuple

import numpy as np

from edgefl import __version__
from edgefl.devices import Device, Link, is_file_name, load_device, load_link
from edgefl.devices.fleet import with_runtime_and_pace
from edgefl.drawing.charts import Records
from edgefl.drawing.charts.records import ShownVerdict
from edgefl.drawing.sliders.page_columns import PageColumns
from edgefl.drawing.sliders.page_data import (
    BudgetShare,
    Choice,
    FleetSliders,
    Offer,
    PackedColumn,
    PeakParts,
    Place,
    PricedCell,
    SliderAxis,
    SliderCell,
    SliderFleet,
    Turn,
)  # fmt: skip
from edgefl.drawing.sliders.words import budget_of, named_devices, named_links
from edgefl.errors import EdgeflError
from edgefl.records.record import UNSET, to_data
from edgefl.runs import Run, comparison_sets, is_comparison
from edgefl.yaml_lines import flow

Judged = Mapping[int, ShownVerdict]
"""The verdicts of a stage by client."""


class RunSliders(NamedTuple):
    """A run as a cell, and its fleet, whose index it doesn't know yet."""

    cell: PricedCell
    fleet: SliderFleet
    spans: Mapping[str, tuple[float, float]]
    """What the cheapest and the most expensive client took of each budget."""
    columns: Mapping[Place, PackedColumn]


def sliders_of_run(run: Run, records: Mapping[str, Records]) -> FleetSliders | None:
    """The clients of a run, or of a comparison's runs by label, as they were judged.

    None where records can't say what other budgets would have done: where one stands for several clients, where the
    method leaves clients out, where energy is limited for all rounds together or a budget is another in another stage,
    where a device or link isn't in the library, and for a comparison that isn't finished.
    """
    several = is_comparison(run.path)
    axes = _axes(comparison_sets(run.path)) if several else []
    runs = run.runs if several else dict.fromkeys(records, run)
    parts = [_part(runs[label], of) for label, of in records.items() if of.rounds]
    if axes is None or len(parts) != prod(len(axis.choices) for axis in axes):
        return None
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    fleets = list[SliderFleet]()
    for part in known:
        if part.fleet not in fleets:
            fleets.append(part.fleet)
    places = list(product(*(range(len(axis.choices)) for axis in axes)))
    cells = [
        SliderCell(label=label, at=list(at), priced=replace(part.cell, fleet=fleets.index(part.fleet)))
        for label, at, part in zip(records, places, known, strict=True)
    ]
    names = dict.fromkeys(name for part in known for name in part.spans)
    spans = {name: [part.spans[name] for part in known if name in part.spans] for name in names}
    settings = next(iter(records.values())).settings
    return FleetSliders(
        scenario=settings.name, given=str(run.path / "scenario.yaml"), overrides=[], compares=several,
        edgefl=__version__, axes=axes, cells=cells, start=0, fleets=fleets, predictions=0,
        budgets=[budget_of(name, min(low for low, _ in of), max(high for _, high in of)) for name, of in spans.items()],
        columns={name: column for part in known for name, column in part.columns.items()},
    )  # fmt: skip


def _axes(sets: Mapping[str, Mapping[str, object]]) -> list[SliderAxis] | None:
    """What a comparison varies; None if its runs aren't all combinations of the values, the last varying fastest."""
    runs = list(sets.values())
    values = {path: [each for i, each in enumerate(of) if each not in of[:i]]
              for path in runs[0] for of in [[run.get(path) for run in runs]]}  # fmt: skip
    if [list(run.values()) for run in runs] != [list(each) for each in product(*values.values())]:
        return None
    return [
        SliderAxis(path=path, own=None, choices=[
            Choice(label=label, text=flow(value)) for label, value in zip(_labels(of), of, strict=True)
        ])
        for path, of in values.items()
    ]  # fmt: skip


def _labels(values: Sequence[object]) -> list[str]:
    """The names of sections where they differ; else what is written."""
    names = [str(value["name"]) for value in values if isinstance(value, dict) and "name" in value]
    return names if len(set(names)) == len(values) else [flow(value) for value in values]


def _part(run: Run, records: Records) -> RunSliders | None:
    """A run as a cell; None as ``sliders_of_run`` says."""
    stages = {stage: {v.client: v for v in records.verdicts_of(stage)} for stage in records.stages}
    clients = sorted({client for judged in stages.values() for client in judged})
    if not clients or clients != list(range(sum(records.rounds[0].clients.values()))):
        return None
    every = [v for judged in stages.values() for v in judged.values()]
    capped = any((v.bytes_limit, v.joules_limit) != (UNSET, UNSET) for v in every)
    if capped or any(v.clients > 1 for v in every) or len(every) < len(stages) * len(clients):
        return None
    first = next(iter(stages.values()))
    allowed = {name: _client_budgets(stages, name, len(clients)) for name in first[0].costs}
    library = _library(run, first)
    if library is None or any(values is None for values in allowed.values()):
        return None
    owners = (records.settings.fleet.budgets or {}).get("seconds_per_round")
    if owners is not None and any(_of_deadline(records, allowed["seconds"] or [])):
        return None  # what owners grant beyond the deadline isn't known
    return _Made(records, stages, {n: v for n, v in allowed.items() if v is not None}, library).part()


def _client_budgets(stages: Mapping[int, Judged], name: str, clients: int) -> list[float] | None:
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
    """The fleet's devices in their runtime and at their pace, and its links; None if one isn't in the library.

    A report opens no file that a run's folder names: it may come from a stranger, and the file may have changed.
    """
    runtime, drawn = run.scenario["fleet"]["runtime"], run.scenario["fleet"]["uncertainty"]
    seed = run.scenario["seed"] if drawn else None
    names, links = sorted({v.device for v in judged.values()}), sorted({v.link for v in judged.values()})
    if any(isinstance(name, str) and is_file_name(name) for name in (runtime, *names, *links)):
        return None
    try:
        devices = [with_runtime_and_pace(load_device(name), runtime, seed) for name in names]
        return devices, [load_link(name) for name in links]
    except EdgeflError:
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
        self, records: Records, stages: Mapping[int, Judged], allowed: Mapping[str, Sequence[float]],
        library: tuple[Sequence[Device], Sequence[Link]],
    ):  # fmt: skip
        self.records, self.stages, self.allowed = records, stages, allowed
        self.devices, self.links = library
        self.columns = PageColumns()
        judged = next(iter(stages.values()))
        self.clients = [judged[client] for client in range(len(judged))]
        self.kinds = [kind for kind in records.kinds if any(v.kind == kind for v in self.clients)]
        self.device_names, self.link_names = [each.name for each in self.devices], [each.name for each in self.links]
        costs = [[tuple(judged[i].costs[name] for name in allowed) for judged in stages.values()]
                 for i in range(len(self.clients))]  # fmt: skip
        self.spots = list(dict.fromkeys((v.device, v.link, *cost) for v, cost in zip(self.clients, costs, strict=True)))
        at = {spot: i for i, spot in enumerate(self.spots)}
        self.spot = [at[(v.device, v.link, *cost)] for v, cost in zip(self.clients, costs, strict=True)]

    def part(self) -> RunSliders:
        """The run as a cell."""
        fleet = self._fleet()
        turns = [Turn(stage=stage.stage, rounds=stage.rounds, offers=[index])
                 for index, stage in enumerate(self.records.facts.stages)]  # fmt: skip
        offers = [self._offer(index, stage) for index, stage in enumerate(self.stages)]
        pairs = [self.device_names.index(str(device)) * len(self.links) + self.link_names.index(str(link))
                 for device, link, *_ in self.spots]  # fmt: skip
        cell = PricedCell(
            fleet=0, spot=self.columns.add(np.array(self.spot)), group=self.columns.add(np.arange(len(self.spots))),
            pair=self.columns.add(np.array(pairs)), deadline=_deadline(self.records), offers=offers, turns=turns,
        )  # fmt: skip
        taken = {name: [v.costs[name] for judged in self.stages.values() for v in judged.values()]
                 for name in self.allowed}  # fmt: skip
        spans = {name: (min(costs), max(costs)) for name, costs in taken.items()}
        return RunSliders(cell, fleet, spans, self.columns.untold())

    def _fleet(self) -> SliderFleet:
        def indices(names: Sequence[str], of: Sequence[str]) -> str:
            return self.columns.add(np.array([names.index(each) for each in of]))

        return SliderFleet(
            clients=len(self.clients), rows=len(self.clients), counts=self.columns.add(np.ones(len(self.clients), int)),
            kinds=self.kinds, kind=indices(self.kinds, [v.kind for v in self.clients]),
            devices=named_devices(self.devices),
            device=indices(self.device_names, [v.device for v in self.clients]),
            links=named_links(self.links),
            link=indices(self.link_names, [v.link for v in self.clients]),
            samples=self.columns.add(np.array([int(v.samples) for v in self.clients])),
            granted={name: self.columns.add(np.array(self._owner_budgets(name))) for name in self.allowed},
            caps={}, within_device=bool((self.records.settings.fleet.budgets or {}).get("within_device")),
            classes=None,
        )  # fmt: skip

    def _owner_budgets(self, name: str) -> list[float]:
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
            costs={name: [BudgetShare(by="spot", values=values)] for name, values in taken.items()},
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
                parts = to_data(largest.memory_bytes)
                peaks.append(PeakParts(kind=kind, group=self.spot[largest.client], batch=None, parts=parts))
        return peaks
