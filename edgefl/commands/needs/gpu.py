"""What the works of a run need of a GPU's memory, as predicted, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from edgefl.commands.compose import predictor_of
from edgefl.cost import Predictor
from edgefl.planning import Planner, Setup
from edgefl.scenario import Scenario
from edgefl.training import Executor, Processes
from edgefl.training.packing import Memory
from edgefl.training.pools import Packing
from edgefl.work.torch_device import device_of


def peaks_of(planner: Planner, together: int = 1) -> dict[str, int]:
    """Predicted peak bytes, kernels' scratch included, of each kind's largest client at each stage, and of evaluations.

    ``together`` clients train at once (``training.stack``).  A work of a method that changes later isn't among them,
    nor is one of the server's beside evaluations: executors learn of those when they come.
    """
    setup, peaks = planner.setup, dict[str, int]()
    schedule, samples = setup.schedule, np.asarray(setup.clients.client_samples)
    for first in accumulate((stage.rounds for stage in schedule.stages[:-1]), initial=1):
        if first > schedule.rounds:
            break
        staged = schedule.offered is schedule.stages
        for stage in (schedule.stage(first),) if staged else schedule.offered:
            for kind, variant in setup.variants:
                members = setup.of_variant(kind, variant)
                if not len(members) or not setup.participates(kind, first):
                    continue
                largest = int(members[int(samples[members].argmax())])
                _, _, cost = planner.compute(*planner.work(kind, first, stage, variant), largest)
                what = f"the work of kind {kind!r} at stage {stage.index}"
                peaks[what] = max(peaks.get(what, 0), cost.peak_memory_bytes * together)
        for split in {setup.evaluation.split, setup.evaluation.final}:
            for work, _ in setup.evaluations(split, schedule.stage(first)):
                what = f"the evaluation of kind {work.kind!r}"
                peaks[what] = max(peaks.get(what, 0), planner.server(work)[1].peak_memory_bytes)
    return peaks


def check_devices(scenario: Scenario, setup: Setup, memories: Sequence[Memory] | None = None) -> None:
    """Raise TrainingError for a device that this machine lacks, ScenarioError for a client that fits on no GPU.

    Worker processes share GPUs by predicted memory, so only there it is compared; ``memories`` are the GPUs' bytes,
    asked for if they aren't given.
    """
    options = scenario.executor
    if options.name == "ray":  # its nodes have the GPUs
        return
    devices = [device_of(name) for name in options.devices]
    if options.name == "inline" or (devices[0].type == "cpu" and memories is None):
        return
    packing = Packing([str(device) for device in devices], memories)
    peaks = peaks_of(Planner(setup, predictor_of(scenario)), stacked(scenario))
    if peaks and not packing.places(1, peaks.values()):
        what, peak = max(peaks.items(), key=lambda item: item[1])
        raise scenario.error(("executor", "device"), packing.refusal(what, peak))


def stacked(scenario: Scenario) -> int:
    """Clients that train at once in one process at most."""
    return scenario.training.stack if isinstance(scenario.training.stack, int) else 1


def expect_works(executor: Executor | None, scenario: Scenario, setup: Setup, predictor: Predictor) -> None:
    """Tell workers that share GPUs which works will come; raises TrainingError if one fits nowhere."""
    if isinstance(executor, Processes) and executor.packs:
        executor.expect(peaks_of(Planner(setup, predictor), stacked(scenario)))
