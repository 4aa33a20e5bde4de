"""``edgefl fit``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgefl.cli.app import AsJson, Overrides, ScenarioFile, app, observing, print_json


@app.command()
def fit(
    scenario: ScenarioFile,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="The device that is to take part: of the library, or a profile file.")
    ],
    link: Annotated[
        str | None, typer.Option(metavar="NAME", help="Over this link, else over the fleet's commonest.")
    ] = None,
    kind: Annotated[str | None, typer.Option(metavar="NAME", help="This kind of client only.")] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Most memory of live tensors: 64MiB; else the scenario's.")
    ] = None,
    flops: Annotated[str | None, typer.Option(metavar="FLOPS", help="Most FLOPs a round: 1TFLOP.")] = None,
    bytes_: Annotated[str | None, typer.Option("--bytes", metavar="BYTES", help="Most traffic a round: 20MB.")] = None,
    seconds: Annotated[
        str | None, typer.Option(metavar="TIME", help="Longest round: 60s, 10min; else its deadline too.")
    ] = None,
    joules: Annotated[str | None, typer.Option(metavar="ENERGY", help="Most energy a round: 500J.")] = None,
    any_stage: Annotated[
        bool, typer.Option("--any-stage", help="Enough that it fits in some stage of the schedule, not in all.")
    ] = False,
    epochs: Annotated[bool, typer.Option("--epochs", help="Local epochs may be fewer, too.")] = False,
    answers: Annotated[
        int, typer.Option("--answers", metavar="N", min=0, help="Stop at the N least changes; 0 finds all.")
    ] = 5,
    most: Annotated[int, typer.Option("--most", metavar="N", min=1, help="Works to predict for a kind at most.")] = 200,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Find the least change that lets a device take part; ends with 1 if nothing does."""
    from edgefl.report.fit import print_fit

    with observing() as on_progress:
        from edgefl.commands.fit import fit as command
        from edgefl.commands.fit.fit import fits

        found = command.fit(
            scenario, overrides or (), device=device, link=link, kind=kind, memory=memory, flops=flops, bytes=bytes_,
            seconds=seconds, joules=joules, any_stage=any_stage, epochs=epochs, most=most, first=answers or None,
            on_progress=on_progress,
        )  # fmt: skip
    print_json(found) if as_json else print_fit(found)
    if not fits(found):
        raise typer.Exit(1)
