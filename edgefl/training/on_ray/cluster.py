"""Connecting to a Ray cluster, and what is asked of its nodes; for the executor and for cells that run side by side."""

from __future__ import annotations

import os
import platform
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, NotRequired, TypedDict

import torch

from edgefl.errors import EdgeflError, TrainingError

START_SECONDS = 180.0
"""Seconds that workers have to start."""
CONNECT_SECONDS = 5.0


def imported(asked_by: str) -> Any:
    """The module ``ray``.  Raises TrainingError if it isn't installed; ``asked_by`` is the option that needs it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise refused(f"{asked_by} needs the extra ray: pip install 'edgefl-sim[ray]'") from error
    return ray


def check_reachable(address: str, asked_by: str) -> None:
    """Raise TrainingError unless something listens at the address; ``auto`` isn't checked."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise refused(f"{asked_by} is {address!r:.60}: write it as HOST:PORT, such as 10.0.0.5:6379, or auto")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise refused(f"no Ray at {address}: {error.strerror or error}") from error


def connect(ray: Any, address: str | None, **more: Any) -> None:
    """Connect to the cluster, or start Ray here if there is no address; ``more`` goes to ``ray.init``.

    Raises TrainingError if that fails.
    """
    try:
        with _own_sigterm():
            ray.init(address or "local", log_to_driver=False, logging_level="ERROR", **more)
    except Exception as error:
        said = str(error).strip().splitlines()
        raise refused(f"no Ray at {address or 'this machine'}: {said[0] if said else repr(error)}") from error
    _print_messages(ray, False)


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep what this program does at SIGTERM: ``ray.init`` sets handlers that exit, for programs without one."""
    own = signal.getsignal(signal.SIGTERM)
    if not callable(own) or threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False
    try:
        yield
    except SystemExit:  # the signal came while Ray began
        asked = True
    finally:
        signal.signal(signal.SIGTERM, own)
    if asked:
        signal.raise_signal(signal.SIGTERM)


def disconnect(ray: Any) -> None:
    """Leave the cluster, and end Ray if ``connect`` started it."""
    ray.shutdown()
    _print_messages(ray, True)


def _print_messages(ray: Any, whether: bool) -> None:
    """Let Ray print on stdout that a worker has ended, which is said elsewhere; it has no option for that."""
    ray._private.worker._worker_logs_enabled = whether


def versions() -> dict[str, str]:
    """What has to be equal on all nodes."""
    python = ".".join(map(str, sys.version_info[:2]))
    return {"edgefl": version("edgefl-sim"), "Ray": version("ray"), "Python": python, "torch": torch.__version__}


class Greeting(TypedDict):
    """What a worker says first: where it is, the versions there, and why it can't begin, "" if it can."""

    host: str
    versions: dict[str, str]
    why_not: str
    kernels: NotRequired[str]


def greeting(why_not: str) -> Greeting:
    """Of this process."""
    return {"host": socket.gethostname() or platform.node(), "versions": versions(), "why_not": why_not}


def greetings(ray: Any, hellos: Sequence[Any]) -> list[Greeting]:
    """What all workers said first.  Raises TrainingError if one doesn't start, or if its versions differ."""
    _, missing = ray.wait(list(hellos), num_returns=len(hellos), timeout=START_SECONDS)
    if missing:
        raise refused(f"{len(missing)} of {len(hellos)} workers on Ray haven't started in {START_SECONDS:g} s")
    said = []
    for hello in hellos:
        try:
            said.append(ray.get(hello))
            check_versions(said[-1])
        except EdgeflError:
            raise
        except Exception as error:
            last = str(error).strip().splitlines()[-1]
            raise refused(f"a worker on Ray can't start; is edgefl installed on every node? {last}") from error
    return said


def check_versions(hello: Greeting) -> None:
    """Raise TrainingError if the node of a greeting has other versions than this machine."""
    ours, host = versions(), hello["host"]
    for what, theirs in hello["versions"].items():
        if theirs != ours[what]:
            raise refused(f"node {host} has {what} {theirs}, and this one has {ours[what]}: install the same")


def refused(text: str) -> TrainingError:
    """An error that the user can correct."""
    error = TrainingError(text)
    error.exit_code = 2
    return error
