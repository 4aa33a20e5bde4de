"""``edgefl sweep``: which clients could take part under each variation, and at what cost, without training."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgefl import registry
from edgefl.cells.cells import check_jobs, shard_of, share_of
from edgefl.cells.needs import check
from edgefl.commands.sweep.answer import (
    CellHead,
    CellRow,
    Frontier,
    FrontierPoint,
    MethodFrontier,
    Sensitivity,
    Sweep,
)
from edgefl.commands.sweep.cell_answers import Answers, Workloads
from edgefl.commands.sweep.chart import sweep_chart
from edgefl.commands.sweep.sensitivity import MOST_CELLS, SensitivityCell, errors_of, sensitivity
from edgefl.commands.sweep.stored_rows import SweepRows, check_value, values_of
from edgefl.drawing.figures import SWEEP_FORMS, check_figure, draw_figure
from edgefl.errors import DataError, EdgeflError, RunError, ScenarioError, text_of
from edgefl.records.record import UNSET, Maybe
from edgefl.runs.columns import columns_of
from edgefl.runs.durable import replace_file
from edgefl.runs.progress import OnProgress, messages, silent
from edgefl.scenario.axes import MOST_COMBINATIONS
from edgefl.scenario.document import KeyPath
from edgefl.scenario.grid import Grid, grid_of
from edgefl.scenario.labels import in_a_cell
from edgefl.scenario.problems import reason
from edgefl.setup.compose import Given, at_most, federation_of, scenario_of
from edgefl.setup.progress import public_command


@public_command
def sweep(
    scenario: Given,
    axes: Sequence[str] = (),
    *,
    grid: str | os.PathLike[str] | None = None,
    overrides: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    train: bool = False,
    sensitivity_to: str | None = None,
    figure: str | os.PathLike[str] | None = None,
    value: str = "eligible_share",
    jobs: int = 1,
    address: str | None = None,
    shard: str | None = None,
    on_progress: OnProgress = silent,
    progress: bool = False,
) -> Sweep:
    """Vary a scenario and report each combination's eligible clients, the data of the others, and the costs.

    Nothing is trained without ``train``.  Costs are of clients that already hold all frozen parameters, without jitter.

    Args:
        scenario: A scenario file, the name of a shipped scenario, or a scenario as a dictionary.
        axes: Fields with the values to try, ``"fleet.budgets.memory=16MiB,32MiB"``; all combinations are made, with
            what the scenario compares too.
        grid: A YAML file of further axes, ``training.batch: [8, 16]``.
        overrides: Changes of single fields, ``"training.lr=1e-3"``.
        out: A folder for the rows (``sweep.jsonl``, ``sweep.csv``).  A combination whose row is there already is not
            computed again.
        train: Also run each combination, in ``OUTPUT/runs/LABEL``, and add its metrics to the row.
        sensitivity_to: A factor, ``"2x"``: add ``sensitivity``, whether the order of the combinations survives device
            and link numbers that are wrong by this factor.  ``"residuals"``: by what
            published measurements say of the seconds of each device's class where they are known, by 2 elsewhere.
        figure: A file (png, pdf, svg, html) for a drawing of ``value`` over the axes.
        value: The row's field that is drawn.
        jobs: How many combinations are computed and run side by side, each in a process of its own.
        address: Run them on the nodes of the Ray cluster at ``"HOST:PORT"``, or ``"auto"`` for the one that this
            machine is a node of.  To ``train``, all nodes see ``out`` at the same path.
        shard: ``"3/50"``: only the third of 50 shares of the combinations.  Calls for the others may use the same
            ``out`` at the same time; the one that finds all rows there returns all of them, and the others theirs.
        on_progress: Called with the name of an event and its facts.
        progress: Whether to show a bar, by tqdm or rich, whichever is installed.

    Returns:
        A record: ``rows`` (one for each combination, with a field for each axis, ``"training.batch"``; that of a
        combination which can't be run has the reason in ``refused`` and no costs), ``frontier`` (by method, which rows
        no other row beats in eligible share and cost) and, if asked for, ``sensitivity``.

    Raises:
        ScenarioError: The scenario or a value is invalid, before anything is computed; or no combination can be run.
        UnknownName: No row has the field ``value``.
        UnitError: ``sensitivity_to`` is neither a factor above 1 nor ``residuals``.
        RunError: The folder can't be used, or holds rows of another scenario; ``train`` without ``out``.
        DataError: ``train`` with data that are only declared.
    """
    check_jobs(jobs, address)
    part = None if shard is None else shard_of(shard)
    if part is not None and (out is None or (sensitivity_to or figure)):
        raise RunError(
            "a shard needs a folder that all shards write to: add --out DIR"
            if out is None
            else "a shard has only some rows: leave out --figure and --sensitivity, and sweep again without --shard"
        )
    if sensitivity_to is not None:
        errors_of(sensitivity_to, {})  # refuses it before anything is predicted
    check_value(value, train=train)
    if figure is not None:
        check_figure(figure, SWEEP_FORMS)
    if train and out is None:
        raise RunError("training needs a folder to keep each cell's run in: add --out DIR")
    whole = scenario_of(scenario, overrides)
    # a sensitivity compares every pair of cells
    most = MOST_COMBINATIONS if sensitivity_to is None else MOST_CELLS
    expanded = grid_of(whole, axes, None if grid is None else os.fspath(grid), most=most)
    on_progress("prepare", {"what": f"preparing {whole.name}"})
    refused = dict(expanded.refused)
    if train:
        _check_trainable(expanded, refused, on_progress)
    axes_of = _columns(expanded)
    store = SweepRows(Path(out), dict(expanded.cells), part) if out is not None else None
    workloads = Workloads(on_progress, keeping=sensitivity_to is not None)
    mine = share_of(expanded.cells, part)
    rows, failures = list[CellRow](), dict[str, Exception]()
    with closing(Answers(mine, refused, store, train, jobs, address, workloads, on_progress)) as answers:
        for index, (label, variant) in enumerate(mine):
            if not answers.beside:
                on_progress("combination", {"label": label, "index": index, "of": len(mine)})
            head = CellHead(
                label=label, sets=axes_of[label], method=variant.method_name, schedule=variant.schedule_name
            )
            row = store.known.get(label) if store and label not in refused else None
            with refusing(label, refused, expanded):
                if row is None and label not in refused:
                    row = CellRow(**vars(head), **vars(answers.cell_costs(label, variant)))
                    if store:
                        store.add(row)
            if row is None:
                rows.append(CellRow(**vars(head), refused=refused[label]))
                if store:
                    store.add(rows[-1])
                continue
            if train and store and not row.trained:
                try:
                    row = replace(row, **answers.cell_run(label, variant)._asdict())
                    store.add(row)
                except Exception as error:
                    if not answers.beside:
                        raise
                    failures[label] = error  # the other cells go on
            rows.append(row)
    if failures:
        told = "; ".join(f"{label}: {text_of(error)}" for label, error in failures.items())
        failure = RunError(f"{len(failures)} of {len(mine)} failed: {told}; go on with: the same command again")
        failure.exit_code = max(getattr(error, "exit_code", 1) for error in failures.values())
        raise failure
    if store and part is not None:
        whole_rows = store.merge_shards([label for label, _ in expanded.cells], trained=train)
        if whole_rows is None:
            left = "the table of all rows: the same command without --shard, when all shards have ended"
            on_progress("prepare", {"what": f"shard {shard} has ended; {left}"})
            return Sweep(
                scenario=whole.name, axes=list(expanded.paths), rows=rows, frontier={}, predictions=len(answers.works)
            )
        rows = whole_rows
        refused = {row.label: row.refused for row in rows if row.refused}
    if store:
        store.write_csv(rows)
    runnable = [(label, variant) for label, variant in expanded.cells if label not in refused]
    order: Sensitivity | Maybe = UNSET
    if sensitivity_to is not None:
        cells = [SensitivityCell(label, variant.fleet, workloads.workload_for(variant)) for label, variant in runnable]
        order = sensitivity(cells, sensitivity_to, on_progress)
        if store:
            text = json.dumps(order.to_data(), indent=1, allow_nan=False)
            replace_file(store.folder / "sensitivity.json", text.encode())
    result = Sweep(
        scenario=whole.name,
        at_most=at_most(variant for _, variant in runnable) or UNSET,
        axes=list(expanded.paths),
        rows=rows,
        frontier=frontiers([row for row in rows if not row.refused]),
        predictions=len(answers.works),
        sensitivity=order,
    )
    if figure is not None:
        on = f" on {whole.evaluation.final}" if value.startswith("metrics.") else ""
        chart = sweep_chart(f"{whole.name}{on}", value, expanded.paths, expanded.words, values_of(rows, value))
        draw_figure(chart, Path(figure))
    on_progress("done", {"folder": str(out) if out is not None else None})
    return result


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


def _check_trainable(grid: Grid, refused: dict[str, str], on_progress: OnProgress) -> None:
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


def _columns(grid: Grid) -> dict[str, dict[str, object]]:
    """The columns of each cell that tell what it sets: one for each axis, for one of mappings those that differ."""
    sets = {
        label: {path: in_a_cell(path, value_at(data, key)) for path, key in zip(grid.paths, grid.keys, strict=True)}
        for label, data in ((label, variant.to_data()) for label, variant in grid.cells)
    }
    return columns_of(sets, own=("method", "schedule"), kept=grid.paths)


def value_at(data: Any, path: KeyPath) -> Any:
    """The value at a path in a resolved scenario; None where there is none."""
    for key in path:
        if isinstance(data, Mapping):
            data = data.get(key)
        else:
            data = data[key] if isinstance(data, list) and isinstance(key, int) and key < len(data) else None
    return data


AGAINST = ("schedule_bytes", "schedule_seconds", "schedule_energy_joules")
"""The costs that are compared with an eligible share."""


def frontiers(rows: Sequence[CellRow]) -> dict[str, MethodFrontier]:
    """For each method and each cost of AGAINST the cells that no other cell of the method dominates, cheapest first.

    A cell dominates another if its share is no lower and its cost no higher, and one of the two is better.
    ``dominated`` names for each dominated cell one that dominates it: the one with the highest share, then the
    cheapest.  ``nobody`` lists cells in which no client can take part; they are on no frontier.
    """
    by_method: dict[str, MethodFrontier] = {}
    for method in dict.fromkeys(row.method for row in rows):
        cells = [row for row in rows if row.method == method]
        eligible = [row for row in cells if row.eligible_share > 0]
        by_method[method] = MethodFrontier(
            **{cost: _frontier(eligible, cost) for cost in AGAINST},
            nobody=[row.label for row in cells if not row.eligible_share > 0],
        )
    return by_method


def _frontier(rows: Sequence[CellRow], cost: str) -> Frontier:
    costs: dict[str, float] = {row.label: getattr(row, cost) for row in rows}
    best: CellRow | None = None
    frontier: list[FrontierPoint] = []
    dominated: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: (costs[row.label], -row.eligible_share)):
        # all rows so far cost no more than this one
        if best is None or row.eligible_share > best.eligible_share:
            best = row
        elif row.eligible_share < best.eligible_share or costs[row.label] > costs[best.label]:
            dominated[row.label] = best.label
            continue
        frontier.append(FrontierPoint(label=row.label, eligible_share=row.eligible_share, **{cost: costs[row.label]}))
    position = {row.label: index for index, row in enumerate(rows)}
    return Frontier(frontier=frontier, dominated=dict(sorted(dominated.items(), key=lambda item: position[item[0]])))
