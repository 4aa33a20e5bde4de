"""Train the rows of a published table, each as a run of its own, and put the scores beside the printed cells."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edgefl.cells.resume import reopen_runs
from edgefl.commands.run.command import run
from edgefl.data import Federation
from edgefl.data.options import PUBLIC
from edgefl.data.split import SPLITS
from edgefl.errors import DataError, DivergedError, RunError, list_errors
from edgefl.records.metrics import metric_value
from edgefl.results.facts import facts_of
from edgefl.runs import Run, is_run, read_run
from edgefl.runs.progress import OnProgress, messages, silent
from edgefl.scenario import Scenario, load
from edgefl.scenario.document import spell
from edgefl.scenario.keys import read_override
from edgefl.scenario.scenario import with_fields
from edgefl.setup.compose import federation_of
from tools.paper_tables.answer import ScoredCell, ScoredRow, ScoredTable
from tools.paper_tables.needed_files import needed_files
from tools.paper_tables.published_tables import PERCENT, PrintedPaper, PrintedSize, PrintedTable, rows_of, table_of

EVERYTHING = "EDGEFL_DATA"
"""The environment variable with the folder below which sets are looked for."""


@dataclass(frozen=True)
class TableRow:
    """A row of a published table with its scenario.  ``same`` is the row before it whose scenario it shares, or itself.

    ``label`` is the row's name, with the sizes of data sets that aren't the paper's.
    """

    name: str
    label: str
    same: str
    scenario: Scenario


def scenarios_of(table: PrintedTable, rows: Sequence[str] = (), overrides: Sequence[str] = ()) -> list[TableRow]:
    """The rows of a table, all that can be run for none, as scenarios; ``overrides`` change every row.

    Raises UnknownName for a row, RunError for one that can't be run, and ScenarioError for overrides that don't fit.
    """
    base = load(table.base)
    given = {spell(each.path): each.value for each in map(read_override, overrides)}
    found: list[TableRow] = []
    first: dict[str, str] = {}
    for row in rows_of(table, rows):
        scenario = base
        for fields in filter(None, (table.changes(row), given)):
            scenario = with_fields(scenario, fields)
        same = first.setdefault(scenario.to_yaml(), row)
        found.append(TableRow(row, row, same, replace(scenario, name=same)))
    return found


def train_table(
    name: str,
    rows: Sequence[str] = (),
    *,
    data: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] = "runs/tables",
    overrides: Sequence[str] = (),
    paper: PrintedPaper | None = None,
    on_progress: OnProgress = silent,
) -> ScoredTable:
    """Train rows of a published table and compare their scores with the printed ones.

    Each row is a run in ``OUT/TABLE/ROW``; rows with the same scenario, such as points of two curves, share the run of
    the first.  A repeated call goes on where an interrupted one was, and trains what isn't trained yet.

    Args:
        name: A table, such as ``"fedcola-t1"``.
        rows: Its rows; none: all that can be run.
        data: The folder with a folder for each data set; None: as ``$EDGEFL_DATA`` says.
        out: The folder with a folder for each table.
        overrides: Changes of every row, ``path=value``.
        paper: The paper with the table; None: the one of published/ that has it.
        on_progress: Called with the name of an event and its facts.

    Returns:
        The rows with printed and own scores.

    Raises:
        UnknownName: There is no such table or row.
        DataError: Data sets aren't there; nothing was trained.
        RunError: A row can't be run, or its run was made of another scenario.
        ScenarioError: A change doesn't fit, or a file of a data set is damaged.
    """
    paper, table = table_of(name) if paper is None else (paper, paper.tables[name])
    with data_below(data):
        chosen = scenarios_of(table, rows, overrides)
        _check_data([row.scenario for row in chosen])
        chosen = [_with_sizes(row, paper, on_progress) for row in chosen]
        folder = Path(out) / name
        folders = {row.name: folder / row.same for row in chosen}
        for row in chosen:
            if is_run(folders[row.name]):
                reopen_runs(folders[row.name], (), row.scenario)  # all, before one of them is trained
        runs: dict[Path, tuple[Run, str]] = {}
        for index, row in enumerate(chosen):
            at = folders[row.name]
            on_progress("combination", {"label": row.label, "index": index, "of": len(chosen)})
            if at not in runs:
                runs[at] = _train(row, at, on_progress)
    scored = [_score(table, row, *runs[folders[row.name]]) for row in chosen]
    return ScoredTable(
        table=name, title=table.title, paper=paper.cite, where=table.where, folder=str(folder), rows=scored,
        metrics=table.metrics, assumed=table.assumed, code=table.code, slips=table.slips,
        left=table.left_rows, costs=table.costs,
        then=[table.then.format(row=row.folder) for row in scored] if table.then else [],
    )  # fmt: skip


# --- data ------------------------------------------------------------------------------------------------------------


@contextmanager
def data_below(folder: str | os.PathLike[str] | None) -> Iterator[None]:
    """Look for data sets below this folder meanwhile; for None as before.  Raises RunError if it isn't there."""
    if folder is None:
        yield
        return
    if not Path(folder).is_dir():
        raise RunError(f"{folder} isn't a folder: it should have a folder for each data set")
    before = os.environ.get(EVERYTHING)
    os.environ[EVERYTHING] = str(Path(folder).absolute())  # workers read it too
    try:
        yield
    finally:
        if before is None:
            del os.environ[EVERYTHING]
        else:
            os.environ[EVERYTHING] = before


