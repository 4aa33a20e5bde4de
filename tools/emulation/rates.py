"""Rates of this machine, from works of the scenario itself: three factors fitted to the CPU seconds of all of them.

Microbenchmarks time operators alone.  A step of a small model takes up to twice as long: it makes its batch, and
Python's part of an operator depends on the operator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgefl import seeds
from edgefl.arrays import Floats
from edgefl.data import Federation
from edgefl.devices import Device
from edgefl.machine.fitted_rates import TimedStep, nearest
from edgefl.planning.planner import Plan, Planner, WorkKey
from edgefl.planning.setup import Setup
from edgefl.training import Assignment, Inline

TIMES = 3
"""How often a work is timed; its median counts.  A run before them isn't timed, as it takes first-time costs.

The fewest of which a median drops one that was disturbed.
"""
HOLD = 0.03
"""Weight of a factor's log: a few works alone could be made by any of the three factors.

A choice, not measured: a larger one leaves the rates nearer to those of the calibration by operators.
"""


@dataclass(frozen=True)
class TimedWork(TimedStep):
    """A work as an assignment, its operators, and its CPU seconds on a core of this machine."""

    assignment: Assignment


def timed_works(
    setup: Setup, planner: Planner, clients: Sequence[int], federation: Federation, on_message: Callable[[str], None]
) -> dict[WorkKey, TimedWork]:
    """The work of each variant at each stage, timed in this process; its client with the most samples trains it."""
    state = setup.method.at_start(setup.seed)
    inline = Inline(federation, "cpu")
    works: dict[WorkKey, TimedWork] = {}
    for kind, variant in setup.variants:
        own = (kind, variant)
        members = [client for client in clients if (setup.kind_of(client), setup.variant_of(client)) == own]
        if not members:
            continue
        client = max(members, key=lambda each: int(setup.clients.client_samples[each]))
        for number, stage in enumerate(setup.schedule.stages):
            round = 1 + sum(each.rounds for each in setup.schedule.stages[:number])
            if not setup.participates(kind, round):
                continue
            on_message(f"timing the work of {kind} clients at stage {stage.index}")
            plan: Plan = planner.plan(*setup.cell_indices(client), round, stage, ())
            seed = seeds.key(setup.seed, "training", client, 0)
            assignment = Assignment(
                plan.form, planner.scalars(kind, round, stage, variant),
                state.wire(plan.form, frozenset(plan.form.keep)), client, seed,
            )  # fmt: skip
            seconds = []
            for _ in range(TIMES + 1):
                began = time.process_time()
                inline.submit(assignment).result()
                seconds.append(time.process_time() - began)
            works[kind, variant, stage.index] = TimedWork(
                plan.compute.operators, float(np.median(seconds[1:])), assignment
            )
    return works


def fit_device(here: Device, works: Sequence[TimedStep]) -> Device:
    """The device with its rate, bandwidth and fixed times multiplied so that they make the seconds of these works.

    What works leave open stays as it is ``here``, and so do the shares of the classes of operators.
    """

    def scale_device(factors: Floats) -> Device:
        rate, bandwidth, fixed = factors.tolist()
        return replace(
            here,
            flops_per_second=here.flops_per_second * rate,
            peak_flops_per_second=here.peak_flops_per_second * max(rate, 1.0),
            memory_bytes_per_second=here.memory_bytes_per_second * bandwidth,
            seconds_per_operator=here.seconds_per_operator * fixed,
        )

    return nearest(scale_device, np.ones(3), works, hold=HOLD)
