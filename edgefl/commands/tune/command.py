"""``edgefl tune`` as it is typed, and ``edgefl.tune`` as it is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from edgefl.console.derived import OnProgress, command, option, silent
from edgefl.console.options import Jobs, Overrides, Place, ScenarioFile

if TYPE_CHECKING:
    from edgefl.commands.tune.answer import Tuning


@command(
    "edgefl tune mine.yaml --search training.epochs=1..3 --metric image.accuracy",
    "edgefl tune mine.yaml --search training.lr=1e-3,1e-2 --metric text.accuracy",
    answer="edgefl.commands.tune.answer:Tuning", forms={"table": "edgefl.commands.tune.table:print_tuning"},
    interrupted="continue with: the same command and -o {folder}",
)  # fmt: skip
def tune(
    scenario: ScenarioFile,
    search: Annotated[
        Sequence[str], option("Range or values of a field: training.lr=1e-4..1e-1.", "PATH=A..B|V,...", "--search")
    ],
    *,
    trials: Annotated[int, option("Settings that are tried.", "N", min=1)] = 30,
    metric: Annotated[
        str | None, option("What is optimised: image.accuracy, mean.accuracy; default: what stop follows.", "KIND.NAME")
    ] = None,
    seeds: Annotated[int, option("Run each trial over N seeds; the mean counts.", "N", min=1)] = 1,
    overrides: Overrides = (),
    out: Annotated[
        Place | None,
        option("Folder of the trials, which are reused; default runs/NAME-tune.", "DIR", "--out", "-o"),
    ] = None,
    jobs: Jobs = 1,
    on_progress: OnProgress = silent,
) -> Tuning:
    """Choose learning rates and the like, within a budget.

    Settings are drawn in batches and scored on the validation split; the test split isn't scored.  The first batch is
    spread evenly over the ranges, later ones are drawn by Optuna's TPE (the extra ``tune``).  Successive halving ends
    most trials after a ninth or a third of the rounds.  A range of positive numbers that differ by a factor of ten or
    more is searched by its logarithm (``linear:0.1..10`` is not).  The same call gives the same trials, whatever
    ``jobs`` is; with the folder of an earlier call of the same search, that goes on.

    Returns:
        ``best`` (the settings, also as ``sets`` for ``overrides`` and as ``yaml``), ``best_as_given`` (of the ranges as
        given), ``widened``, ``trials``, ``refused`` and what it took.

    Raises:
        ScenarioError: The scenario, a field or the metric is wrong, or there are no validation samples; nothing was
            written.  Also where every trial is refused.
        RunError: Optuna isn't installed, or the folder can't be used or holds another search.
        DivergedError: The models of all trials diverged.

    Examples:
        >>> import edgefl
        >>> answer = edgefl.tune("runs/small/scenario.yaml", ["training.lr=0.001,0.01"], trials=2, out="runs/tuned")
        >>> len(answer.trials), list(answer.best.settings)
        (2, ['training.lr'])
    """
    from pathlib import Path

    from edgefl.cells.cells import check_jobs
    from edgefl.commands.tune.draws import optuna
    from edgefl.commands.tune.tune_scenario import tune_scenario
    from edgefl.scenario.search_space import parse_search_space
    from edgefl.setup.compose import scenario_of

    check_jobs(jobs)
    optuna()  # before data are read
    whole = scenario_of(scenario, overrides)
    space = parse_search_space(whole, search)
    folder = None if out is None else Path(out)
    result = tune_scenario(whole, space, trials, folder, metric=metric, seeds=seeds, jobs=jobs, on_progress=on_progress)
    on_progress("done", {"folder": result.folder})
    return result
