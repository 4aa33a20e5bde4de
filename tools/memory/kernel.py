"""Find the memory limit at which the kernel kills a client, beside the peak that was predicted for its work.

    python tools/memory.py --kernel

A client's process may take what it has before its work (Python, torch, data, after a step of a tiny model) and a share
of the predicted peak (control groups).  The share is halved in until the limit at which it is killed is known to a
hundredth of the peak.  Each work is tried twice: as it is, and with a C library that returns every tensor of more than
128 KiB to the kernel at once (MALLOC_MMAP_THRESHOLD_); what lies between the two edges is free memory that it keeps.
It needs Linux and root, and takes ten minutes.
"""

from __future__ import annotations

import os
from typing import Any

from edgefl import registry
from edgefl.data import Federation
from edgefl.planning.planner import Plan, Planner
from edgefl.scenario import Scenario, load
from edgefl.setup.compose import compose, federation_of, predictor_of
from edgefl.training import Assignment
from tools.emulation.client_process import Data
from tools.emulation.emulator import EmulatedClient, EmulatedRound, Emulator
from tools.emulation.kernel import check
from tools.emulation.links import Rates

MIB = 1 << 20
LOW, HIGH, STEP = 0.5, 1.5, 0.01
LEAST_BYTES = 256 * MIB
WORKS: dict[str, dict[str, Any]] = {
    "activations (ViT of width 192, batch 128)": {"width": 192, "batch": 128, "samples": 256},
    "parameters (ViT of width 768, batch 4)": {"width": 768, "batch": 4, "samples": 12},
    "both (ViT of width 384, batch 64)": {"width": 384, "batch": 64, "samples": 128},
}


def scenario(width: int, batch: int, samples: int) -> Scenario:
    """One client that trains a ViT of six blocks."""
    return load(
        {
            "name": "memory",
            "seed": 1,
            "data": {"source": "glyphs", "clients": {"image": 1}, "samples": samples},
            "model": {"image": {"blocks": 6, "width": width, "heads": width // 64, "patch": 4}},
            "method": "fedavg",
            "schedule": {"name": "end-to-end", "rounds": 1},
            "training": {"batch": batch, "epochs": 1},
            "executor": {"device": "cpu"},
        }
    )


def flown(federation: Federation, data: Data, plan: Plan, task: Assignment, most: float) -> EmulatedRound:
    """A round of a new client's process whose tensors may take ``most`` bytes."""
    machine = EmulatedClient(0, max(os.sched_getaffinity(0)), 0.95, most, Rates(1e9, 1e9), 0.0)
    with Emulator(federation, data, [machine]) as emulator:
        emulator.submit(task)
        return emulator.fly({0: plan})[0]


def validate() -> None:
    """Print the edge of each work."""
    check()
    for name, options in WORKS.items():
        given = scenario(**options)
        setup = compose(given)
        planner = Planner(setup, predictor_of(given))
        plan = planner.plan(*setup.cell_indices(0), 1, setup.schedule.stage(1), ())
        wire = setup.method.at_start(given.seed).wire(plan.form)
        task = Assignment(plan.form, planner.scalars(plan.kind, 1, plan.stage), wire, 0, given.seed)
        federation = federation_of(given, lambda _: None)
        data = Data(given.data.model_dump_json(), given.seed, given.model.tokens, None, 0.0, registry.for_workers())
        cost = plan.compute
        peak = cost.peak_memory_bytes
        parts = ", ".join(f"{part} {size / MIB:.1f}" for part, size in cost.memory_bytes.items() if size > 0.05 * MIB)
        print(f"{name}: predicted {peak / MIB:.1f} MiB, of which live {cost.live_memory_bytes / MIB:.1f} ({parts})")
        assert peak >= LEAST_BYTES, "below this the runtime's own memory hides the edge"
        for kept in (True, False):
            # processes that are started from here on read it
            os.environ.pop("MALLOC_MMAP_THRESHOLD_", None)
            if not kept:
                os.environ["MALLOC_MMAP_THRESHOLD_"] = str(128 << 10)
            low, high = LOW, HIGH
            while high - low > STEP:
                share = (low + high) / 2
                seen = flown(federation, data, plan, task, share * peak)
                assert (seen.ended_in is None) != seen.killed, seen
                low, high = (share, high) if seen.killed else (low, share)
            library = "as it is" if kept else "that keeps nothing"
            print(
                f"  C library {library}: killed at {low:.1%}, finished at {high:.1%} of the prediction, "
                f"{(high - 1) * peak / MIB:+.1f} MiB"
            )
