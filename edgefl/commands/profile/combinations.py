"""The combinations of a scenario that compares, without those that can't be run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from edgefl.errors import EdgeflError, RunError
from edgefl.scenario import Scenario
from edgefl.scenario.problems import reason

Made = TypeVar("Made")


def runnable(
    combinations: Iterable[tuple[str, Scenario]], make: Callable[[Scenario], Made]
) -> tuple[dict[str, Made], dict[str, str]]:
    """What ``make`` gives of each combination, by label, and by label why a combination can't be run.

    Raises the error of the last one if none can, and errors that have another cause than the scenario.
    """
    made: dict[str, Made] = {}
    refused: dict[str, str] = {}
    last: EdgeflError | None = None
    for label, combination in combinations:
        try:
            made[label] = make(combination)
        except EdgeflError as error:
            if error.exit_code != EdgeflError.exit_code or isinstance(error, RunError):
                raise
            refused[label], last = reason(error), error
    if last is not None and not made:
        raise last
    return made, refused
