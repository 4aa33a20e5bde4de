"""How worker processes start: what they have of their parent, and how they end."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any

import pytest
from inherited import answer

from edgefl import start_method

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are spawned")


def asked(context: SpawnContext | ForkServerContext) -> dict[str, Any]:
    """The facts of one worker."""
    here, there = context.Pipe()
    process = context.Process(target=answer, args=(there,))
    process.start()
    there.close()
    assert here.poll(60)
    found: dict[str, Any] = here.recv()
    process.join(300)
    assert process.exitcode == 0
    return found


def context() -> SpawnContext | ForkServerContext:
    return start_method.context("edgefl.training.worker")


def test_a_worker_has_environment_folder_path_and_limits_as_they_are_when_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOLD", "before")
    before = asked(context())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setenv("TOLD", "after")
    monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")  # as scikit-learn does when it is imported
    monkeypatch.setenv("PYTHONBREAKPOINT", "ray.util.rpdb._driver_set_trace")  # as Ray does when a process joins it
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("/told")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[0] - 1, limits[1]))
    try:
        after = asked(context())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert before["parent"] == after["parent"] != os.getpid()  # both are forks of one server
    assert (before["TOLD"], before["path"], before["files"]) == ("before", [], limits)
    assert (after["TOLD"], after["path"]) == ("after", ["/told"])
    assert after["folder"] == str(tmp_path)
    assert after["files"] == (limits[0] - 1, limits[1])
    assert after["collects"] and after["shared"] > 50_000  # objects of torch, which no collection touches
    assert "EDGEFL_PRELOADED" not in os.environ
    monkeypatch.delenv("TOLD")
    assert asked(context())["TOLD"] is None


@pytest.mark.slow(smaller="test_a_worker_has_environment_folder_path_and_limits_as_they_are_when_it_starts")
def test_a_worker_counts_the_threads_that_its_parent_asks_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    served = asked(context())
    wanted = 1 + served["threads"]
    monkeypatch.setenv("OMP_NUM_THREADS", str(wanted))  # torch reads it when it is imported
    spawned = asked(context())
    assert (spawned["OMP_NUM_THREADS"], spawned["threads"]) == (str(wanted), wanted)
    assert spawned["parent"] == os.getpid()


@pytest.mark.slow(smaller="test_a_worker_has_environment_folder_path_and_limits_as_they_are_when_it_starts")
def test_a_server_imports_from_the_path_of_its_parent_and_ends_with_it_though_killed(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemError('the folder in which a command runs is no library')")
    (tmp_path / "script").mkdir()
    script = tmp_path / "script" / "begin.py"
    script.write_text(
        "import os, sys, time\n"
        "from edgefl import start_method\n"
        "def work(pipe):\n"
        "    start_method.end_with_parent()\n"
        "    pipe.send(('torch' in sys.modules, os.getpid(), os.getppid()))\n"
        "    time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    context = start_method.context('edgefl.units')\n"
        "    here, there = context.Pipe()\n"
        "    context.Process(target=work, args=(there,)).start()\n"
        "    print(*here.recv(), flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, script], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        preloaded, *pids = parent.stdout.readline().split()
        parent.kill()
    assert preloaded == "True"
    until = time.monotonic() + 300
    while any(_runs(int(pid)) for pid in pids):
        assert time.monotonic() < until, f"{pids} are left"
        time.sleep(0.05)


def test_a_worker_that_a_signal_ends_says_which() -> None:
    process = context().Process(target=time.sleep, args=(600,))
    process.start()
    process.kill()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL


def _runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_script_on_standard_input_starts_workers() -> None:
    script = (
        "import os\nfrom edgefl.start_method import context\n"
        "if __name__ == '__main__':\n"
        "    worker = context('os').Process(target=os.getpid)\n"
        "    worker.start()\n    worker.join()\n    print(worker.exitcode)\n"
    )
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_an_interruption_while_the_server_imports_shows_nothing() -> None:
    script = (
        "import os, signal, time\nfrom multiprocessing import forkserver\nfrom edgefl import start_method\n"
        "if __name__ == '__main__':\n"
        "    start_method.begin('edgefl.training.worker')\n"
        "    server = forkserver._forkserver._forkserver_pid\n"
        "    for _ in range(20):\n        time.sleep(0.05)\n        os.kill(server, signal.SIGINT)\n"
        "    worker = start_method.context('edgefl.training.worker').Process(target=os.getpid)\n"
        "    worker.start()\n    worker.join()\n    print(worker.exitcode)\n"
    )
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")
