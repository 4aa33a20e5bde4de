"""Runs ``edgefl.run`` in forks that are killed, or held, before the n-th of their calls that change a folder.

``python steps_of_a_start.py '{"given": ..., "root": ..., "what": ...}'`` prints a JSON line for each n, until a start
has fewer calls.  ``what`` is ``killed``, ``held``, ``failing`` or ``unnamed``; see there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import edgefl
from edgefl.errors import EdgeflError

NO_MORE = 7
"""Exit code of a start that had fewer calls than the one it was to stop at."""
CHANGING = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.symlink", "os.link"}


class Fork:
    """A fork of this process that runs a scenario; ``end`` returns its exit code and what it said."""

    def __init__(self, said: Path, call: Callable[[], object]):
        self._said = said
        self._pid = os.fork()
        if self._pid == 0:
            try:
                call()
            except EdgeflError as error:
                said.write_text(str(error))
                os._exit(error.exit_code)
            except BaseException as error:
                said.write_text(f"{type(error).__name__}: {error}")
                os._exit(99)
            os._exit(0)

    def end(self) -> tuple[int, str]:
        """Wait for its end."""
        _, status = os.waitpid(self._pid, 0)
        text = self._said.read_text() if self._said.exists() else ""
        self._said.unlink(missing_ok=True)
        return os.waitstatus_to_exitcode(status), text


def at_call(folder: str, number: int, then: Callable[[], None]) -> None:
    """Call ``then`` before the n-th call of this process that changes something at or in ``folder``."""
    seen = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        if event == "open":
            path, _, flags = args
            changes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        elif event == "fcntl.lockf":
            path, changes = folder, True
        else:
            path, changes = args[0] if args else "", event in CHANGING
        if changes and isinstance(path, str | os.PathLike) and os.fspath(path).startswith(folder):
            seen += 1
            if seen == number:
                then()

    sys.addaudithook(hook)


def stop(event: str, facts: Mapping[str, object]) -> None:
    """An ``on_progress`` that ends the process when its rounds begin."""
    if event == "start":
        os._exit(NO_MORE)


def killed(given: dict[str, Any], root: Path, number: int) -> dict[str, Any] | None:
    """A start that is killed; then a new start in a copy of its folder, and ``--resume`` in the folder itself."""
    folder, copy, said = root / f"killed-{number}", root / f"again-{number}", root / "said"

    def start() -> None:
        at_call(str(folder), number, lambda: os.kill(os.getpid(), signal.SIGKILL))
        edgefl.run(given, out=folder, on_progress=stop)

    code, text = Fork(said, start).end()
    if code == NO_MORE:
        return None
    assert code == -signal.SIGKILL, (code, text)
    left = sorted(each.name for each in folder.iterdir()) if folder.exists() else None
    if folder.exists():
        shutil.copytree(folder, copy)
    ends = {
        "again": Fork(said, lambda: edgefl.run(given, out=copy)).end(),
        "resumed": Fork(said, lambda: edgefl.run(resume=folder)).end(),
    }
    return {"left": left, "folders": [str(copy), str(folder)], **ends}


def two(
    given: dict[str, Any], root: Path, number: int, *, fails: bool = False, unnamed: bool = False
) -> dict[str, Any] | None:
    """A start that is held before a call until a second start into the same folder has ended, or waited for a second.

    With ``fails`` the first has an error before its first round; ``unnamed`` starts choose their folder themselves.
    """
    here = root / f"two-{number}"
    here.mkdir()
    os.chdir(here)
    output = None if unnamed else "run"
    held, go = here / ".held", here / ".go"

    def hold() -> None:
        held.touch()
        while not go.exists():
            time.sleep(0.002)

    def failing(event: str, facts: Mapping[str, object]) -> None:
        if fails and event == "combination":
            raise edgefl.errors.RunError("this start fails")

    def first() -> None:
        at_call("runs" if unnamed else "run", number, hold)
        edgefl.run(given, out=output, on_progress=failing if fails else lambda event, facts: None)

    one = Fork(here / ".one", first)
    while not held.exists():
        ended = os.waitid(os.P_PID, one._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None:
            one.end()
            return None
        time.sleep(0.002)
    other = Fork(here / ".other", lambda: edgefl.run(given, out=output)).end()
    go.touch()
    return {"first": one.end(), "second": other, "folder": str(here)}


WHAT: dict[str, Callable[[dict[str, Any], Path, int], dict[str, Any] | None]] = {
    "killed": killed,
    "held": two,
    "failing": lambda given, root, number: two(given, root, number, fails=True),
    "unnamed": lambda given, root, number: two(given, root, number, unnamed=True),
}


def main() -> None:
    """Print how each start ended."""
    asked = json.loads(sys.argv[1])
    root = Path(asked["root"])
    edgefl.run(asked["given"], out=root / "whole")  # forks find all modules and predictions loaded
    number = 1
    while (told := WHAT[asked["what"]](asked["given"], root, number)) is not None:
        print(json.dumps({"number": number, **told}), flush=True)
        number += 1


if __name__ == "__main__":
    main()
