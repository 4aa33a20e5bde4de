"""The smallest device of the library that can take part in a stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgefl.commands.compose import commonest_link
from edgefl.commands.sweep.workload import LEFT_OUT, Booleans, Judged, Prices, Workload, counts_of
from edgefl.devices import Device, device_names, load_device

Library = Sequence[Device]
"""Devices by the memory that they could give to tensors, smallest first."""


def available_memory_bytes(one: Device) -> int:
    """What a device could give to tensors at most: usable memory less its runtime's overhead; below 0 if that lacks."""
    return one.usable_memory_bytes - one.runtime_overhead_bytes


def library() -> Library:
    """All devices, the smallest first."""
    return sorted(map(load_device, device_names()), key=lambda one: (available_memory_bytes(one), one.name))


def smallest_device(
    workload: Workload, judged: Judged, clients: Booleans, devices: Library, prices: Prices
) -> dict[str, Any] | None:
    """The smallest device on which every one of these clients could do its round of this stage, with its margins.

    What decides is the largest of their works against the device's own memory, then against the round's deadline and
    the tightest budgets of seconds and joules among them, over the fleet's most common link; no budget of memory, which
    is what an owner allows and not what a device has.  ``device`` is None if none of the library will do; ``smaller``
    is the next smaller one and what refuses it.  None for clients that the method leaves out.
    """
    mine = clients & (judged.work != LEFT_OUT)
    if not mine.any():
        return None
    works = np.flatnonzero(counts_of(judged.work[mine], workload))
    setup = workload.setup
    link = commonest_link(setup.fleet)
    peak = int(workload.table["memory"][works].max())
    limits = {name: float(setup.fleet.budgets[name][mine].min()) for name in ("seconds", "joules")}
    if setup.round.deadline is not None:
        limits["seconds"] = min(limits["seconds"], setup.round.deadline)
    smaller: dict[str, Any] | None = None
    for one in devices:
        margin = available_memory_bytes(one) - peak
        if margin < 0:
            smaller = {"device": one.name, "refused_by": "memory", "short_by_bytes": -margin}
            continue
        seconds, joules = (float(values[works].max()) for values in prices.spent(one, link, setup.fleet.throttling))
        if seconds > limits["seconds"]:
            smaller = {"device": one.name, "refused_by": "seconds", "short_by_seconds": seconds - limits["seconds"]}
            continue
        if joules > limits["joules"]:
            smaller = {"device": one.name, "refused_by": "joules", "short_by_joules": joules - limits["joules"]}
            continue
        return {
            "device": one.name,
            "link": link.name,
            "peak_memory_bytes": peak,
            "available_memory_bytes": available_memory_bytes(one),
            "memory_margin_bytes": margin,
            "round_seconds": seconds,
            "seconds_margin": limits["seconds"] - seconds,
            "energy_joules": joules,
            "joules_margin": limits["joules"] - joules,
            "smaller": smaller,
        }
    return {"device": None, "link": link.name, "peak_memory_bytes": peak, "smaller": smaller}
