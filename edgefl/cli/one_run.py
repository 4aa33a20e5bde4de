"""The commands that read one run: ``edgefl report``, ``figures``, ``explain``, ``trace`` and ``export``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgefl.cli.old import AsJson, Plugins, app, examples, observing, print_json
from edgefl.terminal import say

RunFolder = Annotated[str, typer.Argument(metavar="RUN", help="Folder of a run or of a comparison, finished or not.")]


@app.command(epilog=examples("edgefl report runs/mine", "edgefl report runs/mine -o mine.html"))
def report(
    run: RunFolder,
    output: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="FILE", help="The page, .html; default: report.html in the run's folder."),
    ] = None,
    plugins: Plugins = None,
) -> None:
    """Write a run as one HTML page with its figures and tables, which opens without a network."""
    with observing() as on_progress:
        from edgefl.commands.report.command import write_report

        path = write_report(run, output, on_progress=on_progress)
    say(f"report: {path}")


@app.command(epilog=examples("edgefl figures runs/mine", "edgefl figures runs/mine --only fleet --format pdf,svg"))
def figures(
    run: RunFolder,
    formats: Annotated[str, typer.Option("--format", metavar="NAME,...", help="File types: pdf, svg, png.")] = "pdf",
    output: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="DIR", help="Folder for them; default: figures in the run's folder."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="Draw the figure of this name alone; may be repeated."),
    ] = None,
    plugins: Plugins = None,
) -> None:
    """Draw a run's figures for a paper, with the numbers of each as CSV beside it."""
    with observing() as on_progress:
        from edgefl.commands.report.command import write_figures

        files = write_figures(run, output, formats=formats.split(","), only=only or (), on_progress=on_progress)
    tables = [path for path in files if path.suffix == ".csv"]
    drawn = len(files) - len(tables)
    say(f"{drawn} figure{'s'[: drawn != 1]} and {len(tables)} table{'s'[: len(tables) != 1]}: {tables[0].parent}")


OneRun = Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run, finished or not: runs/quickstart.")]


@app.command(epilog=examples("edgefl explain runs/mine --round 2", "edgefl explain runs/mine --round 2 --client 0"))
def explain(
    run: OneRun,
    round: Annotated[int, typer.Option("--round", metavar="N", min=1, help="The round, from 1.")],
    client: Annotated[
        int | None, typer.Option("--client", metavar="K", min=0, help="Tell this client's round in detail.")
    ] = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Explain a round: what its length is made of, what would have shortened it, and why each absent client was."""
    from edgefl.commands.explain.table import print_explanation

    with observing():
        from edgefl.commands.explain.command import explain as command

        result = command(run, round, client=client)
    print_json(result) if as_json else print_explanation(result)


@app.command(epilog=examples("edgefl trace runs/mine", "edgefl trace runs/mine -o mine.json"))
def trace(
    run: OneRun,
    output: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE", help="The file; default: trace.json in the folder.")
    ] = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's virtual time as a Chrome trace, which ui.perfetto.dev and chrome://tracing show."""
    with observing() as on_progress:
        from edgefl.commands.export.perfetto import trace as command

        result = command(run, out=output, on_progress=on_progress)
    if as_json:
        print_json(result)
    else:
        say(f"{result.events:,} events of {result.clients} clients: open {result.file} in ui.perfetto.dev")


@app.command(
    epilog=examples("edgefl export runs/mine --to csv -o tables", "edgefl export runs/mine --to parquet -o tables")
)
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run or of a comparison, finished or not.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORM",
            help="Records: csv, parquet, tensorboard (event files) or mlflow (a store). Trained towers: transformers, "
            "or peft (their LoRA).",
        ),
    ],
    output: Annotated[str, typer.Option("--out", "-o", metavar="DIR", help="The folder to write to.")],
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's records, or its trained towers, for another program."""
    with observing() as on_progress:
        from edgefl.commands.export.command import export as command

        result = command(run, to, output, on_progress=on_progress)
    if as_json:
        print_json(result)
        return
    typer.echo("\n".join(result.files))
    if to == "tensorboard":
        say(f"show it with: tensorboard --logdir {output}")
    elif to == "mlflow":
        say(f"show it with: mlflow ui --backend-store-uri sqlite:///{result.files[0]}")
