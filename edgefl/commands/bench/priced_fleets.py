"""The fleets of a suite, and on each the variants' cells: what a run depends on, and who can train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple

from edgefl.commands.bench.admissions import Level, Works, content_of, levels_of, works_of
from edgefl.devices import Fleet
from edgefl.devices.budgets import budget_named
from edgefl.runs.progress import OnProgress, messages
from edgefl.scenario import Scenario
from edgefl.scenario.labels import folder_name
from edgefl.scenario.scenario import with_fields
from edgefl.scenario.suite import Suite, Variant
from edgefl.setup.compose import compose, predictor_of
from edgefl.units import show_share


class BenchCell(NamedTuple):
    """A variant on a fleet with a seed: its scenario, what its run depends on, and who can train."""

    variant: str
    seed: int
    scenario: Scenario
    key: str
    eligible_share: float

    @property
    def run(self) -> str:
        """The folder of its run, which cells with the same key share."""
        return run_folder(self.variant, self.key)


def run_folder(variant: str, key: str) -> str:
    """The name of a folder: the variant, and what tells its runs apart."""
    return f"{folder_name(variant)}-{key[:10]}"


@dataclass(frozen=True)
class FleetCells:
    """A fleet or a condition, and its cells by variant, one for each seed."""

    name: str
    cells: Mapping[str, Sequence[BenchCell]]
    small: float | None = None
    level: Level | None = None


REFERENCES = "references"
"""The name of the cells that no fleet limits."""


def reference_cells(suite: Suite) -> FleetCells:
    """A cell for each reference of a suite and each seed: the suite's scenario under that method."""
    cells: dict[str, list[BenchCell]] = {}
    for index, name in enumerate(suite.options.references):
        scenario = with_fields(suite.base, {"method": name}, suite.document, (REFERENCES, index))
        seeds = (replace(scenario, seed=seed) for seed in suite.seeds)
        cells[name] = [BenchCell(name, each.seed, each, content_of(each, None), 1.0) for each in seeds]
    return FleetCells(REFERENCES, cells)


# --- fleets ----------------------------------------------------------------------------------------------------------


def price_fleets(
    suite: Suite, variants: Sequence[Variant], on_progress: OnProgress
) -> tuple[list[FleetCells], dict[str, list[float]]]:
    """The fleets with their cells, and by variant the amounts of the budget from which a client can do more."""
    on_message, budget = messages(on_progress), suite.options.budget
    runnable = [variant for variant in variants if variant.refused is None]

    def price(scenario: Scenario) -> Works:
        return works_of(scenario, compose(scenario, on_message), predictor_of(scenario), budget)

    if budget is None:

        def under_condition(_: str, scenario: Scenario) -> tuple[Works, Fleet]:
            works = price(scenario)
            return works, works.setup.fleet

        conditions = suite.options.conditions or {suite.name: {}}
        return [FleetCells(name, _cells(suite, runnable, "conditions", fields, under_condition))
                for name, fields in conditions.items()], {}  # fmt: skip
    works = {
        (variant.name, seed): price(replace(variant.scenario, seed=seed))
        for seed in suite.seeds
        for variant in runnable
    }

    def on_fleet(variant: str, scenario: Scenario) -> tuple[Works, Fleet]:
        of = works[variant, scenario.seed]
        return of, Fleet.draw(scenario.fleet, len(of.setup.client_group), scenario.seed)

    needs = {
        variant.name: sorted({amount for seed in suite.seeds for amount in works[variant.name, seed].needs})
        for variant in runnable
    }
    fleets: list[FleetCells] = []
    for share in suite.options.small:
        for level in levels_of(needs, budget, suite.options.at):
            label = fleet_label(budget, share, level)
            cells = _cells(suite, runnable, "budget", suite.budget_fields(share, level.amount), on_fleet)
            before = fleets[-1] if fleets else None
            if (
                before is not None
                and before.small == share
                and not suite.options.at
                and _has_same_cells(before.cells, cells)
            ):
                assert before.level is not None
                wider = Level(before.level.low, level.high, before.level.amount)
                fleets[-1] = replace(before, name=fleet_label(budget, share, wider), level=wider)
                continue
            if any(cell.eligible_share for of_variant in cells.values() for cell in of_variant):
                fleets.append(FleetCells(label, cells, share, level))
    if not fleets:
        least = min((amount for amounts in needs.values() for amount in amounts), default=inf)
        show = budget_named(budget).quantity.show
        raise suite.document.error(
            ("at",),
            f"no client can train any variant with so little {budget}: the least that a work takes is {show(least)}",
        )
    return fleets, needs


def fleet_label(budget: str, share: float, level: Level) -> str:
    """A fleet's name: ``70 % below 6.1 MiB``."""
    show = budget_named(budget).quantity.show
    if level.low == level.high:
        return f"{show_share(share)} at {show(level.amount)}"
    if level.high == inf:
        return f"{show_share(share)} at {show(level.low)} and more"
    if not level.low:
        return f"{show_share(share)} below {show(level.high)}"
    return f"{show_share(share)} at {show(level.low)} to {show(level.high)}"


def _has_same_cells(first: Mapping[str, Sequence[BenchCell]], second: Mapping[str, Sequence[BenchCell]]) -> bool:
    return all(a.key == b.key for name in first for a, b in zip(first[name], second[name], strict=True))


def _cells(
    suite: Suite,
    variants: Sequence[Variant],
    section: str,
    fields: Mapping[str, Any],
    priced: Callable[[str, Scenario], tuple[Works, Fleet]],
) -> dict[str, list[BenchCell]]:
    """The cells by variant with these fields of the suite's ``section``, one for each seed.

    ``priced`` has the works and the fleet of a variant's scenario.
    """
    cells: dict[str, list[BenchCell]] = {}
    for variant in variants:
        there = suite.with_fields(variant.scenario, section, fields)
        cells[variant.name] = []
        for seed in suite.seeds:
            scenario = replace(there, seed=seed)
            works, fleet = priced(variant.name, scenario)
            cells[variant.name].append(BenchCell(variant.name, seed, scenario, works.key(fleet), works.eligible(fleet)))
    return cells
