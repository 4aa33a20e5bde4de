"""How worker processes of this machine start; every place that has some takes the ``context`` of here.

On Linux workers are forks of a server process, in which torch and the worker's module are imported once: the second
worker starts in tens of milliseconds, and all share the memory of what was imported.  The server is a fresh process, so
it has no threads and no CUDA.  Elsewhere, and for workers on GPUs, each is spawned and imports everything for itself.
Either way a script needs ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any

from edgefl.errors import RunError
from edgefl.preloaded import NAMED

if sys.platform != "win32":  # which has neither
    import resource
    from multiprocessing import popen_forkserver
    from multiprocessing.context import ForkServerContext, ForkServerProcess

READ_AT_IMPORT = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "TORCH", "ATEN_", "LD_", "MALLOC_",
                  "GLIBC_", "PYTHON", "CUDA_", "NVIDIA_", "HF_", "TRANSFORMERS_", "MPL")  # fmt: skip
"""Beginnings of environment variables that libraries read while they are imported, or the interpreter when it starts.
A worker for which one differs from the server's is spawned."""

SET_BY_LIBRARIES = {
    "PYTHONPATH",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "TORCHINDUCTOR_CACHE_DIR",
    "PYTHONBREAKPOINT",
}
"""Such variables that decide nothing here: workers are given ``sys.path``; scikit-learn sets the next two, and
bitsandbytes the fourth, in whatever process imports them, and Ray the last in one that joins a cluster."""

THREADS_OF_POOL, THREADS_OF_WORKER = 8, 4
"""Threads and processes, which a limit counts alike: of the pool its own two and the watch's, the server, its tracker
and torch's profiler, of a worker itself, the one that looks for its parent, its queue's and the profiler's."""

_lock = threading.Lock()
_begun: Mapping[str, str] | None = None
"""Such variables of this process when it started its server."""


def context(module: str, *, gpu: bool = False) -> SpawnContext | ForkServerContext:
    """The context that starts workers whose target is in ``module``, on a GPU or not."""
    main = sys.modules["__main__"]
    if getattr(main, "__file__", None) == "<stdin>":  # of a script on standard input, which no worker can import
        del main.__file__
    if gpu or sys.platform != "linux" or not _serves(module):
        return multiprocessing.get_context("spawn")
    return _Context()


def begin(module: str) -> None:
    """Start the server for workers of ``module`` that will be wanted: it imports while this process does other things.

    Where there are GPUs workers may be spawned, and where they are the server would be of no use.
    """
    if sys.platform == "linux" and not os.path.exists("/dev/nvidiactl"):
        _serves(module)


@contextmanager
def start_faults(workers: int = 1) -> Iterator[None]:
    """Turn an OSError or EOFError of a start of so many workers into a RunError that says what they need.

    That the system has no room for them is found out before, because threads of the pool that fail to start others
    would leave it waiting.
    """
    over, threads = threading.Event(), []
    try:
        for _ in range(THREADS_OF_POOL + THREADS_OF_WORKER * workers):
            threads.append(threading.Thread(target=over.wait, daemon=True))
            threads[-1].start()
    except RuntimeError as error:
        raise _cannot_start("no more processes or threads") from error
    finally:
        over.set()
    for thread in threads:
        thread.join()
    try:
        yield
    except (OSError, EOFError) as error:
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
            raise
        raise _cannot_start(getattr(error, "strerror", None) or "their server has ended") from error


def _cannot_start(why: str) -> RunError:
    return RunError(
        f"worker processes can't be started ({why}): they need /dev/shm for semaphores, a temporary folder for a "
        "socket (TMPDIR) and processes (ulimit -u); mend that, or do without (executor: inline, --jobs 1)"
    )


def end_with_parent() -> None:
    """End this worker when its parent has ended: a killed parent can't shut it down, and it would wait forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _serves(module: str) -> bool:
    """Whether a server runs whose libraries have read this process's environment; it is started if there is none."""
    global _begun
    now = {name: each for name, each in os.environ.items() if name.startswith(READ_AT_IMPORT)}
    now = {name: each for name, each in now.items() if name not in SET_BY_LIBRARIES}
    with _lock:
        if _begun is None:
            with start_faults():
                _begin(["torch", *[module] * module.startswith("edgefl.")])
            _begun = now
    return _begun == now


def _begin(preload: list[str]) -> None:
    """Start the server with the path of this process, so that it imports what this process would."""
    own = {name: os.environ.get(name) for name in ("PYTHONPATH", "PYTHONSAFEPATH", NAMED)}
    os.environ["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    os.environ["PYTHONSAFEPATH"] = "1"  # else the current folder comes first
    os.environ[NAMED] = " ".join(preload)
    forkserver.set_forkserver_preload(["edgefl.preloaded"])
    try:
        resource_tracker.ensure_running()  # which takes Ctrl-C out of the mask, so it comes first
        # the server inherits the mask: Ctrl-C while it imports would show a traceback
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    finally:
        forkserver.set_forkserver_preload([])  # should it be killed, the next one has another path
        for name, value in own.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _Name(str):
    """A worker's name; reading it is the first thing that a worker does, before it imports the main script."""

    def __reduce__(self) -> tuple[Callable[..., str], tuple[Any, ...]]:
        return _inherit, (str(self), dict(os.environ), _limits())


def _inherit(name: str, environment: Mapping[str, str], limits: Mapping[str, tuple[int, int]]) -> str:
    os.environ.clear()
    os.environ.update(environment)
    for limit, value in limits.items():
        if resource.getrlimit(getattr(resource, limit)) != value:
            with suppress(ValueError, OSError):  # more than the server was given can't be had
                resource.setrlimit(getattr(resource, limit), value)
    return name


def _limits() -> dict[str, tuple[int, int]]:
    return {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}


@contextmanager
def _interruptions_after() -> Iterator[Callable[[], None]]:
    """Put off what this program does at signals; yields what does it, to be called after the block."""
    came: list[int] = []
    own = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if threading.current_thread() is not threading.main_thread():
        own = {}  # Python's handlers run in the main thread alone
    own = {number: handler for number, handler in own.items() if callable(handler)}

    def interrupt() -> None:
        for number in came:
            signal.raise_signal(number)

    for number in own:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield interrupt
    finally:
        for number, handler in own.items():
            signal.signal(number, handler)


if sys.platform != "win32":

    class _Process(ForkServerProcess):
        """A worker whose name brings what a spawned one inherits and a fork of the server doesn't.

        ``_Popen`` is multiprocessing's own, as in Python 3.11.  If later ones don't call it, or read the name later,
        the first test of ``test_start_method.py`` fails: a worker would have the server's environment and limits.
        """

        @staticmethod
        def _Popen(process_obj: BaseProcess) -> popen_forkserver.Popen:
            process_obj.name = _Name(process_obj.name)
            return popen_forkserver.Popen(process_obj)

        def start(self) -> None:
            """Start the worker.  An interruption meanwhile ends it, since nobody who would knows it yet: to start the
            first one takes the seconds of the server's imports."""
            with _interruptions_after() as interrupt:
                super().start()
            try:
                interrupt()
            except BaseException:
                self.kill()
                raise

    class _Context(ForkServerContext):
        Process = _Process
