"""The processor time of tests: what keeps the quick suite quick is that none of its tests is dear."""

from __future__ import annotations

import os
from collections.abc import Generator
from multiprocessing import forkserver
from typing import Any

import psutil
import pytest

MOST = 0.025
"""Share of the whole quick suite's processor time beyond which one test fails the run.  Seconds would say less: nearly
the same tests took 629 s on one machine, 986 s on another, and more on a busy one.  Half a percent is the aim: the
first test of a process also imports libraries."""
WHOLE = 3000
"""Tests from which on a run is taken for the whole suite."""
SHOWN = 3.0
"""Processor seconds of a quick test from which on it is listed."""


class ProcessorTime:
    """Measures each quick test, its processes included, and fails a run of the whole suite if one takes too much of it.

    With xdist the workers measure, and the process that hands tests out adds up.
    """

    def __init__(self, config: pytest.Config):
        self.config = config
        self.total, self.count = 0.0, 0
        self.dear: list[tuple[float, str]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        before = _seconds()
        result = yield
        if not (item.get_closest_marker("slow") or item.get_closest_marker("gpu")):
            taken = _seconds() - before
            self.total += taken
            self.count += 1
            if taken >= SHOWN:
                self.dear.append((round(taken, 1), item.nodeid))
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker of xdist measured; one that crashed says nothing."""
        total, count, dear = getattr(node, "workeroutput", {}).get("processor_time", (0.0, 0, []))
        self.total += total
        self.count += count
        self.dear += [(seconds, name) for seconds, name in dear]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output["processor_time"] = self.total, self.count, self.dear
        elif session.exitstatus == pytest.ExitCode.OK and any(self._too_dear(seconds) for seconds, _ in self.dear):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _too_dear(self, seconds: float) -> bool:
        return self.count >= WHOLE and seconds > MOST * self.total

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.total:
            terminalreporter.section("processor time of quick tests")
            terminalreporter.line(f"{self.total:.0f} s in all, of which a test of the whole suite may take {MOST:.1%}")
            for seconds, name in sorted(self.dear, reverse=True):
                terminalreporter.line(f"{seconds:5.1f} s{' TOO DEAR' if self._too_dear(seconds) else ''} {name}")


def _seconds() -> float:
    """Processor seconds of this process and of those that it has waited for, the server of workers among them."""
    taken = sum(os.times()[:4])
    server = getattr(forkserver, "_forkserver")._forkserver_pid  # noqa: B009 - it has no public name
    try:
        return taken + (sum(psutil.Process(server).cpu_times()[:4]) if server else 0.0)
    except psutil.NoSuchProcess:
        return taken
