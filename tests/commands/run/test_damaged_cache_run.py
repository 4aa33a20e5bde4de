"""A run on a damaged cache is the run on a good one: exit 0, the same records and weights, and a line for the file."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from edgefl.console.app import main
from edgefl.setup import compose

pytestmark = pytest.mark.filterwarnings("default")  # the command prints them


def scenario(tiny: Callable[..., dict[str, Any]], executor: str) -> dict[str, Any]:
    tower = {"blocks": 1, "width": 8, "heads": 1, "tokens": 8}
    return tiny(
        data={"source": "names", "clients": {"text": 3}, "samples": 20, "validation": 20, "test": 20, "public": 64},
        model={"text": tower},
        schedule={"name": "end-to-end", "rounds": 1},
        pretrain={"text": {"epochs": 1, "batch": 16}},
        executor={"name": executor, "workers": 1} if executor == "processes" else executor,
    )


class Runs:
    """Runs of one scenario by the command line, each in a folder of its own, on one cache."""

    def __init__(self, folder: Path, cache: Path, capsys: pytest.CaptureFixture[str]):
        self._folder, self.cache, self._capsys, self._count = folder, cache, capsys, 0

    def run(self, content: dict[str, Any]) -> tuple[dict[str, str], str]:
        """The digests of a run's records and weights by file, and what stderr said."""
        self._count += 1
        output = self._folder / f"run-{self._count}"
        path = self._folder / "it.yaml"
        path.write_text(yaml.safe_dump({"edgefl": 1, **content}))
        compose._federations.clear()  # as in a new process
        try:
            main(["run", str(path), "--out", str(output)])
        except SystemExit as ended:
            assert not ended.code, self._capsys.readouterr().err
        names = ("rounds.jsonl", "clients.jsonl", "eligibility.jsonl", "weights.safetensors", "pretrained.safetensors")
        kept = {name: hashlib.sha256((output / name).read_bytes()).hexdigest() for name in names}
        return kept, self._capsys.readouterr().err


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runs:
    monkeypatch.setenv("EDGEFL_CACHE", str(tmp_path / "cache"))
    return Runs(tmp_path, tmp_path / "cache", capsys)


def flip(path: Path, place: float) -> None:
    """Flip a bit, at a share of the file; the file keeps its time."""
    bytes_, status = bytearray(path.read_bytes()), path.stat()
    bytes_[int(place * len(bytes_))] ^= 4
    path.write_bytes(bytes_)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def check(
    runs: Runs, content: dict[str, Any], good: dict[str, str], path: Path, damage: Callable[[Path], object]
) -> None:
    damage(path)
    found, err = runs.run(content)
    assert found == good
    lines = [line for line in err.splitlines() if str(path) in line]
    assert len(lines) == 1 and lines[0].startswith("edgefl: warning: ") and lines[0].endswith("again"), err
    assert "Traceback" not in err


def files(cache: Path, *names: str) -> list[Path]:
    return sorted(path for name in names for path in cache.rglob(name) if path.is_file())


def test_a_run_on_damaged_data_is_the_run_on_good_data(tiny: Callable[..., dict[str, Any]], runs: Runs) -> None:
    content = scenario(tiny, "inline")
    good, err = runs.run(content)
    assert "warning" not in err
    for path in files(runs.cache, "tokens_whole.npy", "client_rows.npy"):
        check(runs, content, good, path, lambda path: flip(path, 0.95))
    (meta,) = files(runs.cache, "federation-*/meta.json")
    check(runs, content, good, meta, lambda path: os.truncate(path, 100))


@pytest.mark.slow(smaller="test_a_run_on_damaged_data_is_the_run_on_good_data")
@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_a_run_on_any_damaged_file_is_the_run_on_a_good_one(
    tiny: Callable[..., dict[str, Any]], runs: Runs, executor: str
) -> None:
    """Data, the tokenizer, and pre-trained values."""
    content = scenario(tiny, executor)
    good, _ = runs.run(content)
    data, values = files(runs.cache / "data", "*"), files(runs.cache / "pretrained", "*")
    assert len(data) > 12 and len(values) == 1
    for number, path in enumerate([*data, *values]):
        check(runs, content, good, path, lambda path: flip(path, 0.3 + 0.02 * number))  # noqa: B023 - called at once
    for path in data:
        check(runs, content, good, path, Path.unlink)
    shutil.rmtree(runs.cache)
    assert runs.run(content)[0] == good
