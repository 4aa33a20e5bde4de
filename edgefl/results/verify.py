"""``edgefl run --verify``: check the records in a run's folder against the rules of conservation."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from math import inf
from pathlib import Path
from typing import Generic, TypeVar

from edgefl import registry
from edgefl.devices import available_memory_bytes, load_device, load_link, with_runtime
from edgefl.devices.caps import CAPS, JOB
from edgefl.errors import RunError, ScenarioError
from edgefl.records.run import FinalSummary
from edgefl.records.verified import Verified, VerifiedRun
from edgefl.results.conservation import (
    CheckedFlight,
    CheckedRound,
    CheckedScore,
    CheckedVerdict,
    Ledger,
    LedgerFacts,
    RuleCheck,
    Three,
    check_scored,
)
from edgefl.runs import TABLES, Run, checkpoints, kept, read_run
from edgefl.runs.contents import CHECKPOINTS, KEPT
from edgefl.runs.digests import EMPTY, table_difference
from edgefl.runs.folders import finished_differences
from edgefl.runs.plug_in_files import check_plug_in_files
from edgefl.scenario import Scenario, load


def verify(path: str | os.PathLike[str]) -> Verified:
    """Check the records of a run, or of every run of a comparison, against the rules of conservation.

    Only the folder is read, one round at a time; nothing is simulated again.  Returns ``{"folder", "valid", "runs"}``.
    Each run, by its label, has ``finished``, ``valid`` and ``checks``: for each rule the number of ``records`` checked,
    how many are ``broken``, and where the ``first`` is with its values.

    Raises RunError for a folder that isn't a run's, a damaged line, or records that lack a field.
    """
    run = read_run(path)
    parts = run.runs or {run.name: run}
    runs = {label: _verify_run(part) for label, part in parts.items()}
    return Verified(folder=str(path), valid=all(report.valid for report in runs.values()), runs=runs)


def _verify_run(run: Run) -> VerifiedRun:
    ledger = Ledger(_facts(_scenario_of(run.path)))
    _check_records(run, ledger)
    checks = [*ledger.finish_checks(), *file_checks(run, ledger.last_diverged)]
    return VerifiedRun(
        folder=str(run.path),
        finished=run.is_finished,
        valid=not any(check.broken for check in checks),
        rounds=len(ledger.spans),
        checks=[check.checked_rule() for check in checks],
    )


def _scenario_of(folder: Path) -> Scenario:
    """The scenario of a run.  Where it names a part that isn't known, a RunError asks for the run's plug-in files."""
    try:
        return load(folder / "scenario.yaml")
    except ScenarioError:
        check_plug_in_files(folder)
        raise


def _check_records(run: Run, ledger: Ledger) -> None:
    """Check all records in the folder, each round with its clients."""
    try:
        _check_lines(run, ledger)
    except KeyError as error:  # a budget, or what groups are by: no rule knows it
        raise RunError(
            f"{run.path / ledger.location}: a record has no {error}: another version wrote this run, or not edgefl"
        ) from None


def _check_lines(run: Run, ledger: Ledger) -> None:
    for verdict, where in run.read_lines(CheckedVerdict):
        ledger.verdict(verdict, where)
    flights, scores = RoundReader(run.read_lines(CheckedFlight)), RoundReader(run.read_lines(CheckedScore))
    for record, where in run.read_lines(CheckedRound):
        _strays(ledger, flights.before(record.round), scores.before(record.round))
        scored = [score for score, _ in scores.before(record.round + 1)]
        ledger.round(record, where, flights.before(record.round + 1))
        if record.client_metrics:
            check_scored(ledger.checks["scored"], record.round, record.client_metrics, where, scored)
    if run.is_finished:
        _strays(ledger, flights.before(None), scores.before(None))
        result = run.read_file(FinalSummary)
        assert result is not None
        ledger.result(result, "result.json")


def _strays(ledger: Ledger, flights: list[tuple[CheckedFlight, str]], scores: list[tuple[CheckedScore, str]]) -> None:
    for flight, where in flights:
        ledger.stray(flight, where)
    for score, where in scores:
        ledger.stray(score, where)


C = TypeVar("C", CheckedFlight, CheckedScore)


class RoundReader(Generic[C]):
    """Records with their places, taken round by round."""

    def __init__(self, lines: Iterator[tuple[C, str]]):
        self._lines: Iterator[tuple[C, str]] = lines
        self._next: tuple[C, str] | None = next(lines, None)

    def before(self, round: int | None) -> list[tuple[C, str]]:
        """The next records as long as their round is before this one; None: all."""
        found = []
        while self._next is not None and (round is None or self._next[0].round < round):
            found.append(self._next)
            self._next = next(self._lines, None)
        return found


def _facts(scenario: Scenario) -> LedgerFacts:
    """The facts that the rules need, from the scenario and the profiles that it names."""
    fleet, options = scenario.fleet, scenario.round
    devices = {name: with_runtime(load_device(name), fleet.runtime) for name in fleet.devices}
    devices = {device.name: device for device in devices.values()}
    links = {link.name: link for link in map(load_link, fleet.links)}

    exchanges = scenario.schedule_name == "split" or scenario.aggregation.secure is not None

    @cache
    def watts(device_name: str, link_name: str) -> tuple[Three, Three] | None:
        if device_name not in devices or link_name not in links:
            return None
        device, link = devices[device_name], links[link_name]
        receiving, sending = device.idle_watts + link.download_watts, device.idle_watts + link.upload_watts
        most = device.compute_watts
        least = device.idle_watts if device.processor.type == "gpu" or exchanges else most
        if exchanges:  # it also sends and receives while it computes
            most = max(most, receiving, sending)
        return (receiving, least, sending), (receiving, most, sending)

    line = fleet.server_link
    return LedgerFacts(
        watts,
        inf if options.deadline is None else options.deadline,
        options.gate == "eligible",
        bool(registry.get("round policy", options.policy_name).at_once)
        or any(fleet.budgets.caps()[name] is not None for name, cap in CAPS.items() if cap.lasts == JOB),
        (inf, inf) if line is None else (line.download or inf, line.upload or inf),
        {n: available_memory_bytes(d) for n, d in devices.items()} if fleet.budgets.within_device else None,
        0 if fleet.relays is None else fleet.relays.count,
        registry.get("schedule", scenario.schedule_name)(scenario.schedule_options, scenario.model.blocks).rounds,
    )


FILE_RULES = {
    "files": "a finished run's files are those it finished with; others hold all that the last checkpoint counted",
    "weights": "the final weights are finite, unless the last round is marked as diverged",
}


def file_checks(run: Run, last_diverged: bool) -> list[RuleCheck]:
    """The checks of FILE_RULES on a run; ``last_diverged`` is the last round's mark."""
    checks = {name: RuleCheck(name, says) for name, says in FILE_RULES.items()}
    _check_finished(run, checks["files"]) if run.is_finished else _check_unfinished(run, checks["files"])
    _check_weights(run, last_diverged, checks["weights"])
    return list(checks.values())


