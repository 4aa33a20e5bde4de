"""``edgefl run`` as it is typed, and ``edgefl.run`` as it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from edgefl.console.derived import OnProgress, command, option, silent
from edgefl.console.options import Address, Jobs, MaybeScenario, Overrides, Place, Shard

if TYPE_CHECKING:
    from edgefl.runs import Run
    from edgefl.simulation import OnRound


def _how_to_continue(folder: str | None) -> str:
    from edgefl.commands.run.finished_run import whole_folder

    whole = whole_folder(folder)
    return "nothing was written" if whole is None else f"continue with: edgefl run --resume {whole}"


@command(
    "edgefl run quickstart", "edgefl run mine.yaml -o runs/first --set training.lr=1e-3",
    "edgefl run --resume runs/mine --jobs 4",
    answer="edgefl.commands.run.answer:RunAnswer", forms={"table": "edgefl.commands.run.table:print_run"},
    full="Print the tables of every run, also where seeds are compared.", interrupted=_how_to_continue,
    of_answer="edgefl.commands.run.run_summary:answer_of",
)  # fmt: skip
def run(
    scenario: MaybeScenario = None,
    *,
    out: Annotated[Place | None, option("New folder for the run; default: runs/NAME.", "DIR", "--out", "-o")] = None,
    resume: Annotated[
        Place | None,
        option(
            "Continue the run or comparison in this folder; with SCENARIO if it is that one, and begin what it lacks.",
            "DIR",
        ),
    ] = None,
    overrides: Overrides = (),
    jobs: Jobs = 1,
    address: Address = None,
    shard: Shard = None,
    verify: Annotated[
        bool,
        option("Check the records against the conservation rules; with --resume of a finished run, do only that."),
    ] = False,
    on_progress: OnProgress = silent,
    on_round: OnRound | None = None,
) -> Run:
    """Train a scenario, go on with a run, or check its records.

    A scenario that compares something is run in every combination.  The result is the same in one process and in
    worker processes, and after an interruption and ``--resume``, which takes changes (``--set``) of ``executor``,
    ``tracker`` and ``training.on_divergence`` only.  With a scenario beside ``resume``, the runs of the folder must be
    those of the scenario, and runs that the scenario compares since are added.

    Returns:
        The run, as ``read_run`` reads it from its folder; with ``verify`` a ``CheckedRun``, whose ``verified`` says
        which rules its records keep.

    Raises:
        ScenarioError: The scenario can't be run; nothing was written.  Also DataError, DeviceError, MethodError,
            UnknownName and UnitError.
        RunError: The folder can't be used, the run ends below its quorum (``round.below_quorum``), or ``on_round``
            returned something else than ``"stop"`` or None.
        DivergedError: The model diverged (``training.on_divergence``); other combinations ended before.  What was
            done is in the folder, and can be resumed.
        TrainingError: A client's or the server's work failed.  The run can be resumed from its last finished round.

    Examples:
        Two of four clients train in each of two rounds. The other examples of this page use the run in ``runs/small``.

        >>> import edgefl
        >>> scenario = {
        ...     "name": "small",
        ...     "data": {"source": "glyphs", "clients": {"image": 4}, "samples": 16, "validation": 40, "test": 40},
        ...     "model": {"image": {"tower": "vit", "blocks": 2, "width": 16, "heads": 2}},
        ...     "schedule": {"rounds": 2},
        ...     "round": {"cohort": 2},
        ...     "executor": "inline",
        ... }
        >>> run = edgefl.run(scenario)
        >>> run
        <Run runs/small: fedavg, end-to-end, seed 1, 2 rounds>
        >>> run.rounds["finished"].tolist()
        [2, 2]

        Costs alone need no training:

        >>> costs = edgefl.run("runs/small/scenario.yaml", overrides=["training.mode=none"], out="runs/costs")
        >>> costs.result.totals.upload_bytes == run.result.totals.upload_bytes
        True
    """
    import os

    from edgefl import start_method
    from edgefl.commands.run.finished_run import finished_run, with_check
    from edgefl.errors import DivergedError, RunError
    from edgefl.scenario.keys import executor_of

    if scenario is None and resume is None:
        raise RunError("give a scenario to run, or a run to resume")
    file: object = scenario
    if scenario is None and resume is not None:
        done = finished_run(resume, verify=verify) if not overrides and out is None else None
        if done is not None:
            return done
        file = os.path.join(resume, "scenario.yaml")
    if jobs == 1 and isinstance(file, str) and executor_of(file, overrides) == "processes":
        start_method.begin("edgefl.training.worker")  # workers import what they need while this process does

    from edgefl.cells.cells import check_jobs, shard_of
    from edgefl.cells.run_scenario import run_parts
    from edgefl.commands.run.begun_runs import begun_runs
    from edgefl.drawing.charts import draw_curves
    from edgefl.runs import is_comparison, read_run

    check_jobs(jobs, address)
    if on_round is not None and (jobs > 1 or address is not None):
        raise RunError("on_round is called in this process, but jobs and address play rounds in others: leave them out")
    share = None if shard is None else shard_of(shard)
    with begun_runs(scenario, resume, overrides, out, share, address, on_progress) as (folder, parts, on_event):
        try:
            run_parts(parts, on_event, overrides if scenario is None else (), jobs, address, on_round)
        except DivergedError as error:
            error.answer = with_check(read_run(folder), verify=verify)
            raise
    done = read_run(folder)
    if is_comparison(folder) and (share is None or done.is_finished):
        draw_curves(done)
    on_progress("done", {"folder": str(folder)})
    return with_check(done, verify=verify and done.is_finished)
