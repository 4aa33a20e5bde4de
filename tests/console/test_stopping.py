"""Commands that are asked to end: SIGINT from a terminal, SIGTERM and SIGHUP where SIGINT is ignored; whole processes.

Each command begins with the dispositions of signals that a test gives it, whatever those of the tests are.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer
import yaml

from edgefl.console.app import interruptible
from edgefl.console.stopping import StopSignal, stoppable

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SECONDS = 300.0
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
        until = time.monotonic() + SECONDS
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
            [sys.executable, "-m", "edgefl", *map(str, words)], cwd=tmp_path, env={**os.environ, MARK: mark},
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
    command = begin("run", long, "-o", "cut", "--as", "json", *more, ignored=ignored)
    command.wait_for("round 2/")
    if sent is signal.SIGINT:  # a terminal sends it to all
        os.killpg(command.process.pid, sent)
    else:
        command.process.send_signal(sent)
    ended, out, err = command.ended()
    assert (ended, out) == (code, ""), err
    assert (
        "Traceback" not in err and err.splitlines()[-1] == "edgefl: interrupted; continue with: edgefl run --resume cut"
    )
    assert [path for path in (tmp_path / "cut").rglob("rounds.jsonl") if path.read_text().count("\n") >= 2]


@pytest.mark.slow(smaller="test_a_run_says_how_to_go_on")
def test_what_nohup_starts_stays_when_the_terminal_goes(begin: Begin, long: str) -> None:
    command = begin("run", long, "-o", "cut", "--as", "json", ignored=(signal.SIGINT, signal.SIGHUP))
    command.wait_for("round 1/")
    command.process.send_signal(signal.SIGHUP)
    command.process.send_signal(signal.SIGINT)
    command.wait_for("round 4/")
    command.process.send_signal(signal.SIGTERM)
    assert command.ended()[0] == 143


HOLDS = """
import os, signal, sys, time
from edgefl.console.stopping import StopSignal, exit_code, stoppable
class Drops:
    def __del__(self):
        os.kill(os.getpid(), number)
        time.sleep(0)
number = int(sys.argv[1])
try:
    with stoppable(to_the_end=True):
        if sys.argv[2] == "drops":
            Drops()
            time.sleep(0.5)
            print("recorded", flush=True)
        try:
            os.kill(os.getpid(), number)
            time.sleep(60)
        finally:  # which takes longer than a look at whether the program still ends
            if sys.argv[2] == "twice":
                os.kill(os.getpid(), number)
            print("cleaning", flush=True)
            time.sleep(2.5)
            print("clean", flush=True)
            time.sleep(60 if sys.argv[2] == "hangs" else 0)
except StopSignal as error:
    sys.exit(exit_code(error))
"""


def small(number: signal.Signals, how: str) -> subprocess.Popen[str]:
    def dispositions() -> None:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", HOLDS, str(int(number)), how], preexec_fn=dispositions, **pipes)


@pytest.mark.parametrize("number", SIGNALS)
def test_an_interruption_that_python_drops_is_raised_again(number: signal.Signals) -> None:
    with small(number, "drops") as process:
        assert process.communicate(timeout=SECONDS) == ("", "")
    assert process.returncode == 128 + number


def test_an_interruption_that_a_library_makes_another_error_of_ends_the_command_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As matplotlib's fonts do, whose error doesn't tell of the interruption."""
    with stoppable(), pytest.raises(typer.Exit) as ended, interruptible(lambda: "go on so"):
        try:
            signal.raise_signal(signal.SIGTERM)
        except StopSignal:
            fault = ValueError("invalid bounding box")
        fault.__context__ = None
        raise fault
    assert ended.value.exit_code == 143
    assert capsys.readouterr().err == "edgefl: interrupted; go on so\n"
    with stoppable(), pytest.raises(ValueError, match="a fault"), interruptible():
        raise ValueError("a fault")


