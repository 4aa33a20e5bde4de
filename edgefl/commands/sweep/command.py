"""``edgefl sweep`` as it is typed, and ``edgefl.sweep`` as it is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from edgefl.console.derived import OnProgress, argument, command, option, silent
from edgefl.console.options import Address, Given, OneKind, Overrides, Place, Shard, check_scenario_exists
from edgefl.console.options import shipped_and_files as completed

if TYPE_CHECKING:
    from edgefl.commands.sweep.answer import Sweep

    Scenarios = Given | Sequence[Given]
    Names = str | Sequence[str]
else:  # the command line reads words
    Scenarios, Names = Sequence[str], Sequence[str]

VARIES, DEVICES = "What varies", "Devices in place of the fleet"
WRITES, COMPUTES = "What is written beside the table", "What is computed, and where"


@command(
    "edgefl sweep mine.yaml --vary fleet.budgets.memory=16MiB,64MiB -o cells",
    "edgefl sweep mine.yaml quickstart --vary training.batch=4,8 --devices all",
    "edgefl sweep mine.yaml --page page.html",
    answer="edgefl.commands.sweep.answer:Sweep",
    forms={
        "table": "edgefl.commands.sweep.table:print_sweep", "csv": "edgefl.commands.sweep.table:sweep_csv",
        "markdown": "edgefl.commands.sweep.table:sweep_markdown",
    },
    full="Print also lost data, totals, the Pareto frontier; each device and kind.",
    interrupted=lambda folder: "repeat the command to continue" if folder else "",
)  # fmt: skip
def sweep(
    scenario: Annotated[
        Scenarios,
        argument(
            "A scenario file, or the name of a shipped one: quickstart. Several are one more axis.",
            "SCENARIO...",
            autocompletion=completed,
            callback=check_scenario_exists,
        ),
    ],
    vary: Annotated[
        Sequence[str], option("Values of a field: fleet.budgets.memory=16MiB,32MiB.", "PATH=VALUE,..."), VARIES
    ] = (),
    *,
    grid: Annotated[
        Place | None, option("YAML file of fields and their values: `training.batch: [8, 16]`.", "FILE"), VARIES
    ] = None,
    overrides: Annotated[Overrides, VARIES] = (),
    devices: Annotated[
        Names, option("Which of these could take part: known names, files, or all.", "NAME,...|all"), DEVICES
    ] = (),
    link: Annotated[str | None, option("Their link; default: the fleet's most common.", "NAME"), DEVICES] = None,
    stage: Annotated[int | None, option("Only this stage; default: the hardest of each.", "N"), DEVICES] = None,
    kind: Annotated[OneKind, DEVICES] = None,
    out: Annotated[
        Place | None, option("Folder for the rows (jsonl, csv), which are reused.", "DIR", "--out", "-o"), WRITES
    ] = None,
    page: Annotated[
        Place | None, option("A page in which budgets and choices are moved by hand: .html.", "FILE"), WRITES
    ] = None,
    figure: Annotated[
        Place | None, option("Draw --value over the axes: .png, .pdf, .svg or .html.", "FILE"), WRITES
    ] = None,
    value: Annotated[str, option("Field of the rows that --figure draws.", "NAME"), WRITES] = "eligible_share",
    sensitivity: Annotated[
        str | None,
        option("Whether the order of the rows survives numbers wrong by 2x, or by residuals.", "FACTOR"),
        COMPUTES,
    ] = None,
    train: Annotated[bool, option("Also run each combination, below --out; can be resumed."), COMPUTES] = False,
    jobs: Annotated[
        int | None,
        option("Compute N combinations side by side; default: 1, for a page one for each core.", "N", min=1),
        COMPUTES,
    ] = None,
    address: Annotated[Address, COMPUTES] = None,
    shard: Annotated[Shard, COMPUTES] = None,
    on_progress: OnProgress = silent,
) -> Sweep:
    """Who and which devices can train, over models and settings.

    Every combination of the values is priced without training: which clients are eligible, which data are lost, what a
    round and the schedule cost.  Costs are of clients that already hold all frozen parameters, without jitter.  With
    ``devices`` alone the fleet isn't priced, but the largest client of each kind on each device.

    Returns:
        A record: ``rows`` (one for each combination, with a field for each axis, ``"training.batch"``; that of a
        combination which can't be run has the reason in ``refused`` and no costs), ``frontier`` (by method, which rows
        no other row beats in eligible share and cost) and, if asked for, ``devices`` by label and ``sensitivity``.

    Raises:
        ScenarioError: A scenario or a value is invalid, before anything is computed; or no combination can be run.
        UnknownName: No row has the field ``value``; a device (UnknownNames: several), the link or the kind is unknown.
        DeviceError: A profile is invalid.
        UnitError: ``sensitivity`` is neither a factor above 1 nor ``residuals``.
        RunError: The folder can't be used, or holds rows of another scenario; a page of several scenarios; a file can't
            be written; ``train`` without ``out``.
        DataError: ``train`` with data that are only declared.

    Examples:
        The share of clients that can train under two memory budgets:

        >>> import edgefl
        >>> answer = edgefl.sweep("quickstart", ["fleet.budgets.memory=8MiB,16MiB"], overrides=["compare=null"])
        >>> [(row["fleet.budgets.memory"], round(row.eligible_share, 2)) for row in answer.rows]
        [('8 MiB', 0.72), ('16 MiB', 1.0)]
    """
    import os
    from pathlib import Path

    from edgefl.cells.cells import shard_of
    from edgefl.commands.sweep.answer import Sweep
    from edgefl.commands.sweep.frontiers import frontiers
    from edgefl.commands.sweep.option_checks import check_options, scenarios_of
    from edgefl.commands.sweep.priced_rows import price_fleet, refused_rows
    from edgefl.commands.sweep.stored_rows import SweepRows
    from edgefl.commands.sweep.sweep_grid import MOST_COMPARED, check_trainable, sweep_grid_of
    from edgefl.devices.browsing import seconds_within
    from edgefl.records.record import UNSET
    from edgefl.scenario.axes import MOST_COMBINATIONS
    from edgefl.setup.compose import at_most, scenario_of

    scenarios = scenarios_of(scenario)
    names, part = [devices] if isinstance(devices, str) else devices, None if shard is None else shard_of(shard)
    check_options(
        scenarios=len(scenarios), out=out, train=train, shard=shard, jobs=jobs, address=address, page=page,
        figure=figure, value=value, sensitivity=sensitivity, devices=names, link=link, stage=stage, kind=kind,
    )  # fmt: skip
    loaded = [scenario_of(each, overrides) for each in scenarios]
    most = MOST_COMBINATIONS if sensitivity is None else MOST_COMPARED
    if page is not None:
        from edgefl.commands.sweep.page.choices import MOST_ON_PAGE, propose_axes

        vary, most = vary or propose_axes(loaded[0], link) if grid is None else vary, MOST_ON_PAGE
    space = sweep_grid_of(scenarios, loaded, vary, None if grid is None else os.fspath(grid), most)
    on_progress("prepare", {"what": f"preparing {space.name}"})
    refused = dict(space.refused)
    if train:
        check_trainable(space, refused, on_progress)
    store = None if out is None else SweepRows(Path(out), dict(space.cells), part)
    if store is not None:
        on_progress("cells", {"folder": str(out), "of": len(space.cells)})
    checks = {}
    if names:
        from edgefl.commands.sweep.on_devices import check_combinations

        checks = check_combinations(
            space, names, refused, link=link, stage=stage, kind=kind,
            jobs=jobs, many=page is not None, on_progress=on_progress,
        )  # fmt: skip
    if page is not None:
        from edgefl.commands.sweep.page.asked import PageRequest
        from edgefl.commands.sweep.page.page import write_page

        asked = PageRequest(scenarios[0], overrides, loaded[0], space)
        write_page(asked, Path(page), refused, checks, names, jobs, on_progress)
    if names and not (out or sensitivity or figure):
        fleet = refused_rows(space, refused)
    else:
        fleet = price_fleet(space, refused, store, part, train, sensitivity, jobs or 1, address, on_progress)
    runnable = [variant for label, variant in space.cells if label not in refused]
    checked = [row.device for check in checks.values() for row in check.rows]
    priced = checked or [name for variant in runnable for name in variant.fleet.devices]
    result = Sweep(
        scenario=space.name,
        at_most=(fleet.is_whole and at_most(runnable)) or UNSET,
        seconds_within=seconds_within(priced) or UNSET,
        axes=list(space.paths),
        rows=fleet.rows,
        frontier=frontiers([row for row in fleet.rows if not row.refused]) if fleet.is_whole else {},
        devices=checks or UNSET,
        page=UNSET if page is None else str(page),
        sensitivity=fleet.order,
        predictions=fleet.predictions,
    )
    if figure is not None:
        from edgefl.commands.sweep.chart import sweep_chart
        from edgefl.commands.sweep.stored_rows import values_of
        from edgefl.drawing.figures import draw_figure

        title = f"{space.name} on {loaded[0].evaluation.final}" if value.startswith("metrics.") else space.name
        draw_figure(sweep_chart(title, value, *space.chart_axes, values_of(fleet.rows, value)), Path(figure))
    on_progress("done", {"folder": None if out is None else str(out)})
    return result
