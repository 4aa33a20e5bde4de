"""A run's folder may come from a stranger: nothing in it leads outside."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from records_of_tests import blank

import edgefl
from edgefl.errors import RunError
from edgefl.records.host import HostWork
from edgefl.runs import Run, RunDirectory, comparison, create_comparison, read_run

LINKED = (
    "scenario.yaml", "environment.json", "models.json", "evaluation.json", "tokenizer.json", "partition.png",
    "curves.png", "rounds.jsonl", "clients.jsonl", "eligibility.jsonl", "host.jsonl", "writer.lock",
    "weights.safetensors", "result.json", "files.json", ".partial-result.json", "checkpoints",
    "checkpoints/round-000004", "checkpoints/round-000004/state.json", "checkpoints/.partial-round-000005",
)  # fmt: skip


@pytest.fixture
def copied(layerwise_run: Run, tmp_path: Path) -> Path:
    """A copy of a finished run, made to look unfinished."""
    folder = tmp_path / "run"
    shutil.copytree(layerwise_run.path, folder)
    (folder / "result.json").unlink()
    return folder


@pytest.mark.parametrize("name", LINKED)
def test_links_are_refused_and_their_targets_left_alone(copied: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    path = copied / name
    if path.is_dir():
        shutil.move(path, outside)
        content = {p.name: p.stat().st_mtime_ns for p in outside.iterdir()}
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            shutil.move(path, outside)
        else:
            outside.write_text("years of work")
        content = outside.read_bytes()
    path.symlink_to(outside)
    for look in (lambda: edgefl.run(resume=copied), lambda: RunDirectory.open(copied), lambda: read_run(copied)):
        with pytest.raises(RunError, match=r"is a link to .*plain files and folders only") as caught:
            look()
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    if outside.is_dir():
        assert {p.name: p.stat().st_mtime_ns for p in outside.iterdir()} == content
    else:
        assert outside.read_bytes() == content


@pytest.mark.parametrize("name", ["scenario.yaml", "rounds.jsonl", "checkpoints/round-000004/state.json"])
def test_a_pipe_is_refused_without_opening_it(copied: Path, name: str) -> None:
    (copied / name).unlink()
    os.mkfifo(copied / name)
    with pytest.raises(RunError, match="neither a file nor a folder"):
        edgefl.run(resume=copied)


@pytest.mark.parametrize("folder", ["../../elsewhere", "/tmp/elsewhere", "..", ".", "", "a/b", "a\0b", 3, None])
def test_runs_of_a_comparison_stay_in_its_folder(tmp_path: Path, folder: object) -> None:
    path = tmp_path / "both"
    create_comparison(path, scenario_yaml="edgefl: 1\n", runs={"a": {}, "b": {}})
    described = json.loads((path / "compare.json").read_text())
    described["runs"][1]["folder"] = folder
    (path / "compare.json").write_text(json.dumps(described))
    for look in (comparison, read_run, lambda p: edgefl.run(resume=p)):
        with pytest.raises(
            RunError, match="must be in folders beside compare.json|field .runs.1..folder.: expected `str`"
        ):
            look(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["both"]


def test_a_linked_run_of_a_comparison_is_refused(tmp_path: Path, layerwise_run: Run) -> None:
    path = tmp_path / "both"
    create_comparison(path, scenario_yaml="edgefl: 1\n", runs={"a": {}})
    (path / "a").symlink_to(layerwise_run.path)
    with pytest.raises(RunError, match=r"a is a link"):
        read_run(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "expected `object`, got `array`"),
        ("{", "it isn't JSON"),
        ('{"runs": 1, "deep": ' + "[" * 100_000, "compare.json"),
        ('{"runs": [{"folder": "a"}]}', r"field 'runs\[0\].label' is missing"),
        ('{"runs": 3}', "compare.json"),
        ('{"runs": ["a"]}', "compare.json"),
        ("\0", "it isn't JSON"),
    ],
)
def test_a_damaged_list_of_runs_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "compare.json").write_text(text)
    with pytest.raises(RunError, match=says) as caught:
        read_run(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"- a\n- b\n", b"\xff\xfe\x00", b"!!python/object:os.system {}\n", b"[" * 5000])
def test_a_damaged_scenario_is_one_line(copied: Path, text: bytes) -> None:
    (copied / "scenario.yaml").write_bytes(text)
    with pytest.raises(RunError, match=r"scenario\.yaml") as caught:
        _ = read_run(copied).scenario
    assert "\n" not in str(caught.value)


def test_opening_a_table_follows_no_link_put_there_since(copied: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("years of work")
    with RunDirectory.open(copied) as run:
        run.table("host").unlink()
        run.table("host").symlink_to(outside)
        with pytest.raises(RunError, match="can't write"):
            run.append(blank(HostWork, round=9))
    assert outside.read_text() == "years of work"
