"""Commands that are asked to end: SIGINT from a terminal, SIGTERM and SIGHUP where SIGINT is ignored; whole processes.

Each command begins with the dispositions of signals that a test gives it, whatever those of the tests are.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SECONDS = 60.0
MARK = "EDGEFL_TEST_MARK"


@dataclass
class Command:
    """A command of edgefl that runs, with a mark in its environment, which all its processes inherit."""

    process: subprocess.Popen[str]
    mark: str
    said: list[str] = field(default_factory=list)

    def wait_for(self, text: str) -> None:
        """Wait until a line of stderr has this text."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if text in line:
                return
        raise AssertionError(f"ended without saying {text!r}: {''.join(self.said)}")

    def ended(self) -> tuple[int, str, str]:
        """The exit code, stdout and stderr of the command, of which no process is left."""
        out, err = self.process.communicate(timeout=SECONDS)
        until = time.monotonic() + 20
        while (left := self.left()) and time.monotonic() < until:
            time.sleep(0.05)
        assert not left, left
        return self.process.returncode, out, "".join(self.said) + err

    def left(self) -> list[str]:
        """Processes with the mark that live."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(process.cmdline()))
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found


Begin = Callable[..., Command]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts a command in a session of its own, with some signals ignored and the others as a terminal leaves them."""
    begun = []

    def start(*words: object, ignored: Sequence[signal.Signals] = ()) -> Command:
        def dispositions() -> None:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

        mark = uuid.uuid4().hex
        process = subprocess.Popen(
            [sys.executable, "-m", "edgefl.cli", *map(str, words)], cwd=tmp_path, env={**os.environ, MARK: mark},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            preexec_fn=dispositions,
        )  # fmt: skip
        begun.append(process)
        return Command(process, mark)

    yield start
    for process in begun:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def long(tiny: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with a scenario of ten minutes."""
    path = tmp_path_factory.mktemp("scenario") / "long.yaml"
    data = {**tiny()["data"], "clients": {"text": 4}}
    path.write_text(yaml.safe_dump({"edgefl": 1, **tiny(data=data, schedule={"name": "end-to-end", "rounds": 5000})}))
    return str(path)


SIDE_BY_SIDE = ("--set", "compare={seed: [1, 2, 3]}", "--jobs", "2")
WORKERS = ("--set", "executor={name: processes, workers: 2, device: cpu}")


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
@pytest.mark.parametrize(
    "more",
    [(), pytest.param(WORKERS, marks=pytest.mark.slow), pytest.param(SIDE_BY_SIDE, marks=pytest.mark.slow)],
    ids=["inline", "workers", "side by side"],
)
def test_a_run_says_how_to_go_on(
    begin: Begin, long: str, tmp_path: Path, more: tuple[str, ...], sent: signal.Signals, code: int
) -> None:
    ignored = () if sent is signal.SIGINT else (signal.SIGINT,)
    command = begin("run", long, "-o", "cut", "--json", *more, ignored=ignored)
    command.wait_for("round 2/")
    if sent is signal.SIGINT:  # a terminal sends it to all
        os.killpg(command.process.pid, sent)
    else:
        command.process.send_signal(sent)
    asked = time.monotonic()
    ended, out, err = command.ended()
    assert (ended, out) == (code, ""), err
    assert (
        "Traceback" not in err and err.splitlines()[-1] == "edgefl: interrupted; continue with: edgefl run --resume cut"
    )
    assert time.monotonic() - asked < 30
    assert [path for path in (tmp_path / "cut").rglob("rounds.jsonl") if path.read_text().count("\n") >= 2]
