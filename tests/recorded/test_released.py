"""What a released version wrote is read by this one: its scenarios, runs, plug-in and answers.

A minor version may change a format; then its own recording (``release.py``) takes the place of the one before.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl import registry
from edgefl.results.verify import verify

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))

import release  # noqa: E402 - this folder must be on the path

RELEASES = sorted(path for path in HERE.iterdir() if (path / "scenarios").is_dir() and path.name[0].isdigit())
RUNS = [run for folder in RELEASES for run in sorted((folder / "runs").iterdir())]


def called(run: Path) -> str:
    """What a test of a release's file is called: ``0.2.0-net``."""
    return f"{run.parts[-3]}-{run.name}"


@pytest.fixture(autouse=True)
def parts() -> Iterator[None]:
    """The newest release's plug-in, unloaded afterwards."""
    registry.load_plug_in(RELEASES[-1] / "parts.py")
    yield
    registry.unload_plug_ins()


def test_there_is_a_release() -> None:
    assert RELEASES and RUNS


@pytest.mark.parametrize("folder", RELEASES, ids=lambda folder: folder.name)
def test_the_plug_in_has_a_part_of_each_kind(folder: Path) -> None:
    text = (folder / "parts.py").read_text(encoding="utf-8")
    lacking = {noun for noun in registry.GROUPS if f'register("{noun}"' not in text}
    assert lacking == {"model", "profile library"}  # a method of its own names a model; a library is a package's


@pytest.mark.parametrize("run", RUNS, ids=called)
def test_a_released_run_is_read(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, copy := tmp_path / run.name)
    edgefl.validate(run.parents[1] / "scenarios" / f"{run.name}.yaml")
    read = edgefl.read_run(copy)
    if run.name == release.UNFINISHED:
        assert read.records("rounds")
        return
    assert read.result is not None and read.result["rounds"] == len(read.records("rounds"))
    broken = [rule.says for part in verify(copy).runs.values() for rule in part.checks if rule.broken]
    assert not broken
    assert edgefl.explain(copy, 1).round == 1


@pytest.mark.slow(smaller="test_a_released_run_is_read")
@pytest.mark.parametrize("folder", RELEASES, ids=lambda folder: folder.name)
def test_an_unfinished_run_goes_on_to_the_end(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "runs" / release.UNFINISHED, run := tmp_path / "run")
    edgefl.run(resume=run)
    edgefl.run(folder / "scenarios" / f"{release.UNFINISHED}.yaml", out=tmp_path / "anew")
    for name in ("rounds.jsonl", "eligibility.jsonl"):
        resumed, anew = ((each / name).read_text(encoding="utf-8") for each in (run, tmp_path / "anew"))
        assert len(resumed.splitlines()) == len(anew.splitlines()) > 0
    assert not [rule.says for part in verify(run).runs.values() for rule in part.checks if rule.broken]


@pytest.mark.slow(smaller="test_a_released_run_is_read")
@pytest.mark.parametrize("folder", RELEASES, ids=lambda folder: folder.name)
def test_the_plug_in_trains_and_answers_keep_their_fields(folder: Path, tmp_path: Path) -> None:
    for name in ("scenarios", "parts.py"):
        copy = shutil.copytree if (folder / name).is_dir() else shutil.copyfile
        copy(folder / name, tmp_path / name)
    subprocess.run([sys.executable, HERE / "release.py", tmp_path], check=True, capture_output=True)
    for answer in sorted((folder / "answers").glob("*.json")):
        then, now = (
            json.loads(path.read_text(encoding="utf-8")) for path in (answer, tmp_path / "answers" / answer.name)
        )
        assert not list(lost(then, now, answer.stem)), "a patch keeps name and type of each field"


def lost(then: Any, now: Any, where: str) -> Iterator[str]:
    """Fields of an answer that aren't in the other, or have another type there; a field may be null in one of them."""
    if then is None or now is None:
        return
    kinds = [
        float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)
        for value in (then, now)
    ]
    if kinds[0] is not kinds[1]:
        yield f"{where}: {kinds[0].__name__} became {kinds[1].__name__}"
    elif isinstance(then, dict):
        for name, value in then.items():
            if name in now:
                yield from lost(value, now[name], f"{where}.{name}")
            else:
                yield f"{where}.{name} is gone"
    elif isinstance(then, list):
        for place, pair in enumerate(zip(then, now)):
            yield from lost(*pair, f"{where}[{place}]")


@pytest.mark.parametrize(
    ("now", "says"),
    [
        ({"rows": [{"a": 1.5}]}, []),
        ({"rows": [{}]}, ["x.rows[0].a is gone"]),
        ({"rows": [{"a": "1"}]}, ["x.rows[0].a: float became str"]),
    ],
    ids=["the same", "a field went", "another type"],
)
def test_a_lost_field_is_found(now: Any, says: list[str]) -> None:
    assert list(lost({"rows": [{"a": 1}]}, now, "x")) == says
