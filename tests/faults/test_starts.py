"""Starts that are killed at any call, two at once into one folder, and a run whose files others change meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tensors import assert_equal_tensors

import edgefl
from edgefl.errors import RunError
from edgefl.runs import read_run

Tiny = Callable[..., dict[str, Any]]
STEPS = Path(__file__).parents[1] / "toys" / "steps_of_a_start.py"
SAME = ("scenario.yaml", "models.json", "rounds.jsonl", "clients.jsonl", "eligibility.jsonl", "result.json")


@pytest.fixture
def small(tiny: Tiny) -> dict[str, Any]:
    return tiny(
        data={"source": "glyphs", "clients": {"image": 2}, "samples": 10, "validation": 8, "test": 8},
        model={"image": {"blocks": 1, "width": 16, "heads": 2}},
        schedule={"name": "end-to-end", "rounds": 1},
    )


def starts(what: str, scenario: Mapping[str, Any], root: Path) -> list[dict[str, Any]]:
    """How the starts of ``steps_of_a_start.py`` ended, one for each call at which the first was stopped."""
    asked = {"given": scenario, "root": str(root), "what": what}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # threads of torch don't live on in a fork
    done = subprocess.run(
        [sys.executable, str(STEPS), json.dumps(asked)], capture_output=True, text=True, env=environment, timeout=1500
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found
    return found


def assert_whole(folder: Path, root: Path) -> None:
    """A run that was played to its end holds the bytes of the one that nothing disturbed, and no half file."""
    for name in SAME:
        assert (folder / name).read_bytes() == (root / "whole" / name).read_bytes(), (folder, name)
    left, right = (load_file(each / "weights.safetensors") for each in (folder, root / "whole"))
    assert_equal_tensors(left, right)
    assert not list(folder.rglob(".partial-*"))


@pytest.mark.slow(smaller="test_what_a_killed_process_left_half_written_goes_with_the_next")
def test_a_start_that_is_killed_at_any_call_begins_again(small: dict[str, Any], tmp_path: Path) -> None:
    """A new start takes its folder over, or says that a run is there; ``--resume`` begins it once it has a scenario."""
    told = starts("killed", small, tmp_path)
    assert len(told) >= 25
    for start in told:
        again, resumed = map(Path, start["folders"])
        left = start["left"] or []
        if {"scenario.yaml", "environment.json", "models.json"} <= set(left):
            assert start["again"][0] == 2 and f"continue it with --resume {again}" in start["again"][1]
        else:
            assert start["again"] == [0, ""], start
            assert_whole(again, tmp_path)
        if "scenario.yaml" in left:
            assert start["resumed"] == [0, ""], start
            assert_whole(resumed, tmp_path)
        else:
            assert start["resumed"][0] == 2 and "\n" not in start["resumed"][1], start
            assert sorted(each.name for each in resumed.iterdir()) == left if left else True


@pytest.mark.slow(smaller="test_free_folders_are_made_for_one_process")
@pytest.mark.parametrize("what", ["held", "failing", "unnamed"])
def test_a_second_start_at_any_call_of_the_first(small: dict[str, Any], tmp_path: Path, what: str) -> None:
    """One of two starts into one folder makes the whole run, and the other is told; without ``-o`` both run."""
    told = starts(what, small, tmp_path)
    for start in told:
        first, second = start["first"], start["second"]
        folder = Path(start["folder"])
        if what == "unnamed":
            assert first == second == [0, ""], start
            assert_whole(folder / "runs" / "tiny", tmp_path)
            assert_whole(folder / "runs" / "tiny-2", tmp_path)
            continue
        refused = [text for code, text in (first, second) if code]
        assert all(
            text.startswith(("another process is writing", "run already holds", "this start")) for text in refused
        )
        assert all(code in (0, 2) for code, _ in (first, second))
        if what == "held":
            assert len(refused) == 1
        if len(refused) == 2:  # the one that failed has removed all that it made
            assert not (folder / "run").exists()
        else:
            assert_whole(folder / "run", tmp_path)
    outcomes = {(start["first"][0], start["second"][0]) for start in told}
    assert outcomes == {"held": {(0, 2), (2, 0)}, "failing": {(2, 0), (2, 2)}, "unnamed": {(0, 0)}}[what]


@pytest.mark.slow(smaller="test_free_folders_are_made_for_one_process")
def test_starts_at_spaced_times_into_one_folder(small: dict[str, Any], tmp_path: Path) -> None:
    edgefl.run(small, out=tmp_path / "whole")
    for number in range(6):
        folder = tmp_path / f"run-{number}"
        call = [
            sys.executable,
            "-c",
            "import json, sys, edgefl; edgefl.run(json.loads(sys.argv[1]), out=sys.argv[2])",
        ]
        both = []
        for wait in (0.0, number / 10):
            time.sleep(wait)
            both.append(subprocess.Popen([*call, json.dumps(small), str(folder)], stderr=subprocess.PIPE, text=True))
        said = [each.communicate(timeout=900)[1] for each in both]
        codes = sorted(each.returncode for each in both)
        assert codes == [0, 1], said
        assert any("RunError: " in each for each in said)
        assert_whole(folder, tmp_path)


def test_free_folders_are_made_for_one_process(tmp_path: Path) -> None:
    """Six processes that ask at once get six folders."""
    code = (
        "import sys\nfrom edgefl.runs.folders import free_folder\nsys.stdin.read()\n"
        "new = free_folder('x'); print(new.path, flush=True); (new.path / 'mine').mkdir()"
    )
    asking = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    for each in asking:
        assert each.stdin is not None
        each.stdin.close()
    names = []
    for each in asking:
        assert each.stdout is not None and each.wait(timeout=900) == 0
        names.append(each.stdout.read().strip())
        each.stdout.close()
    assert sorted(names) == ["runs/x", *(f"runs/x-{number}" for number in range(2, 7))]


def test_a_folder_that_was_made_by_a_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Tiny) -> None:
    """``-o .``, and a link to an empty folder, before and after a start that fails."""
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to("here")
    (tmp_path / "nowhere").symlink_to("no folder")
    monkeypatch.chdir(tmp_path / "here")
    scenario = tiny(training={"mode": "none"}, schedule={"name": "end-to-end", "rounds": 1})

    def failing(event: str, facts: Mapping[str, object]) -> None:
        if event == "combination":
            Path("mine.txt").write_text("keep me")
            raise RunError("this start fails")

    for output in (".", tmp_path / "link"):
        with pytest.raises(RunError, match="this start fails"):
            edgefl.run(scenario, out=output, on_progress=failing)
        assert [each.name for each in (tmp_path / "here").iterdir()] == ["mine.txt"]
        Path("mine.txt").unlink()
    with pytest.raises(RunError, match="a link that leads to no folder"):
        edgefl.run(scenario, out=tmp_path / "nowhere")
    assert edgefl.run(scenario, out=".").is_finished
    first = (tmp_path / "here" / "rounds.jsonl").read_bytes()
    for each in (tmp_path / "here").iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    assert edgefl.run(scenario, out=tmp_path / "link").is_finished
    assert (tmp_path / "link").is_symlink() and (tmp_path / "here" / "rounds.jsonl").read_bytes() == first


@pytest.fixture
def predicted(tiny: Tiny) -> dict[str, Any]:
    return tiny(training={"mode": "none"}, schedule={"name": "end-to-end", "rounds": 4})


def interrupted(scenario: dict[str, Any], folder: Path, after: int) -> None:
    """A run that is interrupted once this round is recorded, or when it starts."""

    def on_progress(event: str, facts: Mapping[str, Any]) -> None:
        if event == ("record" if after else "start") and facts["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        edgefl.run(scenario, out=folder, on_progress=on_progress)


def test_resuming_without_a_checkpoint_says_what_becomes_of_the_records(
    predicted: dict[str, Any], tmp_path: Path
) -> None:
    whole = edgefl.run(predicted, out=tmp_path / "whole")
    interrupted(predicted, tmp_path / "run", 3)
    shutil.rmtree(tmp_path / "run" / "checkpoints", ignore_errors=True)
    shutil.copytree(tmp_path / "run", tmp_path / "edited")
    shutil.copytree(tmp_path / "run", tmp_path / "unknown")
    with pytest.warns(RuntimeWarning, match=r"begins at round 1, and its records of rounds 1 to \d are computed again"):
        resumed = edgefl.run(resume=tmp_path / "run")
    for table in ("rounds", "clients", "eligibility"):
        assert (resumed.path / f"{table}.jsonl").read_bytes() == (whole.path / f"{table}.jsonl").read_bytes()
    # the scenario was edited since: nothing of it is replaced
    scenario = tmp_path / "edited" / "scenario.yaml"
    scenario.write_text(scenario.read_text().replace("seed: 3", "seed: 4"))
    before = (tmp_path / "edited" / "rounds.jsonl").read_bytes()
    with pytest.raises(RunError, match=r"has changed since it began: scenario\.seed: 3 -> 4"):
        edgefl.run(resume=tmp_path / "edited")
    assert before and (tmp_path / "edited" / "rounds.jsonl").read_bytes() == before
    # nothing says what they were made of
    (tmp_path / "unknown" / "begun.json").unlink()
    with pytest.raises(RunError, match="neither a checkpoint nor begun.json"):
        edgefl.run(resume=tmp_path / "unknown")
    assert (tmp_path / "unknown" / "rounds.jsonl").read_bytes() == before


def test_a_run_without_any_record_begins_at_round_1(predicted: dict[str, Any], tmp_path: Path) -> None:
    interrupted(predicted, tmp_path / "run", 0)
    said: list[str] = []
    edgefl.run(resume=tmp_path / "run", on_progress=lambda event, facts: said.append(str(facts.get("what"))))
    assert any("has no checkpoint: it begins at round 1" in each for each in said)


@pytest.mark.parametrize(
    ("name", "how", "at"),
    [
        ("rounds.jsonl", "deleted", 2), ("rounds.jsonl", "replaced", 2), ("rounds.jsonl", "a digit", 2),
        ("rounds.jsonl", "deleted", 4), ("clients.jsonl", "deleted", 2), ("clients.jsonl", "a digit", 4),
        ("models.json", "deleted", 4),
    ],
)  # fmt: skip
def test_a_file_that_another_program_changes_meanwhile_ends_the_run(
    predicted: dict[str, Any], tmp_path: Path, name: str, how: str, at: int
) -> None:
    """In mid-run, and after the last round; the checkpoint stays, and with the file back the run goes on."""
    folder = tmp_path / "run"
    kept: list[bytes] = []
    checkpoints: list[Path] = []

    def on_progress(event: str, facts: Mapping[str, Any]) -> None:
        if event != "record" or facts["round"] != at:
            return
        path = folder / name
        kept.append(path.read_bytes())
        checkpoints.extend((folder / "checkpoints").glob("round-*"))
        if how == "deleted":
            path.unlink()
        elif how == "replaced":
            path.write_bytes(b"".join(kept[0].splitlines(keepends=True)[:-1]))
        else:  # as many bytes
            last = max(place for place, byte in enumerate(kept[0]) if chr(byte).isdigit())
            digit = b"1" if kept[0][last : last + 1] != b"1" else b"2"
            path.write_bytes(kept[0][:last] + digit + kept[0][last + 1 :])

    with pytest.raises(RunError, match=f"(another program changed|is not the folder of a run).*{name}") as caught:
        edgefl.run(predicted, out=folder, on_progress=on_progress)
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)
    assert not (folder / "result.json").exists() and all(each.is_dir() for each in checkpoints)
    if at == 4:
        (folder / name).write_bytes(kept[0])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert edgefl.run(resume=folder).is_finished


def test_what_a_killed_process_left_half_written_goes_with_the_next(predicted: dict[str, Any], tmp_path: Path) -> None:
    """At a resume, also of a finished run; the half page of a report that may be under way stays."""
    folder = tmp_path / "run"
    interrupted(predicted, folder, 0)

    def litter() -> None:
        for name in (
            ".partial-result.json",
            f".partial-{'0a' * 16}-curves.png",
            f".partial-{'0b' * 16}-report.html",
            ".tmp8VwAe6",
        ):  # of safetensors, beside weights.safetensors
            (folder / name).write_text("half")
        for name in ("checkpoints/.partial-round-000001", "checkpoints/.partial-removed-round-000001", "unfinished"):
            (folder / name).mkdir(exist_ok=True, parents=True)
            (folder / name / "state.json").write_text("half")
        (folder / "unfinished" / "state.json").rename(folder / "unfinished" / ".partial-round-000003")

    for _ in range(2):
        litter()
        assert edgefl.run(resume=folder).is_finished
        assert [each.name for each in folder.rglob(".*-*")] == [f".partial-{'0b' * 16}-report.html"]
        assert not list(folder.rglob(".tmp*"))
    assert read_run(folder).is_finished


def test_the_start_of_a_comparison_is_taken_over_and_begun(predicted: dict[str, Any], tmp_path: Path) -> None:
    """Killed after its scenario and before ``compare.json``."""
    scenario = {**predicted, "schedule": {"name": "end-to-end", "rounds": 1}, "compare": {"seed": [1, 2]}}
    whole = edgefl.run(scenario, out=tmp_path / "whole")
    for name in ("again", "resumed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "writer.lock").touch()
        shutil.copy(whole.path / "scenario.yaml", tmp_path / name)
        (tmp_path / name / ".partial-compare.json").write_text("{")
    other = {**scenario, "seed": 7}
    with pytest.raises(RunError, match=r"the start of a run with another scenario\.yaml"):
        edgefl.run(other, out=tmp_path / "again")
    edgefl.run(scenario, out=tmp_path / "again")
    edgefl.run(resume=tmp_path / "resumed")
    for name in ("again", "resumed"):
        for path in whole.path.glob("*/rounds.jsonl"):
            assert (tmp_path / name / path.relative_to(whole.path)).read_bytes() == path.read_bytes()
