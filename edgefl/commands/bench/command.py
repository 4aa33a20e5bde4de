"""``edgefl bench`` as it is typed, and ``edgefl.bench`` as it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from edgefl.console.derived import OnProgress, argument, command, option, silent
from edgefl.console.options import Jobs, Overrides, Place

if TYPE_CHECKING:
    from edgefl.commands.bench.answer import BenchAnswer


@command(
    "edgefl bench small -o runs/small --jobs 2",
    "edgefl bench suite.yaml --set training.epochs=1 --figure staircase.svg",
    answer="edgefl.commands.bench.answer:BenchAnswer", forms={"table": "edgefl.commands.bench.table:print_bench"},
    interrupted="continue with: the same command and -o {folder}",
)  # fmt: skip
def bench(
    suite: Annotated[
        Place,
        argument("The file of a suite or of a comparing scenario, or the name of a shipped one: small.", "SUITE"),
    ],
    *,
    overrides: Overrides = (),
    out: Annotated[
        Place | None, option("Folder of the runs, which are reused; default runs/NAME.", "DIR", "--out", "-o")
    ] = None,
    figure: Annotated[Place | None, option("Draw the metric over the budget (png, pdf, svg, html).", "FILE")] = None,
    jobs: Jobs = 1,
    on_progress: OnProgress = silent,
) -> BenchAnswer:
    """Compare methods under fleets and budgets.

    The variants of a suite are trained on fleets of small and free devices; the answer says which is best where, as far
    as the seeds show it.  Cells of a variant in which every client can do the same works are one run.  Runs, trials and
    the answer (``bench.json``, ``bench.csv``, ``bench.html``) stay in the folder; a call with the same folder goes on,
    and trains what a changed suite adds.  Of a scenario that compares, ``compare`` has the variants, the budget or the
    conditions, and the seeds.

    Returns:
        ``fleets`` (a row for each variant, and the winner or who is tied), ``ranks``, ``spent`` (the metric within
        totals of time, bytes and energy), ``costs`` until the target, ``variants`` and what was trained.

    Raises:
        ScenarioError: The suite, its scenario or a field is wrong; nothing was written.  Also if no variant can be run.
        RunError: The folder can't be used, or runs failed, after all others have ended: the answer without them is in
            the folder, and the same call tries them again.

    Examples:
        Two schedules on a fleet in which half of the clients have little memory:

        >>> import edgefl, pathlib
        >>> suite = pathlib.Path("suite.yaml")
        >>> _ = suite.write_text('''
        ... edgefl: 1
        ... scenario: runs/small/scenario.yaml
        ... seeds: 1
        ... metric: image.accuracy
        ... variants:
        ...   end-to-end: {schedule: {name: end-to-end, rounds: 2}}
        ...   layer-wise: {schedule: {name: layerwise, stages: 2, rounds: 2}}
        ... budget: memory
        ... small: [50%]
        ... ''')
        >>> answer = edgefl.bench(suite, out="runs/suite")
        >>> [row.variant for row in answer.fleets[0].rows]
        ['end-to-end', 'layer-wise']
    """
    import os
    import time
    from pathlib import Path

    from edgefl.cells.cells import check_jobs
    from edgefl.commands.bench.chart import charts_of_bench
    from edgefl.commands.bench.priced_fleets import price_fleets, reference_cells
    from edgefl.commands.bench.suite_folder import RUNS, TRIALS, failure, suite_folder, write_answer
    from edgefl.commands.bench.trained_runs import train_runs
    from edgefl.commands.bench.variants import check_variants, tune_variants
    from edgefl.commands.bench.winners import answer_of
    from edgefl.commands.tune.draws import optuna
    from edgefl.commands.tune.trial_run import player
    from edgefl.drawing.figures import SWEEP_FORMS, check_figure, draw_figure
    from edgefl.scenario.suite import read_suite

    if figure is not None:
        check_figure(figure, SWEEP_FORMS)
    check_jobs(jobs)
    asked = read_suite(os.fspath(suite), overrides)
    on_progress("prepare", {"what": f"preparing {asked.name}"})
    if asked.options.tune is not None:
        optuna()  # before data are read
    began = time.monotonic()
    variants, metric = check_variants(asked, on_progress)
    with suite_folder(asked, out) as folder:
        on_progress("cells", {"folder": str(folder), "of": len(variants) * len(asked.seeds)})
        with player(jobs, on_progress) as play:
            variants, tunings = tune_variants(asked, variants, metric, folder / TRIALS, play, on_progress)
            fleets, needs = price_fleets(asked, variants, on_progress)
            references = reference_cells(asked)
            failed = train_runs([*fleets, references], folder / RUNS, play, on_progress)
        seconds = time.monotonic() - began
        result = answer_of(asked, variants, needs, tunings, fleets, references, failed, folder, metric, seconds)
        write_answer(result, folder)
    if failed:
        raise failure(result, folder)
    if figure is not None:
        draw_figure(charts_of_bench(result)[0], Path(figure))
    on_progress("done", {"folder": str(folder)})
    return result
