"""``edgefl calibrate``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgefl.cli.app import INTERRUPTED, AsJson, app, observing, print_json, say


@app.command()
def calibrate(
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the profile there: mydevice.yaml.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Some seconds instead of about a minute.")] = False,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", help="Torch's threads; all physical cores unless given.")
    ] = None,
    device: Annotated[str, typer.Option("--device", metavar="cpu|cuda", help="What to measure.")] = "cpu",
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="M", min=0, help="Full load for so long: does it throttle?")
    ] = 0.0,
    address: Annotated[
        str | None, typer.Option("--address", metavar="HOST:PORT", help="Measure the link to there too (see --serve).")
    ] = None,
    like: Annotated[
        str | None, typer.Option("--like", metavar="LINK", help="Link of the library that lends the radio's watts.")
    ] = None,
    serve: Annotated[
        int | None, typer.Option("--serve", metavar="PORT", help="Answer others' --address; measures nothing here.")
    ] = None,
    watts: Annotated[
        str | None, typer.Option("--watts", metavar="W", help="Power at full load, where no sensor can be read.")
    ] = None,
    idle_watts: Annotated[str | None, typer.Option("--idle-watts", metavar="W", help="Power when idle.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="microcomputer, laptop, phone, ...; guessed.")] = None,
    title: Annotated[str | None, typer.Option("--title", help="What tables call it; the processor's name.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the machine at hand and write it as a profile that a fleet can name."""
    from edgefl.report.calibration import print_calibration

    if serve is not None:
        from edgefl.machine.link_speed import serve as answer

        try:
            answer(serve, say)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    with observing() as on_progress:
        from edgefl.commands import calibrate as command

        found = command.calibrate(
            output, force=force, quick=quick, threads=threads, device=device, minutes=minutes, address=address,
            like=like, watts=watts, idle_watts=idle_watts, kind=kind, title=title, on_progress=on_progress,
        )  # fmt: skip
    print_json(found) if as_json else print_calibration(found)
