"""The price of rounds: what their cost is on a device and a link, in seconds and joules too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgefl.arrays import AnyArray
from edgefl.cost.client_cost import ComputeCost, Traffic
from edgefl.cost.phases import Phases, numbers_of
from edgefl.devices import Device, Link, Price


def price_rounds(
    costs: Sequence[tuple[ComputeCost, Traffic]], device: Device, link: Link, *, throttling: bool = False
) -> Price:
    """The price of rounds without jitter; a client downloads, reads its model from storage, computes and uploads.

    With ``throttling``, a device that is busy for long continues at its throttled rate.
    """
    amounts = amounts_of(costs)
    cool, busy = np.array([compute.cool(device) for compute, _ in costs]).T
    exchanges = [compute.exchange for compute, _ in costs]
    numbers = numbers_of(amounts["download_bytes"], amounts["upload_bytes"], cool, device, link, busy, exchanges)
    return price_phases(Phases(numbers, throttling), amounts, device, link)


def price_phases(phases: Phases, amounts: Mapping[str, AnyArray], device: Device, link: Link) -> Price:
    """The price of rounds with these phases; ``amounts`` are those of ``amounts_of``."""
    down, busy, up = phases.seconds
    return Price(
        device, link, **amounts, download_seconds=down, compute_seconds=busy, upload_seconds=up,
        energy_joules=phases.energy_joules, peak_watts=phases.peak_watts,
    )  # fmt: skip


def amounts_of(costs: Sequence[tuple[ComputeCost, Traffic]]) -> dict[str, AnyArray]:
    """What no device changes of rounds that compute and move this, as fields of ``Price``: `[rounds]` each."""
    return {
        "peak_memory_bytes": np.array([compute.peak_memory_bytes for compute, _ in costs]),
        "tensor_bytes": np.array([compute.tensor_bytes for compute, _ in costs]),
        "loaded_bytes": np.array([compute.loaded_bytes for compute, _ in costs]),
        "forward_flops": np.array([compute.forward_flops for compute, _ in costs]),
        "backward_flops": np.array([compute.backward_flops for compute, _ in costs]),
        "download_bytes": np.array([moved.serialised_download_bytes for _, moved in costs]),
        "upload_bytes": np.array([moved.serialised_upload_bytes for _, moved in costs]),
    }
