"""``edgefl sweep``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from edgefl.cli.app import AsJson, Overrides, ScenarioFile, app, observing, print_json


@app.command()
def sweep(
    scenario: ScenarioFile,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary", metavar="PATH=VALUE,...", help="Values to try in turn: fleet.budgets.memory=16MiB,32MiB."
        ),
    ] = None,
    grid: Annotated[
        str | None, typer.Option(metavar="FILE", help="A YAML file of such axes: `training.batch: [8, 16]`.")
    ] = None,
    overrides: Overrides = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="DIR", help="Keep rows there (jsonl, csv); known ones are reused."),
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Run each cell as well, in a folder below --output; resumable.")
    ] = False,
    sensitivity: Annotated[
        str | None,
        typer.Option(metavar="FACTOR", help="Whether the order survives device numbers wrong by this much: 2x."),
    ] = None,
    figure: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw --value over the axes: .png, .pdf, .svg or .html.")
    ] = None,
    value: Annotated[str, typer.Option(metavar="NAME", help="The field that is drawn.")] = "eligible_share",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV instead of tables.")] = False,
    as_json: AsJson = False,
) -> None:
    """Vary a scenario without training: who could take part, what leaves with the others, and what it costs."""
    from edgefl.report import print_sweep

    if as_csv and as_json:
        raise typer.BadParameter("give --csv or --json: one of the two", param_hint="--csv")
    if as_csv and sensitivity is not None:
        raise typer.BadParameter("CSV has the rows only, --json the sensitivity too", param_hint="--csv")
    with observing("interrupted" + ("; the same command goes on from here" if output else "")) as on_progress:
        from edgefl.commands.sweep import sweep as command

        found = command.sweep(
            scenario, vary or (), grid=grid, overrides=overrides or (), output=output, train=train,
            sensitivity_to=sensitivity, figure=figure, value=value, on_progress=on_progress,
        )  # fmt: skip
    if as_json:
        print_json(found)
    elif as_csv:
        from edgefl.commands.sweep.store import sweep_csv

        sys.stdout.write(sweep_csv(found["rows"]))
    else:
        print_sweep(found)
