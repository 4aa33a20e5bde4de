"""Starts commands of edgefl, forked from a warm process or as processes of their own, and says how they ended."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from attacking.subjects import SUBJECTS, Subject
from attacking.witness import ROOT, contents, processes

SECONDS = 400.0
"""Longest wall time of a command.  A bench of four runs took 120 s where 25 other processes shared two cores."""
ORPHAN_SECONDS = 90.0
"""How long the processes of a command may outlive it: workers of one that was killed notice it.  Those of edgefl do so
in seconds; Ray's were there for most of a minute."""


@dataclass
class Ended:
    """How a command ended: its exit code (a signal's number below 0; None if it hung), output, processes left."""

    code: int | None
    stdout: str
    stderr: str
    left: list[str]


@dataclass
class Started:
    """A command under way, in a session of its own."""

    number: int
    stdout: Path
    stderr: Path
    temporary: Path
    mark: str
    began: float = field(default_factory=time.monotonic)
    status: int | None = None

    def ended(self) -> bool:
        """Whether it has ended."""
        if self.status is None:
            number, status = os.waitpid(self.number, os.WNOHANG)
            self.status = status if number else None
        return self.status is not None

    def signal(self, number: int) -> None:
        """Send a signal to the command's own process, unless it has ended."""
        if not self.ended():
            os.kill(self.number, number)

    def after(self, seconds: float) -> None:
        """Wait until so many seconds after the start, or the end."""
        while not self.ended() and time.monotonic() < self.began + seconds:
            time.sleep(0.002)

    def spoke(self) -> None:
        """Wait until something is printed on stderr, or the end."""
        while not self.ended() and not self.stderr.stat().st_size and time.monotonic() < self.began + SECONDS:
            time.sleep(0.002)

    def wait(self) -> Ended:
        """Wait for the end, at most ``SECONDS``; end what is left of it."""
        self.after(SECONDS)
        code = os.waitstatus_to_exitcode(self.status) if self.status is not None else None
        self.signal(signal.SIGKILL)
        until = time.monotonic() + (ORPHAN_SECONDS if code is not None else 0)
        while (left := processes(self.number, self.mark)) and time.monotonic() < until:
            time.sleep(0.05)
        names = []
        for process in left:
            with suppress(psutil.NoSuchProcess):
                names.append(" ".join(process.cmdline())[:100])
                process.kill()
        if self.status is None:
            self.status = os.waitpid(self.number, 0)[1]
        texts = [path.read_bytes().decode("utf-8", "replace") for path in (self.stdout, self.stderr)]
        return Ended(code, texts[0], texts[1], names)


