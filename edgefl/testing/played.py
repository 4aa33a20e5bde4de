"""Checks of a part by whole runs: the same again in another process, interrupted and resumed, and as priced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from edgefl import registry, seeds
from edgefl.commands.run.command import run
from edgefl.registry.code import is_main
from edgefl.results.verify import verify
from edgefl.runs import Run, read_run
from edgefl.scenario import Scenario
from edgefl.testing.findings import CheckRule, Findings, HangWatch, Hung, hang_location

TABLES: tuple[Literal["rounds", "clients", "eligibility"], ...] = ("rounds", "clients", "eligibility")
SPARE = 4096
"""Bytes by which a measured peak may differ from the predicted one: what docs/evidence/memory.md promises.

Of a thousand configurations the median there is 0 bytes; with more, a part's wrong item of payload would pass.
"""


class _Stopped(Exception):
    """The run is interrupted here."""


def check_runs(findings: Findings, watch: HangWatch, scenario: Scenario) -> None:
    """Run the scenario here and in two other processes, interrupt and resume it, and compare what is written."""
    where = scenario.name
    try:
        with (
            watch.watching(),
            seeds.seeding_globals(0),
            TemporaryDirectory(prefix="edgefl-check-") as folder,
            findings.attempt(CheckRule.RUNS, where),
        ):
            whole = _run(findings, scenario, Path(folder) / "whole")
            findings.expect(CheckRule.RUNS, where, True)
            _check_priced(findings, whole, where)
            _check_resumed(findings, scenario, whole, Path(folder) / "resumed", where)
            _check_repeated(findings, scenario, whole, Path(folder), where)
    except Hung as error:
        fault = f"no round ended for {watch.seconds:g} s; it hung in {hang_location(error, None)}"
        findings.expect(CheckRule.RUNS, where, False, fault)


def _run(findings: Findings, scenario: Scenario, folder: Path, stop: int | None = None, seed: int = 1) -> Run:
    """The run; with ``stop`` it is interrupted when that round has ended, and resumed."""

    def on_progress(event: str, facts: Mapping[str, object]) -> None:
        findings.renew()
        if event == "record" and facts["round"] == stop:
            raise _Stopped

    seeds.seed_globals(seed)
    if stop is None:
        return run(scenario, out=folder, on_progress=on_progress)
    try:
        return run(scenario, out=folder, on_progress=on_progress)
    except _Stopped:
        seeds.seed_globals(seed + 1)
        return run(resume=folder, on_progress=lambda event, facts: findings.renew())


def _check_priced(findings: Findings, whole: Run, where: str) -> None:
    for part in verify(whole.path).runs.values():
        for rule in part.checks:
            fault = f"{rule.says}: {json.dumps(rule.first and rule.first.to_data())}" if rule.broken else ""
            findings.expect(CheckRule.PRICED, where, not rule.broken, fault)
    for record in whole.records("clients"):
        if record.get("measured_peak_memory_bytes") is None:
            continue
        at = f"{where}: client {record['client']}, round {record['round']}"
        for name, spare in (("peak_memory_bytes", SPARE), ("forward_flops", 0), ("backward_flops", 0)):
            predicted, measured = record[name], record[f"measured_{name}"]
            fault = f"{name.replace('_', ' ')}: {predicted} predicted, {measured} measured"
            findings.expect(CheckRule.PRICED, at, abs(predicted - measured) <= spare, fault)


def _check_resumed(findings: Findings, scenario: Scenario, whole: Run, folder: Path, where: str) -> None:
    with findings.attempt(CheckRule.RESUMES, where):
        half = max(len(whole.records("rounds")) // 2, 1)
        resumed = _run(findings, scenario, folder, stop=half, seed=2)
        fault = differing(whole, resumed, "uninterrupted", f"resumed after round {half}")
        findings.expect(CheckRule.RESUMES, where, not fault, fault)


def _check_repeated(findings: Findings, scenario: Scenario, whole: Run, folder: Path, where: str) -> None:
    with findings.attempt(CheckRule.REPEATS, where):
        for number in (1, 2):
            again = _elsewhere(scenario, folder / f"again-{number}", number)
            if again is None:  # a notebook's part: no other process has it
                again = _run(findings, scenario, folder / f"again-{number}", seed=10 + number)
            findings.renew()
            fault = differing(whole, again, "first", "second")
            if not findings.expect(CheckRule.REPEATS, where, not fault, fault):
                return


def _elsewhere(scenario: Scenario, folder: Path, number: int) -> Run | None:
    """The run in a new process with another order of sets; None if that process can't import a part."""
    known = registry.for_workers()
    if any(address is None or is_main(address.partition(":")[0]) for *_, address in known.parts):
        return None
    given = {
        "files": [[path, source.decode("latin-1")] for path, source in known.files],
        "parts": [list(part) for part in known.parts],
        "scenario": scenario.to_data(),
        "output": str(folder),
        "seed": 10 + number,
    }
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    environment = {**os.environ, "PYTHONHASHSEED": str(number), "PYTHONPATH": paths}
    command = [sys.executable, "-m", "edgefl.testing.played"]
    done = subprocess.run(
        command, input=json.dumps(given), env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"in another process: {done.stderr.strip().splitlines()[-1] if done.stderr else 'it ended'}")
    return read_run(folder)


def differing(one: Run, two: Run, first: str, second: str) -> str:
    """The first difference between what two runs wrote, in words; "" if there is none."""
    for table in TABLES:
        rows = one.records(table), two.records(table)
        for a, b in zip(*rows, strict=False):
            for name in dict.fromkeys((*a, *b)):
                if a.get(name) != b.get(name):
                    who = "".join(f"{word} {a[word]}, " for word in ("round", "client") if word in a)
                    told = f"{_short(a.get(name))} in the {first} run, {_short(b.get(name))} in the {second}"
                    return f"{who}{name} ({table}.jsonl): {told}"
        if len(rows[0]) != len(rows[1]):
            return f"{table}.jsonl: {len(rows[0])} records in the {first} run, {len(rows[1])} in the {second}"
    if (one.path / "weights.safetensors").read_bytes() != (two.path / "weights.safetensors").read_bytes():
        return f"the final weights of the {first} and the {second} run differ"
    return ""


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def main() -> None:
    """The run of ``_elsewhere``, asked for as JSON on stdin, with the parts that the process which asks knows."""
    given = json.load(sys.stdin)
    files = [(path, source.encode("latin-1")) for path, source in given["files"]]
    registry.adopt(registry.ForWorkers(files, [tuple(part) for part in given["parts"]]))
    seeds.seed_globals(given["seed"])
    run(given["scenario"], out=given["output"])


if __name__ == "__main__":
    main()
