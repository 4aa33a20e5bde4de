"""Rates of this machine, from works of the scenario itself: three numbers fitted to the CPU seconds of all of them.

Microbenchmarks time operators alone.  A step of a small model takes up to twice as long: it makes its batch, and
Python's part of an operator depends on the operator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from edgefl import seeds
from edgefl.data import Federation
from edgefl.devices import Device
from edgefl.planning import Plan, Planner, Setup, WorkKey
from edgefl.training import Inline, Task

TIMES = 3
"""How often a work is timed; its median counts.  A run before them isn't timed."""
_FITTED = ("flops_per_second", "memory_bytes_per_second", "seconds_per_operator")


@dataclass(frozen=True)
class Timed:
    """A work as a task, its operators (``ComputeCost.operators``), and its CPU seconds on a core of this machine."""

    task: Task
    operators: NDArray[np.float64]
    cpu_seconds: float


def timed_works(
    setup: Setup, planner: Planner, clients: Sequence[int], federation: Federation, on_message: Callable[[str], None]
) -> dict[WorkKey, Timed]:
    """The work of each variant at each stage, timed in this process; its client with the most samples trains it."""
    state = setup.method.at_start(setup.seed)
    inline = Inline(federation, "cpu")
    works: dict[WorkKey, Timed] = {}
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
            plan: Plan = planner.plan(*setup.place(client), round, stage, ())
            seed = seeds.key(setup.seed, "training", client, 0)
            task = Task(
                plan.form, planner.scalars(kind, round, stage, variant),
                state.wire(plan.form, frozenset(plan.form.keep)), client, seed,
            )  # fmt: skip
            seconds = []
            for _ in range(TIMES + 1):
                began = time.process_time()
                inline.submit(task).result()
                seconds.append(time.process_time() - began)
            works[kind, variant, stage.index] = Timed(task, plan.cost.compute.operators, float(np.median(seconds[1:])))
    return works


def fitted(here: Device, works: Sequence[Timed]) -> Device:
    """The device with the rates whose predictions have the least squared log errors on these works.

    Where works leave a rate open it stays near that of ``here``.
    """
    start = torch.tensor([np.log(getattr(here, name)) for name in _FITTED], dtype=torch.float64)
    x = start.clone().requires_grad_()
    tables = [torch.as_tensor(each.operators) for each in works]
    measured = torch.tensor([each.cpu_seconds for each in works], dtype=torch.float64)
    fit = torch.optim.LBFGS([x], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        fit.zero_grad()
        flops, bytes_, overhead = x.exp()
        seconds = torch.stack(
            [((torch.maximum(t[:, 0] / flops, t[:, 1] / bytes_) + overhead) * t[:, 2]).sum() for t in tables]
        )
        off = ((seconds / measured).log() ** 2).mean() + 1e-6 * ((x - start) ** 2).sum()
        off.backward()
        return off

    fit.step(loss)
    values = dict(zip(_FITTED, x.detach().exp().tolist(), strict=True))
    return replace(here, **values, peak_flops_per_second=max(here.peak_flops_per_second, values["flops_per_second"]))
