"""The processor time of tests: what keeps the quick suite quick is that none of its tests is dear."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import psutil
import pytest

TIMES = Path(__file__).parents[1] / "times.json"
LIMIT = 0.05
"""Percent of the quick suite's processor time from which on a case is slow where a cheaper one holds its fact: about a
quarter of a second.  With 0.1 a third of the suite took a tenth more."""
MOST = 0.5
"""Percent of it beyond which a test is marked as dear.  It doesn't fail the run, because the first test of a process
also imports libraries, which took 2 s on one machine and 17 s on a busy one."""
WHOLE = 3000
"""Tests from which on a run is taken for the whole suite."""
SHOWN = 3.0
"""Processor seconds of a quick test from which on it is listed."""


class ProcessorTime:
    """Measures each test, its processes included, and lists the dear ones.

    With xdist the workers measure, and the process that hands tests out adds up.  The suite's sum has all that quick
    tests take; a test's own time hasn't what several share, the fixtures of its module and of the session.
    """

    def __init__(self, config: pytest.Config):
        self.config = config
        self.sum, self.count = 0.0, 0
        self.quick: dict[str, float] = {}
        self.slow: dict[str, float] = {}
        self.listed: set[str] = set()
        self._shared, self._depth = 0.0, 0

    @pytest.hookimpl(tryfirst=True)  # before those that aren't asked for are left out
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Mark the dear cases of tests that have cheaper ones."""
        _, percents = read_times()
        dear = dear_cases(percents)
        for item in items:
            if item.nodeid in dear:
                item.add_marker(pytest.mark.slow)
        is_whole = len(items) >= WHOLE  # else the others are there too, and weren't asked for
        self.listed.update(percents.keys() & {item.nodeid for item in items} if is_whole else percents)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function" or self._depth:
            return (yield)
        self._depth, before = 1, _seconds()
        try:
            return (yield)
        finally:
            self._depth = 0
            self._shared += _seconds() - before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
        """Leave the end of shared fixtures, and of the processes that they have, out of the test that comes last."""
        before = _seconds()
        try:
            return (yield)
        finally:
            if nextitem is None or nextitem.path != item.path:
                self._shared += _seconds() - before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        before, self._shared = _seconds(), 0.0
        result = yield
        taken = _seconds() - before
        if item.get_closest_marker("slow"):
            self.slow[item.nodeid] = taken - self._shared
        elif not item.get_closest_marker("gpu"):
            self.quick[item.nodeid] = taken - self._shared
            self.sum += taken
            self.count += 1
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker of xdist measured; one that crashed says nothing."""
        of_worker = getattr(node, "workeroutput", {}).get("processor_time")
        if of_worker:
            self.sum += of_worker["sum"]
            self.quick.update(of_worker["quick"])
            self.slow.update(of_worker["slow"])
            self.listed.update(of_worker["listed"])
            self.count += len(of_worker["quick"])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            of_worker = {"sum": self.sum, "quick": self.quick, "slow": self.slow, "listed": sorted(self.listed)}
            output["processor_time"] = of_worker
        elif session.exitstatus == pytest.ExitCode.OK and self.config.getoption("times"):
            self._write()

    def _is_dear(self, seconds: float) -> bool:
        return self.count >= WHOLE and 100 * seconds > MOST * self.sum

    def _write(self) -> None:
        """Renew ``times.json`` by what was measured; slow tests alone are held against the quick suite's last sum."""
        total, percents = read_times()
        total = self.sum if self.count >= WHOLE else total
        kept = {name: percent for name, percent in percents.items() if name in self.listed}
        measured = {name: 100 * seconds / total for name, seconds in (self.quick | self.slow).items()}
        write_times(total, kept | measured)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.sum:
            terminalreporter.section("processor time of quick tests")
            terminalreporter.line(f"{self.sum:.0f} s in all, of which no test should take more than {MOST} %")
            for name, seconds in sorted(self.quick.items(), key=lambda pair: -pair[1]):
                if seconds >= SHOWN:
                    mark = " dear" if self._is_dear(seconds) else ""
                    terminalreporter.line(f"{seconds:5.1f} s{mark} {name}")
        total, _ = read_times()
        cheap = [name for name, seconds in self.slow.items() if 100 * seconds <= LIMIT * total]
        if cheap and self.config.getoption("times"):
            terminalreporter.section(f"slow tests that take {LIMIT} % of the quick suite or less: quick enough")
            for name in cheap:
                terminalreporter.line(name)


def read_times() -> tuple[float, dict[str, float]]:
    """Seconds of the quick suite where it was measured, and the percents of it that tests take."""
    times = json.loads(TIMES.read_text(encoding="utf-8"))
    return times["quick_seconds"], times["percent"]


def write_times(quick_seconds: float, percents: Mapping[str, float]) -> None:
    """Write those of which something follows: dear cases, and the cheapest of their function."""
    percent = {}
    for cases in _by_function(percents).values():
        dear = [name for name in cases if percents[name] > LIMIT]
        if dear and len(cases) > 1:
            percent.update({name: round(percents[name], 3) for name in {*dear, _from_the_cheapest(cases, percents)[0]}})
    times = {"quick_seconds": round(quick_seconds), "percent": dict(sorted(percent.items()))}
    TIMES.write_text(json.dumps(times, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def dear_cases(percents: Mapping[str, float]) -> frozenset[str]:
    """The cases above the limit, but for the cheapest of each function: a fact stays in the quick suite."""
    return frozenset(
        name
        for cases in _by_function(percents).values()
        for name in _from_the_cheapest(cases, percents)[1:]
        if percents[name] > LIMIT
    )


def _from_the_cheapest(cases: Iterable[str], percents: Mapping[str, float]) -> list[str]:
    return sorted(cases, key=lambda name: (percents[name], name))


def _by_function(names: Iterable[str]) -> Mapping[str, list[str]]:
    functions = defaultdict(list)
    for name in names:
        functions[name.partition("[")[0]].append(name)
    return functions


def _seconds() -> float:
    """Processor seconds of this process and of those that it has waited for, the server of workers among them."""
    taken = sum(os.times()[:4])
    server = getattr(forkserver, "_forkserver")._forkserver_pid  # noqa: B009 - it has no public name
    try:
        return taken + (sum(psutil.Process(server).cpu_times()[:4]) if server else 0.0)
    except psutil.NoSuchProcess:
        return taken
