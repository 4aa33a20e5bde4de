"""Cost of a client's round: its device-independent demand, and its cost on one device over one link."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgefl.cost import ClientCost, ComputeCost, Traffic, duration, traffic
from edgefl.devices import Device, Link
from edgefl.work import Form, Payload

NO_COMPUTE = ComputeCost(0, {}, 0, 0, 0.0, np.empty((0, 3)))
"""The cost of a client that computes nothing."""
NO_TRAFFIC = traffic((), ())
"""The traffic of a client that sends and receives nothing."""


def client_cost(
    compute: ComputeCost, moved: Traffic, device: Device, link: Link, *, throttling: bool = False
) -> ClientCost:
    """Cost of this computation and traffic on a device and over a link, without jitter.

    With ``throttling`` a device that has been busy for a while slows down (``edgefl.cost.duration``).
    """
    return ClientCost(compute, moved, duration(compute, moved, device, link, throttling=throttling), device, link)


@dataclass(frozen=True)
class Demand:
    """Device-independent demand of a client's round (``Planner.demand``).

    ``form`` is fitted to the client's samples, ``key`` is its cost key, and ``down`` has the downloaded payloads.
    """

    form: Form
    key: str
    compute: ComputeCost
    down: tuple[Payload, ...]
    traffic: Traffic

    def on(self, device: Device, link: Link, *, throttling: bool = False) -> ClientCost:
        """Cost of this demand on a device and over a link (``client_cost``)."""
        return client_cost(self.compute, self.traffic, device, link, throttling=throttling)
