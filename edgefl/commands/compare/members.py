"""The runs of a comparison, grouped by what differs between their scenarios except the seed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgefl.errors import RunError
from edgefl.runs import Run, comparison, comparison_sets, is_comparison, read_run
from edgefl.scenario.document import LEAVES
from edgefl.scenario.keys import ROWS
from edgefl.yaml_lines import flow

Flat = dict[str, object]
"""Values of a scenario by dotted path; a list is one value."""

IGNORED = ("seed", "name", "compare", "edgefl", "executor")
"""Sections of a scenario that don't tell runs apart: the result doesn't depend on how a run is executed."""
FOLDER = "run"
"""Name of the field that tells runs of one scenario and seed apart: the folder that was given."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, the folder that was ``given`` for it, and its scenario's values without those IGNORED.

    ``row`` is the label of the row that it is in its comparison; None without rows.
    """

    run: Run
    given: str
    fields: Flat
    row: object = None

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.run.settings.seed


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ in their seeds only; ``sets`` has the values in which the group differs from others."""

    label: str
    sets: Flat
    members: tuple[FinishedRun, ...]

    @property
    def seeds(self) -> list[int]:
        """Seeds of the members, in their order."""
        return [member.seed for member in self.members]


@dataclass
class Members:
    """Groups in the order in which their first runs were given.

    ``also`` names fields that differ too and that no label has.  ``left_out`` has a sentence for each run that isn't
    compared.
    """

    groups: list[SeedGroup]
    also: list[str]
    left_out: list[str] = field(default_factory=list)


def members_of(paths: Sequence[str | os.PathLike[str]]) -> Members:
    """Group the finished runs of these folders, each of a run or of a comparison.

    Raises RunError for a folder that is neither, and if no run is finished.
    """
    left_out: list[str] = []
    members, known = [], set[Path]()
    for given in dict.fromkeys(os.fspath(path) for path in paths):
        rows = _rows_of(Path(given))
        for run in _runs_of(Path(given), left_out):
            if run.path.resolve() in known:
                continue
            known.add(run.path.resolve())
            if run.is_finished:
                members.append(FinishedRun(run, given, flat(run.scenario), rows.get(run.path)))
            else:
                left_out.append(f"{run.path} isn't finished; continue it with edgefl run --resume {given}")
    if not members:
        raise RunError(left_out[0] if left_out else "give the folder of a run or of a comparison")
    grouped = _group_runs(members, left_out)
    labels, also = labels_of([group[0].fields for group in grouped], [group[0].row for group in grouped])
    if len({member.given for member in members}) == 1 and members[0].row is not None:
        also = []  # a row's label stands for all that the row sets
    differing = _differing([group[0].fields for group in grouped])
    groups = [
        SeedGroup(label, {path: _cell(path, group[0].fields.get(path)) for path in differing}, tuple(group))
        for label, group in zip(labels, grouped, strict=True)
    ]
    return Members(groups, also, left_out)


def _runs_of(path: Path, left_out: list[str]) -> Iterator[Run]:
    run = read_run(path)
    if not is_comparison(path):
        yield run
        return
    for label, folder in comparison(path).items():
        if label in run.runs:
            yield run.runs[label]
        else:
            left_out.append(f"{folder} isn't begun; continue it with edgefl run --resume {path}")


def _rows_of(path: Path) -> dict[Path, object]:
    """The label of the row that each run of a comparison is; empty without rows."""
    if not is_comparison(path):
        return {}
    sets = comparison_sets(path)
    return {folder: sets[label][ROWS] for label, folder in comparison(path).items() if ROWS in sets[label]}


def _group_runs(members: Sequence[FinishedRun], left_out: list[str]) -> list[list[FinishedRun]]:
    """Members by their fields; where two have the same fields and seed, the given folder is a field too."""
    groups = _by_fields(members)
    if any(len({m.seed for m in group}) < len(group) for group in groups):
        for member in members:
            member.fields[FOLDER] = member.given
        groups = _by_fields(members)
    kept = []
    for group in groups:
        by_seed: dict[int, FinishedRun] = {}
        for member in group:
            if (first := by_seed.setdefault(member.seed, member)) is not member:
                left_out.append(f"{member.run.path} has the scenario and seed of {first.run.path}")
        kept.append(list(by_seed.values()))
    return kept


