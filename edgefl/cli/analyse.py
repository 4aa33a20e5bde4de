"""The command ``edgefl analyse``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgefl.cli.old import Address, AsJson, Jobs, Overrides, Plugins, Shard, app, examples, observing, print_json
from edgefl.terminal import say


@app.command(
    epilog=examples(
        "edgefl analyse runs/mine --only drift", "edgefl analyse runs/mine --only gradients --clients 1 -o analysis"
    )
)
def analyse(
    given: Annotated[
        str, typer.Argument(metavar="RUN|SCENARIO", help="Folder of a finished run, or a scenario, which is run first.")
    ],
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="NAME,...", help="Only these of shapley, gradients, drift, matching."),
    ] = None,
    overrides: Overrides = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Folder that runs are stored in and reused from; default runs/NAME-analysis or RUN-analysis.",
        ),
    ] = None,
    figure: Annotated[str | None, typer.Option(metavar="FILE", help="Draw the results: .png, .pdf or .svg.")] = None,
    seeds: Annotated[
        int, typer.Option(metavar="N", min=1, help="Compute Shapley values over N seeds: mean and standard deviation.")
    ] = 1,
    clients: Annotated[
        int, typer.Option(metavar="N", min=1, help="Clients of each kind whose gradients and updates are analysed.")
    ] = 3,
    metric: Annotated[
        str | None, typer.Option(metavar="KIND.NAME", help="Metric for Shapley values: image.accuracy; default all.")
    ] = None,
    jobs: Jobs = 1,
    address: Address = None,
    shard: Shard = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Analyse a run: Shapley values of client kinds, gradient norms, drift of clients, and prototype matching."""
    from edgefl.commands.analyse.answer import ShardOfAnalysis
    from edgefl.commands.analyse.table import print_analysis

    names = [name.strip() for name in (only or "").split(",") if name.strip()]
    if only is not None and not names:
        raise typer.BadParameter("name one or more of shapley, gradients, drift, matching", param_hint="--only")
    with observing("repeat the command to continue") as on_progress:
        from edgefl.commands.analyse import command

        result = command.analyse(
            given, only=names, overrides=overrides or (), out=output, figure=figure, seeds=seeds, clients=clients,
            metric=metric, jobs=jobs, address=address, shard=shard, on_progress=on_progress,
        )  # fmt: skip
    if as_json:
        print_json(result)
    elif isinstance(result, ShardOfAnalysis):
        say(f"shard {shard} has ended; {result.left} of {result.runs} runs in {result.folder} aren't done yet")
        say("when they are: the same command without --shard")
    else:
        print_analysis(result)
