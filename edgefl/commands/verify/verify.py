"""``edgefl run --verify``: the rules of conservation on the records of a run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import orjson

from edgefl import registry
from edgefl.commands.verify.rules import Facts, Ledger, Record
from edgefl.devices import load_device, load_link
from edgefl.errors import RunError
from edgefl.runs import Run, read_run
from edgefl.scenario import Scenario, load


def verify(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Check that a run's records, or those of every run of a comparison, keep what must hold of any run.

    Only the folder is read, one round at a time; nothing is simulated again.  Gives ``{"folder", "valid", "runs"}``,
    with, for each run by its label, ``finished``, ``valid``, and of each rule the ``records`` that it looked at, how
    many are ``broken``, and where the ``first`` is with its values.

    Raises RunError for a folder that isn't a run's, a damaged line, or records that lack a field.
    """
    run = read_run(path)
    parts = run.runs or {_name(run): run}
    runs = {label: _verified(part) for label, part in parts.items()}
    return {"folder": str(path), "valid": all(found["valid"] for found in runs.values()), "runs": runs}


def _name(run: Run) -> str:
    return str(run.scenario.get("name", run.path.name))


def _verified(run: Run) -> dict[str, Any]:
    scenario = load(run.path / "scenario.yaml")
    ledger = Ledger(_facts(scenario))
    try:
        _look(run, ledger)
    except KeyError as error:
        raise RunError(
            f"{run.path / ledger.at}: a record has no {error}: this run is of another version, or not by edgefl"
        ) from None
    except TypeError as error:
        raise RunError(f"{run.path / ledger.at}: a record holds what it can't: {error}") from None
    checks = ledger.closed()
    return {
        "folder": str(run.path),
        "finished": run.finished,
        "valid": not any(check.broken for check in checks),
        "rounds": len(ledger.spans),
        "checks": [vars(check) for check in checks],
    }


def _look(run: Run, ledger: Ledger) -> None:
    """Everything that the folder holds, each round with its clients."""
    for record, where in _lines(run.path / "eligibility.jsonl"):
        ledger.verdict(record, where)
    # the fast reader for the many lines: it knows no whole number beyond 64 bits, which only sums may be
    clients = _lines(run.path / "clients.jsonl", orjson.loads)
    ahead = next(clients, None)
    for record, where in _lines(run.path / "rounds.jsonl"):
        mine = []
        while ahead is not None and ahead[0]["round"] <= record["round"]:
            if ahead[0]["round"] == record["round"]:
                mine.append(ahead)
            else:
                ledger.stray(*ahead)
            ahead = next(clients, None)
        ledger.round(record, where, mine)
    if run.finished:
        while ahead is not None:
            ledger.stray(*ahead)
            ahead = next(clients, None)
        ledger.result(run.result, "result.json")


def _lines(path: Path, read: Callable[[bytes], Any] = json.loads) -> Iterator[tuple[Record, str]]:
    """Each record with its ``file:line``; an unfinished last line is left out, as a run may be writing it now."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                try:
                    record = read(line)
                except ValueError:
                    raise RunError(f"{path}:{number}: this line is damaged: {line[:60]!r}") from None
                yield record, f"{path.name}:{number}"
    except OSError as error:
        raise RunError(f"can't read {path}: {error.strerror or error}") from error


def _facts(scenario: Scenario) -> Facts:
    """What the rules are told: from the scenario and the profiles that it names."""
    fleet, options = scenario.fleet, scenario.round
    devices = {one.name: one for one in map(load_device, fleet.devices)}
    links = {one.name: one for one in map(load_link, fleet.links)}

    @cache
    def watts(on: str, over: str) -> tuple[float, float, float] | None:
        if on not in devices or over not in links:
            return None
        one, other = devices[on], links[over]
        return one.idle_watts + other.download_watts, one.compute_watts, one.idle_watts + other.upload_watts

    line = fleet.server_link
    return Facts(
        watts,
        inf if options.deadline is None else options.deadline,
        options.gate == "eligible",
        bool(registry.get("round policy", options.policy).at_once),
        (inf, inf) if line is None else (line.download or inf, line.upload or inf),
    )
