"""``edgefl explain`` as it is typed, and ``edgefl.explain`` as it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from edgefl.console.derived import command, option
from edgefl.console.options import OneRun

if TYPE_CHECKING:
    from edgefl.commands.explain.answer import Explanation


@command(
    "edgefl explain runs/mine --round 2", "edgefl explain runs/mine --round 2 --client 0",
    answer="edgefl.commands.explain.answer:Explanation",
    forms={"table": "edgefl.commands.explain.table:print_explanation"},
)  # fmt: skip
def explain(
    run: OneRun,
    round: Annotated[int, option("A round that has ended, from 1.", "N", min=1)],
    *,
    client: Annotated[int | None, option("Show this client's round in detail.", "K", min=0)] = None,
) -> Explanation:
    """Why a round took so long, and who was absent.

    Returns:
        The round's times in virtual seconds, ``path`` (its critical path), ``shorter`` (what would have
        shortened it), ``took_part`` (clients), ``absent`` (clients with a reason each) and ``absent_by`` (their number
        by reason); with ``client`` also ``client``.

    Raises:
        RunError: There is no such run, round or client, the folder is a comparison, or its records were changed.

    Examples:
        >>> import edgefl
        >>> answer = edgefl.explain("runs/small", round=2)
        >>> [(part.who, part.phase) for part in answer.path][:3]
        [('client 2', 'download'), ('client 2', 'compute'), ('client 2', 'upload')]
        >>> answer.absent_by
        {'not drawn': 2}
    """
    from edgefl.commands.explain.explained_round import explained_round
    from edgefl.results.recorded_rounds import one_run

    return explained_round(one_run(run), round, client)
