"""The command ``edgefl explore``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgefl.cli.old import AsJson, Overrides, Plugins, ScenarioFile, app, examples, observing, print_json


@app.command(
    epilog=examples(
        "edgefl explore mine.yaml -o page.html",
        "edgefl explore mine.yaml --vary training.batch=4,8,16",
        "edgefl explore mine.yaml --devices",
    )
)
def explore(
    scenario: ScenarioFile,
    output: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="The page, a .html file.")
    ] = "explore.html",
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="PATH=VALUE,...",
            help="Values of a field to choose from; default: schedules, batches, and what else has few combinations.",
        ),
    ] = None,
    overrides: Overrides = None,
    devices: Annotated[
        bool, typer.Option("--devices", help="The library's devices in place of the scenario's fleet.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", metavar="N", min=1, help="Price N cells side by side; default: one for each core."),
    ] = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Write a page in which budgets and choices are moved by hand: who can train then, and what it costs."""
    from edgefl.drawing.sliders.explore import print_explored

    with observing() as on_progress:
        from edgefl.commands.sweep.page import of_devices as explore_devices
        from edgefl.commands.sweep.page import of_fleet as explore

        command = explore_devices.explore_devices if devices else explore.explore
        result = command(
            scenario, vary or (), overrides=overrides or (), out=output, jobs=jobs, on_progress=on_progress
        )
    if as_json:
        print_json(result)
    else:
        print_explored(result, output)
