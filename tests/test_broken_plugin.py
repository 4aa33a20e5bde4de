"""Plug-ins with a fault in every place: each is one line with the plug-in and its file, and nothing else stops."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import edgefl
from edgefl.console import main
from edgefl.errors import MethodError, PluginError, TrainingError
from edgefl.testing import check_part

HERE = Path(__file__).parent
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module", autouse=True)
def package(install: Callable[[Path], None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed copy of tests/broken, with a module that has a SyntaxError."""
    folder = tmp_path_factory.mktemp("broken") / "installed"
    shutil.copytree(HERE / "broken", folder)
    (folder / "edgefl_broken" / "mistyped.py").write_text("\nclass Mistyped(:\n")
    install(folder)
    return folder / "edgefl_broken"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Types a command in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def answer(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*words])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return answer


@pytest.fixture(scope="module")
def scenario(tiny: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A scenario of four clients with texts and one round, for a method."""

    def make(method: str, **sections: Any) -> dict[str, Any]:
        data = {"source": "glyphs", "clients": {"text": 4}, "samples": 40, "validation": 40, "test": 40}
        schedule = {"name": "end-to-end", "rounds": 1}
        return {**tiny(data=data, schedule=schedule), "method": method, **sections}

    return make


@pytest.fixture(scope="module")
def file(scenario: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("scenario") / "broken.yaml"
    path.write_text(yaml.safe_dump({"edgefl": 1, **scenario("fedavg")}))
    return str(path)


BEFORE = {
    "mistyped": ("mistyped.py:2", "SyntaxError: invalid syntax"),
    "nothing": ("methods.py", "edgefl_broken.methods:NOTHING is None"),
    "number": ("methods.py", "is 7, which can't be called"),
    "absent": ("methods.py", "has no attribute 'Absent'"),
    "nowhere": ("entry_points.txt", "No module named 'edgefl_broken.nowhere'"),
    "leaves-import": ("leaves.py:5", "it tried to end the program (SystemExit: 0)"),
    "bad-options": ("methods.py", "Options that aren't a pydantic model: 3"),
    "raises-init": ("methods.py:", "in RaisesInInit.__init__) failed: KeyError: 'rank'"),
    "leaves-init": ("methods.py:", "in LeavesInInit.__init__) failed: it tried to end the program"),
    "raises-work": ("methods.py:", "in RaisesInWork.work) failed: KeyError: 'text'"),
    "leaves-work": ("methods.py:", "in LeavesInWork.work) failed: it tried to end the program (SystemExit: bye)"),
    "stops-work": ("methods.py:", "in StopsInWork.work) failed: Stop: enough"),
    "mute-work": ("methods.py:", "in MuteInWork.work) failed: Mute: its text can't be told, as that raises Zero"),
    "no-work": ("methods.py:", "NoWork.work() (the plug-in edgefl-broken 1.0, "),
}
WHILE = {
    "raises-initial": ("methods.py:", "in RaisesInInitial.initial) failed: LookupError: no start"),
    "raises-aggregate": ("methods.py:", "in RaisesInAggregate.aggregate) failed: ZeroDivisionError: two lines"),
    "leaves-aggregate": ("methods.py:", "in LeavesInAggregate.aggregate) failed: it tried to end the program"),
    "stops-aggregate": ("methods.py:", "in StopsInAggregate.aggregate) failed: Stop: enough\\x1b[31m"),
    "mute-aggregate": ("methods.py:", "in MuteInAggregate.aggregate) failed: Mute: its text can't be told"),
    "no-state": ("methods.py:", "returned None, not a ServerState"),
    "wrong-shape": ("methods.py:", "changed 'text/text.head.bias' from torch.float32 (12,) to torch.float32 (1,)"),
    "raises-step": ("steps.py:", "in Raises.loss) failed: KeyError: 'missing'"),
    "leaves-step": ("steps.py:", "in Leaves.loss) failed: it tried to end the program (SystemExit: 0)"),
    "vector-loss": ("steps.py", "the loss of the step 'vector' of the plug-in edgefl-broken 1.0"),
    "wrong-output": ("steps.py", "sends 'table' in the shape (3,), described as (4,)"),
}


@pytest.mark.parametrize("method", [*BEFORE, *WHILE])
def test_a_fault_is_one_line_with_the_plug_in_and_its_file(call: Call, file: str, package: Path, method: str) -> None:
    command = ("validate",) if method in BEFORE else ("run",)
    code, out, err = call(*command, file, "--set", f"method={method}", "--as", "json")
    place, message = {**BEFORE, **WHILE}[method]
    last = err.splitlines()[-1]
    assert (code, out) == (2, "") and "Traceback" not in err
    assert last.startswith("edgefl: error: ") and err.count("edgefl: error") == 1
    assert "the plug-in edgefl-broken 1.0" in last and message in last
    assert str(package.parent if place == "entry_points.txt" else package / place) in last and place in last


@pytest.mark.parametrize("compare", [{}, {"seed": [1, 2]}], ids=["a run", "a comparison"])
def test_a_run_that_ends_before_its_first_round_leaves_no_folder(
    scenario: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compare: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PluginError, match="no start"):
        edgefl.run(scenario("raises-initial", compare=compare))
    assert list(tmp_path.iterdir()) == []
    # what was there before stays, and so does a run that has begun
    (tmp_path / "mine").mkdir()
    with pytest.raises(PluginError, match="no start"):
        edgefl.run(scenario("raises-initial", compare=compare), out="mine/run")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"] and list((tmp_path / "mine").iterdir()) == []
    with pytest.raises(PluginError, match="ZeroDivisionError"):
        edgefl.run(scenario("raises-aggregate", compare=compare), out="mine/run")
    assert list((tmp_path / "mine" / "run").iterdir())


def test_the_traceback_is_printed_where_it_is_asked_for(call: Call, file: str) -> None:
    words = ("validate", file, "--set", "method=raises-work")
    code, _, err = call("--traceback", *words)
    assert code == 2 and "in work\n    return {}[kind]\n" in err and "KeyError: 'text'\n" in err
    assert err.splitlines()[-1].startswith("edgefl: error: the plug-in edgefl-broken 1.0 (")
    code, _, err = call(*words)
    assert code == 2 and "Traceback" not in err and "for the traceback: edgefl --traceback COMMAND" in err


def test_python_callers_get_an_error_of_edgefl_with_its_cause(
    scenario: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    with pytest.raises(PluginError, match="LeavesInInit") as caught:
        edgefl.validate(scenario("leaves-init"))
    assert isinstance(caught.value.__cause__, SystemExit)
    with pytest.raises(TrainingError, match="failed on client .*the plug-in edgefl-broken 1.0 .*steps.py") as failed:
        edgefl.run(scenario("leaves-with-data"), out=tmp_path / "run")
    assert failed.value.exit_code == 1


@pytest.mark.parametrize(
    ("method", "says"), [("stops-with-data", "Stop: enough"), ("mute-with-data", "Mute: its text")]
)
def test_whatever_a_step_raises_names_its_client(
    scenario: Callable[..., dict[str, Any]], tmp_path: Path, method: str, says: str
) -> None:
    with pytest.raises(TrainingError, match=f"failed on client .*the plug-in edgefl-broken 1.0 .*steps.py.*{says}"):
        edgefl.run(scenario(method), out=tmp_path / "run")


@pytest.mark.slow(smaller="test_whatever_a_step_raises_names_its_client")
def test_a_step_that_ends_the_program_in_a_worker_is_an_error_of_its_client(
    scenario: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    workers = {"name": "processes", "workers": 1, "device": "cpu"}
    with pytest.raises(TrainingError, match="failed on client .*it tried to end the program"):
        edgefl.run(scenario("leaves-with-data", executor=workers), out=tmp_path / "run")


def test_a_fault_of_the_caller_is_not_a_plug_ins(scenario: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    def on_progress(event: str, facts: Any) -> None:
        raise LookupError(event)

    with pytest.raises(LookupError):
        edgefl.run(scenario("sound"), out=tmp_path / "run", on_progress=on_progress)


@pytest.mark.slow(smaller="test_a_hang_is_where_the_code_ran_and_not_in_the_watch")
def test_ctrl_c_names_where_a_plug_in_hung(file: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edgefl", "run", file, "--set", "method=hangs-work", "--out", "hung"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hanging\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 130 and "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith("edgefl: interrupted in the plug-in edgefl-broken 1.0 (")
    assert last.endswith(", in HangsInWork.work); nothing was written")


# --- lists -----------------------------------------------------------------------------------------------------------


def test_methods_lists_the_rest_and_says_which_part_is_broken(call: Call) -> None:
    code, out, err = call("parts", "--as", "json")
    found = json.loads(out)
    assert code == 0 and err == ""
    listed = {each["name"] for each in found["sections"]["method"]}
    assert {"sound", "raises-init", "fedavg"} <= listed
    broken = {(each["part"], each["name"]) for each in found["broken"]}
    unreadable = {"mistyped", "nothing", "number", "absent", "nowhere", "leaves-import", "bad-options"}
    assert broken == {("method", name) for name in unreadable} | {("step", "no-step")}
    assert not listed & unreadable and all("edgefl-broken 1.0" in each["message"] for each in found["broken"])
    code, out, err = call("parts", "method")
    assert code == 0 and "sound" in out and err.count("edgefl: left out: ") == len(broken) == err.count("\n")


def test_devices_lists_the_rest_and_says_which_library_and_profile_is_broken(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(HERE / "broken_profiles")!r})
from edgefl.console import main
for words in (["devices", "--as", "json"], ["devices", "lte"]):
    try:
        main(words)
    except SystemExit as ended:
        print("\\nexit", ended.code or 0)
        print("exit", file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    first, shown, end = done.stdout.split("\nexit 0\n")
    silent, warned, _ = done.stderr.split("exit\n")
    found = json.loads(first)
    assert (done.returncode, silent, end) == (0, "", "")
    assert "raspberry-pi-zero-2w" in {device["name"] for device in found["devices"]} and found["links"]
    broken = {(each["part"], each["name"]): each["message"] for each in found["broken"]}
    library = "profile library"
    assert broken.keys() == {(library, "gone"), (library, "nothing"), ("device", "unfinished")}
    assert "NOTHING is None" in broken[library, "nothing"] and "is no folder" in broken[library, "gone"]
    assert "unfinished.yaml: ram_bytes, " in broken["device", "unfinished"]
    # a profile of a sound library is found, and the broken ones are told
    assert "13 Mbit/s" in shown
    assert warned.count("edgefl: warning: the profile library ") == warned.count("\n") == 2


# --- check -----------------------------------------------------------------------------------------------------------

ANSWERS = "every function answers, and work() with a Work"
STATELESS = "steps and edits keep nothing beside the context"
UNTRAINED = "training: none needs shapes alone"


@pytest.mark.parametrize(
    ("method", "rule", "message"),
    [
        ("no-work", ANSWERS, "returned None, not a Work"),
        ("leaves-work", ANSWERS, "in LeavesInWork.work) failed: it tried to end the program"),
        ("hangs-work", ANSWERS, "no check was finished for 1 s; it hung in the plug-in edgefl-broken 1.0 ("),
        ("caching", STATELESS, "'edgefl_broken.steps.Caching.first' changed"),
        ("counting", STATELESS, "'edgefl_broken.steps.seen' changed"),
        ("looking", UNTRAINED, "tensors on the meta device"),
        ("choosy", UNTRAINED, "changes either with training or without it"),
    ],
)
def test_check_method_finds(method: str, rule: str, message: str) -> None:
    before = signal.getsignal(signal.SIGALRM)
    limit = {"hang_after": 1.0} if method == "hangs-work" else {}
    report = check_part("method", method, runs=False, schedules=["end-to-end"], kinds=["text"], **limit)
    assert any(each.startswith(f"{rule}: ") and message in each for each in report.failures), str(report)
    assert signal.getsignal(signal.SIGALRM) is before and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.slow(smaller="test_check_method_finds")
def test_check_method_keeps_a_sound_method_and_refuses_one_that_cannot_be_made() -> None:
    report = check_part("method", "sound", runs=False, schedules=["end-to-end"], kinds=["text"])
    assert report.ok and {ANSWERS, STATELESS, UNTRAINED} <= report.checks.keys()
    for method in ("raises-init", "leaves-init", "mistyped"):
        with pytest.raises(MethodError, match="edgefl-broken 1.0 .*edgefl_broken"):
            check_part("method", method, runs=False)
