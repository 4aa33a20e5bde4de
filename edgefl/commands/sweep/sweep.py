"""``edgefl sweep``: which clients could take part under each variation, and at what cost, without training."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgefl import registry
from edgefl.commands.compose import compose, federation_of, predictor_of, scenario_of
from edgefl.commands.progress import OnProgress, messages, public_command, silent
from edgefl.commands.run import check
from edgefl.commands.sweep.fields import FIELDS, check_value, values_of
from edgefl.commands.sweep.frontier import frontiers
from edgefl.commands.sweep.rows import row_of
from edgefl.commands.sweep.sensitivity import MOST_CELLS, Cell, factor_of, sensitivity
from edgefl.commands.sweep.smallest_device import library
from edgefl.commands.sweep.store import RUNS, Rows
from edgefl.commands.sweep.train import trained
from edgefl.commands.sweep.workload import Workload, workload_of
from edgefl.cost import Predictor
from edgefl.errors import DataError, EdgeflError, RunError, ScenarioError
from edgefl.report import SWEEP_FORMS, check_figure, draw_sweep
from edgefl.runs.durable import replace_file
from edgefl.runs.tables import plain
from edgefl.scenario import Scenario
from edgefl.scenario.axes import MOST_COMBINATIONS
from edgefl.scenario.document import KeyPath
from edgefl.scenario.grid import Grid, grid_of
from edgefl.scenario.problems import reason


@public_command
def sweep(
    scenario: str | os.PathLike[str] | dict[str, Any] | Scenario,
    axes: Sequence[str] = (),
    *,
    grid: str | os.PathLike[str] | None = None,
    overrides: Sequence[str] = (),
    output: str | os.PathLike[str] | None = None,
    train: bool = False,
    sensitivity_to: str | None = None,
    figure: str | os.PathLike[str] | None = None,
    value: str = "eligible_share",
    on_progress: OnProgress = silent,
    progress: bool = False,
) -> dict[str, Any]:
    """Vary a scenario and report each combination's eligible clients, the data of the others, and the costs.

    Nothing is trained without ``train``.  Costs are of clients that already hold all frozen parameters, without jitter.

    Args:
        scenario: A scenario file, the name of a shipped scenario, or a scenario as a dictionary.
        axes: Fields with the values to try, ``"fleet.budgets.memory=16MiB,32MiB"``; all combinations are made, with
            what the scenario compares too.
        grid: A YAML file of further axes, ``training.batch: [8, 16]``.
        overrides: Changes of single fields, ``"training.lr=1e-3"``.
        output: A folder for the rows (``sweep.jsonl``, ``sweep.csv``).  A combination whose row is there already is not
            computed again.
        train: Also run each combination, in ``OUTPUT/runs/LABEL``, and add its metrics to the row.
        sensitivity_to: A factor, ``"2x"``: add ``sensitivity``, whether the order of the combinations survives device
            and link numbers that are wrong by this factor.
        figure: A file (png, pdf, svg, html) for a drawing of ``value`` over the axes.
        value: The row's field that is drawn.
        on_progress: Called with the name of an event and its facts.
        progress: Whether to show a bar, by tqdm or rich, whichever is installed.

    Returns:
        Plain data: ``rows`` (one for each combination; that of a combination which can't be run has the reason in
        ``refused`` and no costs), ``frontier`` (by method, which rows no other row beats in eligible share and cost)
        and, if asked for, ``sensitivity``.  Units are in the fields' names.  The page about JSON output has every
        field.

    Raises:
        ScenarioError: The scenario or a value is invalid, before anything is computed; or no combination can be run.
        UnknownName: No row has the field ``value``.
        UnitError: ``sensitivity_to`` isn't a factor above 1.
        RunError: The folder can't be used, or holds rows of another scenario; ``train`` without ``output``.
        DataError: ``train`` with data that are only declared.
    """
    factor = None if sensitivity_to is None else factor_of(sensitivity_to)
    check_value(value, train=train)
    if figure is not None:
        check_figure(figure, SWEEP_FORMS)
    if train and output is None:
        raise RunError("training needs a folder to keep each cell's run in: add --output DIR")
    whole = scenario_of(scenario, overrides)
    # a sensitivity compares every pair of cells
    most = MOST_COMBINATIONS if factor is None else MOST_CELLS
    expanded = grid_of(whole, axes, None if grid is None else os.fspath(grid), most=most)
    on_progress("prepare", {"what": f"preparing {whole.name}"})
    refused = dict(expanded.refused)
    if train:
        _check_trainable(expanded, refused, on_progress)
    store = Rows(Path(output), dict(expanded.cells), FIELDS) if output is not None else None
    workloads = _Workloads(on_progress, keeping=factor is not None)
    devices = library()
    rows = []
    for index, (label, variant) in enumerate(expanded.cells):
        on_progress("combination", {"label": label, "index": index, "of": len(expanded.cells)})
        resolved = variant.resolved()
        sets = {path: _value_at(resolved, key) for path, key in zip(expanded.paths, expanded.keys, strict=True)}
        head = {"label": label, "sets": sets, "method": variant.method_name, "schedule": variant.schedule_name}
        row = store.known.get(label) if store and label not in refused else None
        with _refusing(label, refused, expanded):
            if row is None and label not in refused:
                row = plain({**head, **row_of(workloads.of(variant), devices)})
                if store:
                    store.add(row)
        if row is None:
            row = plain({**head, "refused": refused[label]})
            if store:
                store.add(row)
        elif train and store and "metrics" not in row:
            row = {**row, **plain(trained(label, variant, store.folder / RUNS / label, on_progress))}
            store.add(row)
        rows.append(row)
    if store:
        store.write_csv(rows)
    result: dict[str, Any] = {"scenario": whole.name, "axes": list(expanded.paths), "rows": rows}
    result["frontier"] = frontiers([row for row in rows if row["label"] not in refused])
    if factor is not None:
        cells = [
            Cell(label, variant.fleet, workloads.of(variant))
            for label, variant in expanded.cells
            if label not in refused
        ]
        result["sensitivity"] = plain(sensitivity(cells, factor, on_progress))
        if store:
            text = json.dumps(result["sensitivity"], indent=1, allow_nan=False)
            replace_file(store.folder / "sensitivity.json", text.encode())
    if figure is not None:
        draw_sweep(Path(figure), whole.name, value, expanded.paths, expanded.words, values_of(rows, value))
    on_progress("done", {"folder": str(output) if output is not None else None})
    return result


class _Workloads:
    """The workloads of cells; with ``keeping``, each is predicted once and cached."""

    def __init__(self, on_progress: OnProgress, *, keeping: bool):
        self._on_progress, self._keeping = on_progress, keeping
        self._predictors: dict[str, Predictor] = {}
        self._known: dict[int, Workload] = {}

    def of(self, scenario: Scenario) -> Workload:
        """The workload of this scenario object."""
        if id(scenario) in self._known:
            return self._known[id(scenario)]
        predictor = self._predictors.setdefault(scenario.executor.device_type, predictor_of(scenario))
        setup = compose(scenario, messages(self._on_progress), trains=False)
        workload = workload_of(setup, predictor)
        if self._keeping:  # not by default: a thousand cells of a million clients would exceed the memory
            self._known[id(scenario)] = workload
        return workload


@contextmanager
def _refusing(label: str, refused: dict[str, str], grid: Grid) -> Iterator[None]:
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


def _check_trainable(grid: Grid, refused: dict[str, str], on_progress: OnProgress) -> None:
    """Note in ``refused`` the cells that ``edgefl.run`` refuses.

    Raises DataError if a cell has no samples to train on, and ScenarioError if every cell is refused.
    """
    on_message = messages(on_progress)
    for label, scenario in grid.cells:
        if label in refused:
            continue
        with _refusing(label, refused, grid):
            if federation_of(scenario, on_message).declared_only:
                break
            check(scenario, on_message)
    else:
        return
    raise DataError(f"{label} declares the shapes of its data and has no samples to train on: sweep it without --train")


def _value_at(data: Any, path: KeyPath) -> Any:
    for key in path:
        if isinstance(data, Mapping):
            data = data.get(key)
        else:
            data = data[key] if isinstance(data, list) and isinstance(key, int) and key < len(data) else None
    return data
