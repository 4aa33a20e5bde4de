"""The command ``edgefl tune``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgefl.cli.old import AsJson, Jobs, Overrides, Plugins, ScenarioFile, app, examples, interruptible, print_json


@app.command(
    epilog=examples(
        "edgefl tune mine.yaml --search training.epochs=1..3 --metric image.accuracy",
        "edgefl tune mine.yaml --search training.lr=1e-3,1e-2 --metric text.accuracy",
    )
)
def tune(
    scenario: ScenarioFile,
    search: Annotated[
        list[str], typer.Option(metavar="PATH=A..B|V,...", help="Range or values of a field: training.lr=1e-4..1e-1.")
    ],
    trials: Annotated[int, typer.Option(metavar="N", min=1, help="Settings that are tried.")] = 30,
    metric: Annotated[
        str | None,
        typer.Option(metavar="KIND.NAME", help="What is optimised: image.accuracy; default: what stop follows."),
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="Run each trial over N seeds; the mean counts.")] = 1,
    overrides: Overrides = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", metavar="DIR", help="Folder of the trials, which are reused; default runs/NAME-tune."
        ),
    ] = None,
    jobs: Jobs = 1,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Search for the settings of a scenario that score best on validation.  The test split stays unseen."""
    from edgefl.commands.tune.table import print_tuning
    from edgefl.console.display import make_progress

    progress = make_progress()

    def how_to_continue() -> str:
        folder = progress.folder
        return f"continue with: the same command and -o {folder}" if folder else "nothing was written"

    with interruptible(how_to_continue), progress:
        from edgefl.commands.tune import command

        result = command.tune(
            scenario, search, trials=trials, metric=metric, seeds=seeds, overrides=overrides or (), out=output,
            jobs=jobs, on_progress=progress,
        )  # fmt: skip
    print_json(result) if as_json else print_tuning(result)
