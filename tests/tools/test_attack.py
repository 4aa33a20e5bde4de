"""tools/attack.py: a few attacks of each kind, what its witness sees, and how it goes on after a sitting."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from random import Random

import numpy as np
import pytest
from safetensors.numpy import save_file

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))

import attack
from attacking.kinds import KINDS, Case
from attacking.starts import Bench
from attacking.subjects import SUBJECTS, drawn
from attacking.witness import contents, differences, documented, faults_of_output
from fuzzing.printed import unprintable

FEW = {"kills": 6, "disks": 6, "caches": 4, "starts": 4, "signals": 4, "ray": 1}


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Bench(Path(tempfile.mkdtemp(prefix="edgefl-"))) as bench:  # Ray's sockets have no room for a longer path
        yield bench


@pytest.mark.slow(smaller="test_the_codes_are_those_of_the_page")
@pytest.mark.parametrize("kind", KINDS)
def test_attacked_commands_end_as_documented(bench: Bench, kind: str) -> None:
    results = [attack.attacked(bench, kind, number, 1, "here") for number in range(FEW[kind])]
    assert attack.summary([each for each in results if each.faults]) == "no case"


@pytest.mark.slow(smaller="test_tracebacks_and_long_answers_are_seen")
def test_what_commands_do_wrong_is_found(bench: Bench, tmp_path: Path) -> None:
    """Each of these facts is made false by a start that isn't edgefl's fault, and told."""
    case = Case(bench, tmp_path / "case", Random(1))
    whole = case.choose("end-to-end")
    case.end(case.begin(["run", "scenario.yaml", "-o", "elsewhere"]), "elsewhere")
    assert [fault.partition(" (")[0] for fault in case.faults] == ["elsewhere: outside the folder: elsewhere"]
    case.faults.clear()
    shutil.rmtree(case.here / "elsewhere")
    killed = case.begin(case.subject.start("out"))
    killed.after(0.3)
    killed.signal(signal.SIGKILL)
    case.end(killed, "killed")
    assert any("exit code -9" in fault for fault in case.faults)
    shutil.rmtree(case.here / "out", ignore_errors=True)  # on some machines the run had begun
    case.faults.clear()
    case.end(case.begin(["run", "nothing.yaml"]), "refused", codes=(0,))
    assert any(fault.startswith("refused: exit code 2") for fault in case.faults)
    case.faults.clear()
    case.subject = SUBJECTS["layerwise"]  # another scenario's end
    (case.here / "scenario.yaml").write_text(json.dumps(case.subject.scenario))
    case.out = "other"
    case.finish(whole.contents)
    assert any("differs" in fault for fault in case.faults), case.faults


# the witness ----------------------------------------------------------------------------------------------------------


def test_the_codes_are_those_of_the_page() -> None:
    assert {0, 1, 2, 130} <= documented() and 120 not in documented() and -9 not in documented()


@pytest.mark.parametrize(
    ("text", "found"),
    [("a\nb\n", ""), ("\x1b[2J", "U+001B"), ("a\tb", "U+0009"), ("\x9b2J", "U+009B"), ("a\u202eb", "U+202E"),
     ("a\u2028b", "U+2028"), ("a\x7f", "U+007F"), ("é名\U0001f600", "")],
)  # fmt: skip
def test_what_a_terminal_would_obey_is_seen(text: str, found: str) -> None:
    assert unprintable(text)[:6] == found
    assert bool(faults_of_output("", text)) == bool(found)


def test_tracebacks_and_long_answers_are_seen() -> None:
    progress = "preparing small\n" + "small: round 1/3, stage 1, clock 1 ms\n  image acc 0.1,\n  text acc 0.2\n" * 50
    assert faults_of_output("", progress + "edgefl: error: x: too large\n") == []
    assert "traceback" in faults_of_output("", "Traceback (most recent call last):\n  File\nKeyError: 1\n")[0]
    assert "lines on stderr" in faults_of_output("", "more\n" * 20)[0]
    assert "lines on stderr" in faults_of_output("", "edgefl: warning: x\n" + "  more\n" * 20)[0]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with the files of a run that the witness treats in its own way."""
    checkpoint = tmp_path / "out" / "checkpoints" / "round-000001"
    checkpoint.mkdir(parents=True)
    (tmp_path / "out" / "rounds.jsonl").write_text('{"round": 1}\n')
    (tmp_path / "out" / "host.jsonl").write_text('{"wall_seconds": 1}\n')
    save_file({"a": np.ones(3), "b": np.zeros(2)}, tmp_path / "out" / "weights.safetensors")
    state = {
        "round": 1,
        "state": {"now": 1},
        "inputs": {},
        "made_of": {},
        "records": {"host": {"lines": 1}, "rounds": {}},
    }
    (checkpoint / "state.json").write_text(json.dumps({**state, "in_weights": ["a"], "written_since_boot": "x"}))
    save_file({"c": np.ones(1)}, checkpoint / "state.safetensors")
    return tmp_path / "out"


