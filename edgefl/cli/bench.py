"""The command ``edgefl bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgefl.cli.old import AsJson, Jobs, Overrides, Plugins, app, examples, interruptible, print_json


@app.command(
    epilog=examples(
        "edgefl bench small -o runs/small --jobs 2",
        "edgefl bench suite.yaml --set training.epochs=1 --figure staircase.svg",
    )
)
def bench(
    suite: Annotated[
        str,
        typer.Argument(
            metavar="SUITE", help="The file of a suite or of a comparing scenario, or the name of a shipped one: small."
        ),
    ],
    overrides: Overrides = None,
    output: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="DIR", help="Folder of the runs, which are reused; default runs/NAME."),
    ] = None,
    figure: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw the metric over the budget (png, pdf, svg, html).")
    ] = None,
    jobs: Jobs = 1,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Train a suite's variants on fleets of small and free devices, and say which is best where.

    The answer is printed, and written to DIR as bench.json, bench.csv and bench.html.
    """
    from edgefl.commands.bench.chart import charts_of_bench
    from edgefl.commands.bench.table import print_bench
    from edgefl.console.display import make_progress
    from edgefl.drawing.figures import SWEEP_FORMS, check_figure, draw_figure

    if figure is not None:
        check_figure(figure, SWEEP_FORMS)
    progress = make_progress()

    def how_to_continue() -> str:
        folder = progress.folder
        return f"continue with: the same command and -o {folder}" if folder else "nothing was written"

    with interruptible(how_to_continue), progress:
        from edgefl.commands.bench import command

        result = command.bench(suite, overrides=overrides or (), out=output, jobs=jobs, on_progress=progress)
    if figure is not None:
        draw_figure(charts_of_bench(result)[0], Path(figure))
    print_json(result) if as_json else print_bench(result)
