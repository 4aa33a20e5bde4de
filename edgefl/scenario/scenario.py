"""The Scenario: a file's sections as validated options, and back to plain data."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from edgefl import SCENARIO_FORMAT
from edgefl.data import DataOptions
from edgefl.devices import FleetOptions
from edgefl.errors import ScenarioError
from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.models import ModelOptions
from edgefl.planning.payload_options import PayloadOptions
from edgefl.planning.privacy import PrivacyOptions
from edgefl.planning.round_options import EvaluationOptions, RoundOptions
from edgefl.planning.stop_options import StopOptions
from edgefl.scenario.axes import ScenarioAxis, check_compare, complete_compare, without_compare
from edgefl.scenario.document import Document, KeyPath, plain_data, spell, write
from edgefl.scenario.fields import plain_section, read_parts
from edgefl.scenario.keys import ROWS, VERSION
from edgefl.scenario.labels import folder_name, labels_of
from edgefl.scenario.library import find_document
from edgefl.scenario.overrides import blame, fault, in_order, long_forms, overrides_of, with_overrides, with_texts
from edgefl.scenario.problems import ScenarioErrors, each_of, raise_all, reason, show
from edgefl.scenario.sections import SECTIONS
from edgefl.training.options import ExecutorOptions, TrackerOptions
from edgefl.training.pretraining import PretrainOptions
from edgefl.work.training_options import TrainingOptions


@dataclass(frozen=True)
class Scenario:
    """The complete input of a run, created by ``load``; equal scenarios give equal results.

    ``compare`` maps a path ("schedule", "fleet.budgets.memory") to a list of values, and "rows" to the fields of each
    row by its label; values that are sections have all defaults written out.
    """

    name: str
    seed: int
    data: DataOptions
    model: ModelOptions
    adapter_name: str
    adapter_options: Any
    pretrain: PretrainOptions
    method_name: str
    method_options: Any
    schedule_name: str
    schedule_options: Any
    training: TrainingOptions
    payload: PayloadOptions
    aggregation: AggregationOptions
    privacy: PrivacyOptions
    fleet: FleetOptions
    round: RoundOptions
    executor: ExecutorOptions
    tracker: TrackerOptions
    evaluation: EvaluationOptions
    stop: StopOptions
    compare: dict[str, Any]
    _document: Document = field(repr=False, compare=False)

    def combinations(self) -> list[tuple[str, Scenario]]:
        """``(label, scenario)`` for every combination of ``compare``; the scenario itself if it compares nothing.

        Labels are unique, short and usable as folder names: ``layerwise``, ``fedcola,memory=16MiB``.
        Raises ScenarioError if a combination is invalid.
        """
        return combinations_of(self, self.axes())

    def axes(self) -> list[ScenarioAxis]:
        """What ``compare`` varies, of which ``combinations`` are the product, the last axis running fastest."""
        return [ScenarioAxis.from_compare(self._document, key) for key in self.compare]

    def error(self, path: KeyPath, message: str) -> ScenarioError:
        """A ScenarioError about the value at ``path``, with its file and line."""
        return self._document.error(path, message)

    def to_data(self) -> dict[str, Any]:
        """The scenario as plain data with every default written out; ``load`` reads it as an equal scenario."""
        sections: dict[str, object] = {}
        for key, section in SECTIONS.items():
            name = getattr(self, f"{key}_name") if section.noun else None
            sections[key] = plain_section(name, getattr(self, f"{key}_options" if section.noun else key))
        compare = {"compare": self.compare} if self.compare else {}
        return {VERSION: SCENARIO_FORMAT, "name": self.name, "seed": self.seed, **sections, **compare}

    def to_yaml(self) -> str:
        """``to_data()`` as a scenario file."""
        return write(self.to_data())


def load(path: str | Path | dict[str, Any], overrides: Sequence[str] = ()) -> Scenario:
    """Read a scenario from a file, a shipped name (``quickstart``) or plain data.

    ``overrides`` are ``path=value`` with the value in YAML, applied in order.  Raises ScenarioError, which lists
    all errors with file, line and key, also for an object that is no scenario.
    """
    if not isinstance(path, str | os.PathLike | dict):
        raise ScenarioError(
            "a scenario is a file, the name of a shipped one, or a dictionary of its sections, "
            f"not {show(path)} ({type(path).__name__})"
        )
    if isinstance(overrides, str) or not all(isinstance(each, str) for each in overrides):
        raise ScenarioError(f'overrides are a list such as ["training.lr=1e-3"], not {show(overrides)}')
    document = (
        Document({VERSION: SCENARIO_FORMAT, **plain_data(path)})
        if isinstance(path, dict)
        else find_document(os.fspath(path))
    )
    return scenario_in(document, overrides)


def scenario_in(document: Document, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario of a document, with overrides as for ``load``.  Raises ScenarioError with all errors in it."""
    return read_document(with_texts(long_forms(document), overrides))


def read_document(document: Document) -> Scenario:
    """The scenario of a document.  Raises ScenarioError with all errors in it."""
    fields, invalid, contradictions = read_parts(document)
    errors = blame(invalid + contradictions, document, _check_parts)
    compare = document.data.get("compare")
    if compare is not None:
        errors += check_compare(document, compare)
    raise_all(errors)
    scenario = Scenario(**fields, compare={}, _document=document)
    if not compare:
        return scenario
    complete = complete_compare(document, compare)
    document = replace(document, data={**document.data, "compare": complete})
    scenario = replace(scenario, compare=complete, _document=document)
    axes = scenario.axes()
    cells = combinations_of(scenario, axes)  # report invalid combinations when the file is loaded
    for axis in axes:
        if axis.are_rows:
            raise_all(list(_same_rows(scenario, axis, cells if len(axes) == 1 else combinations_of(scenario, [axis]))))
    return scenario