def test_every_changed_file_is_seen_but_those_of_the_host(run: Path) -> None:
    expected = contents(run)
    (run / "host.jsonl").write_text('{"wall_seconds": 2}\n')
    manifest = run / "checkpoints" / "round-000001" / "state.json"
    facts = json.loads(manifest.read_text())
    # the same checkpoint, whose tensors all lie beside it
    save_file({"a": np.ones(3), "c": np.ones(1)}, manifest.with_suffix(".safetensors"))
    manifest.write_text(json.dumps({name: facts[name] for name in facts if name != "in_weights"}))
    assert differences(expected, run) == []
    save_file({"a": np.ones(3), "c": np.zeros(1)}, manifest.with_suffix(".safetensors"))
    assert differences(expected, run) == ["checkpoints/round-000001/state.safetensors differs"]
    (run / "rounds.jsonl").write_text('{"round": 2}\n')
    (run / "host.jsonl").unlink()
    (run / ".partial-x").mkdir()
    assert set(differences(expected, run)) == {
        "checkpoints/round-000001/state.safetensors differs", "rounds.jsonl differs", "host.jsonl is missing",
        ".partial-x/ is left behind",
    }  # fmt: skip
    manifest.write_text("{")
    assert "can't be read" in differences(expected, run)[0]


# sittings -------------------------------------------------------------------------------------------------------------


def test_a_case_depends_on_seed_and_number_alone() -> None:
    names = ["fedavg", "fedprox", "creamfl"]
    assert drawn(Random("1:kills:5"), names) == drawn(Random("1:kills:5"), names)
    assert len({json.dumps(drawn(Random(i), names).scenario) for i in range(50)}) > 30


def test_a_later_sitting_goes_on_and_tries_failures_of_other_commits_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "attack.jsonl"
    here = attack.commit()

    def result(number: int, on: str, *faults: str, seed: int = 1) -> attack.Result:
        return attack.Result("kills", number, seed, on, 1.5, ["end-to-end"], list(faults))

    first = [result(0, "old"), result(1, "old", "x differs"), result(2, here, "y differs"), result(3, here, seed=2)]
    state.write_text("".join(json.dumps(asdict(each)) + "\n" for each in first) + '{"kind": "ki')
    assert attack.read(state) == first
    assert attack.main(["--only", "kills", "--count", "4", "--seconds", "0", "--state", str(state)]) == 0
    assert capsys.readouterr().out.startswith(f"2 cases on {here}, of seed 1")  # 1 and 3
    with state.open("a") as file:
        file.write(json.dumps(asdict(result(1, here))) + "\n")
    assert attack.main(["--summary", "--state", str(state)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"kills: 3 clean, 1 failed; 0.1 min; on old (1), {here} (3)", "  kills 2 of seed 1: y differs",
    ]  # fmt: skip
