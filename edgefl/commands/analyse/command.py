"""``edgefl analyse`` as it is typed, and ``edgefl.analyse`` as it is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from edgefl.console.derived import OnProgress, argument, command, option, silent
from edgefl.console.options import Address, Jobs, Overrides, Place, Shard

if TYPE_CHECKING:
    from edgefl.commands.analyse.answer import Analysis, ShardOfAnalysis
    from edgefl.console.options import Given
    from edgefl.runs import Run

    RunOrScenario = Given | Run
else:  # the command line reads words
    RunOrScenario = str


@command(
    "edgefl analyse runs/mine --only drift",
    "edgefl analyse runs/mine --only gradients --clients 1 -o analysis",
    answer="edgefl.commands.analyse.answer:Analysis", forms={"table": "edgefl.commands.analyse.table:print_analysis"},
    interrupted="repeat the command to continue",
)  # fmt: skip
def analyse(
    given: Annotated[
        RunOrScenario, argument("Folder of a finished run, or a scenario, which is run first.", "RUN|SCENARIO")
    ],
    *,
    only: Annotated[
        Sequence[str],
        option(
            "Only shapley, gradients, drift, matching; or gaps, embeddings, landscape, made if named. May be repeated.",
            "NAME", "--only",
        ),
    ] = (),
    overrides: Overrides = (),
    out: Annotated[
        Place | None,
        option(
            "Folder that runs are stored in and reused from; default runs/NAME-analysis or RUN-analysis.",
            "DIR", "--out", "-o",
        ),
    ] = None,
    figure: Annotated[Place | None, option("Draw the results: .png, .pdf or .svg.", "FILE")] = None,
    seeds: Annotated[
        int, option("Compute Shapley values over N seeds: mean and standard deviation.", "N", min=1)
    ] = 1,
    clients: Annotated[
        int, option("Clients of each kind whose gradients, updates and features are analysed: the largest.", "N", min=1)
    ] = 3,
    samples: Annotated[
        int, option("Samples whose features embeddings shows: public ones, else of the final evaluation.", "N", min=2)
    ] = 250,
    classes: Annotated[
        int | None, option("Classes of the samples that embeddings shows, by colour. Default all.", "N", min=1)
    ] = None,
    players: Annotated[
        Sequence[str],
        option("Kinds whose Shapley values are computed; the others always take part. Default all.", "KIND,KIND"),
    ] = (),
    metric: Annotated[
        str | None, option("Metric for Shapley values: image.accuracy, mean.accuracy; default all.", "KIND.NAME")
    ] = None,
    encoder: Annotated[
        Place | None, option("Folder of the CLIP of transformers whose features gaps compares.", "DIR")
    ] = None,
    jobs: Jobs = 1,
    address: Address = None,
    shard: Shard = None,
    on_progress: OnProgress = silent,
) -> Analysis | ShardOfAnalysis:  # fmt: skip
    """What each kind of client brings: leave out, Shapley.

    Also gradient norms, drift of clients, and prototype matching of a trained federation.  The runs that this takes are
    kept in ``out`` and used again, so an interrupted analysis can be continued.  What a scenario compares is ignored.

    Returns:
        What each analysis that was made answers, and ``skipped`` with the reason for each that doesn't apply; also
        written to ``analysis.json``.  From a shard that doesn't find all runs finished:
        ``shard``, ``folder``, the number of ``runs`` and how many are ``left``.

    Raises:
        RunError: The folder isn't a finished run's, or an analysis in ``only`` doesn't apply.
        UnknownName: The analysis or metric is unknown.
        ScenarioError: The scenario can't be run.
        TrainingError: A work failed in one of the runs.

    Examples:
        >>> import edgefl
        >>> answer = edgefl.analyse("runs/small", only=["drift"], clients=2)
        >>> [row.part for row in answer.drift.within]
        ['embedding', 'block 1', 'block 2', 'norm', 'head']
    """
    from pathlib import Path

    from edgefl.cells.cells import check_jobs, shard_of, share_of
    from edgefl.cells.needs import check
    from edgefl.commands.analyse.analysed_run import (
        analysis_folder,
        chosen_players,
        coalition_runs,
        finished_runs,
        names_in,
        players_of,
        run_and_scenario,
        selected_analyses,
    )
    from edgefl.commands.analyse.analyses import check_matching, made_analyses
    from edgefl.commands.analyse.answer import ShardOfAnalysis
    from edgefl.commands.analyse.chart import analysis_chart
    from edgefl.commands.analyse.gaps import read_clip
    from edgefl.commands.analyse.shapley import check_folders, make_runs
    from edgefl.drawing.figures import FIGURE_FORMS, check_figure, draw_figure
    from edgefl.errors import RunError
    from edgefl.runs.durable import replace_file
    from edgefl.runs.folders import json_text
    from edgefl.runs.progress import messages

    names = names_in(only)
    for what, number, least in (("seeds", seeds, 1), ("clients", clients, 1), ("samples", samples, 2)):
        if number < least:
            raise RunError(f"{what} must be {least} or more, not {number}")
    if classes is not None and classes < 1:
        raise RunError(f"classes must be 1 or more, not {classes}")
    check_jobs(jobs, address)
    share = None if shard is None else shard_of(shard)
    if figure is not None:
        check_figure(figure, FIGURE_FORMS)
    if encoder is not None and "gaps" not in names:
        raise RunError("--encoder is only for gaps: add --only gaps")
    on_message = messages(on_progress)
    trains = set(names) != {"gaps"}
    run, scenario = run_and_scenario(given, overrides, trains=trains)
    kinds = players_of(scenario)
    chosen = chosen_players(players, names, kinds)
    clip = read_clip(None if encoder is None else Path(encoder), kinds) if "gaps" in names else None
    selected = selected_analyses(names, kinds)
    setup = check(scenario, on_message)
    check_matching(names, setup, scenario)
    folder = analysis_folder(out, run, scenario)
    seeds = seeds if selected.get("shapley") == "" else 0
    parts = coalition_runs(scenario, chosen, kinds, seeds, folder, run) if trains else []
    check_folders([part for _, _, part in parts], folder)
    make_runs(share_of([part for _, _, part in parts], share), on_progress, jobs, address)
    runs, left = finished_runs(parts)
    if left:
        return ShardOfAnalysis(shard=shard, folder=str(folder), runs=len(parts), left=left)
    result = made_analyses(
        runs, scenario, setup, selected, chosen, kinds,
        folder=folder, must=bool(names), clients=clients, metric=metric, clip=clip, samples=samples, classes=classes,
        on_message=on_message,
    )  # fmt: skip
    replace_file(folder / "analysis.json", json_text(result.to_data()))
    if figure is not None:
        draw_figure(analysis_chart(result), Path(figure))
    on_progress("done", {"folder": str(folder)})
    return result
