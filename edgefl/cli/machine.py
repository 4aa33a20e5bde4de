"""The commands about this computer: ``edgefl calibrate``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgefl.cli.old import AsJson, app, examples, observing, print_json
from edgefl.terminal import say


@app.command(epilog=examples("edgefl calibrate --quick", "edgefl calibrate --quick -o mydevice.yaml --force"))
def calibrate(
    output: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE", help="File for the profile: mydevice.yaml.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Measure for some seconds instead of a minute.")] = False,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", help="Threads of torch; default: all physical cores.")
    ] = None,
    device: Annotated[str, typer.Option("--device", metavar="cpu|cuda", help="The processor to measure.")] = "cpu",
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="M", min=0, help="Minutes of full load, to detect throttling.")
    ] = 0.0,
    address: Annotated[
        str | None, typer.Option("--address", metavar="HOST:PORT", help="Also measure the link to a --serve elsewhere.")
    ] = None,
    like: Annotated[
        str | None, typer.Option("--like", metavar="LINK", help="Link of the library whose radio power is used.")
    ] = None,
    serve: Annotated[
        int | None, typer.Option("--serve", metavar="PORT", help="Only answer another machine's --address.")
    ] = None,
    watts: Annotated[
        str | None, typer.Option("--watts", metavar="W", help="Power at full load, if there is no sensor.")
    ] = None,
    idle_watts: Annotated[str | None, typer.Option("--idle-watts", metavar="W", help="Power when idle.")] = None,
    type: Annotated[
        str | None, typer.Option("--type", help="microcomputer, laptop, phone, ... (default: a guess).")
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="Title in tables; default: processor name.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure this machine and write a device profile that a fleet can use."""
    from edgefl.commands.devices.calibration_table import print_calibration

    if serve is not None:
        from edgefl.machine.link_speed import serve as serve_link

        serve_link(serve, say)
        return
    with observing() as on_progress:
        from edgefl.commands.devices import calibrate as command

        result = command.calibrate(
            output, force=force, quick=quick, threads=threads, device=device, minutes=minutes, address=address,
            like=like, watts=watts, idle_watts=idle_watts, type=type, title=title, on_progress=on_progress,
        )  # fmt: skip
    print_json(result) if as_json else print_calibration(result)
