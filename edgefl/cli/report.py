"""The commands ``edgefl report`` and ``edgefl figures``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgefl.cli.app import Plugins, app, examples, observing, say

RunFolder = Annotated[str, typer.Argument(metavar="RUN", help="Folder of a run or of a comparison, finished or not.")]


@app.command(epilog=examples("edgefl report runs/mine", "edgefl report runs/mine -o mine.html"))
def report(
    run: RunFolder,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The page, .html; default: report.html in the run's folder."
        ),
    ] = None,
    plugins: Plugins = None,
) -> None:
    """Write a run as one HTML page with its figures and tables, which opens without a network.

    Examples: edgefl report runs/quickstart; edgefl report runs/quickstart -o quickstart.html
    """
    with observing() as on_progress:
        from edgefl.commands.report import write_report

        path = write_report(run, output, on_progress=on_progress)
    say(f"report: {path}")


@app.command(epilog=examples("edgefl figures runs/mine", "edgefl figures runs/mine --format pdf,svg -o figures"))
def figures(
    run: RunFolder,
    formats: Annotated[str, typer.Option("--format", metavar="NAME,...", help="File types: pdf, svg, png.")] = "pdf",
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder for them; default: figures in the run's folder."),
    ] = None,
    plugins: Plugins = None,
) -> None:
    """Draw a run's figures for a paper, with the numbers of each as CSV beside it.

    Examples: edgefl figures runs/quickstart; edgefl figures runs/quickstart --format pdf,svg,png -o figures
    """
    with observing() as on_progress:
        from edgefl.commands.report import write_figures

        files = write_figures(run, output, formats=formats.split(","), on_progress=on_progress)
    tables = [path for path in files if path.suffix == ".csv"]
    say(f"{len(files) - len(tables)} figures and {len(tables)} tables: {tables[0].parent}")
