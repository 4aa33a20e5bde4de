"""What ``edgefl run`` prints of a run: its summary, the means over its seeds, and the rules that its records keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgefl.commands.run.answer import RunAnswer, ShardOfRuns
from edgefl.commands.run.finished_run import CheckedRun
from edgefl.records.record import UNSET, Maybe
from edgefl.records.summary import RunSummary
from edgefl.results.facts import RoundFacts, summary
from edgefl.runs import Run, comparison, is_comparison

if TYPE_CHECKING:
    from edgefl.commands.compare.answer import ComparedRuns


def answer_of(run: Run) -> RunAnswer:
    """What is printed of a run or a comparison that was played here, as far as it is finished.

    Raises RunError for records that can't be read.
    """
    told: dict[str, Any] = {"verified": run.verified} if isinstance(run, CheckedRun) else {}
    if isinstance(run, CheckedRun) and run.is_only_checked:
        return RunAnswer(**told)
    if is_comparison(run.path) and not run.is_finished and not any(map(_has_diverged, run.runs.values())):
        of = len(comparison(run.path))
        left = of - sum(each.is_finished for each in run.runs.values())
        return RunAnswer(**told, shard=ShardOfRuns(folder=str(run.path), runs=of, left=left))
    found = summary(run)
    return RunAnswer(**vars(found), **told, over_seeds=_over_seeds(run, found.runs))


def _has_diverged(run: Run) -> bool:
    """Whether the run ended in a round whose model diverged."""
    *_, last = [None, *run.read(RoundFacts)]
    return not run.is_finished and last is not None and last.diverged


def _over_seeds(run: Run, facts: Mapping[str, RunSummary]) -> ComparedRuns | Maybe:
    """The means over seeds, from the facts of runs by label; UNSET for a single seed or an unfinished run."""
    if not run.is_finished or len({member.settings.seed for member in run.runs.values()}) < 2:
        return UNSET
    from edgefl.commands.compare.members import members_of  # one run is shown without what compares several
    from edgefl.commands.compare.over_seeds import compared_runs

    return compared_runs(members_of([run.path]), {str(run.runs[label].path): each for label, each in facts.items()})
