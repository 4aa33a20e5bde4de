"""``edgefl analyse``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgefl.cli.app import AsJson, Overrides, app, observing, print_json


@app.command()
def analyse(
    given: Annotated[
        str, typer.Argument(metavar="RUN|SCENARIO", help="A finished run's folder, or a scenario, which is run first.")
    ],
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="NAME,...", help="Some of shapley, gradients, drift, matching."),
    ] = None,
    overrides: Overrides = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Where runs are kept and found again: runs/NAME-analysis, or RUN-analysis.",
        ),
    ] = None,
    figure: Annotated[str | None, typer.Option(metavar="FILE", help="Draw what was found: .png, .pdf or .svg.")] = None,
    seeds: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Repeat the runs of --only shapley with N seeds: mean and deviation."),
    ] = 1,
    clients: Annotated[
        int, typer.Option(metavar="N", min=1, help="Clients of each kind whose gradients and updates are looked at.")
    ] = 3,
    metric: Annotated[
        str | None, typer.Option(metavar="KIND.NAME", help="The one metric that is shared out: image.accuracy.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What each kind of clients is worth, and what gradients, drift and matching in a trained federation are."""
    from edgefl.report.analysis import print_analysis

    names = [name.strip() for name in (only or "").split(",") if name.strip()]
    if only is not None and not names:
        raise typer.BadParameter("names some of shapley, gradients, drift, matching", param_hint="--only")
    with observing("interrupted; the same command goes on from here") as on_progress:
        from edgefl.commands.analyse import analyse as command

        found = command.analyse(
            given, only=names, overrides=overrides or (), output=output, figure=figure, seeds=seeds, clients=clients,
            metric=metric, on_progress=on_progress,
        )  # fmt: skip
    if as_json:
        print_json(found)
    else:
        print_analysis(found)
