"""``edgefl profile`` as it is typed, and ``edgefl.profile`` as it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from edgefl.console.derived import OnProgress, command, option, silent
from edgefl.console.options import OneKind, Overrides, Place, PricingJobs, ScenarioFile

if TYPE_CHECKING:
    from edgefl.commands.profile.answer import Profile


@command(
    "edgefl profile mine.yaml", "edgefl profile mine.yaml --device phone-mid --link lte",
    "edgefl profile mine.yaml --against old.json --fail-above 2%",
    answer="edgefl.commands.profile.answer:Profile",
    forms={"table": "edgefl.commands.profile.table:print_answer", "csv": "edgefl.commands.profile.table:profile_csv"},
    full="All tables: memory by part, traffic, server, totals; all --clients.",
)  # fmt: skip
def profile(
    scenario: ScenarioFile,
    overrides: Overrides = (),
    *,
    device: Annotated[
        str | None,
        option(
            "Device for time and energy, a name or a file; default: the fleet's most common, the slowest of several.",
            "NAME",
        ),
    ] = None,
    link: Annotated[
        str | None,
        option(
            "Link for transfers, a name or a file; default: the fleet's most common, the slowest of several.", "NAME"
        ),
    ] = None,
    stage: Annotated[int | None, option("Only this stage of the schedule, from 1.", "N")] = None,
    kind: OneKind = None,
    clients: Annotated[
        bool, option("A row for each client of the fleet: cost on its device at its hardest stage, verdict.")
    ] = False,
    against: Annotated[
        Place | None, option("Compare with what --as json printed before; exit code 1 if a cost grew.", "OLD.json")
    ] = None,
    fail_above: Annotated[float | str, option("The growth of a cost that --against allows: 2%.", "SHARE")] = "0%",
    measure: Annotated[
        bool, option("Also run the same steps on this machine and print the prediction errors.")
    ] = False,
    fvcore: Annotated[bool, option("Also count forward MACs with fvcore.")] = False,
    timeline: Annotated[
        Place | None, option("Draw live memory during the work with the highest peak: .html, .png.", "FILE")
    ] = None,
    figure: Annotated[
        Place | None, option("Draw memory, MACs and traffic by stage: .png, .pdf or .svg.", "FILE")
    ] = None,
    jobs: PricingJobs = None,
    on_progress: OnProgress = silent,
) -> Profile:
    """A client's round: memory, FLOPs, bytes, seconds, joules.

    Nothing is trained, so declared data are enough.  A row is the round of the kind's client with the most samples,
    which already holds all frozen parameters.  Where variants of a kind (``Method.variant``) cost different things each
    has a row.

    Returns:
        A record: ``rows`` (a client's round by stage and kind), ``totals`` (a client that takes part in every
        round), ``server_rows`` (the server's works), ``round_totals`` (a round of all selected clients and the server),
        ``client_evaluation_rows`` (a client's evaluation on its own held-out samples, by stage and kind; empty without
        ``evaluation.clients``) and, if asked for, ``clients``.  Bytes, FLOPs, MACs, seconds and joules are in base
        units, and the unit is in the field's name.  If the scenario compares, ``combinations`` has all this of each
        combination by its label, and ``refused`` why some can't be run, if there are such.  ``against`` has what
        differs from the earlier profile.

    Raises:
        ScenarioError: The scenario can't be run, or has no such stage.
        UnknownName: The device, link or kind is unknown.
        UnitError: ``fail_above`` isn't a share.
        RunError: A drawing can't be written, or ``against`` isn't a profile of this version.
        RowsDiffer: The earlier profile has other rows; ``answer`` is the profile, with what differs in the others.

    Examples:
        Peak memory of an image-text client in the three stages, in MiB:

        >>> import edgefl
        >>> answer = edgefl.profile("quickstart", ["compare=null"], kind="image-text")
        >>> [(row.stage, round(row.peak_memory_bytes / 2**20, 1)) for row in answer.rows]
        [(1, 8.4), (2, 7.9), (3, 14.4)]
    """
    from dataclasses import fields, replace
    from functools import partial
    from pathlib import Path

    from edgefl.cells.cells import check_jobs
    from edgefl.cells.pricing import parallel_pricing
    from edgefl.commands.profile import measure as measurements
    from edgefl.commands.profile.against import GROWTH, read_profile, with_difference
    from edgefl.commands.profile.answer import Profile, Tables
    from edgefl.commands.profile.chart import stages_chart
    from edgefl.commands.profile.client_rounds import shown_works, tables_of
    from edgefl.commands.profile.combinations import planners_of
    from edgefl.commands.profile.profile_options import ProfileOptions
    from edgefl.commands.profile.timeline import memory_timeline, trace_peak
    from edgefl.devices.browsing import seconds_within
    from edgefl.drawing.figures import FIGURE_FORMS, TIMELINE_FORMS, check_figure, draw_figure
    from edgefl.planning.subjects import check_stage_and_kind
    from edgefl.records.record import UNSET
    from edgefl.setup.compose import at_most, scenario_of

    for path, forms in ((timeline, TIMELINE_FORMS), (figure, FIGURE_FORMS)):
        if path is not None:
            check_figure(path, forms)
    if jobs is not None:
        check_jobs(jobs)
    allowed, earlier = GROWTH.parse(fail_above), None if against is None else read_profile(Path(against))
    whole, wanted = scenario_of(scenario, overrides), ProfileOptions(device, link, stage, kind, clients)
    combinations = whole.combinations() if whole.compare else []
    planner, others, refused = planners_of(whole, combinations, on_progress)
    check_stage_and_kind(stage, kind, [each.setup for each in (planner, *others.values())])
    parts = dict[str, Tables]()
    with parallel_pricing(partial(shown_works, wanted=wanted), [planner, *others.values()], jobs):
        own = tables_of(planner, wanted, on_progress, whole.name)
        for index, (label, other) in enumerate(others.items()):
            on_progress("combination", {"label": label, "index": index, "of": len(others)})
            parts[label] = tables_of(other, wanted, on_progress, label)
    asked = [whole, *(each for _, each in combinations)]
    named = [device] if device else dict.fromkeys(name for each in asked for name in each.fleet.devices)
    result = Profile(
        scenario=whole.name,
        at_most=at_most(asked) or UNSET,
        seconds_within=seconds_within(named) or UNSET,
        **{table.name: getattr(own, table.name) for table in fields(Tables)},
        combinations=parts if whole.compare else UNSET,
        refused=refused or UNSET,
    )
    if timeline is not None:
        traced, moment = trace_peak(planner, own.rows, wanted)
        draw_figure(memory_timeline(traced, f"{whole.name}: {moment.kind}, stage {moment.stage}"), Path(timeline))
        result = replace(result, timeline=moment)
    if figure is not None:
        draw_figure(stages_chart(result.parts), Path(figure))
    if measure:
        result = replace(result, measured=measurements.measure(whole, kind=kind, stage=stage, on_progress=on_progress))
    if fvcore:
        result = replace(result, fvcore=measurements.count(whole, kind=kind, stage=stage, on_progress=on_progress))
    return result if earlier is None else with_difference(result, earlier, allowed)
