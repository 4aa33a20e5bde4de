"""The smallest device of the library that can take part in a stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgefl.commands.compose import commonest_link
from edgefl.commands.sweep.workload import LEFT_OUT, Booleans, Judged, Workload, counts_of
from edgefl.devices import (
    PYTORCH,
    Device,
    RuntimeChoice,
    device_names,
    free_memory_bytes,
    load_device,
    with_runtime,
)
from edgefl.devices.budgets import BUDGETS

Library = Sequence[Device]
"""Devices by the memory that is available to tensors, smallest first."""


def library() -> Library:
    """All devices of the library with PyTorch, the smallest first."""
    return with_runtimes([load_device(name) for name in device_names()], PYTORCH)


def with_runtimes(devices: Library, runtime: RuntimeChoice) -> Library:
    """These devices with this runtime, the smallest first."""
    return sorted(
        (with_runtime(device, runtime) for device in devices),
        key=lambda device: (free_memory_bytes(device), device.name),
    )


def smallest_device(workload: Workload, judged: Judged, clients: Booleans, devices: Library) -> dict[str, Any] | None:
    """The smallest device on which each of these clients could do its round of this stage, with its margins.

    The largest of their works must fit the device's own memory, the round's deadline and the tightest budgets among
    them of what depends on the device (seconds, joules, power, ...), over the fleet's most common link.  Memory budgets
    don't count: they are what the clients' owners grant and their devices have.  ``device`` is None if no device of the
    library is large enough; ``smaller`` is the next smaller device and the limit that it exceeds.  Returns None for
    clients that the method leaves out.
    """
    members = clients & (judged.work != LEFT_OUT)
    if not members.any():
        return None
    works = np.flatnonzero(counts_of(judged.work[members], workload))
    setup = workload.setup
    link = commonest_link(setup.fleet)
    peak = int(workload.table["memory"][works].max())
    allowed = setup.budgets(np.flatnonzero(members))
    others = [name for name in allowed if name not in BUDGETS]
    limits = {name: float(allowed[name].min()) for name in ("seconds", "joules", *others)}
    smaller: dict[str, Any] | None = None
    for device in devices:
        margin = free_memory_bytes(device) - peak
        if margin < 0:
            smaller = {"device": device.name, "refused_by": "memory", "short_by_bytes": -margin}
            continue
        costs = workload.prices.on([(device, link)], setup.fleet.throttling).costs
        spent = {name: float(costs[name][0, works].max()) for name in limits}
        if over := next((name for name in limits if spent[name] > limits[name]), None):
            name = f"short_by_{over}" if over in BUDGETS else "short_by"
            smaller = {"device": device.name, "refused_by": over, name: spent[over] - limits[over]}
            continue
        return {
            "device": device.name,
            "link": link.name,
            "peak_memory_bytes": peak,
            "available_memory_bytes": free_memory_bytes(device),
            "memory_margin_bytes": margin,
            "round_seconds": spent["seconds"],
            "seconds_margin": limits["seconds"] - spent["seconds"],
            "energy_joules": spent["joules"],
            "joules_margin": limits["joules"] - spent["joules"],
            **({"margins": {name: limits[name] - spent[name] for name in others}} if others else {}),
            "smaller": smaller,
        }
    return {"device": None, "link": link.name, "peak_memory_bytes": peak, "smaller": smaller}
