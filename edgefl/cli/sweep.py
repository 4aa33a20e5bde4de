"""The command ``edgefl sweep``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from edgefl.cli.old import (
    Address,
    AsJson,
    Jobs,
    Overrides,
    Plugins,
    ScenarioFile,
    Shard,
    app,
    examples,
    observing,
    print_json,
)


@app.command(
    epilog=examples(
        "edgefl sweep mine.yaml --vary fleet.budgets.memory=16MiB,64MiB",
        "edgefl sweep mine.yaml --vary training.batch=4,8 -o cells --figure map.png",
    )
)
def sweep(
    scenario: ScenarioFile,
    vary: Annotated[
        list[str] | None,
        typer.Option("--vary", metavar="PATH=VALUE,...", help="Values of a field: fleet.budgets.memory=16MiB,32MiB."),
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="YAML file of fields and their values: `training.batch: [8, 16]`."),
    ] = None,
    overrides: Overrides = None,
    output: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="DIR", help="Folder for the rows (jsonl, csv), which are reused."),
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Also run each cell, in a folder below --out; can be resumed.")
    ] = False,
    sensitivity: Annotated[
        str | None,
        typer.Option(
            metavar="FACTOR", help="Test the order of the cells against device numbers wrong by 2x, or by residuals."
        ),
    ] = None,
    figure: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw --value over the axes: .png, .pdf, .svg or .html.")
    ] = None,
    value: Annotated[str, typer.Option(metavar="NAME", help="Field that --figure draws.")] = "eligible_share",
    full: Annotated[
        bool, typer.Option("--full", help="Print also lost data, totals, smallest devices and the Pareto frontier.")
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV instead of tables.")] = False,
    jobs: Jobs = 1,
    address: Address = None,
    shard: Shard = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Vary fields of a scenario without training: which clients are eligible, which data are lost, what it costs."""
    from edgefl.commands.sweep.table import print_sweep

    if as_csv and as_json:
        raise typer.BadParameter("--csv and --json can't be combined", param_hint="--csv")
    if as_csv and sensitivity is not None:
        raise typer.BadParameter("CSV has only the rows; use --json for the sensitivity", param_hint="--csv")
    with observing("repeat the command to continue" if output else "") as on_progress:
        from edgefl.commands.sweep import command

        result = command.sweep(
            scenario, vary or (), grid=grid, overrides=overrides or (), out=output, train=train,
            sensitivity_to=sensitivity, figure=figure, value=value, jobs=jobs, address=address, shard=shard,
            on_progress=on_progress,
        )  # fmt: skip
    if as_json:
        print_json(result)
    elif as_csv:
        from edgefl.commands.sweep.stored_rows import sweep_csv

        sys.stdout.write(sweep_csv(result.rows))
    else:
        print_sweep(result, full=full)