def _by_fields(members: Sequence[FinishedRun]) -> list[list[FinishedRun]]:
    groups: dict[str, list[FinishedRun]] = {}
    for member in members:
        groups.setdefault(repr(sorted(member.fields.items())), []).append(member)
    return list(groups.values())


def flat(scenario: Mapping[str, object]) -> Flat:
    """The values of a resolved scenario by dotted path, without the sections IGNORED."""
    fields: Flat = {}

    def add(value: object, path: str) -> None:
        if isinstance(value, Mapping) and value and path not in LEAVES and not path.startswith("fleet.budgets."):
            for name, inner in value.items():
                add(inner, f"{path}.{name}" if path else str(name))
        elif value != {}:
            fields[path] = value

    add({name: value for name, value in scenario.items() if name not in IGNORED}, "")
    return fields


# --- labels ----------------------------------------------------------------------------------------------------------


def _differing(scenarios: Sequence[Flat]) -> list[str]:
    """Paths whose values differ between these scenarios: names first, then by section in the scenarios' order."""
    paths = dict.fromkeys(path for fields in scenarios for path in fields)
    differing = [path for path in paths if len({repr(fields.get(path)) for fields in scenarios}) > 1]
    sections = list(dict.fromkeys(path.partition(".")[0] for path in paths))
    return sorted(differing, key=lambda path: (not path.endswith(".name"), sections.index(path.partition(".")[0])))


def labels_of(scenarios: Sequence[Flat], rows: Sequence[object] = ()) -> tuple[list[str], list[str]]:
    """A label for each of these different scenarios, and the paths that differ too.

    A label has the names of methods, schedules and others that differ, then ``key=value`` for the first fields that
    tell scenarios of equal names apart.  If all scenarios are ``rows``, it begins with the row's label instead.
    """
    paths = _differing(scenarios)
    words: list[list[str]] = [[str(row)] if rows and None not in rows else [] for row in rows or scenarios]
    used: list[str] = []
    for path in paths:
        classes: dict[tuple[str, ...], list[int]] = {}
        for index, said in enumerate(words):
            classes.setdefault(tuple(said), []).append(index)
        for alike in classes.values():
            if len({repr(scenarios[i].get(path)) for i in alike}) > 1:
                used += [path] if path not in used else []
                for i in alike:
                    words[i].append(_word(path, scenarios[i].get(path), paths))
    named = {path.partition(".")[0] for path in paths if path.endswith(".name")}
    also = [
        path
        for path in paths
        # options of one method that another doesn't have go with its name
        if path not in used and not (path.partition(".")[0] in named and any(path not in s for s in scenarios))
    ]
    return [", ".join(said) or _names(fields) for said, fields in zip(words, scenarios, strict=True)], also


def _word(path: str, value: object, paths: Sequence[str]) -> str:
    if path == FOLDER or (path.endswith(".name") and isinstance(value, str)):
        return str(value)
    last = path.rpartition(".")[2]
    key = last if sum(other.rpartition(".")[2] == last for other in paths) == 1 else path
    return f"{key}={_text(path, value)}"


def _text(path: str, value: object) -> str:
    """A field's value as a user writes it."""
    if isinstance(value, str | bool):
        return flow(value)
    from edgefl.scenario.labels import field_text  # the types of fields import torch, which names don't need

    return field_text(path, value)


def _cell(path: str, value: object) -> object:
    """A field's value for a table's cell: ranges and mixtures as they are written, others as they are."""
    if not isinstance(value, list | dict):
        return value
    from edgefl.scenario.labels import in_a_cell

    return in_a_cell(path, value)


def _names(fields: Flat) -> str:
    return f"{fields.get('method.name', '')}, {fields.get('schedule.name', '')}"
