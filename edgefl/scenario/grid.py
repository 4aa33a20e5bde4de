"""Grids: all combinations of the values in a scenario's ``compare``, a grid file and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from edgefl.errors import ScenarioError
from edgefl.scenario.axes import MOST_COMBINATIONS, ScenarioAxis, check_compare
from edgefl.scenario.document import Document, KeyPath, read_file, spell
from edgefl.scenario.keys import ROWS
from edgefl.scenario.labels import labels_of
from edgefl.scenario.problems import collecting, raise_all
from edgefl.scenario.scenario import Scenario, cells_of

_SHAPE = "a grid maps paths to lists of values, such as `training.batch: [8, 16]`"


@dataclass(frozen=True)
class Grid:
    """``cells`` are ``(label, scenario)``, the last axis running fastest.

    ``paths`` has each axis as it is written (``fleet.budgets.memory``), ``keys`` its path in a resolved scenario, and
    ``values`` and ``words`` its values and their labels.  ``refused`` has by label why a cell's sections contradict
    each other, ``row_of`` by label which row of the scenario's a cell is.
    """

    paths: tuple[str, ...]
    keys: tuple[KeyPath, ...]
    values: tuple[tuple[Any, ...], ...]
    words: tuple[tuple[str, ...], ...]
    cells: tuple[tuple[str, Scenario], ...]
    refused: Mapping[str, str]
    row_of: Mapping[str, str]


def grid_of(
    scenario: Scenario, axes: Sequence[str] = (), file: str | None = None, *, most: int = MOST_COMBINATIONS
) -> Grid:
    """The grid over a scenario's ``compare``, the axes in ``file``, and ``axes`` such as ``training.batch=8,16``.

    The last definition of an axis wins.  Raises ScenarioError for a path that can't be varied, an empty list, an
    invalid value, more than ``most`` combinations, and if every combination is refused.
    """
    axis_of: dict[KeyPath, ScenarioAxis] = {}
    for axis in scenario.axes():
        axis_of[axis.path] = axis
    if file is not None:
        document = _read(file)
        for key in document.data["compare"]:
            axis = ScenarioAxis.from_compare(document, key)
            axis_of[axis.path] = axis
    written: set[KeyPath] = set()
    errors: list[ScenarioError] = []
    for text in axes:
        with collecting(errors):
            axis = ScenarioAxis.from_text(text)
            if axis.path in written:
                raise ScenarioError("is varied twice; put all its values into one --vary", key=spell(axis.path))
            written.add(axis.path)
            axis_of[axis.path] = axis
    all_axes = list(axis_of.values())
    count = prod(len(axis.values) for axis in all_axes)
    if count > most:
        sizes = " x ".join(f"{len(axis.values)} of {spell(axis.path)}" for axis in all_axes)
        raise ScenarioError(f"{sizes} = {count:,} cells are more than {most:,}: leave values out")
    cells, refused = list[tuple[str, Scenario]](), dict[str, str]()
    with collecting(errors):
        cells, refused = cells_of(scenario, all_axes)
    raise_all(errors)
    return Grid(
        tuple(spell(axis.path) for axis in all_axes),
        tuple(axis.path for axis in all_axes),
        tuple(axis.values for axis in all_axes),
        tuple(map(tuple, labels_of(all_axes))),
        tuple(cells),
        refused,
        _rows(all_axes, cells),
    )


def _rows(axes: Sequence[ScenarioAxis], cells: Sequence[tuple[str, Scenario]]) -> dict[str, str]:
    """Which row each cell is; empty without rows."""
    rows = [index for index, axis in enumerate(axes) if axis.are_rows]
    choices = product(*(axis.values for axis in axes)) if rows else ()
    return {label: choice[index] for (label, _), choice in zip(cells, choices) for index in rows}


def _read(file: str) -> Document:
    """A grid file as the ``compare`` section of a document.  Raises ScenarioError."""
    try:
        document = read_file(Path(file), file)
    except ScenarioError as error:
        if "a scenario" in error.message:  # a grid file is not a scenario
            raise ScenarioError(_SHAPE, file=file, line=error.line) from None
        raise
    places = {("compare", *path): place for path, place in document.places.items()}
    comparison = replace(document, data={"compare": document.data}, places=places)
    if not document.data:
        raise ScenarioError(_SHAPE, file=file)
    if ROWS in document.data:
        raise document.error((ROWS,), "rows stand in a scenario's compare, not in a grid", at_key=True)
    raise_all(
        [
            ScenarioError(
                error.message, file=error.file, line=error.line, key=(error.key or "").removeprefix("compare.")
            )
            for error in check_compare(comparison, document.data)
            if error.key != "compare"  # the limit is checked over all axes together
        ]
    )
    return comparison
