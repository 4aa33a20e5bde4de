"""A process that has imported what a run imports, and forks the commands that it is asked for: ``attacking.warm``.

It reads a line of JSON for each command and answers with the number of the process, which belongs to the process that
asked: that one is a subreaper, so it inherits and waits for what is forked twice.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import pkgutil
import resource
import signal
import sys
import tempfile
import threading
import types
from typing import Any

import edgefl

LATE = (
    "matplotlib.backends.backend_agg",
    "matplotlib.pyplot",
    "torch.fx.experimental.symbolic_shapes",
    "torch.profiler",
)
"""What a run imports when it needs it."""
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")


def kill_at(folder: str, number: int | None, told: str | None) -> None:
    """Kill this process before its ``number``-th change below ``folder``.  ``told`` gets a line for each change."""
    seen = 0
    log = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if told else -1

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event == "open":
            path, mode, flags = arguments
            wanted = os.O_WRONLY | os.O_RDWR | os.O_CREAT
            if not (set(mode) & set("wax+") if isinstance(mode, str) else (flags or 0) & wanted):
                return
        elif event in CHANGES:
            path = arguments[0]
        else:
            return
        if isinstance(path, int) or not os.path.abspath(os.fsdecode(path)).startswith(folder):
            return
        seen += 1
        if log >= 0:
            os.write(log, f"{event} {os.fsdecode(arguments[1] if event == 'os.rename' else path)}\n".encode())
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def become(request: dict[str, Any]) -> None:
    """Make this process one of its own that a shell would have started."""
    os.setsid()
    for number, name in enumerate(("stdout", "stderr"), start=1):
        file = os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.chdir(request["cwd"])
    os.environ.update(request["env"])  # names all that this process was given; what imports have set stays
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN if request["ignore_sigint"] else signal.default_int_handler)
    if size := request["fsize"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if request["fatal"] else signal.SIG_IGN)


def command(request: dict[str, Any]) -> None:
    """Run a command in this fork."""
    become(request)
    if not request["warm"]:
        os.execve(sys.executable, [sys.executable, "-m", "edgefl", *request["arguments"]], request["env"])
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.argv = ["edgefl", *request["arguments"]]
    tempfile.tempdir = None
    if request["at"] or request["told"]:
        kill_at(request["watched"], request["at"], request["told"])
    from edgefl.console import main

    code: Any = 0
    try:
        main()  # without arguments, as a shell has it
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError as error:  # as the interpreter's end does
        sys.stderr.write(f"Exception ignored in: {sys.stdout!r}\n{type(error).__name__}: {error}\n")
        code = 120
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def main() -> None:
    """Serve until the requests end."""
    requests, answers = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb", buffering=0)
    of_edgefl = (each.name for each in pkgutil.walk_packages(edgefl.__path__, "edgefl."))
    for name in (*LATE, *(name for name in of_edgefl if "on_ray" not in name and "__main__" not in name)):
        importlib.import_module(name)
    for line in requests:
        request = json.loads(line)
        mine, its = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child:
                os.write(its, b"%d\n" % child)
                os._exit(0)
            os.closerange(3, 1024)
            command(request)
        os.waitpid(between, 0)  # from now on the command is a child of the process that asked
        answers.write(os.read(mine, 100))
        os.close(mine)
        os.close(its)


if __name__ == "__main__":
    main()
