"""What an emulation made is removed in whatever way its process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tools.emulation import journal as module
from tools.emulation.journal import MachineJournal
from tools.emulation.kernel import control_groups_here

BEGIN = """
import sys, time
from tools.emulation.journal import MachineJournal
from tools.emulation.kernel import control_groups_here
from tools.emulation.limits import Limits
from tools.emulation.links import EmulatedNetwork, Rates
import os, pathlib, subprocess
import tools.emulation.journal as module
module.FOLDER = pathlib.Path(sys.argv[1])
journal = MachineJournal()
EmulatedNetwork(journal, [Rates(1e6, 1e6)])
limits = Limits(control_groups_here(), journal, "0")
child = subprocess.Popen(["sleep", "600"])
journal.note("processes", child.pid)
limits.adopt(child.pid)
print(journal.name, child.pid, journal._janitor.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of journals of its own: other emulations on this machine would remove what these tests leave."""
    monkeypatch.setattr(module, "FOLDER", tmp_path / "journals")


def left(name: str) -> list[str]:
    """The namespaces, control groups and journals of an emulation that are there."""
    places = [*Path("/run/netns").glob(f"{name}-*"), module.FOLDER / f"{name}.json", *control_groups_here().roots(name)]
    return [str(path) for path in places if path.exists()]


def until(condition: object, seconds: float = 300.0) -> bool:
    """Wait until a function is true."""
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def gone(pid: int) -> bool:
    """Whether a process has ended; its entry stays until somebody asks for its exit code."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def begun() -> tuple[subprocess.Popen[str], str, int, int]:
    process = subprocess.Popen([sys.executable, "-c", BEGIN, str(module.FOLDER)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        name, child, janitor = process.stdout.readline().split()
    return process, name, int(child), int(janitor)


def test_all_is_removed_when_the_process_is_killed(able: None) -> None:
    process, name, child, _ = begun()
    assert len(left(name)) >= 5
    process.send_signal(signal.SIGKILL)
    process.wait(300)
    assert until(lambda: not left(name)), left(name)
    assert gone(child)


def test_the_next_start_removes_what_is_left_when_the_helper_is_killed_too(able: None) -> None:
    process, name, child, janitor = begun()
    os.kill(janitor, signal.SIGKILL)
    process.send_signal(signal.SIGKILL)
    process.wait(300)
    time.sleep(0.3)
    assert left(name)
    MachineJournal().close()
    assert not left(name)
    assert until(lambda: gone(child))


@pytest.mark.parametrize("ends", [signal.SIGTERM, signal.SIGINT])
def test_all_is_removed_when_the_process_is_asked_to_end(able: None, ends: int) -> None:
    process, name, child, _ = begun()
    process.send_signal(ends)
    process.wait(300)
    assert until(lambda: not left(name)), left(name)
    assert until(lambda: gone(child))
