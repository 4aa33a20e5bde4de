"""``edgefl compare`` as it is typed, and ``edgefl.compare`` as it is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from edgefl.console.derived import OnProgress, argument, command, silent
from edgefl.console.options import Place

if TYPE_CHECKING:
    from edgefl.commands.compare.answer import ComparedRuns


@command(
    "edgefl compare runs/mine", "edgefl compare runs/mine --as latex",
    answer="edgefl.commands.compare.answer:ComparedRuns",
    forms={
        "table": "edgefl.commands.compare.table:print_comparison",
        "csv": "edgefl.commands.compare.table:comparison_csv",
        "latex": "edgefl.commands.compare.latex:comparison_latex",
        "orderings": "edgefl.commands.compare.table:comparison_orderings",
    },
    full="Show all metrics and costs.",
)  # fmt: skip
def compare(
    runs: Annotated[Sequence[Place], argument("Folders of finished runs, or of comparisons.", "RUN...")],
    *,
    on_progress: OnProgress = silent,
) -> ComparedRuns:
    """Runs over their seeds: mean, spread, winners.

    Also at equal virtual time, bytes and joules.  Runs that aren't finished are left out.

    Returns:
        ``rows`` (a group of runs that differ in their seeds only, with ``figures`` over them), ``equal`` (metrics at
        equal virtual time, bytes and joules), ``orderings`` (which row is ahead of which beyond the spread) and
        ``left_out``.

    Raises:
        RunError: A folder is no run's, its files can't be read, or no run is finished.

    Examples:
        The same scenario with another seed gives the mean over two runs:

        >>> import edgefl
        >>> other = edgefl.run("runs/small/scenario.yaml", overrides=["seed=2"], out="runs/small-2")
        >>> answer = edgefl.compare(["runs/small", other])
        >>> [(row.label, row.seeds) for row in answer.rows]
        [('fedavg, end-to-end', [1, 2])]
        >>> len(answer.rows[0].figures["image.accuracy"].values)
        2
    """
    from edgefl.commands.compare.members import members_of
    from edgefl.commands.compare.over_seeds import compared_runs
    from edgefl.results.facts import facts_of

    members = members_of(runs)
    all_members = [member for group in members.groups for member in group.members]
    on_progress("prepare", {"what": f"reading {len(all_members)} run{'s' if len(all_members) > 1 else ''}"})
    return compared_runs(members, {str(member.run.path): facts_of(member.run) for member in all_members})
