"""The commands ``edgefl profile`` and ``edgefl cost-diff``."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

import typer

from edgefl.cli.old import (
    AsJson,
    Overrides,
    Plugins,
    PricingJobs,
    app,
    check_scenario_exists,
    examples,
    observing,
    print_json,
    shipped_and_files,
)


@app.command(
    epilog=examples(
        "edgefl profile mine.yaml",
        "edgefl profile mine.yaml --device phone-mid --link lte",
        "edgefl profile mine.yaml --csv",
    )
)
def profile(
    scenarios: Annotated[
        list[str],
        typer.Argument(
            metavar="SCENARIO...",
            help="A scenario file or the name of a shipped one; several: --compare.",
            autocompletion=shipped_and_files,
            callback=check_scenario_exists,
        ),
    ],
    overrides: Overrides = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Device for time and energy; default: the fleet's most common.")
    ] = None,
    link: Annotated[str | None, typer.Option(metavar="NAME", help="Link; default: the fleet's most common.")] = None,
    stage: Annotated[int | None, typer.Option(metavar="N", help="Only this stage of the schedule.")] = None,
    kind: Annotated[str | None, typer.Option(metavar="NAME", help="Only this kind of client.")] = None,
    clients: Annotated[
        bool, typer.Option("--clients", help="A row for each client of the fleet: cost at its hardest stage, verdict.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare several scenarios in one table, with ratios to the first.")
    ] = False,
    timeline: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Draw live memory during the work with the highest peak: .html, .png."),
    ] = None,
    figure: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw memory, MACs and traffic by stage: .png, .pdf or .svg.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also run the same steps on this machine and print the prediction errors.")
    ] = False,
    fvcore: Annotated[bool, typer.Option("--fvcore", help="Also count forward MACs with fvcore.")] = False,
    jobs: PricingJobs = None,
    full: Annotated[
        bool, typer.Option("--full", help="All tables: memory by part, traffic, server, totals; all --clients.")
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV instead of tables.")] = False,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Predict memory, FLOPs, bytes, time and energy of each stage and client kind, without training."""
    from edgefl.commands.profile.against_table import print_compared_profiles
    from edgefl.commands.profile.answer import ComparedProfiles, Profile
    from edgefl.commands.profile.clients_table import print_clients
    from edgefl.commands.profile.table import print_profile, profile_csv
    from edgefl.records.devices import FleetClients
    from edgefl.records.record import UNSET

    if as_csv and as_json:
        raise typer.BadParameter("--csv and --json can't be combined", param_hint="--csv")
    if as_csv and (measure or fvcore):
        raise typer.BadParameter("CSV has only the predicted rows; use --json for measured ones", param_hint="--csv")
    if len(scenarios) > 1 and not compare:
        raise typer.BadParameter("several scenarios need --compare", param_hint="SCENARIO")
    if compare and timeline:
        raise typer.BadParameter("--timeline and --compare can't be combined", param_hint="--timeline")
    if compare and (measure or fvcore):
        raise typer.BadParameter("--measure and --fvcore can't be combined with --compare", param_hint="--measure")
    others = {"--compare": compare, "--timeline": timeline, "--figure": figure, "--measure": measure,
              "--fvcore": fvcore, "--device": device, "--link": link}  # fmt: skip
    if clients and (given := [name for name, value in others.items() if value]):
        raise typer.BadParameter(f"{given[0]} can't be combined with --clients", param_hint="--clients")
    result: Profile | ComparedProfiles | FleetClients
    with observing() as on_progress:
        if clients:
            from edgefl.commands.profile.profile_clients import profile_clients

            result = profile_clients(scenarios[0], overrides or (), stage=stage, kind=kind, on_progress=on_progress)
        elif compare:
            from edgefl.commands.profile.compare_profiles import compare_profiles

            result = compare_profiles(
                scenarios, overrides or (), device=device, link=link, stage=stage, kind=kind, figure=figure,
                on_progress=on_progress,
            )  # fmt: skip
        else:
            from edgefl.commands.profile import command

            result = command.profile(
                scenarios[0], overrides or (), device=device, link=link, stage=stage, kind=kind, timeline=timeline,
                figure=figure, jobs=jobs, on_progress=on_progress,
            )  # fmt: skip
        if isinstance(result, Profile) and (measure or fvcore):
            from edgefl.commands.profile import measure as measurements

            if measure:
                measured = measurements.measure(
                    scenarios[0], overrides or (), kind=kind, stage=stage, on_progress=on_progress
                )
                result = replace(result, measured=measured)
            if fvcore:
                counted = measurements.count(
                    scenarios[0], overrides or (), kind=kind, stage=stage, on_progress=on_progress
                )
                result = replace(result, fvcore=counted)
    if as_json:
        print_json(result)
    elif as_csv:
        sys.stdout.write(profile_csv(result))
    elif isinstance(result, FleetClients):
        print_clients(result, full=full)
    elif isinstance(result, ComparedProfiles):
        print_compared_profiles(result)
    else:
        from edgefl.commands.profile.measured_table import print_counts, print_measured

        print_profile(result, full=full)
        if result.measured:
            print_measured(result.measured)
        if result.fvcore is not UNSET:
            print_counts(result.fvcore)


@app.command(
    epilog=examples("edgefl cost-diff old.json new.json", "edgefl cost-diff old.json new.json --fail-above 2%")
)
def cost_diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="Output of edgefl profile --json.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Later output of the same command.")],
    fail_above: Annotated[
        str, typer.Option("--fail-above", metavar="SHARE", help="Allowed growth of a cost: 2%.")
    ] = "0%",
    as_json: AsJson = False,
) -> None:
    """Compare two profiles.  Exit codes: 1 if a cost grew by more than --fail-above, 2 if they can't be compared."""
    from edgefl.commands.profile.against import RowsDiffer, share_of
    from edgefl.commands.profile.against import cost_diff as compare
    from edgefl.commands.profile.against_table import print_cost_difference

    differ: RowsDiffer | None = None
    try:
        result = compare(old, new, fail_above=share_of(fail_above))
    except RowsDiffer as error:
        result, differ = error.found, error
    print_json(result) if as_json else print_cost_difference(result)
    if differ is not None:
        raise differ
    if result.grew:
        raise typer.Exit(1)
