"""``edgefl devices calibrate --from``: profiles of the devices of a real run, which predict it; paces by hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml
from in_process import InProcess

import edgefl
from edgefl.deployment.real_run import play_on_nodes
from edgefl.devices import load_device
from edgefl.devices.profile import read_device
from edgefl.errors import EdgeflError
from edgefl.runs import Run
from edgefl.scenario import load

Scenario = Callable[..., dict[str, Any]]
BASE = "raspberry-pi-4-4gb"
SECTIONS = {
    "data": {"source": "glyphs", "clients": {"image": 2}, "samples": 40, "validation": 8, "test": 8},
    "model": {"image": {"blocks": 1, "width": 16, "heads": 2}}, "schedule": {"name": "end-to-end", "rounds": 3},
    "evaluation": {"every": 100},
}  # fmt: skip


@pytest.fixture(scope="module")
def real(tiny: Scenario, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder, scenario = tmp_path_factory.mktemp("real"), load(tiny(**SECTIONS))
    transport = InProcess(scenario, folder / "nodes", {10: 0, 11: 1})
    return play_on_nodes(scenario, transport, folder / "real", lambda event, facts: None, wait=0)


def test_a_profile_of_a_real_run_predicts_it(real: Run, tiny: Scenario, tmp_path: Path) -> None:
    answer = edgefl.calibrate(tmp_path / "boards", run=real.path)
    assert answer.files == [str(tmp_path / "boards" / f"{BASE}.yaml")] and not answer.links
    assert any("no link" in note for note in answer.notes)
    [file] = map(Path, answer.files)
    nodes = [json.loads(line) for line in (real.path / "nodes.jsonl").read_text().splitlines()]
    took = [node["compute_seconds"] for node in nodes]
    # by hand: every task of this scenario is the same work, whose price a profile of the scenario has too
    [price] = edgefl.profile(tiny(**SECTIONS)).rows
    base, mine = load_device(BASE), read_device(file)
    work = sum(seconds for name, seconds in price.compute_seconds_by_class.items() if name != "loading")
    paces = sorted(work / seconds for seconds in took)
    for name, ends in (("flops_per_second", 3), ("memory_bytes_per_second", 1)):
        factors = [median(paces), paces[0], paces[-1]][:ends]
        fact = mine.facts[name]
        expected = [getattr(base, name) * factor for factor in factors]
        assert [fact.value, fact.low, fact.high][:ends] == pytest.approx(expected, rel=1e-6)
    fixed = base.seconds_per_operator * base.processor.launch
    assert mine.seconds_per_operator == pytest.approx(fixed / median(paces), rel=1e-6)
    assert mine.facts["flops_per_second"].confidence == mine.facts["jitter"].confidence == "measured"
    used = [node["rss_bytes"] for node in nodes]
    overhead = mine.facts["runtime_overhead_bytes"]
    assert (overhead.low, overhead.high) == (min(used), max(used))
    # without jitter, which draws other seconds for each task
    written = yaml.safe_load(file.read_text())
    written["jitter"] |= {"value": 0, "range": 0}
    (tmp_path / "calm.yaml").write_text(yaml.safe_dump(written))
    fleet = {"devices": str(tmp_path / "calm.yaml")}
    simulated = edgefl.run(tiny(**SECTIONS, fleet=fleet), out=tmp_path / "simulated")
    [row] = edgefl.compare([simulated.path, real.path]).real_devices
    assert row.tasks == 6 and min(took) <= row.predicted_compute_seconds <= max(took)


def emptied(real: Run, folder: Path) -> Path:
    """The run with nodes whose updates were lost."""
    shutil.copytree(real.path, folder)
    lines = (json.loads(line) for line in (real.path / "nodes.jsonl").read_text().splitlines())
    names = ("round", "client", "node", "round_trip_seconds", "resent_bytes")
    lost = [{**{name: line[name] for name in names}, "lost": "gone"} for line in lines]
    (folder / "nodes.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lost))
    return folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"run": "simulated"}, "simulated is of a simulation: --from takes the folder of a run on real devices"),
        ({"run": "lost"}, "lost has no measured work"),
        ({"run": "nowhere"}, "there is no run at nowhere"),
        ({"quick": True, "watts": 5}, "--from measures nothing again: leave out --quick, --watts"),
        ({"out": "mine.yaml"}, "mine.yaml: --from writes a profile for each device, into a folder"),
        ({"out": "here"}, f"{BASE}.yaml exists; --force replaces it"),
    ],
)
def test_what_gives_no_profile_is_said_in_a_line(
    real: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    Path("here", f"{BASE}.yaml").write_text("kept")
    if change.get("run") == "simulated":
        shutil.copytree(real.path, "simulated")
        Path("simulated/nodes.jsonl").unlink()
    elif change.get("run") == "lost":
        emptied(real, Path("lost"))
    with pytest.raises(EdgeflError) as error:
        edgefl.calibrate(**{"run": real.path, **change})
    assert said in str(error.value) and "\n" not in str(error.value)
    assert Path("here", f"{BASE}.yaml").read_text() == "kept" and not Path("mine.yaml").exists()


def test_nodes_of_one_device_that_are_unequal_are_told(real: Run, tmp_path: Path) -> None:
    shutil.copytree(real.path, tmp_path / "run")
    rows = [json.loads(line) for line in (real.path / "nodes.jsonl").read_text().splitlines()]
    slow = [{**row, "compute_seconds": (100.0 if row["client"] else 10.0)} for row in rows]
    (tmp_path / "run" / "nodes.jsonl").write_text("".join(json.dumps(each) + "\n" for each in slow))
    notes = edgefl.calibrate(run=tmp_path / "run").notes
    assert any("the node of client 0 is 10 times as fast as that of client 1" in note for note in notes)
