"""``edgefl export`` as it is typed, and ``edgefl.export`` as it is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from edgefl.console.derived import OnProgress, command, option, silent
from edgefl.console.options import OneKind, Overrides, Place, RunOrScenario

if TYPE_CHECKING:
    from edgefl.commands.export.answer import Exported

Form = Literal[
    "csv", "parquet", "tensorboard", "mlflow", "perfetto", "figures", "peft", "transformers", "executorch", "flower",
]  # fmt: skip


@command(
    "edgefl export runs/mine --to csv", "edgefl export runs/mine --to perfetto -o trace",
    "edgefl export runs/mine --to figures --only fleet --format pdf,svg",
    answer="edgefl.commands.export.answer:Exported", forms={"table": "edgefl.commands.export.answer:print_files"},
    interrupted="the folder may be incomplete; the same command renews it",
)  # fmt: skip
def export(
    given: RunOrScenario,
    to: Annotated[
        Form,
        option(
            "Records: csv, parquet, tensorboard (event files), mlflow (a store). Virtual time: perfetto. For a paper: "
            "figures. Trained towers: transformers, or peft (their LoRA). A scenario's training step: executorch. "
            "A scenario for real devices: flower.",
            "FORM",
        ),
    ],
    out: Annotated[
        Place | None,
        option("Folder to write to; default: one with the form's name in the run's folder.", "DIR", "--out", "-o"),
    ] = None,
    *,
    formats: Annotated[Sequence[str], option("File types of figures: pdf, svg, png.", "NAME,...", "--format")] = (
        "pdf",
    ),
    only: Annotated[Sequence[str], option("Draw the figure of this name alone. May be repeated.", "NAME")] = (),
    kind: OneKind = None,
    stage: Annotated[int | None, option("Only this stage of the schedule, from 1: of executorch.", "N")] = None,
    overrides: Overrides = (),
    on_progress: OnProgress = silent,
) -> Exported:
    """A run for other programs, or as figures for a paper.

    ``csv`` and ``parquet`` write a file for each table of ``read_run`` and one, ``runs``, with a row for each run.
    ``tensorboard`` writes a folder of event files for each run, ``mlflow`` the SQLite store ``mlflow.db``.  A number is
    called as in the records, with its split in the name of a metric: ``metrics.test.image.accuracy``.  MLflow takes
    neither @ nor brackets, so ``r@1`` is ``r_at_1`` there.

    ``perfetto`` writes ``trace.json`` in the Trace Event Format, which https://ui.perfetto.dev and Chrome open.  It has
    a track for each client, for each client's link and for the server's rounds and works, and counters of the
    predicted memory, the bits per second and the watts of all clients together.  Bits and watts are means over a
    transfer and over a task: their sums over time are the recorded bytes and joules.

    ``figures`` draws each figure, and writes its numbers as CSV next to it.  Those of a comparison are in the folder,
    those of each of its runs in a folder of the run's name.

    ``transformers`` writes each tower of a finished run that is one of transformers as a folder for
    ``from_pretrained``, ``peft`` its LoRA as an adapter of PEFT: in the folder if the run has one such tower, else in
    ``KIND/MODALITY`` of it.  What a task adds to a tower is in ``read_out.safetensors``.

    ``executorch`` takes a scenario, and writes the training step of each kind at each stage as ``KIND-stage-N.pte``:
    forward pass, loss and backward pass in one graph, with the parameters that a run begins with.  Two steps in its
    runtime are held against torch first.  ``kind`` and ``stage`` are for this form alone.

    ``flower`` takes a scenario too, and writes an app of Flower in which it is played by real devices
    (docs/guides/own-devices.md).  ``overrides`` are for these two forms.

    Files of an earlier export are replaced.

    Returns:
        ``to``, ``output`` (the folder), its ``files``, ``runs`` (labels), ``note``, how to show it, and ``programs``,
        the memory of each program.

    Raises:
        UnknownName: The form, a type of figures or the kind is unknown, or the run has no figure of a name.
        ScenarioError: The scenario can't be run, has no such stage, or can't leave the simulation (flower).
        RunError: There is no such run, its records were changed, no round has ended (figures, perfetto), it is a
            comparison (perfetto), a package is missing, or the folder can't be written.
        MethodError: No tower is one of transformers, PEFT can't hold what the run trained, or ExecuTorch can't
            run the step as torch does.

    Examples:
        >>> import edgefl
        >>> edgefl.export("runs/small", "csv", "tables").files[:2]
        ['tables/rounds.csv', 'tables/clients.csv']
    """
    from os import PathLike
    from pathlib import Path
    from typing import get_args

    from edgefl.commands.export.answer import Exported
    from edgefl.commands.export.perfetto import write_trace
    from edgefl.commands.export.record_tables import check_pyarrow, write_tables
    from edgefl.commands.export.run_figures import write_figures
    from edgefl.commands.export.run_logs import hint, write_logs
    from edgefl.commands.export.tower_folders import write_towers
    from edgefl.errors import RunError, UnknownName
    from edgefl.runs import is_comparison, read_run
    from edgefl.runs.trackers import check_tracker

    if to not in get_args(Form):
        raise UnknownName("form", to, get_args(Form))
    if to == "executorch":
        from edgefl.commands.export.training_programs import write_programs
        from edgefl.setup.compose import planner_of, scenario_of

        if out is None:
            raise RunError("a scenario has no folder of its own: say where to write the programs, --out DIR")
        planner = planner_of(scenario_of(given, overrides), on_progress)
        programs = write_programs(planner, kind, stage, Path(out), on_progress)
        on_progress("done", {"folder": str(out)})
        files = [each.file for each in programs]
        return Exported(to=to, output=str(out), files=files, runs=[], note="", programs=programs)
    if to == "flower" and kind is None and stage is None:
        from edgefl.commands.export.flower_app import write_app
        from edgefl.setup.compose import scenario_of

        if out is None:
            raise RunError("a scenario has no folder of its own: say where to write the app, --out DIR")
        files, note = write_app(scenario_of(given, overrides), Path(out), on_progress)
        return Exported(to=to, output=str(out), files=files, runs=[], note=note)
    if not isinstance(given, str | PathLike) or kind is not None or stage is not None or overrides:
        raise RunError(
            f"{to} takes the folder of a run alone; a scenario and --set are for executorch and flower, "
            "--kind and --stage for executorch"
        )
    folder = read_run(given)
    target = Path(out) if out is not None else folder.path / to
    if target.exists() and not target.is_dir():
        raise RunError(f"can't write to {target}: it is a file, not a folder")
    if to == "parquet":
        check_pyarrow()
    check_tracker(to, target)
    members = folder.runs if is_comparison(folder.path) else {folder.name: folder}
    if not members:
        raise RunError(f"no run of {folder.path} has begun")
    on_progress("prepare", {"what": f"exporting {folder.path} to {to}"})
    note = ""
    match to:
        case "csv" | "parquet":
            files = write_tables(folder, members, target, to)
        case "tensorboard" | "mlflow":
            files = write_logs(members, target, to)
            note = hint(to, target)
        case "perfetto":
            files, note = write_trace(folder, target)
        case "figures":
            files = write_figures(folder, target, formats, only, on_progress)
        case "transformers" | "peft":
            files = write_towers(folder, target, to)
    on_progress("done", {"folder": str(target)})
    return Exported(to=to, output=str(target), files=files, runs=list(members), note=note)
