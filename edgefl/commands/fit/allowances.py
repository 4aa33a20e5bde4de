"""What a device may use in a round: the owner's budgets, as asked or as the scenario has them, and its own memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from edgefl import units
from edgefl.devices import Device, Link, available_memory_bytes, show_runtime
from edgefl.devices.budgets import BUDGETS, budget_named, field_of
from edgefl.devices.caps import CAPS
from edgefl.devices.options import Mixture, amounts_of, share_of_device
from edgefl.errors import UnitError
from edgefl.planning.eligibility import DEVICE, OWNER
from edgefl.scenario import Scenario


@dataclass(frozen=True)
class Allowance:
    """How much of a budget a round may use (inf: unlimited), where that limit comes from, and whether it is the
    device's or another's word."""

    allowed: float
    source: str
    limit: str = OWNER


def allowances_of(scenario: Scenario, device: Device, link: Link, given: Mapping[str, object]) -> dict[str, Allowance]:
    """The tightest limit of each budget: the given one or else the scenario's, and the device's own memory.

    Those of BUDGETS come first, then the others that are given or that the scenario states.

    The device's memory counts as it does in a run: unless the scenario's ``within_device`` is false.  ``device`` has
    the overhead of the scenario's runtime.  A cap for a day or for all rounds limits each round, one of bytes if the
    ``link`` is capped.  For a budget that clients draw from a range it is the lower end, of a
    mixture the least of its amounts.  Raises UnitError.
    """
    budgets, by_budget = scenario.fleet.budgets, dict[str, list[Allowance]]()
    options = budgets.limits()
    others = {*options, *(name for name, value in given.items() if value is not None)} - {*BUDGETS}
    for name in (*BUDGETS, *sorted(others)):
        field, option = field_of(name), options.get(name)
        limits = by_budget[name] = []
        if (value := given.get(name)) is not None:
            limits.append(Allowance(_read(name, value), "as asked"))
            continue
        stated = [(field, option), *((cap, budgets.caps()[cap]) for cap in CAPS if CAPS[cap].budget == name)]
        stated = [each for each in stated if each[0] == field or name != "bytes" or link.capped]
        for place, amount, part, drawn in ((n, *each, limit) for n, limit in stated for each in amounts_of(limit)):
            whose = f" ({units.show_share(part) if isinstance(part, float) else part} of the clients)"
            source = f"fleet.budgets.{place}{whose if isinstance(drawn, Mixture) else ''}"
            if isinstance(amount, str):
                share = share_of_device(amount)[0]
                available = max(share * device.ram_bytes - device.runtime_overhead_bytes, 0)
                limits.append(Allowance(float(int(available)), f"{source}: {units.show_share(share)} of device"))
            else:
                limits.append(Allowance(float(amount[0]), source))
        if name == "seconds" and scenario.round.deadline is not None:
            limits.append(Allowance(float(scenario.round.deadline), "round.deadline"))
    if budgets.within_device:
        source = (
            f"{device.name}: {units.show_bytes(device.usable_memory_bytes)} less "
            f"{units.show_bytes(device.runtime_overhead_bytes)} for {show_runtime(scenario.fleet.runtime)}"
        )
        by_budget["memory"].append(Allowance(float(available_memory_bytes(device)), source, DEVICE))
    return {
        # of equal limits the first, which is the owner's
        name: min(limits, key=lambda allowance: allowance.allowed) if limits else Allowance(inf, "unlimited")
        for name, limits in by_budget.items()
    }


def _read(name: str, value: object) -> float:
    try:
        number = budget_named(name).quantity.parse(value)
    except UnitError as error:
        raise UnitError(f"{name}: {error}") from None
    if not number:
        raise UnitError(f"{name}: a budget must be positive, not {value}; leave it out to take the scenario's")
    return float(number)
