"""The combinations of a sweep, of one scenario or of several, and what is answered for each."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

from edgefl import registry
from edgefl.cells.cells import run_cells
from edgefl.cells.needs import check
from edgefl.cells.workers import Cell
from edgefl.errors import DataError, EdgeflError, RunError, ScenarioError
from edgefl.runs.columns import columns_of
from edgefl.runs.progress import OnProgress, messages
from edgefl.scenario import Scenario
from edgefl.scenario.document import KeyPath
from edgefl.scenario.grid import Grid, grid_of
from edgefl.scenario.keys import ROWS
from edgefl.scenario.labels import folder_name, in_a_cell
from edgefl.scenario.problems import reason
from edgefl.setup.compose import Given, federation_of

OF_SCENARIOS = "scenario"
"""The axis that several scenarios are."""

MOST_COMPARED = 2_000
"""Cells whose pairs are compared: a figure under one change takes 0.3 s of 2,000 and matrices of 32 MB, of which both
grow with the square."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class SweepGrid(Grid):
    """A grid over one scenario or several, of which the first axis is then ``scenario``.

    Scenarios may compare different fields: not every combination of values needs to be there.  ``scenario_of`` has by
    label what its scenario is called, if there are several.
    """

    name: str
    scenario_of: Mapping[str, str]

    @property
    def chart_axes(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """The axes of a figure and their labels: one axis of all cells if combinations of values are missing."""
        if prod(map(len, self.words)) == len(self.cells):
            return self.paths, self.words
        return (", ".join(self.paths),), ([label for label, _ in self.cells],)


def sweep_grid_of(
    given: Sequence[Given], loaded: Sequence[Scenario], vary: Sequence[str], file: str | None, most: int
) -> SweepGrid:
    """The combinations of one scenario, or of several, which then are the first axis; cells have their labels' names.

    Scenarios may compare different fields: one that doesn't compare a field has its own value on that axis.  Raises
    ScenarioError.
    """
    grids = [grid_of(each, vary, file, most=most) for each in loaded]
    if len(grids) == 1:
        return SweepGrid(**vars(grids[0]), name=loaded[0].name, scenario_of={})
    if (count := sum(len(grid.cells) for grid in grids)) > most:
        raise ScenarioError(f"{count:,} cells of {len(grids)} scenarios are more than {most:,}: leave values out")
    names = labels_of(given, loaded)
    keys, words = dict[str, KeyPath](), dict[str, dict[str, Any]]()
    cells, refused, scenario_of = list[tuple[str, Scenario]](), dict[str, str](), dict[str, str]()
    row_of = dict[str, str]()
    for name, grid in zip(names, grids, strict=True):
        labels = {label: f"{name},{label}" if grid.paths else name for label, _ in grid.cells}
        cells += [(labels[label], scenario) for label, scenario in grid.cells]
        scenario_of |= dict.fromkeys(labels.values(), name)
        refused |= {labels[label]: why for label, why in grid.refused.items()}
        row_of |= {labels[label]: row for label, row in grid.row_of.items()}
        for path, key, *told in zip(grid.paths, grid.keys, grid.words, grid.values, strict=True):
            keys[path] = key
            words.setdefault(path, {}).update(zip(*told, strict=True))
    return SweepGrid(
        (OF_SCENARIOS, *keys),
        ((OF_SCENARIOS,), *keys.values()),
        (tuple(names), *(tuple(of.values()) for of in words.values())),
        (tuple(names), *(tuple(of) for of in words.values())),
        tuple(cells),
        refused,
        row_of,
        ", ".join(names),
        scenario_of,
    )


def labels_of(given: Sequence[Given], loaded: Sequence[Scenario]) -> list[str]:
    """What each of several scenarios is called: by its name, or where two have the same by its file, or a number."""
    names, labels = Counter(scenario.name for scenario in loaded), list[str]()
    for each, scenario in zip(given, loaded, strict=True):
        is_file = names[scenario.name] > 1 and isinstance(each, str | os.PathLike)
        label = folder_name(os.fspath(each) if is_file else scenario.name)  # type: ignore[arg-type]
        labels.append(label if label not in labels else f"{label}#{len(labels) + 1}")
    return labels


def columns_of_cells(grid: SweepGrid, own: Sequence[str] = ()) -> dict[str, dict[str, object]]:
    """The columns of each cell that tell what it sets: one for each axis, for one of mappings those that differ.

    ``own`` are columns that its row has anyway.
    """
    sets = {}
    for label, variant in grid.cells:
        data = {**variant.to_data(), OF_SCENARIOS: grid.scenario_of.get(label), ROWS: grid.row_of.get(label)}
        sets[label] = {path: in_a_cell(path, value_at(data, key))
                       for path, key in zip(grid.paths, grid.keys, strict=True)}  # fmt: skip
    return columns_of(sets, own=own, kept=grid.paths)


def value_at(data: Any, path: KeyPath) -> Any:
    """The value at a path in a resolved scenario; None where there is none."""
    for key in path:
        if isinstance(data, Mapping):
            data = data.get(key)
        else:
            data = data[key] if isinstance(data, list) and isinstance(key, int) and key < len(data) else None
    return data


@contextmanager
def refusing(label: str, refused: dict[str, str], grid: Grid) -> Iterator[None]:
    """Note in ``refused`` why a cell can't be run.

    Raises errors that have another cause than the cell's scenario, and ScenarioError if every cell is refused.
    """
    try:
        with registry.named_faults():
            yield
    except EdgeflError as error:
        if error.exit_code != EdgeflError.exit_code or isinstance(error, RunError):
            raise
        refused[label] = reason(error)
        if len(refused) < len(grid.cells):
            return
        if len(set(refused.values())) == 1:
            raise  # with file and line
        reasons = "\n".join(f"{label}: {refused[label]}" for label, _ in grid.cells)
        raise ScenarioError(f"every combination is refused\n{reasons}") from error


def check_trainable(grid: Grid, refused: dict[str, str], on_progress: OnProgress) -> None:
    """Note in ``refused`` the cells that ``edgefl.run`` refuses.

    Raises DataError if a cell has no samples to train on, and ScenarioError if every cell is refused.
    """
    on_message = messages(on_progress)
    for label, scenario in grid.cells:
        if label in refused:
            continue
        with refusing(label, refused, grid):
            if federation_of(scenario, on_message).is_declared_only:
                break
            check(scenario, on_message)
    else:
        return
    raise DataError(f"{label} declares the shapes of its data and has no samples to train on: sweep it without --train")


def answers_of(
    grid: Grid,
    work: Callable[[Scenario, OnProgress], Answer],
    refused: dict[str, str],
    jobs: int,
    on_progress: OnProgress,
) -> Iterator[Answer | None]:
    """For each cell what ``work`` returns for its scenario, None for one that is refused; ``jobs`` work side by side.

    Raises ScenarioError if all are refused, and errors that have another cause than a cell's scenario.
    """
    wanted = [Cell(label, scenario) for label, scenario in grid.cells if label not in refused]
    is_beside = min(jobs, len(wanted)) > 1
    with closing(run_cells(work, wanted, jobs, on_progress)) as answers:  # type: ignore[type-var]
        for index, (label, _) in enumerate(grid.cells):
            answer: Answer | None = None
            if label not in refused:
                if not is_beside:
                    on_progress("combination", {"label": label, "index": index, "of": len(grid.cells)})
                with refusing(label, refused, grid):
                    outcome = next(answers)
                    if outcome.error is not None:
                        raise outcome.error
                    answer = outcome.answer
            yield answer