@dataclass(frozen=True)
class Reference:
    """An uninterrupted run: what is in its folder, how long it took, and the changes of its folder in their order."""

    contents: dict[str, bytes]
    folder: Path
    seconds: float
    changes: list[str]

    @property
    def bytes(self) -> int:
        """What the folder takes on a disk with blocks of 4 KiB."""
        return sum(-(-path.stat().st_size // 4096) * 4096 for path in self.folder.rglob("*") if path.is_file())

    @property
    def largest(self) -> int:
        """Bytes of the largest file."""
        return max(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


class Refused(Exception):
    """A scenario that edgefl refuses."""


class Bench:
    """A warm process, a cache that is filled (``home/cache``), and uninterrupted runs, made when first asked for.

    Use it in ``with``; ``home`` is removed at the end.  Threads may share it.
    """

    def __init__(self, home: Path) -> None:
        self.home, self.cache = home, home / "cache"
        self._references: dict[str, Reference] = {}
        self._lock, self._making = threading.Lock(), threading.Lock()
        self._methods: list[str] = []
        self._starts = 0
        # what loses its parent becomes a child of this process, which can wait for it
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
        path = os.pathsep.join([str(ROOT), str(ROOT / "tools")])
        self.environment = {
            **{name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ},
            "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "EDGEFL_CACHE": str(self.cache), "COLUMNS": "100",
            "MPLCONFIGDIR": str(home / "matplotlib"), "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",  # Python keeps a module that was cut off by the limit of a file's size
        }  # fmt: skip
        self._warm = subprocess.Popen(
            [sys.executable, "-m", "attacking.warm"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=home,
            env={**self.environment, "HOME": str(home)}, bufsize=0, start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._warm.stdin is not None and self._warm.stdout is not None
        self._warm.stdin.close()
        self._warm.wait()
        self._warm.stdout.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def _ask(self, request: dict[str, Any]) -> int:
        with self._lock:
            assert self._warm.stdin is not None and self._warm.stdout is not None
            self._warm.stdin.write(json.dumps(request).encode() + b"\n")
            return int(self._warm.stdout.readline())

    def start(
        self, folder: Path, arguments: Sequence[str], *, warm: bool = True, at: int | None = None,
        fsize: int | None = None, fatal: bool = False, ignore_sigint: bool = False, stdout: str | None = None,
        watched: str = "out", cache: Path | None = None, told: str | None = None,
    ) -> Started:  # fmt: skip
        """Start a command in ``folder/here``.

        ``at`` kills it before that change below ``watched``; ``fsize`` is the most bytes of a file, beyond which a
        write fails, or ends the process where that is ``fatal``.  Without ``warm`` it is ``python -m edgefl``,
        which knows no ``at``.
        """
        with self._lock:
            self._starts = turn = self._starts + 1
        log, temporary = folder / "printed", self.home / f"t{turn}"  # short: Ray has sockets there
        for each in (folder / "here", folder / "home", log, temporary):
            each.mkdir(parents=True, exist_ok=True)
        where, mark = str(folder / "here"), f"{os.getpid()}-{turn}-"
        environment = {
            **self.environment, "HOME": str(folder / "home"), "TMPDIR": str(temporary),
            "EDGEFL_CACHE": str(cache or self.cache), "EDGEFL_ATTACK": mark,
        }  # fmt: skip
        out, err = Path(stdout or log / f"{turn}.out"), log / f"{turn}.err"
        err.touch()
        request = {
            "arguments": list(arguments), "cwd": where, "env": environment, "stdout": str(out), "stderr": str(err),
            "at": at, "fsize": fsize, "fatal": fatal, "ignore_sigint": ignore_sigint,
            "watched": os.path.join(where, watched), "told": told, "warm": warm,
        }  # fmt: skip
        return Started(self._ask(request), Path(os.devnull) if stdout else out, err, temporary, f"EDGEFL_ATTACK={mark}")

    def reference(self, name: str) -> Reference:
        """The uninterrupted run of a subject.  Raises Refused and RuntimeError if it fails."""
        with self._making:
            if name not in self._references:
                self._references[name] = self.uninterrupted(self.home / "whole" / name, SUBJECTS[name])
            return self._references[name]

    def methods(self) -> list[str]:
        """Names of all methods, as the command lists them."""
        with self._making:
            if not self._methods:
                printed = self.start(self.home / "whole" / "methods", ["parts", "method", "--as", "json"]).wait().stdout
                self._methods += [each["name"] for each in json.loads(printed)["sections"]["method"]]
            return self._methods

    def uninterrupted(self, folder: Path, subject: Subject) -> Reference:
        """Run a subject to its end in ``folder``.  Raises Refused, and RuntimeError if the run fails."""
        (folder / "here").mkdir(parents=True)
        (folder / "here" / "scenario.yaml").write_text(json.dumps(subject.scenario))
        changes = folder / "changes"
        started = self.start(folder, subject.start("out"), told=str(changes))
        ended = started.wait()
        if ended.code != 0:
            error = Refused if ended.code == 2 else RuntimeError
            raise error(f"{subject.scenario} ends with {ended.code}: {ended.stderr}")
        out = folder / "here" / "out"
        seconds = time.monotonic() - started.began
        return Reference(contents(out), out, seconds, changes.read_text().splitlines())
