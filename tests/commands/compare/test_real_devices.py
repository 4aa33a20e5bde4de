"""A run on nodes of this process beside the simulation of its scenario: means by hand, from the records of both."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from in_process import InProcess
from rich.console import Console

import edgefl
from edgefl.commands.compare.table import print_comparison
from edgefl.deployment.real_run import play_on_nodes
from edgefl.deployment.transport import NoReply
from edgefl.scenario import load


def test_each_device_has_its_prediction_beside_what_was_measured(
    tiny: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    data = {"source": "glyphs", "clients": {"image": 2, "text": 1}, "samples": 40, "validation": 40, "test": 40}
    scenario = load(tiny(data=data, evaluation={"every": 100}))
    simulated = edgefl.run(scenario, out=tmp_path / "simulated")
    transport = InProcess(scenario, tmp_path / "nodes", {10: 0, 11: 1, 12: 2})
    seen = list[str]()

    def once_lost(order: Any, honest: Any) -> Any:
        seen.append(order.facts["do"])
        return NoReply("gone") if seen.count("train") == 1 and order.facts["do"] == "train" else honest(order)

    transport.replies[11] = once_lost
    real = play_on_nodes(scenario, transport, tmp_path / "real", lambda event, facts: None, wait=0)
    answer = edgefl.compare([simulated.path, real.path])
    image, text = sorted(answer.real_devices, key=lambda row: row.kind)
    assert (image.kind, image.tasks, text.tasks, image.run) == ("image", 3, 2, str(real.path))
    assert image.simulated == str(simulated.path)
    done = [row for row in real.records("nodes") if row["client"] < 2 and row["lost"] is None]
    assert image.compute_seconds == pytest.approx(fmean(row["compute_seconds"] for row in done))
    assert image.transfer_seconds == pytest.approx(fmean(row["transfer_seconds"] for row in done))
    keys = {(row["round"], row["client"]) for row in done}
    same = [row for row in simulated.records("clients") if (row["round"], row["client"]) in keys]
    assert image.predicted_compute_seconds == pytest.approx(fmean(row["compute_seconds"] for row in same))
    assert image.peak_memory_bytes == image.measured_peak_memory_bytes == max(row["peak_memory_bytes"] for row in same)
    page = StringIO()
    print_comparison(answer, console=Console(file=page, width=100))
    assert "On real devices, predicted" in page.getvalue() and "raspberry-pi-4-4gb" in page.getvalue()
    assert not edgefl.compare([simulated.path]).real_devices
