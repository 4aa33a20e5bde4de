"""Rules on a run's files: none is missing or has changed, and the final weights are what the last round says."""

from __future__ import annotations

from edgefl.commands.verify.rules import Check
from edgefl.errors import RunError
from edgefl.runs import TABLES, Run, checkpoints, kept
from edgefl.runs.contents import CHECKPOINTS, KEPT
from edgefl.runs.digests import table_difference
from edgefl.runs.folders import FORMAT, finished_differences

FILE_RULES = {
    "files": "a finished run's files are those it finished with; others hold all that the last checkpoint counted",
    "weights": "the final weights are finite, unless the last round is marked as diverged",
}


def file_checks(run: Run, last_diverged: bool | None) -> list[Check]:
    """The checks of FILE_RULES on a run; ``last_diverged`` is the last round's mark, None if it has none."""
    checks = {name: Check(name, says) for name, says in FILE_RULES.items()}
    _check_finished(run, checks["files"]) if run.finished else _check_unfinished(run, checks["files"])
    _check_weights(run, last_diverged, checks["weights"])
    return list(checks.values())


def _check_finished(run: Run, check: Check) -> None:
    if run.environment.get("run_format", 1) == 1:
        check.note = "not recorded by the version that wrote this run"
        return
    differences = finished_differences(run.path)
    for difference in differences or (None,):
        check.count(None if difference is None else {"difference": difference}, "files.json")


def _check_unfinished(run: Run, check: Check) -> None:
    folder = run.path / CHECKPOINTS
    if (written := run.environment.get("run_format", 1)) != FORMAT:
        check.note = f"not finished, and of run format {written}, whose checkpoints this version doesn't read"
        return
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
    records = checkpoints.manifest_of(folder / checkpoints.name(round))["records"]
    for table in TABLES:
        difference = table_difference(run.path / f"{table}.jsonl", records[table], round)
        check.count(None if difference is None else {"difference": difference}, f"{table}.jsonl")


def _check_kept(run: Run, check: Check) -> None:
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


def _check_weights(run: Run, last_diverged: bool | None, check: Check) -> None:
    if not run.finished or last_diverged is None:
        check.note = "not finished" if not run.finished else "not recorded by the version that wrote this run"
        return
    try:
        weights = run.weights()
    except RunError as error:
        check.count({"difference": str(error)}, "weights.safetensors")
        return
    bad = [name for name, value in weights.items() if value.is_floating_point() and not bool(value.isfinite().all())]
    offence = {"not finite": bad[0], "last round diverged": last_diverged} if bad and not last_diverged else None
    check.count(offence, "weights.safetensors")
