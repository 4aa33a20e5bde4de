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
from edgefl.planning import Prices

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


def smallest_device(
    workload: Workload, judged: Judged, clients: Booleans, devices: Library, prices: Prices
) -> dict[str, Any] | None:
    """The smallest device on which each of these clients could do its round of this stage, with its margins.

    The largest of their works must fit the device's own memory, the round's deadline and the tightest budgets of
    seconds and joules among them, over the fleet's most common link.  Memory budgets don't count: they are what
    the clients' owners grant and their devices have.  ``device`` is None if no device of the library is large enough;
    ``smaller`` is the next smaller device and the limit that it exceeds.  Returns None for clients that the method
    leaves out.
    """
    members = clients & (judged.work != LEFT_OUT)
    if not members.any():
        return None
    works = np.flatnonzero(counts_of(judged.work[members], workload))
    setup = workload.setup
    link = commonest_link(setup.fleet)
    peak = int(workload.table["memory"][works].max())
    allowed = setup.budgets(np.flatnonzero(members))
    limits = {name: float(allowed[name].min()) for name in ("seconds", "joules")}
    smaller: dict[str, Any] | None = None
    for device in devices:
        margin = free_memory_bytes(device) - peak
        if margin < 0:
            smaller = {"device": device.name, "refused_by": "memory", "short_by_bytes": -margin}
            continue
        costs = prices.on([(device, link)], setup.fleet.throttling).costs
        seconds, joules = (float(costs[name][0, works].max()) for name in ("seconds", "joules"))
        if seconds > limits["seconds"]:
            smaller = {"device": device.name, "refused_by": "seconds", "short_by_seconds": seconds - limits["seconds"]}
            continue
        if joules > limits["joules"]:
            smaller = {"device": device.name, "refused_by": "joules", "short_by_joules": joules - limits["joules"]}
            continue
        return {
            "device": device.name,
            "link": link.name,
            "peak_memory_bytes": peak,
            "available_memory_bytes": free_memory_bytes(device),
            "memory_margin_bytes": margin,
            "round_seconds": seconds,
            "seconds_margin": limits["seconds"] - seconds,
            "energy_joules": joules,
            "joules_margin": limits["joules"] - joules,
            "smaller": smaller,
        }
    return {"device": None, "link": link.name, "peak_memory_bytes": peak, "smaller": smaller}