def _same_rows(
    scenario: Scenario, rows: ScenarioAxis, cells: Sequence[tuple[str, Scenario]]
) -> Iterator[ScenarioError]:
    """Errors of rows that are the scenario of a row before them, by the cells of the rows."""
    known: dict[str, str] = {}
    for label, (_, cell) in zip(rows.values, cells, strict=True):
        if (other := known.setdefault(json.dumps(cell.to_data()), label)) != label:
            message = f"is the same scenario as row {other!r}: leave one out, or change another field"
            yield scenario._document.error(("compare", ROWS, label), message, at_key=True)


def combinations_of(scenario: Scenario, axes: Sequence[ScenarioAxis]) -> list[tuple[str, Scenario]]:
    """``(label, scenario)`` for every combination of the axes' values, the last axis running fastest.

    Without axes, the only combination is the scenario itself.  Raises ScenarioError with all invalid combinations.
    """
    if not axes:
        return [(folder_name(scenario.name), scenario)]
    cells, errors, refused = _read_cells(scenario, axes)
    raise_all(errors + [error for contradictions in refused.values() for error in contradictions])
    return cells


def with_fields(
    scenario: Scenario, fields: Mapping[str, Any], document: Document | None = None, at: KeyPath = ()
) -> Scenario:
    """The scenario with these fields, by dotted path, whose errors point to what stands under ``at`` in a document.

    Raises ScenarioError with all values that are invalid or contradict each other.
    """
    row = ScenarioAxis((ROWS,), ("",), (overrides_of(document or Document({}), at, dict(fields)),))
    return replace(combinations_of(scenario, [row])[0][1], name=scenario.name)


def cells_of(
    scenario: Scenario, axes: Sequence[ScenarioAxis], *, some: bool = True
) -> tuple[list[tuple[str, Scenario]], dict[str, str]]:
    """``(label, scenario)`` for every combination, as for ``combinations_of``, and why some are refused, by label.

    Values that contradict each other, such as more stages than blocks, refuse their combination.  Raises ScenarioError
    with all values that are invalid by themselves, or if every combination is refused and ``some`` should not be.
    """
    if not axes:
        return [(folder_name(scenario.name), scenario)], {}
    cells, errors, refused = _read_cells(scenario, axes)
    raise_all(errors)
    if some and len(refused) == len(cells):
        raise_all([error for contradictions in refused.values() for error in contradictions])
    # a cell is named by its label
    plain = [
        (label, replace(cell, _document=replace(cell._document, overrides=(), before=None))) for label, cell in cells
    ]
    return plain, {label: reason(ScenarioErrors(contradictions)) for label, contradictions in refused.items()}


def _check_parts(document: Document) -> None:
    """Raise ScenarioError for a document whose fields are invalid or contradict each other."""
    _, invalid, contradictions = read_parts(document)
    raise_all(invalid + contradictions)


def _read_cells(
    scenario: Scenario, axes: Sequence[ScenarioAxis]
) -> tuple[list[tuple[str, Scenario]], list[ScenarioError], dict[str, list[ScenarioError]]]:
    """``(label, scenario)`` for every combination that is valid, errors of the others, and contradictions by label."""
    cells: list[tuple[str, Scenario]] = []
    errors: list[ScenarioError] = []
    refused: dict[str, list[ScenarioError]] = {}
    known: dict[tuple[str | None, str], ScenarioError] = {}  # what is wrong in many combinations is blamed once
    raise_all(_set_twice(scenario._document, axes))
    for label, document in _documents(scenario, axes, errors):
        fields, invalid, contradictions = read_parts(document)
        found = each_of(invalid or contradictions)
        new = [error for error in found if fault(error) not in known]
        known |= zip(map(fault, new), blame(new, document, _check_parts), strict=True)
        if invalid:
            errors += [known[fault(each)] for each in found]
            continue
        cells.append((label, Scenario(**fields, compare={}, _document=document)))
        if contradictions:
            refused[label] = [known[fault(each)] for each in found]
    return cells, errors, refused


def _set_twice(document: Document, axes: Sequence[ScenarioAxis]) -> list[ScenarioError]:
    """Errors of what a document's rows set that another axis sets, too."""
    others = {axis.path for axis in axes if not axis.are_rows}
    of_rows = [(label, override) for axis in axes if axis.are_rows
               for label, of in zip(axis.values, axis.sets, strict=True) for override in of]  # fmt: skip
    message = "is compared beside the rows, too: leave it out in one of both"
    return [
        document.error(("compare", ROWS, label, spell(override.path)), message, at_key=True)
        for label, override in of_rows if override.path in others
    ]  # fmt: skip


def _documents(
    scenario: Scenario, axes: Sequence[ScenarioAxis], errors: list[ScenarioError]
) -> Iterator[tuple[str, Document]]:
    """``(label, document)`` for every combination; adds to ``errors`` those of values that can't be set."""
    base, labels = without_compare(scenario._document), labels_of(axes)
    for choice in product(*(range(len(axis.values)) for axis in axes)):
        sets = in_order(override for axis, index in zip(axes, choice, strict=True) for override in axis.sets[index])
        try:
            document = with_overrides(base, sets)
        except ScenarioError as error:
            errors.append(error)
            continue
        yield ",".join(labels[i][index] for i, index in enumerate(choice)), document
