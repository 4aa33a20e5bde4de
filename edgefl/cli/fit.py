"""The command ``edgefl fit``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgefl.cli.old import (
    AsJson,
    Overrides,
    Plugins,
    PricingJobs,
    ScenarioFile,
    app,
    examples,
    interruptible,
    print_json,
)


@app.command(
    epilog=examples(
        "edgefl fit mine.yaml --device raspberry-pi-4-2gb",
        "edgefl fit mine.yaml --device phone-mid --memory 1GiB --answers 1",
    )
)
def fit(
    scenario: ScenarioFile,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="Device that should take part: a library name or a profile file.")
    ],
    link: Annotated[
        str | None, typer.Option(metavar="NAME", help="Link of the device; default: the fleet's most common.")
    ] = None,
    kind: Annotated[str | None, typer.Option(metavar="NAME", help="Only this kind of client.")] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="Memory budget of a round's peak: 64MiB; default: the scenario's."),
    ] = None,
    flops: Annotated[str | None, typer.Option(metavar="FLOPS", help="FLOPs budget a round: 1TFLOP.")] = None,
    bytes_: Annotated[
        str | None, typer.Option("--bytes", metavar="BYTES", help="Traffic budget a round: 20MB.")
    ] = None,
    seconds: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time budget a round: 60s; default: the scenario's and its deadline."),
    ] = None,
    joules: Annotated[str | None, typer.Option(metavar="ENERGY", help="Energy budget a round: 500J.")] = None,
    power: Annotated[str | None, typer.Option(metavar="WATTS", help="Highest power of a round: 15W.")] = None,
    any_stage: Annotated[
        bool, typer.Option("--any-stage", help="The device must fit in some stage of the schedule, not in all.")
    ] = False,
    epochs: Annotated[bool, typer.Option("--epochs", help="Fewer local epochs are allowed, too.")] = False,
    answers: Annotated[
        int, typer.Option("--answers", metavar="N", min=0, help="Stop after N solutions; 0 finds all.")
    ] = 5,
    most: Annotated[int, typer.Option("--most", metavar="N", min=1, help="At most N predicted works per kind.")] = 200,
    jobs: PricingJobs = None,
    overrides: Overrides = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Find the smallest changes that let a device take part.  The exit code is 1 if there are none."""
    from edgefl.commands.fit.table import print_fit

    with interruptible(lambda: "what was found is incomplete; the same command goes on, since prices are kept"):
        from edgefl.commands.fit import command
        from edgefl.console.display import make_progress

        try:
            with make_progress() as on_progress:
                result = command.fit(
                    scenario, overrides or (), device=device, link=link, kind=kind, memory=memory, flops=flops,
                    bytes=bytes_, seconds=seconds, joules=joules, power=power, any_stage=any_stage, epochs=epochs,
                    most=most, first=answers or None, jobs=jobs, on_progress=on_progress,
                )  # fmt: skip
        except command.Unfinished as stopped:
            print_json(stopped.answer) if as_json else print_fit(stopped.answer, interrupted=True)
            assert stopped.__cause__ is not None
            raise stopped.__cause__ from None
    print_json(result) if as_json else print_fit(result)
    if not result.fits:
        raise typer.Exit(1)