def test_an_interruption_in_the_body_of_a_class_ends_the_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Python 3.11 raises RuntimeError in place of what ``__set_name__`` raised, as fields of dataclasses have it."""

    class Field:
        def __set_name__(self, owner: type, name: str) -> None:
            raise StopSignal(signal.SIGTERM)

    with pytest.raises(typer.Exit) as ended, interruptible(lambda: "outer"), interruptible(lambda: "go on so"):
        type("Imported", (), {"field": Field()})
    assert ended.value.exit_code == 143
    assert capsys.readouterr().err == "edgefl: interrupted; go on so\n"
    with pytest.raises(RuntimeError, match="a fault"), interruptible():
        raise RuntimeError("a fault")


@pytest.mark.parametrize("how", ["once", "twice"])
def test_what_is_cleaned_up_is_left_to_end(how: str) -> None:
    """Also if a second signal comes at once: ``timeout`` sends one to its child and one to the child's group."""
    with small(signal.SIGTERM, how) as process:
        assert process.communicate(timeout=SECONDS) == ("cleaning\nclean\n", "")
    assert process.returncode == 143


def test_a_second_signal_ends_at_once() -> None:
    with small(signal.SIGTERM, "hangs") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["cleaning\n", "clean\n"]
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=SECONDS) == ("", "")
    assert process.returncode == -signal.SIGTERM


@pytest.mark.slow(smaller="test_a_run_says_how_to_go_on")
def test_a_terminal_that_closes_ends_a_run(long: str, tmp_path: Path) -> None:
    """Its processes get SIGHUP, and whatever they print then fails."""
    ours, theirs = os.openpty()

    def own_terminal() -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    command = [sys.executable, "-m", "edgefl", "run", long, "-o", "cut"]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, preexec_fn=own_terminal
    )
    os.close(theirs)
    table = tmp_path / "cut" / "rounds.jsonl"
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and not (table.exists() and table.read_text().count("\n") >= 2):
        if select.select([ours], [], [], 0.05)[0]:
            os.read(ours, 65536)
    os.close(ours)
    assert process.wait(SECONDS) == 129


COMMANDS = {
    "sweep": ["sweep", "LONG", "-o", "rows", *SIDE_BY_SIDE],
    "sweep that trains": ["sweep", "LONG", "-o", "rows", "--train", *SIDE_BY_SIDE],
    "on Ray": ["run", "LONG", "-o", "cut", "--set", "executor={name: ray, workers: 2}"],
    "compare": ["compare", "RUN"],
    "report": ["report", "RUN", "-o", "page.html"],
    "figures": ["export", "RUN", "--to", "figures", "-o", "figures"],
    "export": ["export", "RUN", "--to", "tensorboard", "-o", "logs"],
    "explain": ["explain", "RUN", "--round", "1"],
    "analyse": ["analyse", "RUN", "-o", "analysis"],
    "profile": ["profile", "LONG"],
    "sweep to a page": ["sweep", "LONG", "--page", "page.html", "--vary", "training.batch=1,2,3,4"],
    "fit": ["fit", "LONG", "--device", "raspberry-pi-4-4gb", "--set", "fleet.budgets.memory=100KiB"],
    "sweep of devices": ["sweep", "LONG", "--devices", "all"],
    "doctor": ["doctor"],
    "calibrate": ["devices", "calibrate", "--quick"],
    "serve": ["devices", "calibrate", "--serve", "0"],
}
"""Commands that take longer, or whose imports do."""


@pytest.mark.slow(smaller="test_a_second_signal_ends_at_once")
@pytest.mark.parametrize("seconds", [1.0, 3.0, 8.0])
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_every_command_ends_at_any_moment(
    begin: Begin, long: str, layerwise_run: Any, name: str, sent: signal.Signals, seconds: float
) -> None:
    words = [{"LONG": long, "RUN": layerwise_run.path}.get(word, word) for word in COMMANDS[name]]
    if name == "on Ray":
        pytest.importorskip("ray")
    command = begin(*words, ignored=() if sent is signal.SIGINT else (signal.SIGINT,))
    try:
        command.process.wait(seconds)
    except subprocess.TimeoutExpired:
        if sent is signal.SIGINT:
            os.killpg(command.process.pid, sent)
        else:
            command.process.send_signal(sent)
    ended, _, err = command.ended()
    # by the signal itself before the command line is read; 0, 1 or 2 where it was over before
    assert ended in (128 + sent, -sent, 0, 1, 2), err
    assert "Traceback" not in err and "Exception ignored" not in err, err
