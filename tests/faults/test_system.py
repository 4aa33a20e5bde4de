"""What commands need of a system, and what they say without it; errors that come while others are told of."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import edgefl
from edgefl.errors import RunError
from edgefl.runs import checkpoints, digests
from edgefl.runs.durable import lock_folder

Tiny = Callable[..., dict[str, Any]]
ROOT = Path(__file__).resolve().parents[2]
READ_ONLY = "mount --bind {here} {here} && mount -o remount,ro,bind /"
NOBODY = "setpriv --reuid 12345 --regid 12345 --clear-groups"
SMALL = {"data": {"source": "glyphs", "clients": {"image": 2}, "samples": 16, "size": 16, "validation": 20, "test": 20},
         "model": {"image": {"tower": "vit", "blocks": 1, "width": 8, "heads": 1, "patch": 8}}}  # fmt: skip


def told(here: Path, before: str, words: str, after: str = "", **environment: str | None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command after others in mounts of its own."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("mounts of one's own need root")
    given = {**os.environ, "PYTHONPATH": str(ROOT), "EDGEFL_CACHE": str(here / "cache"), **environment}
    ran = subprocess.run(
        ["unshare", "-m", "bash", "-c", f"{before} && cd / && exec {after} {sys.executable} -m edgefl {words}"],
        capture_output=True, text=True, cwd=here, env={k: v for k, v in given.items() if v is not None},
    )  # fmt: skip
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran.returncode, ran.stdout, ran.stderr


@pytest.fixture
def here() -> Iterator[Path]:
    """A folder that isn't in memory, where a mount may hide it, and that anybody may use."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.mark.slow(smaller="test_a_worker_that_cannot_open_its_data_says_why")
@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("mount -t tmpfs -o ro none /dev/shm", "Read-only file system"),
        ("mount -t tmpfs -o size=4k none /dev/shm && ! head -c 9999 /dev/zero > /dev/shm/x", "No space left on device"),
        (READ_ONLY, "No usable temporary directory found"),
        ("ulimit -u 8", "no more processes or threads"),
    ],
)
def test_worker_processes_say_what_they_lack(tiny: Tiny, here: Path, before: str, why: str) -> None:
    (here / "small.yaml").write_text(yaml.safe_dump({"edgefl": 1, **tiny(**SMALL), "executor": "processes"}))
    as_nobody = before.startswith("ulimit")
    if as_nobody and subprocess.run([*NOBODY.split(), sys.executable, "-c", ""], capture_output=True).returncode:
        pytest.skip("another user can't run this Python")
    words = f"run {here}/small.yaml -o {here}/run"
    code, _, said = told(here, before.format(here=here), words, NOBODY * as_nobody, OMP_NUM_THREADS="1")
    assert code == 2 and f"edgefl: error: worker processes can't be started ({why}" in said, said


@pytest.mark.slow(smaller="test_a_user_without_a_home_has_no_cache")
def test_doctor_says_that_there_is_no_temporary_folder(here: Path) -> None:
    code, shown, _ = told(here, READ_ONLY.format(here=here), "doctor")
    assert code == 1 and "No usable temporary directory" in shown and "variable TMPDIR" in " ".join(shown.split())


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "EDGEFL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    code = "import os, pwd; from edgefl.memo import cache_folder; os.setuid(12345); print(cache_folder())"
    if os.name != "posix" or os.getuid():
        pytest.skip("only root can become somebody without an entry")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert ran.stdout.strip() == f"{os.devnull}/edgefl", ran.stderr


def test_an_error_on_closing_a_lock_replaces_no_other(tmp_path: Path) -> None:
    def fail() -> None:
        lock = lock_folder(tmp_path)
        assert lock is not None
        from edgefl.runs.durable import _held

        try:
            raise RunError("what went wrong first")
        finally:
            os.close(next(iter(_held.values())).file.fileno())  # as of a file system that is gone
            lock.close()

    with pytest.raises(RunError, match="what went wrong first"):
        fail()


class _Stop(Exception):
    """Ends a run after its first round."""


def _stop(event: str, facts: Mapping[str, Any]) -> None:
    if event == "round" and facts["round"] == 2:
        raise _Stop


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("at.round", "x"),
        *(
            pytest.param(path, value, marks=pytest.mark.slow)
            for path, value in (("now", "x"), ("at.version", None), ("versions", []), ("progress.reached", {"a": 1}),
                                ("progress.totals.failed", [1]), ("selection", 3), ("progress", {"x": 1}))
        ),
    ],
)  # fmt: skip
def test_a_checkpoint_of_a_stranger_is_refused(tiny: Tiny, tmp_path: Path, path: str, value: object) -> None:
    with pytest.raises(_Stop):
        edgefl.run(tiny(**SMALL, schedule={"rounds": 2}), out=tmp_path / "run", on_progress=_stop)
    folder = sorted((tmp_path / "run/checkpoints").iterdir())[-1]
    manifest = json.loads((folder / "state.json").read_bytes())
    *above, last = path.split(".")
    held = manifest["state"]
    for key in above:
        held = held[key]
    held[last] = value
    manifest["state_blake2b"] = digests.text_digest(json.dumps(manifest["state"], sort_keys=True).encode())
    (folder / "state.json").write_text(json.dumps(manifest))
    for other in checkpoints.rounds(folder.parent)[:-1]:
        shutil.rmtree(folder.parent / checkpoints.name(other))
    with pytest.raises(RunError, match="the last checkpoint isn't one that this run wrote"):
        edgefl.run(resume=tmp_path / "run")
