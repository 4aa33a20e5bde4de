"""Connecting to a Ray cluster, and what is asked of its nodes; for the executor and for cells that run side by side."""

from __future__ import annotations

import json
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Any, NotRequired, TypedDict

import psutil
import torch

from edgefl.errors import EdgeflError, TrainingError, install_hint
from edgefl.training.on_ray import last_word

START_SECONDS = 180.0
"""Seconds that workers have to start: a choice, not measured.  They import torch and open the data, and a cluster may
start nodes for them; a run that finds no room fails so much later."""
CONNECT_SECONDS = 5.0
"""Seconds that an address has to answer: a choice, many times the way around the world."""


def import_ray(asked_by: str) -> Any:
    """The module ``ray``.  Raises TrainingError if it isn't installed; ``asked_by`` is the option that needs it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise user_error(f"{asked_by} needs the extra ray: {install_hint('ray')}") from error
    return ray


def check_reachable(address: str, asked_by: str) -> None:
    """Raise TrainingError unless something listens at the address; ``auto`` isn't checked."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise user_error(f"{asked_by} is {address!r:.60}: write it as HOST:PORT, such as 10.0.0.5:6379, or auto")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise user_error(f"no Ray at {address}: {error.strerror or error}") from error


def connect(ray: Any, address: str | None, **more: Any) -> None:
    """Connect to the cluster, or start Ray here if there is no address; ``more`` goes to ``ray.init``.

    Raises TrainingError if that fails.
    """
    try:
        with _own_sigterm():
            ray.init(address or "local", log_to_driver=False, logging_level="ERROR", **more)
    except Exception as error:
        raise user_error(f"no Ray at {address or 'this machine'}: {first_line(error)}") from error
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


AGENTS = {"RuntimeEnvAgent": "runtime-environment agent", "DashboardAgent": "dashboard agent"}
"""Processes that a raylet starts, and with which it ends."""


class Services:
    """Ray's own processes on this machine without which no assignment runs: the raylet, its agents, and the GCS server.

    Ray's library ends a process whose raylet has ended, at its next call or by itself, without a word: ``last_word``
    then says ``says``, in another process, and removes ``folder``, that of a Ray of this process, else "".
    """

    def __init__(self, ray: Any, says: str, folder: str):
        # private names of Ray, there in 2.60; without them a run on Ray fails here, which test_ray.py sees
        node = ray._private.worker._global_node
        self._named: dict[str, psutil.Process] = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                words = process.cmdline()
                if f"--raylet_socket_name={node.raylet_socket_name}" in words and process.name() == "raylet":
                    self._named |= {"raylet": process, **_agents(process)}
                elif f"--log_dir={node.get_logs_dir_path()}" in words and process.name() == "gcs_server":
                    self._named["GCS server"] = process
        self._files: dict[int, str] = {}
        for name, process in self._named.items() if hasattr(os, "pidfd_open") else ():
            with suppress(OSError):  # it has ended, or there are no more file descriptors
                self._files[os.pidfd_open(process.pid)] = name
        pids = {name: process.pid for name, process in self._named.items()}
        self._last_word: subprocess.Popen[bytes] | None = None
        if self._files:
            self._last_word = subprocess.Popen(
                [
                    sys.executable,
                    "-S",
                    last_word.__file__,
                    json.dumps({"services": pids, "says": says, "folder": folder}),
                ],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )

    def ended_services(self, seconds: float = 0.0) -> list[str]:
        """The names of those that have ended, none of them if all are there; waits so long for one to end."""
        files = dict(self._files)
        if files:
            poll = select.poll()  # one for each call, since several threads ask
            for file in files:
                poll.register(file, select.POLLIN)
            found = {files[file] for file, event in poll.poll(1000 * seconds) if event & select.POLLIN}
            return [name for name in files.values() if name in found]
        time.sleep(seconds)  # a system without such files
        return [name for name, process in self._named.items() if not _runs(process)]

    def kill(self) -> None:
        """End those that are left."""
        for process in self._named.values():
            with suppress(psutil.Error):
                process.kill()

    def close(self) -> None:
        """Forget them, once this process has left Ray."""
        if self._last_word is not None:
            with suppress(OSError):  # somebody ended it
                self._last_word.communicate(b"x")
            self._last_word = None
        files, self._files, self._named = self._files, {}, {}
        for file in files:
            os.close(file)


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _agents(raylet: psutil.Process) -> Mapping[str, psutil.Process]:
    """The agents of a raylet by their names in messages."""
    titles = {child.cmdline()[0].strip().removeprefix("ray::"): child for child in raylet.children()}
    return {name: titles[title] for title, name in AGENTS.items() if title in titles}


def disconnect_ended(ray: Any, services: Services, ours: bool) -> None:
    """Leave a Ray whose own processes have ended; where it is ``ours``, end what is left of it."""
    if ours:
        with suppress(Exception):  # whatever has ended meanwhile
            ray._private.worker._global_node.kill_all_processes(check_alive=False, allow_graceful=False)
        services.kill()
    disconnect(ray)


def first_line(error: object) -> str:
    """What an error says, without the account of actors and nodes that Ray adds on further lines."""
    said = str(error).strip().splitlines()
    return said[0].strip() if said else repr(error)


def _print_messages(ray: Any, whether: bool) -> None:
    """Let Ray print on stdout that a worker has ended, which is said elsewhere; it has no option for that.

    The private name is that of Ray 2.60.  Under another one Ray would print, and nothing else would change.
    """
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
        raise user_error(f"{len(missing)} of {len(hellos)} workers on Ray haven't started in {START_SECONDS:g} s")
    said = []
    for hello in hellos:
        try:
            said.append(ray.get(hello))
            check_versions(said[-1])
        except EdgeflError:
            raise
        except Exception as error:
            last = (str(error).strip().splitlines() or [repr(error)])[-1].strip()
            raise user_error(f"a worker on Ray can't start; is edgefl installed on every node? {last}") from error
    return said


def check_versions(hello: Greeting) -> None:
    """Raise TrainingError if the node of a greeting has other versions than this machine."""
    ours, host = versions(), hello["host"]
    for what, theirs in hello["versions"].items():
        if theirs != ours[what]:
            raise user_error(f"node {host} has {what} {theirs}, and this one has {ours[what]}: install the same")


def user_error(text: str) -> TrainingError:
    """An error that the user can correct."""
    error = TrainingError(text)
    error.exit_code = 2
    return error
