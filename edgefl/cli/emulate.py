"""The command ``edgefl emulate``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgefl.cli.app import AsJson, Overrides, Plugins, ScenarioFile, app, examples, observing, print_json, say


@app.command(
    epilog=examples(
        "edgefl emulate mine.yaml",
        "edgefl emulate quickstart --set compare=null --set fleet.devices=raspberry-pi-4-4gb --clients 4 --rounds 2",
    )
)
def emulate(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    clients: Annotated[
        int | None, typer.Option("--clients", metavar="N", min=1, help="Emulate N of the scenario's clients.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", metavar="R", min=1, help="Play the first R rounds only.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="DIR", help="New folder for both runs; default: runs/NAME-emulated."),
    ] = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Play a scenario with real processes under the kernel's limits.  Linux, root.  Exit code 2: it can't be."""
    from edgefl.report.emulation import print_emulation

    with observing("nothing is left of the clients") as on_progress:
        from edgefl.commands.emulate.emulate import emulate as command

        result = command(
            scenario, overrides or (), clients=clients, rounds=rounds, output=output, on_progress=on_progress
        )
    if as_json:
        print_json(result)
    else:
        print_emulation(result)
        say(f"records of both runs: {result['folder']}")
