"""The process in which cases are tried: ``python -m fuzzing.worker``, started by ``fuzzing.judging``.

It reads a line of JSON for each case (kind, folder, limits) and answers with one.  A case that ends the process is told
by the process that forked it, which forks another one.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import resource
import signal
import sys
import traceback
import warnings
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

PACKAGE = f"{os.sep}edgefl{os.sep}"


class TooSlow(KeyboardInterrupt):
    """The limit of processor time is over: an interruption, which edgefl takes for nobody's fault."""


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Try cases until the requests end."""
    from fuzzing.targets import TARGETS

    signal.signal(signal.SIGPROF, _too_slow)
    warnings.simplefilter("ignore")
    for line in requests:
        request = json.loads(line)
        os.chdir(request["folder"])
        stack = open("../stack", "w")  # noqa: SIM115 - faulthandler writes to it after the harness gave up
        faulthandler.register(signal.SIGUSR1, stack, all_threads=False)
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        _limit_memory(request["bytes"])
        answer: dict[str, Any]
        try:
            answer = {"counts": TARGETS[request["kind"]]()}
        except (Exception, SystemExit, TooSlow) as error:
            signal.setitimer(signal.ITIMER_PROF, 0)
            _limit_memory(None)
            answer = {"finding": _found(error)}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            _limit_memory(None)
            os.chdir("/")
            faulthandler.unregister(signal.SIGUSR1)
            stack.close()
        for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split():
            os.kill(int(child), signal.SIGKILL)
            os.waitpid(int(child), 0)
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlow


def _limit_memory(growth: int | None) -> None:
    """Let private memory grow by so many bytes; without a limit for None."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    now = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        if line.startswith("VmData:")
    )
    resource.setrlimit(resource.RLIMIT_DATA, (hard if growth is None else now + growth, hard))


def _found(error: BaseException) -> dict[str, Any]:
    """The finding: a signature that is equal for equal causes, the message and the traceback."""
    names = {"TooSlow": "too slow", "MemoryError": "too much memory", "_ArrayMemoryError": "too much memory"}
    what = names.get(type(error).__name__, type(error).__name__)
    if isinstance(error, RuntimeError) and "allocate" in str(error):
        what = "too much memory"
    cause = error.__cause__ if type(error).__name__ == "BadMessage" else error
    frames = [
        frame
        for frame in traceback.extract_tb(cause.__traceback__ if cause else None)
        if PACKAGE in frame.filename and "/tools/" not in frame.filename
    ]
    where = "outside edgefl"
    if frames:
        name = frames[-1].filename.rpartition(PACKAGE)[2]
        where = f"edgefl/{name}:{frames[-1].name}"
    return {
        "signature": f"{what} in {where}",
        "line": frames[-1].lineno if frames else None,
        "message": f"{type(error).__name__}: {error}"[:500],
        "traceback": "".join(traceback.format_exception(error, limit=-12))[-6000:],
    }


def main() -> None:
    """Import once, then fork a process that serves; fork another one whenever it ends early."""
    requests, answers = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # a hostile /dev/stdin, and what a case prints
        os.dup2(nothing, descriptor)
    import fuzzing.targets  # noqa: F401

    gc.freeze()  # collections look at what a case made only
    while True:
        child = os.fork()
        if child == 0:
            answers.write(json.dumps({"ready": os.getpid()}).encode() + b"\n")
            answers.flush()
            serve(requests, answers)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            sys.exit(0)
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
        answers.write(json.dumps({"ended": how}).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
