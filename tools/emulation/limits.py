"""Limits of a process: its share of one processor and its memory, by control groups (v1 and v2)."""

from __future__ import annotations

from math import inf
from pathlib import Path

from tools.emulation.journal import MachineJournal
from tools.emulation.kernel import ControlGroups, EmulationError

PERIOD, QUOTA = 0.05, 0.005
"""Seconds in which a process gets its share of the processor, at least, and seconds of it that it gets at least: a
process that is stopped often computes more slowly in the time that it has.  Choices, not measured: with longer ones a
short work is over before its first stop."""
LEAST_SHARE = 0.005
"""The least share of a processor: a period is a second at most."""
WEIGHT = 10
"""Emulated clients come before other processes by this factor, so that their quota decides and not their neighbours.

A choice, not measured: beside one other busy group on its core a client keeps 10 / 11 of it.
"""


class Limits:
    """The control groups of one emulated client."""

    def __init__(self, groups: ControlGroups, journal: MachineJournal, name: str):
        self._groups, self._name = groups, f"{journal.name}/{name}"
        for group in (journal.name, self._name):
            for folder in groups.roots(group):
                if not folder.is_dir():
                    journal.note("groups", str(folder))
                    folder.mkdir()
                    if groups.unified and group == journal.name:
                        _write(folder / "cgroup.subtree_control", "+cpu +memory")
        if groups.unified:
            self._set("cpu", "cpu.weight", 100 * WEIGHT)
        else:
            # the weight of all clients together, against other processes
            _write(groups.folder("cpu", journal.name) / "cpu.shares", 1024 * WEIGHT)

    def _set(self, controller: str, name: str, value: object) -> None:
        _write(self._groups.folder(controller, self._name) / name, value)

    def _get(self, controller: str, name: str) -> str:
        return (self._groups.folder(controller, self._name) / name).read_text(encoding="ascii")

    def _read_counters(self, controller: str, name: str) -> dict[str, int]:
        return {
            key: int(value) for key, value in (line.split()[:2] for line in self._get(controller, name).splitlines())
        }

    def adopt(self, pid: int) -> None:
        """Put a process under these limits."""
        for folder in self._groups.roots(self._name):
            _write(folder / "cgroup.procs", pid)

    def processor(self, share: float) -> None:
        """Limit the processes to a ``share`` of one processor; inf: no limit."""
        period = round(1e6 * max(PERIOD, QUOTA / share))
        quota = -1 if share == inf else round(share * period)
        if self._groups.unified:
            self._set("cpu", "cpu.max", f"{'max' if quota < 0 else quota} {period}")
        else:
            self._set("cpu", "cpu.cfs_period_us", period)
            self._set("cpu", "cpu.cfs_quota_us", quota)

    def memory(self, most: float) -> None:
        """Limit the memory of the processes, without swapping, to so many bytes; inf: no limit."""
        limit = -1 if most == inf else int(most)
        if self._groups.unified:
            self._set("memory", "memory.max", "max" if limit < 0 else limit)
            _write_if_there(self._groups.folder("memory", self._name) / "memory.swap.max", 0)
            return
        names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        with_swap = self._groups.folder("memory", self._name) / names[1]
        # the limit with swap is never below the other
        for name in names if limit >= 0 else reversed(names):
            if name != names[1] or with_swap.exists():
                self._set("memory", name, limit)

    @property
    def resident(self) -> int:
        """Bytes of the processes that the kernel can't take back: anonymous memory, without pages of files."""
        if self._groups.unified:
            return self._read_counters("memory", "memory.stat")["anon"]
        return self._read_counters("memory", "memory.stat")["total_rss"]

    @property
    def oom_kills(self) -> int:
        """Processes that the kernel has killed for lack of memory."""
        name = "memory.events" if self._groups.unified else "memory.oom_control"
        return self._read_counters("memory", name).get("oom_kill", 0)


def _write(path: Path, value: object) -> None:
    try:
        path.write_text(str(value), encoding="ascii")
    except OSError as error:
        raise EmulationError(f"{path}: the kernel refuses {value}: {error.strerror}") from None


def _write_if_there(path: Path, value: object) -> None:
    if path.exists():
        _write(path, value)
