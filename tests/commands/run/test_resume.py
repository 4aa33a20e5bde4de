"""What a resumed run notices: records that are missing or changed, and parts that aren't what it began with."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import edgefl
from edgefl.console import main
from edgefl.errors import EdgeflError, RunError
from edgefl.runs import Run, read_run

Tiny = Callable[..., dict[str, Any]]


@pytest.fixture
def finished(layerwise_run: Run, tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    shutil.copytree(layerwise_run.path, folder)
    return folder


@pytest.fixture
def unfinished(finished: Path) -> Path:
    """Four rounds are done, the end isn't written."""
    for name in ("result.json", "files.json"):
        (finished / name).unlink()
    return finished


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def halved(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]))


def doubled(path: Path) -> None:
    path.write_bytes(path.read_bytes() * 2)


def swapped(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[1], lines[0], *lines[2:]]))


CHANGES: list[tuple[Any, str]] = [
    (Path.unlink, "holds 0 lines, but"),
    (emptied, "holds 0 lines, but"),
    (halved, r"holds \d+ lines, but"),
    (swapped, "aren't those written by the checkpoint of round 4"),
]


@pytest.mark.parametrize(
    ("table", "change", "says"),
    [
        pytest.param(table, change, says, marks=() if table == "clients" or change is Path.unlink else pytest.mark.slow)
        for table in ("rounds", "clients", "eligibility", "scratch", "host")
        for change, says in CHANGES
    ],
)
def test_changed_records_stop_a_resume(unfinished: Path, table: str, change: Any, says: str) -> None:
    path = unfinished / f"{table}.jsonl"
    change(path)
    before = {p.name: p.read_bytes() for p in unfinished.glob("*.jsonl")}
    with pytest.raises(RunError, match=rf"{table}\.jsonl.*{says}|{says}.*{table}\.jsonl"):
        edgefl.run(resume=unfinished)
    after = {p.name: p.read_bytes() for p in unfinished.glob("*.jsonl")}
    assert {name: content for name, content in after.items() if content} == {
        name: content for name, content in before.items() if content
    }


@pytest.mark.slow(smaller="test_a_strangers_scratch_is_refused_with_its_line")
def test_a_resumed_run_takes_kernels_scratch_from_its_folder(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = tiny(evaluation={"every": 1}, schedule={"name": "end-to-end", "rounds": 3})
    whole = edgefl.run(scenario, out=tmp_path / "whole")

    def interrupt(event: str, facts: Any) -> None:
        if event == "record" and facts["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        edgefl.run(scenario, out=tmp_path / "run", on_progress=interrupt)
    monkeypatch.setenv("EDGEFL_CACHE", str(tmp_path / "cache"))  # nothing is known of earlier predictions

    def probe(held: Any, device: str) -> Any:
        raise AssertionError("a kernel was measured again")

    monkeypatch.setattr("edgefl.setup.compose.probe", probe)
    again = edgefl.run(resume=tmp_path / "run")
    assert again.records("scratch") == whole.records("scratch") != []
    assert again.records("rounds") == whole.records("rounds")


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({}, "field 'call' is missing"),
        ({"call": 3}, "field 'call': expected `str`, got `int`"),
        (
            {"call": "a", "operator": "b", "bytes": -1, "assumed": False, "kernels": "c"},
            "a kernel's scratch can't be -1 bytes; restore the file",
        ),
    ],
)
def test_a_strangers_scratch_is_refused_with_its_line(unfinished: Path, row: dict[str, Any], told: str) -> None:
    path = unfinished / "scratch.jsonl"
    path.write_text(json.dumps({"round": 1, **row}) + "\n" + path.read_text())
    with pytest.raises(RunError, match=re.escape(f"scratch.jsonl:1: {told}")):
        edgefl.run(resume=unfinished)


def test_models_of_another_scenario_stop_a_resume(unfinished: Path) -> None:
    models = json.loads((unfinished / "models.json").read_text())
    (unfinished / "models.json").write_text(json.dumps({kind: {"towers": [1]} for kind in models}))
    with pytest.raises(RunError, match=r"models\.json doesn't hold the models of its scenario\.yaml"):
        edgefl.run(resume=unfinished)