def _check_data(scenarios: Sequence[Scenario]) -> None:
    """Raise DataError with all data sets that aren't there, before one of them is opened."""
    needed = [each for scenario in scenarios for each in needed_files(scenario.data)]
    if problems := dict.fromkeys(each.problem for each in needed if each.problem):
        raise DataError(list_errors([DataError(problem) for problem in problems]))


def _with_sizes(row: TableRow, paper: PrintedPaper, on_progress: OnProgress) -> TableRow:
    """The row, whose label and run say which data sets have another size than the paper's."""
    federation = federation_of(row.scenario, messages(on_progress))
    others = list(other_sizes(paper.sets, federation))
    for set_name, found, printed, what in others:
        on_progress("prepare", {"what": f"{set_name}: {found:,} {what} to train on, {printed:,} in the paper"})
    if not others:
        return row
    told = ", ".join(f"{found:,} {what} of {name}" for name, found, _, what in others)
    named = replace(row.scenario, name=f"{row.same} ({told})"[:100])
    return replace(row, label=f"{row.name} ({told})", scenario=named)


def other_sizes(sets: Mapping[str, PrintedSize], federation: Federation) -> Iterator[tuple[str, int, int, str]]:
    """``(set, found, printed, "pictures")`` of each data set with another number to train on than the paper's.

    Sets that are joined for the clients of a kind count together.
    """
    for collection, part in federation.stored_sources:
        name = collection.path.name.rpartition("-")[0]
        if not all(each in sets for each in name.split(" + ")):
            continue
        sizes = [sets[each] for each in name.split(" + ")]
        rows = np.flatnonzero(np.isin(part.arrays["split"], (SPLITS.index("train"), SPLITS.index(PUBLIC))))
        found, printed, what = len(rows), sum(each.training_samples for each in sizes), "pairs"
        if len(sizes) == 1 and sizes[0].captions > 1 and not sizes[0].drawn:
            found, printed, what = len(np.unique(collection.arrays["image"][rows])), sizes[0].train, "pictures"
        elif sizes[0].image is None or sizes[0].text is None:
            what = "texts" if sizes[0].image is None else "pictures"
        if found != printed:
            yield name, found, printed, what


# --- a row -----------------------------------------------------------------------------------------------------------


def _train(row: TableRow, folder: Path, on_progress: OnProgress) -> tuple[Run, str]:
    """The row's run, which begins or goes on, and why it ended before its end."""
    try:
        return run(row.scenario, resume=folder, on_progress=on_progress), ""
    except DivergedError as error:  # the other rows don't depend on it
        return read_run(folder), str(error)


def _score(table: PrintedTable, row: TableRow, trained: Run, failed: str) -> ScoredRow:
    """A row's printed and own scores; a run that diverged has none."""
    metrics = {} if failed else facts_of(trained).metrics
    printed: Sequence[float | None] = table.rows[row.name].printed or [None] * len(table.metrics)
    cells = []
    for (title, metric), published in zip(table.metrics.items(), printed, strict=True):
        value = metric_value(metrics, metric)
        own = None if value is None else PERCENT * value
        difference = None if own is None or published is None else own - published
        cells.append(ScoredCell(metric=title, published=published, own=own, difference=difference))
    return ScoredRow(
        row=row.name, label=row.label, folder=str(trained.path), failed=failed or None, cells=cells,
    )  # fmt: skip
