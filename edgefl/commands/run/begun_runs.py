"""The runs of ``edgefl run``: new ones with their folders, or those of a folder that go on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from edgefl.cells.cells import share_of
from edgefl.cells.needs import check
from edgefl.cells.resume import reopen_runs, sets_of
from edgefl.console.options import Given, Place
from edgefl.errors import RunError
from edgefl.runs import create_comparison, is_comparison, is_run
from edgefl.runs.folders import free_folder, new_folder
from edgefl.runs.progress import OnProgress, messages, nothing_left
from edgefl.scenario import Scenario
from edgefl.setup.compose import check_sections, scenario_of

Share = tuple[int, int]
"""Which of how many shares of a comparison's runs are played here."""


class BegunRuns(NamedTuple):
    """The folder of a run or comparison, ``(label, folder, scenario)`` of each run that is to be played, and the
    callback for their progress."""

    folder: Path
    parts: Sequence[tuple[str, Path, Scenario]]
    on_progress: OnProgress


@contextmanager
def begun_runs(
    scenario: Given | None,
    resume: Place | None,
    overrides: Sequence[str],
    out: Place | None,
    share: Share | None,
    address: str | None,
    on_progress: OnProgress,
) -> Iterator[BegunRuns]:
    """The runs of a scenario in new folders, which go if an error ends them before a round, or those of a folder.

    With both, the runs that ``resume`` holds go on if they are the scenario's, and those that it lacks begin.  Raises
    what ``check`` does before anything is written, and RunError for a folder that can't be used.
    """
    if resume is not None and out is not None:
        raise RunError("a resumed run keeps its folder: leave out --out")
    if resume is not None and scenario is not None and not (is_run(resume) or is_comparison(resume)):
        resume, out = None, resume
    if resume is not None:
        folder = Path(resume)
        given = None if scenario is None else scenario_of(scenario, overrides)
        parts = reopen_runs(folder, overrides, given, messages(on_progress))
        if share is not None and not is_comparison(folder):
            raise RunError(f"{folder} is a single run, so there are no combinations to share: leave out --shard")
        yield BegunRuns(folder, share_of(parts, share), on_progress)
        return
    assert scenario is not None
    whole = scenario_of(scenario, overrides)
    combinations = whole.combinations()
    on_progress("prepare", {"what": f"preparing {whole.name}"})
    if share is not None and not whole.compare:
        raise RunError(f"{whole.name} compares nothing, so there are no combinations to share: leave out --shard")
    check_sections([combination for _, combination in combinations])
    for _, combination in share_of(combinations, share):
        check(combination, messages(on_progress), Path(out) if out is not None else Path("runs"))
    new = None
    if out is None:
        new = free_folder(whole.name)
    elif share is None:
        new = new_folder(out, whole.to_yaml().encode())
    folder = new.path if new is not None else Path(out or "")
    if new is not None and (share is not None or (address is not None and not whole.compare)):
        new.close()  # other processes write there
    with nothing_left(new if share is None else None, on_progress) as on_event:
        parts = [(whole.name, folder, whole)]
        if whole.compare:
            sets = sets_of(whole, combinations)
            folders = create_comparison(
                folder, scenario_yaml=whole.to_yaml(), runs=sets, shared=share is not None
            )  # fmt: skip
            parts = [(label, folders[label], combination) for label, combination in combinations]
        yield BegunRuns(folder, share_of(parts, share), on_event)