def test_a_folder_in_place_of_a_file_is_refused(unfinished: Path) -> None:
    (unfinished / "tokenizer.json").unlink()
    (unfinished / "tokenizer.json").mkdir()
    with pytest.raises(RunError, match=r"tokenizer\.json is a folder where edgefl has a file"):
        edgefl.run(resume=unfinished)


def test_doubled_records_after_the_checkpoint_are_no_records_of_it(unfinished: Path, layerwise_run: Run) -> None:
    # the first half is what was written; the second repeats earlier rounds, and isn't of a later one
    doubled(unfinished / "rounds.jsonl")
    with pytest.raises(RunError, match=r"rounds\.jsonl"):
        edgefl.run(resume=unfinished)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed": 8}, "scenario.seed: 3 -> 8"),
        ({"schedule": {"name": "layerwise", "stages": 2, "rounds": 2}}, "scenario.schedule.rounds: 4 -> 2"),
        ({"training": {"batch": 4}}, "scenario.training.batch"),
    ],
)
def test_another_scenario_stops_a_resume(unfinished: Path, changes: dict[str, Any], says: str) -> None:
    path = unfinished / "scenario.yaml"
    written = yaml.safe_load(path.read_text())
    written |= {name: {**written[name], **new} if name == "training" else new for name, new in changes.items()}
    path.write_text(yaml.safe_dump(written))
    with pytest.raises(RunError) as caught:
        edgefl.run(resume=unfinished)
    assert says in str(caught.value) and "undo that, or start a new run" in str(caught.value)


@pytest.mark.parametrize("name", ["weights.safetensors", "eligibility.jsonl", "scenario.yaml", "tokenizer.json"])
@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(path.read_bytes() + b"\n")])
def test_a_finished_run_that_changed_is_not_taken_for_whole(finished: Path, name: str, change: Any) -> None:
    change(finished / name)
    with pytest.raises(EdgeflError, match=name.replace(".", r"\.")):
        edgefl.run(resume=finished)
    with pytest.raises(SystemExit) as ended:
        main(["run", "--resume", str(finished)])
    assert ended.value.code == 2


def test_only_what_results_do_not_depend_on_may_be_set(unfinished: Path, layerwise_run: Run) -> None:
    with pytest.raises(RunError, match=r"--set training\.lr"):
        edgefl.run(resume=unfinished, overrides=["training.lr=1"])
    run = edgefl.run(resume=unfinished, overrides=["executor.clock=events"])
    assert run.result == layerwise_run.result
    assert run.scenario["executor"]["clock"] == "events"
    assert [entry["set"] for entry in run.environment["resumed"]] == [["executor.clock=events"]]
    assert run.environment["resumed"][0]["round"] == 4
    assert json.loads((run.path / "files.json").read_text())["files"].keys() >= {"scenario.yaml", "host.jsonl"}


def test_costs_of_another_type_of_device_stop_a_resume(unfinished: Path) -> None:
    with pytest.raises(EdgeflError, match=r"device: 'cpu' -> 'cuda'|CUDA"):
        edgefl.run(resume=unfinished, overrides=["executor.device=cuda"])


def test_a_comparison_of_other_runs_is_not_continued(tiny: Tiny, tmp_path: Path) -> None:
    scenario = tiny(training={"mode": "none"}, compare={"seed": [1, 2]})
    folder = tmp_path / "both"
    edgefl.run(scenario, out=folder)
    shutil.rmtree(folder / "seed=2")
    path = folder / "scenario.yaml"
    written = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**written, "compare": {"seed": [1, 3]}}))
    with pytest.raises(RunError, match="its scenario has changed"):
        edgefl.run(resume=folder)
    path.write_text(yaml.safe_dump(written))
    assert not read_run(folder).is_finished and edgefl.run(resume=folder).is_finished
