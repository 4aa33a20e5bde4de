"""A cell as the page has it: its fleet, what clients are offered, and what that costs on their devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from edgefl.arrays import Floats, Integers
from edgefl.commands.sweep.page.shared_rows import Needed, are_many
from edgefl.cost.phases import joules_of
from edgefl.devices.fleet import draw_budgets
from edgefl.drawing.sliders.page_columns import PageColumns
from edgefl.drawing.sliders.page_data import (
    BudgetShare,
    HeldClasses,
    Offer,
    PeakParts,
    Place,
    PricedCell,
    SliderFleet,
    Turn,
)
from edgefl.drawing.sliders.words import named_devices, named_links
from edgefl.planning.coverage import DataCoverage
from edgefl.planning.setup import Setup
from edgefl.planning.workload import LEFT_OUT, Workload
from edgefl.records.record import UNSET
from edgefl.scenario import Scenario


class BudgetRange(NamedTuple):
    """What the cheapest and the most expensive client take of a budget."""

    least: float
    most: float

    def with_(self, other: BudgetRange) -> BudgetRange:
        """The span of both."""
        return BudgetRange(min(self.least, other.least), max(self.most, other.most))


class SliderCellAnswer(NamedTuple):
    """A cell and its fleet, whose index it doesn't know yet.

    ``needed`` has what its offers take of each budget, if the fleet is so large that clients share rows.
    """

    cell: PricedCell
    fleet: SliderFleet
    spans: Mapping[str, BudgetRange]
    needed: list[Needed]


def priced_cell(scenario: Scenario, workload: Workload, columns: PageColumns) -> SliderCellAnswer:
    """The cell of a scenario; ``columns`` get its numbers."""
    setup = workload.setup
    fleet, pairs = setup.fleet, len(setup.fleet.pairs)
    spots, spot = np.unique(setup.client_group.astype(np.int64) * pairs + fleet.pair_index, return_inverse=True)
    group, pair = spots // pairs, spots % pairs
    costs = _Costs(workload, group, pair, columns)
    place, needed = columns.add(spot), list[Needed]()
    # stages share arrays of works, which ``workload`` holds: an id isn't given again, and no array is compared
    offers: dict[int, int] = {}
    made, spans, turns = list[Offer](), dict[str, BudgetRange](), list[Turn]()
    for stage, offered in zip(workload.stages, workload.candidates, strict=True):
        for index, works in offered.items():
            if id(works) not in offers:
                offers[id(works)] = len(made)
                made.append(_offer(workload, index, works, costs, columns))
                for name, span in costs.spans(works).items():
                    spans[name] = span.with_(spans.get(name, span))
                if are_many(len(spot)):
                    needed += [Needed(name, place, taken) for name, taken in costs.by_spot(works).items()]
        turns.append(
            Turn(stage=stage.index, rounds=stage.rounds, offers=[offers[id(works)] for works in offered.values()])
        )
    cell = PricedCell(
        fleet=0,
        spot=place,
        group=columns.add(group),
        pair=columns.add(pair),
        deadline=setup.round.deadline,
        offers=made,
        turns=turns,
    )
    return SliderCellAnswer(cell, fleet_rows(scenario, setup, columns), spans, needed)


class _Costs:
    """What the works of a cell cost, as terms that are added up."""

    def __init__(self, workload: Workload, group: Integers, pair: Integers, columns: PageColumns):
        self.group, self.pair, self.columns = group, pair, columns
        fleet = workload.setup.fleet
        self.devices, self.links = len(fleet.devices), len(fleet.links)
        self.prices = workload.prices.on(fleet.pairs, fleet.throttling).costs
        phases = [workload.prices.phases(device, link, fleet.throttling) for device, link in fleet.pairs]
        by_phase = {
            "seconds": [each.seconds for each in phases],
            "joules": [joules_of(each.seconds, each.watts) for each in phases],
        }
        self.phases = {name: np.stack([np.stack(three) for three in each], axis=1) for name, each in by_phase.items()}
        """Download, computing and upload: `[3, pairs, works]`."""
        moved = [(demand.traffic.serialised_download_bytes, demand.traffic.serialised_upload_bytes)
                 for demand in workload.demands]  # fmt: skip
        self.transfer_of = np.unique(np.array(moved).reshape(-1, 2), axis=0, return_inverse=True)[1].ravel()

    def transfers(self, works: Integers) -> tuple[Integers, Integers]:
        """Index of each group's transfer, 0 for those that take no part, and a work that has each transfer."""
        taken = works[works != LEFT_OUT]
        first, index = np.unique(self.transfer_of[taken], return_index=True, return_inverse=True)[1:]
        of_groups = np.zeros(len(works), np.int64)
        of_groups[works != LEFT_OUT] = index
        return of_groups, taken[first]

    def by_group(self, works: Integers, values: Floats) -> Place:
        """A number of each work as one of each group."""
        return self.columns.add(_take_works(works, values))

    def terms(self, works: Integers, name: str) -> list[BudgetShare]:
        """What the groups with these works take of a budget."""
        prices = self.prices[name]
        if (alone := _take_works(works, prices)).shape[0] == 0 or (alone == alone[:1]).all():
            return [BudgetShare(by="group", values=self.columns.add(alone[:1]))]
        here = alone[self.pair, self.group]
        if name in self.phases:
            found, total = self._phases(works, *self.phases[name])
            if np.array_equal(total, here):
                return found
        return [BudgetShare(by="spot", values=self.columns.add(here))]

    def _phases(self, works: Integers, down: Floats, busy: Floats, up: Floats) -> tuple[list[BudgetShare], Floats]:
        """The terms of download, computing and upload, and their sum for each spot."""
        transfer, first = self.transfers(works)
        moved = [each[:, first].T for each in (down, up)]  # [transfers, pairs]
        computed = _take_works(works, busy)  # [pairs, groups]
        there, here = (transfer[self.group], self.pair), computed[self.pair, self.group]
        total = np.where(works[self.group] != LEFT_OUT, (moved[0][there] + here) + moved[1][there], 0)
        add, on_devices = self.columns.add, computed[:: self.links]
        if np.array_equal(computed, on_devices.repeat(self.links, axis=0)):
            computing = BudgetShare(by="device", values=add(on_devices.T))
        else:  # halves of a split model exchange over the link
            computing = BudgetShare(by="spot", values=add(here))
        return [BudgetShare(by="pair", values=add(moved[0])), computing,
                BudgetShare(by="pair", values=add(moved[1]))], total  # fmt: skip

    def by_spot(self, works: Integers) -> dict[str, Floats]:
        """What each spot takes of each budget, 0 for groups that take no part: `[spots]`."""
        return {name: _take_works(works, prices)[self.pair, self.group] for name, prices in self.prices.items()}

    def spans(self, works: Integers) -> dict[str, BudgetRange]:
        """What spots take of each budget, but for groups that take no part; empty if all are."""
        some = works[self.group] != LEFT_OUT
        if not some.any():
            return {}
        taken = {name: values[some] for name, values in self.by_spot(works).items()}
        return {name: BudgetRange(float(values.min()), float(values.max())) for name, values in taken.items()}


