from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import miniatures
import pytest
import torch
import yaml

import edgefl
from edgefl import RUN_FORMAT, __version__
from edgefl.commands.run.answer import RunAnswer
from edgefl.console import main
from edgefl.results.facts import summary
from edgefl.terminal import EscapedStream
from tests.toys.answers import read_back

Answer = tuple[int, str, str]
Call = Callable[..., Answer]

DECLARED = {"source": "declared", "clients": {"image": 2, "text": 2}, "samples": 40,
            "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}, "text": {"vocabulary": 200}}}  # fmt: skip


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Types a command in an empty folder: exit code, stdout, stderr."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("TERMINAL_WIDTH", "200")  # typer breaks its messages where the terminal ends

    def answer(*words: str) -> Answer:
        with pytest.raises(SystemExit) as ended:
            main([*words])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return answer


@pytest.fixture(scope="module")
def declared(tiny: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with a scenario that can be profiled and not trained."""
    path = tmp_path_factory.mktemp("scenario") / "declared.yaml"
    schedule = {"name": "layerwise", "stages": 2, "rounds": 4}
    path.write_text(yaml.safe_dump({"edgefl": 1, **tiny(data=DECLARED, schedule=schedule)}))
    return str(path)


@pytest.fixture(scope="module")
def trainable(tiny: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with a scenario that trains in a second and compares two schedules."""
    path = tmp_path_factory.mktemp("scenario") / "trainable.yaml"
    compare = {"schedule": [{"name": "end-to-end", "rounds": 2}, {"name": "layerwise", "stages": 2, "rounds": 2}]}
    path.write_text(yaml.safe_dump({"edgefl": 1, **tiny(compare=compare)}))
    return str(path)


# --- what a person gets wrong ----------------------------------------------------------------------------------------

WRONG = {
    "a typo in a key": (["--set", "training.bacth=8"], "unknown key 'bacth'; did you mean 'batch'?"),
    "an unknown device": (
        ["--set", "fleet.devices={raspberry-pi-44gb: 4}"],
        "unknown device 'raspberry-pi-44gb'; did you mean 'raspberry-pi-4-4gb'?",
    ),
    "a zero budget": (["--set", "fleet.budgets.memory=0"], "a budget must be positive, not 0"),
    "a negative batch": (["--set", "training.batch=-8"], "training.batch"),
    "an empty cohort": (["--set", "round.cohort=0"], "round.cohort: must be more than 0, not 0"),
}


@pytest.mark.parametrize("command", ["run", "profile", "sweep", "validate"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_scenario_is_said_with_its_place_and_nothing_is_written(
    call: Call, declared: str, command: str, wrong: str
) -> None:
    words, message = WRONG[wrong]
    output = ["--out", "new"] if command in ("run", "sweep") else []
    code, out, err = call(command, declared, *words, *output)
    assert code == 2 and out == "" and message in err and "Traceback" not in err
    assert err.startswith("edgefl: error: ") and list(Path.cwd().iterdir()) == []


def test_the_line_of_the_file_is_named(call: Call, declared: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("edgefl: 1\ndata: declared\nmodel:\n  image: {}\ntrainning:\n  batch: 8\nround: {cohort: 0}\n")
    code, _, err = call("validate", str(file))
    assert code == 2
    assert f"{file}:5: trainning: unknown key 'trainning'; did you mean 'training'?" in err
    assert f"{file}:7: round.cohort: must be more than 0" in err


@pytest.mark.parametrize("command", ["run", "profile", "sweep", "validate"])
def test_a_missing_file_is_said_with_what_there_is(call: Call, command: str) -> None:
    code, out, err = call(command, "quickstrat")
    assert (code, out) == (2, "")
    assert err == "edgefl: error: quickstrat: there is no such file or shipped scenario; did you mean 'quickstart'?\n"


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_folder_that_cannot_be_written_is_said(call: Call, declared: str, trainable: str, command: str) -> None:
    Path("file").write_text("mine")
    for folder in ("file/new", "/proc/new"):
        code, out, err = call(command, trainable if command == "run" else declared, "--out", folder)
        assert (code, out) == (2, "") and f"can't write {'a run to ' if command == 'run' else ''}{folder}: " in err
    assert Path("file").read_text() == "mine" and len(list(Path.cwd().iterdir())) == 1


def test_declared_data_cannot_be_trained_on(call: Call, declared: str) -> None:
    code, out, err = call("run", declared, "--out", "new")
    assert (code, out) == (2, "") and "no samples to train on" in err and "edgefl profile" in err
    assert not Path("new").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="has the device that is asked for")
def test_a_device_that_is_not_there_is_said_before_anything_is_written(call: Call, trainable: str) -> None:
    code, out, err = call("run", trainable, "--out", "new", "--set", "executor.device=cuda")
    assert (code, out) == (2, "") and "no CUDA device" in err
    assert not Path("new").exists()


def test_wrong_words_are_usage_errors_with_the_nearest_right_one(call: Call, declared: str) -> None:
    assert call("swep")[0] == 2
    assert "Did you mean 'sweep'" in call("swep")[2]
    code, out, err = call("run")
    assert (code, out) == (2, "") and "give a scenario to run, or a run to resume" in err
    code, _, err = call("profile", declared, "--device", "jetson-nano-8gb")
    assert code == 2 and "unknown device 'jetson-nano-8gb'; did you mean 'jetson-orin-nano-8gb'?" in err
    code, _, err = call("run", "--resume", "nowhere")
    assert code == 2 and "there is no run at nowhere" in err


# --- what commands print ---------------------------------------------------------------------------------------------


def test_run_prints_tables_and_keeps_the_run(call: Call, trainable: str) -> None:
    code, out, err = call("run", trainable, "--out", "here")
    assert code == 0
    for words in (
        "Eligible clients by stage and kind",
        "Cost of a client's round",
        "Metrics: test split, after round 2",
        "Comparison of the runs",
        "(0.083)",
        "layerwise admits no additional clients compared with end-to-end.",
    ):
        assert words in out
    lines = err.splitlines()
    rounds = [line for line in lines if ": round " in line and " trained" not in line]  # slow machines tell more
    assert len(rounds) == 4 and all(words in rounds[0] for words in ("(1 of 2)", "1/2", "stage 1", "clock", "ETA"))
    assert lines[-1] == "edgefl: records, weights and figures: here"
    assert "\x1b" not in out + err
    assert max(map(len, out.splitlines())) <= 100
    code, out, err = call("run", trainable, "--out", "here")
    assert (code, out) == (2, "") and "continue it with --resume here" in err
    # a finished run that is resumed is reported again
    code, out, _ = call("run", "--resume", "here", "--as", "json")
    found = json.loads(out)
    assert code == 0 and found["finished"] and list(found["runs"]) == ["end-to-end", "layerwise"]
    assert found["compared"]["reference"] == "end-to-end"
    assert found["runs"]["layerwise"]["test_samples"].keys() == {"image", "text", "image-text"}


@pytest.mark.parametrize(
    "compare", [{}, pytest.param({"seed": [3, 4]}, marks=pytest.mark.slow)], ids=["a run", "a comparison"]
)
def test_a_finished_run_is_shown_without_its_data(
    call: Call,
    tiny: Callable[..., dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compare: dict[str, Any],
) -> None:
    sets, cache = tmp_path / "sets", tmp_path / "cache"
    monkeypatch.setenv("EDGEFL_CACHE", str(cache))
    miniatures.cifar100(sets / "cifar100", 60, 20)
    miniatures.flickr(sets / "flickr30k", 30)
    tower = {"blocks": 2, "width": 16, "heads": 2}
    scenario = tiny(
        data={
            "source": {"image": "cifar100", "image-text": "flickr30k"},
            "folders": {name: str(sets / name) for name in ("cifar100", "flickr30k")},
            "clients": {"image": 2, "image-text": 2},
            "partition": "iid",
            "size": 32,
            "vocabulary": 60,
        },
        model={"image": {**tower, "patch": 8}, "text": {**tower, "tokens": 12}},
        schedule={"name": "end-to-end", "rounds": 1},
    )
    Path("it.yaml").write_text(yaml.safe_dump({"edgefl": 1, **scenario, "compare": compare}))
    full = ("--full",) if compare else ()  # the tables of every run, not only the mean over seeds

    def told(folder: str) -> str:
        hint = f"edgefl: every run: edgefl run --resume {folder} --full; at equal costs: edgefl compare {folder}\n"
        return f"{hint if compare else ''}edgefl: records, weights and figures: {folder}\n"

    table = call("run", "it.yaml", "--out", "it", *full)[1]
    assert "(0.333)" in table and "1.000 (1.000)       10" in table
    shutil.rmtree("it")
    plain = call("run", "it.yaml", "--out", "it", "--as", "json")[1]

    shutil.rmtree(sets)
    shutil.rmtree(cache)
    monkeypatch.setenv("EDGEFL_CACHE", str(tmp_path / "other"))  # what this process has opened is found no more either
    assert call("run", "--resume", "it", *full) == (0, table, told("it"))
    assert call("run", "--resume", "it", "--as", "json") == (0, plain, "")
    assert call("run", "--resume", "it", "--verify")[0] == 0
    read_back(RunAnswer, plain)
    facts = json.loads(plain)
    assert ("over_seeds" in facts) == bool(compare)  # of the command alone: the runs' summaries don't have it
    facts.pop("over_seeds", None)
    assert summary(edgefl.run(resume="it")).to_data() == summary(edgefl.read_run("it")).to_data() == facts
    assert not (tmp_path / "other").exists()


def test_a_run_without_a_folder_goes_to_runs(call: Call, trainable: str) -> None:
    words = ("--set", "compare={}", "--set", "schedule.rounds=1", "--set", "data.clients={text: 4}")
    code, out, err = call("run", trainable, *words, "--as", "json")
    assert code == 0 and json.loads(out)["folder"] == "runs/tiny"
    assert Path("runs/tiny/weights.safetensors").is_file()
    assert "tiny: round 1/1" in err


def test_profile(call: Call, declared: str) -> None:
    code, out, _ = call("profile", declared, "--device", "phone-mid", "--link", "lte")
    assert code == 0 and "of tiny on phone-mid over lte" in out and len(out.splitlines()) <= 25
    code, out, _ = call("profile", declared, "--device", "phone-mid", "--link", "lte", "--full")
    assert code == 0 and "=== tiny on phone-mid over lte ===" in out and "Whole schedule, one client" in out
    assert max(map(len, out.splitlines())) <= 100 and "\x1b" not in out
    code, out, _ = call("profile", declared, "--as", "json")
    found = json.loads(out)
    assert [(r["stage"], r["kind"]) for r in found["rows"]] == [(1, "image"), (1, "text"), (2, "image"), (2, "text")]


def test_sweep(call: Call, declared: str) -> None:
    words = ("--vary", "schedule=end-to-end,layerwise", "--vary", "fleet.budgets.memory=1KiB,1GiB")
    code, out, _ = call("sweep", declared, *words, "--out", "grid")
    assert code == 0 and "memory 4" in out and "layerwise" in out and max(map(len, out.splitlines())) <= 100
    code, out, _ = call("sweep", declared, *words, "--out", "grid", "--as", "json")
    assert code == 0 and [r["eligible_share"] for r in json.loads(out)["rows"]] == [0.0, 1.0, 0.0, 1.0]
    assert {p.name for p in Path("grid").iterdir()} == {"sweep.jsonl", "sweep.csv", "writer.lock"}


def needs_of(call: Call, declared: str) -> dict[str, int]:
    """The least peak of each kind at any stage, as ``profile`` prices them."""
    peaks: dict[str, int] = {}
    for row in json.loads(call("profile", declared, "--as", "json")[1])["rows"]:
        peaks[row["kind"]] = min(row["peak_memory_bytes"], peaks.get(row["kind"], row["peak_memory_bytes"]))
    return peaks


def test_nobody_can_train(call: Call, declared: str) -> None:
    """It is said first and last, and by ``validate``, with the least need; the exit code is 1."""
    need = edgefl.units.show_bytes(needs_of(call, declared)["text"])
    simulated = (declared, "--set", "training=none", "--set", "fleet.budgets.memory=1KiB")
    said = f"nobody can train: the least need of memory is {need} (text, stage "
    code, out, _ = call("validate", *simulated)
    assert code == 0 and said in out
    code, out, err = call("run", *simulated, "-o", "run", "--as", "json")
    assert code == 1 and json.loads(out)["finished"]
    assert err.index(said) < err.index("round 1/4") and err.splitlines()[-1].startswith(f"edgefl: {said}")


def test_what_a_run_did_before_it_diverged_is_shown_before_the_error(call: Call, trainable: str) -> None:
    wild = ("compare={}", "data.clients={text: 4}", "training.lr=1e30", "training.optimizer=sgd")
    code, out, err = call("run", trainable, *(word for each in wild for word in ("--set", each)), "-o", "wild")
    assert (
        code == 1 and out.startswith("=== ") and out.endswith("Not finished: continue with edgefl run --resume wild\n")
    )
    *_, again, error = err.splitlines()
    assert again.endswith(": edgefl run --resume wild --set training.on_divergence=continue")
    assert error.startswith("edgefl: error: the model diverged in round 1")


def test_a_shard_says_what_is_left_to_others(call: Call, declared: str) -> None:
    """The last shard prints the comparison, and what each prints as JSON is a record of one class."""
    words = ("run", declared, "--set", "training=none", "--set", "compare={seed: [1, 2]}", "-o", "shares", "--shard")
    code, out, err = call(*words, "1/2", "--as", "json")
    read_back(RunAnswer, out)
    assert code == 0 and json.loads(out) == {"shard": {"folder": "shares", "runs": 2, "left": 1}}
    code, out, err = call(*words, "1/2")
    assert (code, out) == (0, "") and err.endswith(
        "edgefl: this shard has ended; 1 of 2 runs of shares aren't done yet\n"
        "edgefl: when they are: edgefl run --resume shares\n"
    )
    code, out, err = call(*words, "2/2")
    assert code == 0 and out.startswith("Comparison: ") and "this shard" not in err


@pytest.mark.slow(smaller="test_nobody_can_train")
def test_nobody_of_a_kind_or_in_one_run_can_train(call: Call, declared: str) -> None:
    """It is said, too, and the exit code is 0."""
    peaks, simulated = needs_of(call, declared), (declared, "--set", "training=none", "--set")
    between = (peaks["text"] + peaks["image"]) // 2
    code, _, err = call("run", *simulated, f"fleet.budgets.memory={between} B", "-o", "texts")
    need = edgefl.units.show_bytes(peaks["image"])
    assert code == 0 and f"no image client can train: the least need of memory is {need} (image, stage " in err
    code, _, err = call("run", *simulated, "compare={fleet.budgets.memory: [1 KiB, 1 GiB]}", "-o", "both")
    assert code == 0 and err.splitlines()[-1].startswith("edgefl: memory=1KiB: nobody can train: the least need of ")


def test_validate(call: Call, declared: str) -> None:
    simulated = ("validate", declared, "--set", "training=none")
    code, out, _ = call(*simulated)
    assert code == 0 and out.startswith("tiny is valid: 1 combination, seed 3\n") and "in 2 stages (2, 2)" in out
    code, out, _ = call(*simulated, "--as", "yaml")
    assert code == 0
    Path("whole.yaml").write_text(out)
    assert call("validate", "whole.yaml", "--as", "yaml")[1] == out
    assert yaml.safe_load(out) == json.loads(call(*simulated, "--as", "json")[1])["resolved"]


def test_csv_says_that_it_leaves_something_out(call: Call, declared: str) -> None:
    code, out, err = call("profile", declared, "--as", "csv", "--kind", "image", "--fvcore")
    assert code == 0 and "fvcore_forward_macs" not in out and "--as json has the rest" in err


def test_devices(call: Call) -> None:
    code, out, _ = call("devices")
    assert code == 0 and "raspberry-pi-zero-2w" in out and "wifi-5" in out and max(map(len, out.splitlines())) <= 100
    code, out, _ = call("devices", "lte")
    assert code == 0 and "13 Mbit/s" in out and "4 Mbit/s to 40 Mbit/s" in out and "measured" in out
    found = json.loads(call("devices", "--as", "json")[1])
    assert len(found["devices"]) >= 8 and len(found["links"]) >= 4
    for one in found["devices"] + found["links"]:
        for fact in one["values"].values():
            assert fact["low"] <= fact["value"] <= fact["high"] and fact["confidence"]
            assert {"title", "date", "quote"} <= fact["source"].keys()
    code, _, err = call("devices", "raspberry-pi-4")
    assert code == 2 and "did you mean 'raspberry-pi-4-" in err
    code, out, _ = call("devices", "list", "--search", "phone-mid")
    assert code == 0 and "phone-mid" in out and "phone-entry" not in out and "wifi-5" not in out
    code, out, _ = call("devices", "show", "phones")
    assert code == 0 and "phone-entry" in out and "share, after a source" in out and "own estimate" in out
    assert json.loads(call("devices", "show", "lte", "--as", "json")[1])["derived"]["upload_joules_per_megabyte"] > 0


def test_parts(call: Call) -> None:
    code, out, _ = call("parts", "method")
    assert code == 0 and "  fedcola " in out and len(out.splitlines()) < 80
    code, out, _ = call("parts", "method", "fedcola")
    assert code == 0 and out.startswith("fedcola: ") and "none | attention | mlp | blocks" in out
    assert "layerwise" not in out
    code, _, err = call("parts", "schedule", "layrwise")
    assert code == 2 and err == "edgefl: error: unknown schedule 'layrwise'; did you mean 'layerwise'?\n"
    code, _, err = call("parts", "methods")
    assert code == 2 and err == "edgefl: error: unknown kind of part 'methods'; did you mean 'method'?\n"
    code, _, err = call("parts", "--as", "jsn")
    assert code == 2 and err == "edgefl: error: unknown --as 'jsn'; did you mean 'json'?\n"
    found = json.loads(call("parts", "--as", "json")[1])["sections"]
    assert {"fedavg", "fedprox", "fedcola"} <= {m["name"] for m in found["method"]} and len(found) == 22
    assert all(one["summary"] for section in found.values() for one in section)


def test_version_and_help(call: Call) -> None:
    code, out, err = call("--version")
    assert (code, err) == (0, "")
    # a build with CUDA is installed by another version than it tells itself
    assert out == f"edgefl {__version__}, torch {version('torch')}\nformats: scenario 1, run {RUN_FORMAT}\n"
    code, out, _ = call("--help")
    assert code == 0 and all(name in out for name in ("run", "profile", "sweep", "devices", "validate", "methods"))


# --- as a process ----------------------------------------------------------------------------------------------------


@pytest.mark.slow(smaller="test_a_run_says_how_to_go_on")
def test_an_interrupted_run_says_how_to_go_on(trainable: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edgefl", "run", trainable, "--out", "cut", "--as", "json", "--set",
               "compare={}", "--set", "schedule.rounds=500", "--set", "data.clients={text: 4}"]  # fmt: skip
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "round 2/500" in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (130, "")
    assert err.endswith("edgefl: interrupted; continue with: edgefl run --resume cut\n") and "Traceback" not in err
    assert (tmp_path / "cut" / "rounds.jsonl").read_text().count("\n") >= 2


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "edgefl", "parts", "--as", "json"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert done.stderr == ""


def test_a_warning_takes_one_line(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    import warnings

    from edgefl.terminal import warn

    warn(UserWarning("two\n  lines"), UserWarning, "file.py", 3)
    assert capsys.readouterr().err == "edgefl: warning: two lines\n"
    before = warnings.showwarning
    call("--version")
    assert warnings.showwarning is before


def test_a_stream_whose_file_was_closed_first_closes_too() -> None:
    """Python 3.13 reports what a stream raises when it is collected."""
    below = io.StringIO()
    shown = EscapedStream(below)
    below.close()
    shown.close()
    assert shown.closed
