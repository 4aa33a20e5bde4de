"""The planners of a scenario and of each combination that it compares, or why a combination can't be run."""

from __future__ import annotations

from collections.abc import Iterable

from edgefl.errors import EdgeflError, RunError
from edgefl.planning.planner import Planner
from edgefl.runs.progress import OnProgress
from edgefl.scenario import Scenario
from edgefl.scenario.problems import reason
from edgefl.setup.compose import planner_of


def planners_of(
    whole: Scenario, combinations: Iterable[tuple[str, Scenario]], on_progress: OnProgress
) -> tuple[Planner, dict[str, Planner], dict[str, str]]:
    """The scenario's own planner, those of its combinations by label, and by label why one can't be run.

    Raises the error of the last combination if none can be run, and errors that have another cause than the scenario.
    """
    own = planner_of(whole, on_progress)
    planners: dict[str, Planner] = {}
    refused: dict[str, str] = {}
    last: EdgeflError | None = None
    for label, combination in combinations:
        try:
            planners[label] = planner_of(combination, on_progress)
        except EdgeflError as error:
            if error.exit_code != EdgeflError.exit_code or isinstance(error, RunError):
                raise
            refused[label], last = reason(error), error
    if last is not None and not planners:
        raise last
    return own, planners, refused
