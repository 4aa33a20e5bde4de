"""``edgefl sweep --train``: each cell's run in a folder of its own, and its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgefl.commands.progress import OnProgress
from edgefl.commands.run.run import run
from edgefl.errors import DivergedError, RunError
from edgefl.report import facts_of
from edgefl.runs import begun, read_run
from edgefl.scenario import Scenario

_NOT_IN_RESULTS = ("executor",)
"""Sections that decide where a run trains and don't change its results."""


def trained(label: str, scenario: Scenario, folder: Path, on_progress: OnProgress) -> dict[str, Any]:
    """Run a cell in ``folder``, or resume the run of an earlier sweep, and return the fields that its row gets.

    A run that diverged has the metrics up to then, and ``trained.diverged`` says where it stopped.  Raises RunError if
    the folder holds another scenario's run, and what else ``edgefl.run`` raises.
    """

    def on_event(event: str, facts: Mapping[str, Any]) -> None:
        if event not in ("combination", "done"):  # a run is only part of the sweep
            on_progress(event, facts)

    diverged: str | None = None
    if resumed := begun(folder):
        known, wanted = (
            {k: v for k, v in resolved.items() if k not in _NOT_IN_RESULTS}
            for resolved in (dict(read_run(folder).scenario), scenario.resolved())
        )
        if known != wanted:
            raise RunError(f"{folder} holds the run of another scenario; choose another --output")
    try:
        if resumed:
            done = run(resume=folder, on_progress=on_event)
        else:
            done = run(scenario, output=folder, on_progress=on_event)
    except DivergedError as error:  # the other cells go on
        done, diverged = read_run(folder), str(error)
    facts = facts_of(done, label)
    everyone = facts["everyone"]
    return {
        "metrics": {kind: dict(values) for kind, values in facts["metrics"].items()},
        "trained": {
            "rounds": facts["rounds"],
            "outcomes": facts["outcomes"],
            "virtual_seconds": facts["virtual_seconds"],
            "updates": facts["totals"]["finished"],
            "download_bytes": facts["totals"]["download_bytes"],
            "upload_bytes": facts["totals"]["upload_bytes"],
            "energy_joules": facts["totals"]["energy_joules"],
            "clients_that_took_part": everyone["took_part"],
            "metrics_round": facts["metrics_round"],
            "metrics_split": facts["metrics_split"],
            **({"diverged": diverged} if diverged else {}),
        },
    }