def _check_finished(run: Run, check: RuleCheck) -> None:
    differences = finished_differences(run.path)
    for difference in differences or (None,):
        check.count(None if difference is None else {"difference": difference}, "files.json")


def _check_unfinished(run: Run, check: RuleCheck) -> None:
    folder = run.path / CHECKPOINTS
    _check_kept(run, check)
    try:
        newest = checkpoints.latest(folder, hashes=False)
    except RunError as error:
        check.count({"difference": str(error)}, CHECKPOINTS)
        return
    if newest is None:
        check.note = "no checkpoint yet"
        return
    round = newest[0]
    written = checkpoints.manifest_of(folder / checkpoints.name(round))["records"]
    for table in TABLES:
        difference = table_difference(run.path / f"{table}.jsonl", written.get(table, EMPTY), round)
        check.count(None if difference is None else {"difference": difference}, f"{table}.jsonl")


def _check_kept(run: Run, check: RuleCheck) -> None:
    """The files of what clients keep at the last checkpoint, which a run that goes on would need."""
    folder = run.path / CHECKPOINTS
    for round in checkpoints.rounds(folder)[-1:]:
        try:
            state = checkpoints.manifest_of(folder / checkpoints.name(round))["state"]
            names, differences = kept.files_of(state), kept.differing(run.path / KEPT, state)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # a damaged checkpoint, which is passed over
        for name in names:
            found = next((difference for difference in differences if name in difference), None)
            check.count(None if found is None else {"difference": found}, f"{KEPT}/{name}")


def _check_weights(run: Run, last_diverged: bool, check: RuleCheck) -> None:
    if not run.is_finished:
        check.note = "not finished"
        return
    try:
        weights = run.weights()
    except RunError as error:
        check.count({"difference": str(error)}, "weights.safetensors")
        return
    bad = [name for name, value in weights.items() if value.is_floating_point() and not bool(value.isfinite().all())]
    offence = {"not finite": bad[0], "last round diverged": last_diverged} if bad and not last_diverged else None
    check.count(offence, "weights.safetensors")