def _take_works(works: Integers, values: Floats) -> Floats:
    """Numbers of these works, of the last axis of ``values``; 0 where there is none."""
    found = np.zeros((*values.shape[:-1], len(works)))
    some = works != LEFT_OUT
    found[..., some] = values[..., works[some]]
    return found


def _offer(workload: Workload, index: int, works: Integers, costs: _Costs, columns: PageColumns) -> Offer:
    setup, peaks = workload.setup, list[PeakParts]()
    kinds = np.asarray(setup.clients.client_kind)[setup.representative]
    memory = _take_works(works, workload.table["memory"])
    for kind in range(len(setup.clients.kinds)):
        members = np.flatnonzero((works != LEFT_OUT) & (kinds == kind))
        if not len(members):
            continue
        largest = int(members[np.argmax(memory[members])])
        demand = workload.demands[int(works[largest])]
        batch = next((each.batch for each in demand.form.passes if each.train), None)
        peaks.append(PeakParts(kind=kind, group=largest, batch=batch, parts=dict(demand.compute.memory_bytes)))
    return Offer(
        stage=index,
        part=setup.schedule.offered[index - 1].label or UNSET,
        takes_part=columns.add(works != LEFT_OUT),
        transfer=columns.add(costs.transfers(works)[0]),
        costs={name: costs.terms(works, name) for name in setup.fleet.budget_names},
        download_bytes=costs.by_group(works, workload.table["download_bytes"]),
        upload_bytes=costs.by_group(works, workload.table["upload_bytes"]),
        peaks=peaks,
    )


def fleet_rows(scenario: Scenario, setup: Setup, columns: PageColumns) -> SliderFleet:
    """The fleet of a scenario, with a row for each client."""
    fleet, clients, budgets = setup.fleet, setup.clients, scenario.fleet.budgets
    unlimited = budgets.model_copy(update={"within_device": False})
    granted, _ = draw_budgets(unlimited, fleet.devices, fleet.device_index, setup.seed)
    data = DataCoverage.from_setup(setup)
    held: HeldClasses | None = None
    if data.classes is not None and data.classes.shape[1]:
        bits = np.packbits(data.classes > 0, axis=1, bitorder="little")
        held = HeldClasses(names=list(data.names), width=bits.shape[1], held=columns.add(bits))
    return SliderFleet(
        clients=len(fleet),
        rows=len(fleet),
        counts=columns.add(np.ones(len(fleet), np.uint8)),
        kinds=list(clients.kinds),
        kind=columns.add(np.asarray(clients.client_kind)),
        devices=named_devices(fleet.devices),
        device=columns.add(fleet.device_index),
        links=named_links(fleet.links),
        link=columns.add(fleet.link_index),
        samples=columns.add(np.asarray(clients.client_samples)),
        granted={name: columns.add(granted[name]) for name in fleet.budget_names},
        caps={name: columns.add(cap) for name, cap in (fleet.caps.amounts if fleet.caps else {}).items()},
        within_device=budgets.within_device,
        classes=held,
    )
