"""The examples of CONTRIBUTING.md, written down as the package that they are, installed and used."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import edgefl
from edgefl import devices
from edgefl.errors import UnknownName
from edgefl.runs import Run

TEXT = (Path(__file__).resolve().parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(?:python|yaml|toml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def package(install: Callable[[Path], None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all files of the document, installed."""
    folder = tmp_path_factory.mktemp("mylab")
    for name, body in BLOCK.findall(TEXT):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body, encoding="utf-8")
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    info = folder / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    install(folder)
    return folder


@pytest.fixture(scope="module")
def run(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The document's scenario, with a data cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEFL_CACHE", str(package / "cache"))
        return edgefl.run(package / "scenario.yaml", output=package / "run")


def test_every_section_has_an_example():
    section = TEXT[TEXT.index("## Add a part") : TEXT.index("## Pinned versions")]
    parts = re.split(r"^### ", section, flags=re.MULTILINE)[1:]
    assert [part.splitlines()[0] for part in parts] == [
        "A device or a link",
        "A data set",
        "A model",
        "A method",
        "A schedule",
        "A selection or a round policy",
    ]
    assert all(BLOCK.search(part) for part in parts)


def test_the_device_is_found_and_computes(package, run):
    assert "my-board" in devices.device_names()
    assert devices.load_device("my-board").ram_bytes == 2**30
    assert {client["device"] for client in run.records("clients")} == {"my-board"}
    with pytest.raises(UnknownName, match="did you mean 'my-board'"):
        devices.load_device("my-bord")


def test_the_data_set_is_served_and_scored(run):
    assert run.result["metrics"]["image"].keys() >= {"accuracy"}
    assert run.model("image").image.head.out_features == 2


def test_the_tower_is_built_and_measured_as_predicted(run):
    assert type(run.model("image").image).__name__ == "MixerTower"
    measured = [c for c in run.records("clients") if c["measured_peak_memory_bytes"] is not None]
    assert {c["stage"] for c in measured} == {1, 2}
    assert all(c["memory_error"] == 0 for c in measured)


def test_the_schedule_freezes_and_thaws(run):
    first, second = ([c for c in run.records("clients") if c["round"] == round] for round in (1, 2))
    assert {c["stage"] for c in first} == {1} and {c["stage"] for c in second} == {2}
    assert max(c["upload_bytes"] for c in first) < min(c["upload_bytes"] for c in second)
    assert max(c["backward_flops"] for c in first) < min(c["backward_flops"] for c in second)


def test_the_selection_chooses_and_the_policy_ends_the_round(run):
    clients = run.records("clients")
    # four clients of as many samples: the first is spared, the next two are asked, and the faster one is enough
    assert {c["client"] for c in clients} == {1, 2}
    assert [sorted(c["outcome"] for c in clients if c["round"] == round) for round in (1, 2)] == [
        ["finished", "late"]
    ] * 2


def test_the_method_takes_part_of_the_way(package, tmp_path):
    """From the same start in one round, a rate of 1/2 moves each weight half as far as a rate of 1."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEFL_CACHE", str(package / "cache"))
        weights = {
            rate: edgefl.run(
                package / "scenario.yaml",
                output=tmp_path / str(rate),
                overrides=[f"method.rate={rate}", "schedule={name: thaw, warm_up: 0, rounds: 1}"],
            ).weights()
            for rate in (1.0, 0.5, 0.25)
        }
    for name, whole in weights[1.0].items():
        torch.testing.assert_close(whole - weights[0.5][name], 2 * (weights[0.5][name] - weights[0.25][name]))


def test_the_method_keeps_the_contract_under_the_new_schedule(package):
    report = edgefl.check_method("damped", schedules=["thaw"], kinds=["image"], rate=0.3)
    assert report.ok, str(report)


@pytest.mark.slow
def test_the_check_is_a_program(package):
    """The last example as a person would start it: every schedule, the new one included."""
    done = subprocess.run([sys.executable, str(package / "check.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"damped: \d+ checks of \d+ rules, all kept\n", done.stdout)
