"""What a run needs of a GPU is known before it: its largest works, and a refusal where they fit nowhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl.cells.needs import check_devices, peaks_of
from edgefl.errors import ScenarioError
from edgefl.planning.planner import Planner
from edgefl.scenario import load
from edgefl.setup.compose import compose, predictor_of
from edgefl.training.packing import CONTEXT_BYTES, DeviceMemory, limit_of

GIB = 2**30


@pytest.mark.parametrize("schedule", ["end-to-end", {"name": "layerwise", "stages": 2, "rounds": 2}])
def test_no_work_of_a_run_was_larger_than_expected(
    tmp_path: Path, tiny: Callable[..., dict[str, Any]], schedule: Any
) -> None:
    raw = tiny(schedule=schedule)
    scenario = load(raw)
    setup = compose(scenario)
    peaks = peaks_of(Planner(setup, predictor_of(scenario)))
    run = edgefl.run(raw, out=tmp_path / "run")
    for (kind, stage), peak in run.clients.groupby(["kind", "stage"]).peak_memory_bytes.max().items():
        assert peak == peaks[f"the work of kind {kind!r} at stage {stage}"]


def test_a_client_that_fits_nowhere_is_told_before_the_run(tiny: Callable[..., dict[str, Any]]) -> None:
    scenario = load(tiny(executor={"name": "processes", "device": "cpu"}))
    setup = compose(scenario)
    most = max(peaks_of(Planner(setup, predictor_of(scenario))).values())
    check_devices(scenario, setup)
    check_devices(scenario, setup, [DeviceMemory("cpu", 100 * GIB, CONTEXT_BYTES + limit_of(most))])
    with pytest.raises(
        ScenarioError, match=r"executor.device: the .* of kind .* largest device, cpu, has .*batch"
    ) as told:
        check_devices(scenario, setup, [DeviceMemory("cpu", 100 * GIB, CONTEXT_BYTES + limit_of(most) - 1)])
    assert "\n" not in str(told.value) and told.value.exit_code == 2
    alone = load(tiny(executor={"name": "inline", "device": "cpu"}))
    check_devices(alone, setup, [DeviceMemory("cpu", GIB, 1)])  # nobody shares the device
