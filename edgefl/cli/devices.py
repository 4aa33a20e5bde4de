"""The command ``edgefl devices``: the profile library."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from edgefl.cli.old import (
    AsJson,
    Overrides,
    Plugins,
    PricingJobs,
    ScenarioFiles,
    app,
    examples,
    observing,
    print_json,
    say_broken,
)


class _ListOrShow(TyperGroup):
    """Lets users omit the subcommand: ``edgefl devices`` lists, ``edgefl devices NAME`` shows NAME."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # the shell asks what may follow
            return super().parse_args(ctx, args)
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = ["list", *args]
        elif args[0] not in self.commands and not args[0].startswith("-"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


library = typer.Typer(
    cls=_ListOrShow,
    help="The profile library: devices, links and fleets, with their sources.",
    epilog=examples("edgefl devices", "edgefl devices raspberry-pi-4-4gb"),
)
app.add_typer(library, name="devices")


@library.command(
    "list", epilog=examples("edgefl devices list", "edgefl devices list --type phone", "edgefl devices list --links")
)
def list_(
    type: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Devices of this type: phone.")] = None,
    min_memory: Annotated[
        str | None, typer.Option("--min-memory", metavar="BYTES", help="Devices with at least this RAM: 4GiB.")
    ] = None,
    min_flops: Annotated[
        str | None, typer.Option("--min-flops", metavar="RATE", help="Devices of at least this rate: 100GFLOP/s.")
    ] = None,
    max_watts: Annotated[
        str | None, typer.Option("--max-watts", metavar="WATTS", help="Devices of at most this power: 15W.")
    ] = None,
    search: Annotated[
        str | None, typer.Option("--search", metavar="TEXT", help="Profiles with this text in name or title.")
    ] = None,
    devices: Annotated[bool, typer.Option("--devices", help="Devices only.")] = False,
    links: Annotated[bool, typer.Option("--links", help="Links only.")] = False,
    fleets: Annotated[bool, typer.Option("--fleets", help="Fleets only.")] = False,
    as_json: AsJson = False,
) -> None:
    """List devices, links and fleets with their main numbers, and the profiles and libraries that are broken."""
    from edgefl.commands.devices.table import print_devices
    from edgefl.devices.browsing import browse

    options = {"devices": devices, "links": links, "fleets": fleets}
    result = browse(
        sections=tuple(section for section, given in options.items() if given), type=type, min_memory=min_memory,
        min_flops=min_flops, max_watts=max_watts, search=search,
    )  # fmt: skip
    print_json(result) if as_json else print_devices(result)
    if not as_json:
        say_broken(result.broken or ())


@library.command("show", epilog=examples("edgefl devices show raspberry-pi-4-4gb", "edgefl devices show lte --json"))
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A device (NAME@MODE in a power mode), link or fleet, or a YAML file of yours."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show every number of a profile with range, source and confidence, and what the seconds of a device rest on."""
    from edgefl.commands.devices.table import print_devices
    from edgefl.devices.browsing import describe

    result = describe(name)
    print_json(result) if as_json else print_devices(result)


@library.command(
    "check",
    epilog=examples(
        "edgefl devices check mine.yaml",
        "edgefl devices check mine.yaml quickstart --markdown",
        "edgefl devices check mine.yaml --csv",
    ),
)
def check(
    scenarios: ScenarioFiles,
    overrides: Overrides = None,
    device: Annotated[
        list[str] | None,
        typer.Option("--device", metavar="NAME", help="Only this device; may be repeated. Default: the library."),
    ] = None,
    link: Annotated[str | None, typer.Option(metavar="NAME", help="Link; default: the fleet's most common.")] = None,
    stage: Annotated[int | None, typer.Option(metavar="N", help="Only this stage of the schedule.")] = None,
    kind: Annotated[str | None, typer.Option(metavar="NAME", help="Only this kind of client.")] = None,
    figure: Annotated[str | None, typer.Option(metavar="FILE", help="Draw what fits: .png, .pdf or .svg.")] = None,
    jobs: PricingJobs = None,
    full: Annotated[bool, typer.Option("--full", help="A line for each device and kind.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV instead of a table.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a table in Markdown.")] = False,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Check which devices of the library could train each kind of client: memory, time, energy, binding budget.

    Several scenarios give a row for each device, and a column for each scenario and kind.
    """
    from edgefl.commands.sweep.devices_table import devices_markdown, print_device_check, print_device_checks
    from edgefl.drawing.text_tables import records_csv

    forms = {"--csv": as_csv, "--markdown": as_markdown, "--json": as_json}
    if len(given := [name for name, value in forms.items() if value]) > 1:
        raise typer.BadParameter(f"{given[0]} and {given[1]} can't be combined", param_hint=given[0])
    several = len(scenarios) > 1
    if several and (others := [name for name, value in {"--full": full, "--figure": figure}.items() if value]):
        raise typer.BadParameter(f"{others[0]} takes one scenario", param_hint=others[0])
    with observing() as on_progress:
        from edgefl.commands.sweep.on_devices import check_scenarios

        result = check_scenarios(
            scenarios, overrides or (), devices=device or (), link=link, stage=stage, kind=kind, figure=figure,
            jobs=jobs, on_progress=on_progress,
        )  # fmt: skip
    only = next(iter(result.checks.values()))
    if as_json:
        print_json(result if several else only)
    elif as_csv:
        rows = {label: each.rows for label, each in result.checks.items()}
        sys.stdout.write(records_csv(rows, "scenario" if several else ""))
    elif as_markdown:
        sys.stdout.write(devices_markdown(result))
    elif several:
        print_device_checks(result)
    else:
        print_device_check(only, full=full)
