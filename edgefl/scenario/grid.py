"""Grids: every combination of values that a scenario compares, that a file lists and that a command line names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from edgefl.errors import ScenarioError
from edgefl.scenario.axes import MOST_COMBINATIONS, Axis, check_compare
from edgefl.scenario.document import Document, KeyPath, read_file, spell
from edgefl.scenario.labels import labels_of
from edgefl.scenario.problems import raise_all
from edgefl.scenario.scenario import Scenario, combinations_of

_SHAPE = "a grid maps paths to lists of values, such as `training.batch: [8, 16]`"


@dataclass(frozen=True)
class Grid:
    """``cells`` are ``(label, scenario)``, the last axis running fastest.

    ``paths`` has each axis as it is written (``fleet.budgets.memory``), ``keys`` where that is in a resolved scenario,
    and ``words`` the short names of its values.
    """

    paths: tuple[str, ...]
    keys: tuple[KeyPath, ...]
    words: tuple[tuple[str, ...], ...]
    cells: tuple[tuple[str, Scenario], ...]


def grid_of(
    scenario: Scenario, axes: Sequence[str] = (), file: str | None = None, *, most: int = MOST_COMBINATIONS
) -> Grid:
    """The grid of what the scenario compares, of the axes in a file and of ``axes`` such as ``training.batch=8,16``.

    An axis that several of them name is taken from the last.  Raises ScenarioError for a path that can't be varied,
    an empty list, a combination that isn't a valid scenario, and more than ``most`` of them.
    """
    found: dict[KeyPath, Axis] = {}
    for path in scenario.compare:
        axis = Axis.of_compare(scenario._document, path)
        found[axis.path] = axis
    if file is not None:
        document = _read(file)
        for key in document.data["compare"]:
            axis = Axis.of_compare(document, key)
            found[axis.path] = axis
    written: set[KeyPath] = set()
    for text in axes:
        axis = Axis.of_text(text)
        if axis.path in written:
            raise ScenarioError("is varied twice; put all its values into one --vary", key=spell(axis.path))
        written.add(axis.path)
        found[axis.path] = axis
    listed = list(found.values())
    count = prod(len(axis.values) for axis in listed)
    if count > most:
        sizes = " x ".join(str(len(axis.values)) for axis in listed)
        raise ScenarioError(f"{sizes} = {count:,} cells are more than {most:,}: leave values out")
    return Grid(
        tuple(spell(axis.path) for axis in listed),
        tuple(axis.path for axis in listed),
        tuple(map(tuple, labels_of(listed))),
        tuple(combinations_of(scenario, listed)),
    )


def _read(file: str) -> Document:
    """The grid in a file as what a scenario would compare, each value at its own line.  Raises ScenarioError."""
    try:
        document = read_file(Path(file), file)
    except ScenarioError as error:
        if "a scenario" in error.message:  # what the reader of scenarios misses isn't what is missing here
            raise ScenarioError(_SHAPE, file=file, line=error.line) from None
        raise
    places = {("compare", *path): place for path, place in document.places.items()}
    moved = replace(document, data={"compare": document.data}, places=places)
    if not document.data:
        raise ScenarioError(_SHAPE, file=file)
    raise_all(
        [
            ScenarioError(e.message, file=e.file, line=e.line, key=(e.key or "").removeprefix("compare."))
            for e in check_compare(moved, document.data)
            if e.key != "compare"  # too many: counted with the other axes
        ]
    )
    return moved
