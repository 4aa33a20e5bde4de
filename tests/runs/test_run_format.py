"""A run's folder of another format is refused by every command in one line, which says what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import edgefl
from edgefl import RUN_FORMAT
from edgefl.console import main
from edgefl.errors import RunError

SMALL: dict[str, Any] = {
    "edgefl": 1,
    "name": "small",
    "data": {"source": "glyphs", "clients": {"image": 2}, "samples": 8, "size": 16, "validation": 8, "test": 8},
    "model": {"image": {"tower": "vit", "blocks": 1, "width": 8, "heads": 2, "patch": 8}},
    "schedule": {"name": "end-to-end", "rounds": 1},
    "fleet": {"budgets": {"within_device": False}},
    "executor": {"name": "inline", "device": "cpu"},
}
SUITE = {
    "edgefl": 1,
    "name": "suite",
    "scenario": SMALL,
    "seeds": 2,
    "variants": {"a": {}, "b": {"training": {"lr": 1}}},
}
WAYS = {RUN_FORMAT - 1: "run its scenario again in another folder", RUN_FORMAT + 1: "update edgefl"}

COMMANDS = {
    "explain": ["explain", "{}", "--round", "1"],
    "trace": ["export", "{}", "--to", "perfetto"],
    "export-transformers": ["export", "{}", "--to", "transformers", "-o", "new"],
    "analyse": ["analyse", "{}"],
    "report": ["report", "{}"],
    "figures": ["export", "{}", "--to", "figures", "--format", "svg"],
    "compare": ["compare", "{}"],
    "export": ["export", "{}", "--to", "csv", "-o", "new"],
    "resume": ["run", "--resume", "{}"],
    "verify": ["run", "--resume", "{}", "--verify"],
    "run again": ["run", "small.yaml", "-o", "{}"],
}
WITH_RUNS_BELOW = {
    "analyse a scenario": ["analyse", "small.yaml", "--only", "drift", "-o", "analysed"],
    "sweep": ["sweep", "small.yaml", "--vary", "training.lr=1e-3", "--train", "-o", "swept"],
    "tune": [
        "tune",
        "small.yaml",
        "--search",
        "training.lr=1e-3..1e-2",
        "--trials",
        "1",
        "--metric",
        "image.accuracy",
        "-o",
        "tuned",
    ],
    "bench": ["bench", "suite.yaml", "-o", "benched"],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of a scenario and a suite, a finished run and a finished comparison."""
    folder = tmp_path_factory.mktemp("formats")
    (folder / "small.yaml").write_text(yaml.safe_dump(SMALL), encoding="utf-8")
    (folder / "suite.yaml").write_text(yaml.safe_dump(SUITE), encoding="utf-8")
    edgefl.run(SMALL, out=folder / "one")
    edgefl.run({**SMALL, "compare": {"seed": [1, 2]}}, out=folder / "several")
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, in which this process stands."""
    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    return folder


def write_format(folder: Path, number: int) -> list[Path]:
    """Make runs below a folder those of another version, whose scenario has a field that this one doesn't know."""
    runs = sorted(path.parent for path in folder.rglob("environment.json"))
    assert runs
    for run in runs:
        environment = json.loads((run / "environment.json").read_text(encoding="utf-8"))
        (run / "environment.json").write_text(json.dumps({**environment, "run_format": number, "edgefl": "0.0.9"}))
    for path in {*runs, *(run.parent for run in runs)}:
        if (path / "scenario.yaml").is_file():
            scenario = yaml.safe_load((path / "scenario.yaml").read_text(encoding="utf-8"))
            scenario["training"]["pack"] = "off"
            (path / "scenario.yaml").write_text(yaml.safe_dump(scenario), encoding="utf-8")
    return runs


def content_of(folder: Path) -> dict[str, bytes]:
    """The files below a folder, but for locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "writer.lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def check_refused(words: Sequence[str], runs: Sequence[Path], number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A command names one of the runs in one line, its format, this version's and what to do; the exit code is 2."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, err = capsys.readouterr()
    line = next(line for line in err.splitlines() if line.startswith("edgefl: error:"))
    assert (ended.value.code, out, err.count("edgefl: error:"), err.endswith(f"{line}\n")) == (2, "", 1, True), err
    told = f"has run format {number}, and this version reads format {RUN_FORMAT}: {WAYS[number]}, or use the version "
    assert f"{told}that wrote it, edgefl '0.0.9'" in line
    assert any(f"{run.relative_to(Path.cwd())} {told}" in line for run in runs), line


@pytest.mark.parametrize("number", WAYS)
@pytest.mark.parametrize("folder", ["one", "several"])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_a_run_of_another_format(
    here: Path, capsys: pytest.CaptureFixture[str], command: str, folder: str, number: int
) -> None:
    runs = write_format(here / folder, number)
    before = content_of(here)
    check_refused([word.format(folder) for word in COMMANDS[command]], runs, number, capsys)
    assert content_of(here) == before


@pytest.mark.parametrize("command", WITH_RUNS_BELOW)
def test_commands_that_go_on_with_their_runs_refuse_those_of_another_format(
    here: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    words = WITH_RUNS_BELOW[command]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code, capsys.readouterr().err
    capsys.readouterr()
    folder = here / words[-1]
    runs = write_format(folder, RUN_FORMAT - 1)
    if command == "sweep":  # a row that is there is answered from, without its run
        (folder / "sweep.jsonl").unlink()
    check_refused(words, runs, RUN_FORMAT - 1, capsys)


@pytest.mark.parametrize(
    ("store", "call"),
    [
        ("edgefl.commands.sweep.stored_rows", lambda: edgefl.sweep("small.yaml", ["training.lr=1e-3"], out="rows")),
        (
            "edgefl.commands.tune.tune_scenario",
            lambda: edgefl.tune(
                "small.yaml", ["training.lr=1e-3..1e-2"], trials=1, metric="image.accuracy", out="rows"
            ),
        ),
    ],
)
def test_rows_and_trials_of_another_format_are_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, store: str, call: Callable[[], object]
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(f"{store}.RUN_FORMAT", RUN_FORMAT - 1)
        call()
    formats = f"run format: {RUN_FORMAT - 1} -> {RUN_FORMAT}"
    with pytest.raises(RunError, match=f"another scenario or run format|{formats}") as refused:
        call()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("number", ["two", None, 5.5])
def test_a_format_that_is_no_number_is_named(here: Path, number: object) -> None:
    environment = json.loads((here / "one" / "environment.json").read_text(encoding="utf-8"))
    (here / "one" / "environment.json").write_text(json.dumps({**environment, "run_format": number}))
    with pytest.raises(RunError, match=r"environment.json: field 'run_format': expected `int`"):
        edgefl.read_run(here / "one")
