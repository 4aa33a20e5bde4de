"""What an emulation needs of this machine's kernel, and the commands that set it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgefl.errors import EdgeflError

CONTROLLERS = ("cpu", "memory")
QUEUE = 64 << 20
"""Bytes that wait at a filter, as many as a sender may have sent; it never drops any, as nothing is lost here."""
_CLONE_NEWNET = 0x40000000
"""CLONE_NEWNET of linux/sched.h, the same on every architecture."""


class EmulationError(EdgeflError):
    """This machine's kernel can't emulate a scenario's clients, or refused a part of it."""


@dataclass(frozen=True)
class ControlGroups:
    """Where the control groups of this machine are mounted: ``folders`` by controller, and whether they are v2."""

    folders: dict[str, Path]
    unified: bool

    def folder(self, controller: str, name: str) -> Path:
        """The folder of a group, by its controller and its name (``edgefl-PID/3``)."""
        return self.folders[controller] / name

    def roots(self, name: str) -> list[Path]:
        """The folders of a group under all controllers; under v2 there is one."""
        return [Path(path) for path in dict.fromkeys(str(self.folder(each, name)) for each in CONTROLLERS)]


def control_groups(mounts: str) -> ControlGroups | None:
    """The control groups with cpu and memory that ``mounts`` (/proc/self/mounts) lists; None if they aren't there."""
    folders: dict[str, Path] = {}
    unified: Path | None = None
    for line in mounts.splitlines():
        _, folder, filesystem, options, *_ = line.split()
        if filesystem == "cgroup":
            folders |= {name: Path(folder) for name in CONTROLLERS if name in options.split(",")}
        elif filesystem == "cgroup2":
            unified = Path(folder)
    if all(name in folders for name in CONTROLLERS):
        return ControlGroups(folders, unified=False)
    if unified is not None:
        try:
            # a group has the controllers that its parent gives to its children
            given = (unified / "cgroup.subtree_control").read_text(encoding="ascii").split()
        except OSError:
            return None
        if all(name in given for name in CONTROLLERS):
            return ControlGroups(dict.fromkeys(CONTROLLERS, unified), unified=True)
    return None


def missing(line: bool = False) -> list[str]:
    """What this machine lacks, a sentence for each feature; empty if it can emulate clients.

    ``line`` asks for what a server's line takes too.
    """
    if sys.platform != "linux":
        return [f"clients are emulated by Linux's kernel, and this system is {sys.platform}"]
    lacks = []
    if os.geteuid() != 0:
        lacks.append("network namespaces and control groups are made by root only: run the command as root")
    tools = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if tools:
        lacks.append(f"{' and '.join(tools)} can't be found: install iproute2")
    if control_groups(Path("/proc/self/mounts").read_text(encoding="utf-8")) is None:
        lacks.append(
            "no control groups with the controllers cpu and memory are mounted (v1), or given to the groups below "
            "the root (v2: cgroup.subtree_control)"
        )
    if not lacks and (reason := _refusal_reason(line)):
        lacks.append(reason)
    return lacks


def _refusal_reason(line: bool) -> str | None:
    """Why the kernel refuses a namespace with a shaped link, which is tried; None if it doesn't."""
    name = f"edgefl-{os.getpid()}-probe"
    try:
        run("ip", "netns", "add", name)
    except EmulationError as error:
        return f"the kernel makes no network namespace ({error})"
    try:
        for what, command in (
            (
                "virtual links (veth)",
                ("ip", "-n", name, "link", "add", "name", "a", "type", "veth", "peer", "name", "b"),
            ),
            ("bridges", ("ip", "-n", name, "link", "add", "name", "c", "type", "bridge")),
            ("token bucket filters (tc tbf)", ("tc", "-n", name, "qdisc", "add", "dev", "a", "root", *bucket(1e6))),
            *(_for_a_line(name) if line else ()),
        ):
            try:
                run(*command)
            except EmulationError as error:
                return f"the kernel has no {what} ({error})"
    finally:
        run("ip", "netns", "del", name)
    return None


def bucket(bits_per_second: float) -> tuple[str, ...]:
    """The words by which ``tc`` is told of a token bucket filter of this rate, counted in frames' bytes."""
    return ("tbf", "rate", f"{round(bits_per_second)}bit", "burst", _burst(bits_per_second), "limit", f"{QUEUE}b")


def share(bits_per_second: float, most: float) -> tuple[str, ...]:
    """The words for a class of a hierarchical token bucket: its own rate, and the most that it may borrow up to."""
    rates = (("rate", "burst", bits_per_second), ("ceil", "cburst", most))
    words = [word for rate, burst, bits in rates for word in (rate, f"{round(bits)}bit", burst, _burst(bits))]
    return ("htb", *words, "quantum", "1514")


def _burst(bits_per_second: float) -> str:
    # what the kernel's timer misses by less than the burst isn't lost
    return f"{max(3028, int(0.002 * bits_per_second / 8))}b"


def control_groups_here() -> ControlGroups:
    """The control groups of this machine.  Raises EmulationError if there are none with the controllers."""
    found = control_groups(Path("/proc/self/mounts").read_text(encoding="utf-8"))
    if found is None:
        raise EmulationError("no control groups with the controllers cpu and memory are mounted")
    return found


def _for_a_line(namespace: str) -> list[tuple[str, tuple[str, ...]]]:
    """What a server's line takes, by name, with a command that fails where the kernel doesn't have it."""
    tc = ("tc", "-n", namespace)
    return [
        ("classes that share a line (tc htb)", (*tc, "qdisc", "replace", "dev", "b", "root", "handle", "1:", "htb")),
        (
            "filters by address (tc u32)",
            (*tc, "filter", "add", "dev", "b", "parent", "1:", "protocol", "ip", "u32", "match", "ip", "dst",
             "10.0.0.1/32", "flowid", "1:1"),
        ),
    ]  # fmt: skip


def check(line: bool = False) -> None:
    """Raise EmulationError, of a line for each missing feature, if this machine can't emulate clients."""
    if lacks := missing(line):
        raise EmulationError("\n".join(f"can't emulate: {line}" for line in lacks))


def run(*command: str, input: str | None = None) -> str:
    """Run a command and return what it prints.  Raises EmulationError with its message."""
    try:
        ended = subprocess.run(command, input=input, capture_output=True, text=True, check=False)
    except OSError as error:
        raise EmulationError(f"{command[0]}: {error.strerror or error}") from None
    if ended.returncode:
        said = " ".join(ended.stderr.split()) or f"exit code {ended.returncode}"
        raise EmulationError(f"{' '.join(command)}: {said}")
    return ended.stdout


def batch(program: str, lines: Iterable[Sequence[str]], namespace: str | None = None) -> None:
    """Run many commands of ``ip`` or ``tc`` in one process, in a namespace if one is given."""
    text = "".join(" ".join(words) + "\n" for words in lines)
    where = ("-n", namespace) if namespace is not None else ()
    run(program, *where, "-batch", "-", input=text)


def enter(namespace: str) -> None:
    """Move the calling thread into a network namespace; its new sockets are there."""
    with open(f"/run/netns/{namespace}", "rb") as file:
        _libc("setns", file.fileno(), _CLONE_NEWNET)


def _libc(function: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments) != 0:
        raise EmulationError(f"{function}: {os.strerror(ctypes.get_errno())}")
