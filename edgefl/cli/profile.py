"""``edgefl profile`` and ``edgefl cost-diff``."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from edgefl.cli.app import AsJson, Overrides, app, observing, print_json


@app.command()
def profile(
    scenarios: Annotated[
        list[str],
        typer.Argument(metavar="SCENARIO...", help="A scenario file or a shipped one's name; more with --compare."),
    ],
    overrides: Overrides = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Price time and energy on this device, else on the commonest.")
    ] = None,
    link: Annotated[str | None, typer.Option(metavar="NAME", help="And over this link, else the commonest.")] = None,
    stage: Annotated[int | None, typer.Option(metavar="N", help="This stage of the schedule only.")] = None,
    kind: Annotated[str | None, typer.Option(metavar="NAME", help="This kind of client only.")] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Several scenarios in one table, with ratios to the first.")
    ] = False,
    timeline: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Draw live memory over the work with the highest peak: .html, .png."),
    ] = None,
    figure: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw memory, MACs and traffic by stage: .png, .pdf or .svg.")
    ] = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Run the same steps here for real, and print how far off the prediction is."),
    ] = False,
    fvcore: Annotated[bool, typer.Option("--fvcore", help="Count forward MACs by fvcore as well.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV instead of tables.")] = False,
    as_json: AsJson = False,
) -> None:
    """Predict memory, FLOPs, bytes, time and energy of each stage and client kind; train nothing."""
    from edgefl.report import print_compared_profiles, print_profile, profile_csv

    if as_csv and as_json:
        raise typer.BadParameter("give --csv or --json: one of the two", param_hint="--csv")
    if as_csv and (measure or fvcore):
        raise typer.BadParameter("CSV has predicted rows only, --json the measured ones too", param_hint="--csv")
    if len(scenarios) > 1 and not compare:
        raise typer.BadParameter("several scenarios need --compare", param_hint="SCENARIO")
    if compare and timeline:
        raise typer.BadParameter("a timeline is of one scenario, without --compare", param_hint="--timeline")
    if compare and (measure or fvcore):
        raise typer.BadParameter("one scenario is measured at a time, without --compare", param_hint="--measure")
    found: dict[str, Any]
    with observing() as on_progress:
        if compare:
            from edgefl.commands.profile.compare import compare_profiles

            found = compare_profiles(
                scenarios, overrides or (), device=device, link=link, stage=stage, kind=kind, figure=figure,
                on_progress=on_progress,
            )  # fmt: skip
        else:
            from edgefl.commands.profile import profile as command

            found = command.profile(
                scenarios[0], overrides or (), device=device, link=link, stage=stage, kind=kind, timeline=timeline,
                figure=figure, on_progress=on_progress,
            )  # fmt: skip
        if measure or fvcore:
            from edgefl.commands.profile import measure as measuring

            held = {"kind": kind, "stage": stage, "on_progress": on_progress}
            if measure:
                found["measured"] = measuring.measure(scenarios[0], overrides or (), **held)
            if fvcore:
                found["fvcore"] = measuring.count(scenarios[0], overrides or (), **held)
    if as_json:
        print_json(found)
    elif as_csv:
        sys.stdout.write(profile_csv(found))
    else:
        print_compared_profiles(found) if compare else print_profile(found)
        if measure or fvcore:
            from edgefl.report import print_counts, print_measured

            if measure:
                print_measured(found["measured"])
            if fvcore:
                print_counts(found["fvcore"])


@app.command()
def cost_diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A file that edgefl profile --json printed.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="A later one.")],
    fail_above: Annotated[
        str, typer.Option("--fail-above", metavar="SHARE", help="By how much a cost may grow: 2%.")
    ] = "0%",
    as_json: AsJson = False,
) -> None:
    """Compare two profiles; ends with 1 if a cost grew by more than --fail-above, 2 if they can't be compared."""
    from edgefl.commands.profile.cost_diff import RowsDiffer, share_of
    from edgefl.commands.profile.cost_diff import cost_diff as compare
    from edgefl.report import print_cost_difference

    show = print_json if as_json else print_cost_difference
    try:
        found = compare(old, new, fail_above=share_of(fail_above))
    except RowsDiffer as error:
        show(error.found)
        raise
    show(found)
    if found["grew"]:
        raise typer.Exit(1)
