"""What an emulation has made on this machine, written down before it is made, and its removal.

The journal names processes, namespaces and control groups.  A process of its own removes them when the emulation's
process has ended in whatever way; if that one was killed too, the next emulation does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal, TypedDict, cast

import psutil

from edgefl.errors import RunError
from tools.emulation.kernel import EmulationError, run

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("/run/edgefl")
PATIENCE = 10.0
"""Seconds in which killed processes leave their control groups.

A choice, not measured: a process with much memory takes longer to end, and a folder of a group is left behind then.
"""


class Made(TypedDict):
    """The process of an emulation, when it started, and what it made: names, folders and process numbers."""

    pid: int
    started: float
    namespaces: list[str]
    groups: list[str]
    processes: list[int]


class MachineJournal:
    """The list of what this process makes on the machine; ``name`` (``edgefl-PID``) begins all names.

    A process that outlives this one by an instant removes everything at its end.
    """

    def __init__(self) -> None:
        pid = os.getpid()
        self.name = f"edgefl-{pid}"
        self.path = FOLDER / f"{self.name}.json"
        self._made: Made = {
            "pid": pid, "started": psutil.Process(pid).create_time(), "namespaces": [], "groups": [], "processes": [],
        }  # fmt: skip
        remove_stale()
        try:
            FOLDER.mkdir(mode=0o755, exist_ok=True)
        except OSError as error:
            raise EmulationError(f"{FOLDER}: {error.strerror or error}") from None
        self._write()
        # in a session of its own, so that Ctrl-C doesn't end it
        self._janitor = subprocess.Popen(
            [sys.executable, "-m", "tools.emulation.journal", str(self.path)],
            stdin=subprocess.PIPE,
            start_new_session=True,
            cwd=ROOT,
        )

    def note(self, what: Literal["namespaces", "groups", "processes"], *names: str | int) -> None:
        """Note ``namespaces``, ``groups`` (folders) or ``processes`` that are made next, or were made just now."""
        cast(list[str | int], self._made[what]).extend(names)
        self._write()

    def close(self) -> None:
        """Remove everything now."""
        if self.path.exists():
            remove(self.path)
        if self._janitor.stdin is not None:
            self._janitor.stdin.close()
        self._janitor.wait()

    def _write(self) -> None:
        draft = self.path.with_suffix(".draft")
        draft.write_text(json.dumps(self._made), encoding="utf-8")
        draft.replace(self.path)


def remove_stale() -> list[str]:
    """Remove what emulations left whose processes have ended; return their names."""
    stale = []
    for path in sorted(FOLDER.glob("edgefl-*.json")) if FOLDER.is_dir() else ():
        made = _read(path)
        if made is not None and not _lives(made["pid"], made["started"]):
            remove(path)
            stale.append(path.stem)
    return stale


def remove(path: Path) -> None:
    """Kill the processes, and remove the control groups and namespaces of a journal, then the journal itself."""
    made = _read(path)
    if made is None:
        return
    until = time.monotonic() + PATIENCE
    own = {int(pid) for group in made["groups"] for pid in _members(Path(group))} | set(made["processes"])
    for pid in own - {os.getpid()}:
        if _is_ours(pid, made):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    # the groups below others come later in the journal
    for group in reversed(made["groups"]):
        _remove_group(Path(group), until)
    for name in made["namespaces"]:
        if (Path("/run/netns") / name).exists():
            with contextlib.suppress(EmulationError):
                run("ip", "netns", "del", name)
    path.unlink(missing_ok=True)


def _read(path: Path) -> Made | None:
    try:
        made: Made = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None  # removed by another process in the same moment
    except (OSError, ValueError) as error:
        raise RunError(f"{path} can't be read: {error}") from None
    return made


def _lives(pid: int, started: float) -> bool:
    try:
        process = psutil.Process(pid)
        return bool(abs(process.create_time() - started) < 1.0 and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _is_ours(pid: int, made: Made) -> bool:
    """Whether a process was begun after the emulation: a process number may have been given away again."""
    try:
        return bool(psutil.Process(pid).create_time() >= made["started"] - 1.0)
    except psutil.NoSuchProcess:
        return False


def _members(group: Path) -> list[str]:
    try:
        return (group / "cgroup.procs").read_text(encoding="ascii").split()
    except OSError:
        return []


def _remove_group(group: Path, until: float) -> None:
    while group.is_dir():
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > until:
                return
            time.sleep(0.02)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.buffer.read()  # until the emulation's process has ended
    remove(Path(sys.argv[1]))
