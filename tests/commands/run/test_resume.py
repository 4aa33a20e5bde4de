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
from small_grid import UNTRAINED

import edgefl
from edgefl.console import main
from edgefl.errors import EdgeflError, RunError
from edgefl.runs import Run
from edgefl.scenario import load

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


ROWS = {"plain": {}, "prox": {"method": {"name": "fedprox", "mu": 0.01}}, "fast": {"training.lr": 0.01}}


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "writer.lock"}


TABLE = {**UNTRAINED, "compare": {"rows": ROWS}}
"""A scenario with three rows."""


@pytest.fixture(scope="module")
def whole_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its runs."""
    return edgefl.run(TABLE, out=tmp_path_factory.mktemp("tables") / "table").path


@pytest.fixture
def table(whole_table: Path, tmp_path: Path) -> Path:
    """The same, in which the last row hasn't begun."""
    folder = shutil.copytree(whole_table, tmp_path / "table")
    shutil.rmtree(folder / "fast")
    return folder


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"seed": 4}, "the run plain was begun with another scenario: seed: 1 -> 4; undo that"),
        (
            {"compare": {"rows": {**ROWS, "plain": {"training.lr": 0.5}}}},
            "the run plain was .* training.lr: .* -> 0.5;",
        ),
        (
            {"compare": {"rows": {**ROWS, "prox": {"method": {"name": "fedprox", "mu": 1}}}}},
            r"the run prox was .* method.mu: 0.01 -> 1.0;",
        ),
        (
            {"compare": {"rows": {"plain": {}, "near": ROWS["prox"]}}},
            "holds the run prox, but its scenario compares plain, near: put that run back",
        ),
        ({"compare": {"seed": [1, 2]}}, "holds the run plain, but its scenario compares seed=1, seed=2"),
        ({"compare": {}}, "holds the run plain, but its scenario compares table"),
    ],
)
def test_a_row_that_changed_since_it_was_run_is_refused(table: Path, sections: dict[str, Any], says: str) -> None:
    written = files_of(table)
    with pytest.raises(RunError, match=says):
        edgefl.run({**TABLE, **sections}, resume=table)
    assert files_of(table) == written


def test_a_finished_table_notices_that_its_scenario_changed(whole_table: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole_table, tmp_path / "table")
    changed = load({**TABLE, "compare": {"rows": {**ROWS, "fast": {"training.lr": 0.02}}}})
    (folder / "scenario.yaml").write_text(changed.to_yaml())
    written = files_of(folder)
    with pytest.raises(RunError, match=r"the run fast was begun .*: training\.lr: 0\.01 -> 0\.02; undo that"):
        edgefl.run(resume=folder)
    assert files_of(folder) == written


@pytest.mark.parametrize("is_given", [True, False])
def test_rows_that_a_table_lacks_are_run_and_the_others_stay(table: Path, tmp_path: Path, is_given: bool) -> None:
    rows = {"both": {"training.lr": 0.03, "training.batch": 4}, **ROWS, "fast": {"training.lr": 0.02}}
    changed, written = load({**TABLE, "compare": {"rows": rows}}), files_of(table)
    if not is_given:
        (table / "scenario.yaml").write_text(changed.to_yaml())
    run = edgefl.run(changed if is_given else None, resume=table)
    assert list(run.runs) == list(rows) and run.is_finished
    alone = edgefl.run(
        {**TABLE, "training": {"mode": "none", "lr": 0.03, "batch": 4}, "compare": {}}, out=tmp_path / "one"
    )
    assert run.runs["both"].records("rounds") == alone.records("rounds")
    assert run.runs["fast"].scenario["training"]["lr"] == 0.02
    assert {path: files_of(table)[path] for path in written if path.parent != table} == {
        path: content for path, content in written.items() if path.parent != table
    }


def test_a_new_row_is_checked_before_any_row_runs(table: Path) -> None:
    written = files_of(table)
    rows = {**ROWS, "wide": {"model.image.patch": 5}}
    with pytest.raises(EdgeflError, match="patch 5 doesn't divide the image size 32"):
        edgefl.run({**TABLE, "compare": {"rows": rows}}, resume=table)
    assert files_of(table) == written


def test_a_scenario_begins_the_folder_that_it_is_to_resume(tmp_path: Path) -> None:
    scenario, folder = {**TABLE, "compare": {}}, tmp_path / "run"
    first = edgefl.run(scenario, resume=folder)
    written = files_of(folder)
    assert first.is_finished and edgefl.run(scenario, resume=folder).is_finished and files_of(folder) == written
    with pytest.raises(RunError, match=r"the run table was begun with another scenario: training\.lr: .* -> 0\.5"):
        edgefl.run(scenario, overrides=["training.lr=0.5"], resume=folder)
    with pytest.raises(RunError, match="is a single run, but table compares several; choose another folder"):
        edgefl.run(TABLE, resume=folder)


def test_a_row_that_vanished_before_it_was_begun_is_forgotten(table: Path) -> None:
    rows = {label: ROWS[label] for label in ("prox", "plain")}
    run = edgefl.run({**TABLE, "compare": {"rows": rows}}, resume=table)
    assert list(run.runs) == ["prox", "plain"] and run.is_finished
    assert [entry["label"] for entry in json.loads((table / "compare.json").read_text())["runs"]] == ["prox", "plain"]
