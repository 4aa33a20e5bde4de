"""The command ``edgefl run``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgefl.cli.old import (
    Address,
    AsJson,
    Jobs,
    Overrides,
    Plugins,
    Shard,
    app,
    check_scenario_exists,
    examples,
    interruptible,
    print_json,
    shipped_and_files,
)
from edgefl.errors import DivergedError
from edgefl.terminal import say

if TYPE_CHECKING:
    from edgefl.commands.compare.answer import ComparedRuns
    from edgefl.records.summary import RunSummary
    from edgefl.runs import Run

BROKEN = 1
"""Exit code if a run breaks a conservation rule."""
NOBODY = 1
"""Exit code if no client could train in any of the runs."""


@app.command(
    epilog=examples(
        "edgefl run quickstart",
        "edgefl run mine.yaml -o runs/first --set training.lr=1e-3",
        "edgefl run --resume runs/mine --jobs 4",
    )
)
def run(
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="SCENARIO",
            help="A scenario file, or the name of a shipped one: quickstart.",
            autocompletion=shipped_and_files,
            callback=check_scenario_exists,
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--out", "-o", metavar="DIR", help="New folder for the run; default: runs/NAME.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="DIR", help="Continue the run or comparison in this folder.")
    ] = None,
    overrides: Overrides = None,
    jobs: Jobs = 1,
    address: Address = None,
    shard: Shard = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Check the records against the conservation rules; with --resume of a finished run, do only that.",
        ),
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Print the tables of every run, also where seeds are compared.")
    ] = False,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Run a scenario, or every combination that it compares, and print costs and metrics."""
    if (scenario is None) == (resume is None):
        raise typer.BadParameter("give either a scenario to run or --resume DIR", param_hint="SCENARIO")
    finished = (
        _finished_run(resume, check=not verify) if resume is not None and not overrides and output is None else None
    )
    if verify and finished is not None:
        _verify(str(finished.path), as_json, {})
        return
    if finished is None and jobs == 1:
        _begin_workers(os.path.join(resume, "scenario.yaml") if resume is not None else scenario, overrides)
    from edgefl.commands.compare.table import print_comparison
    from edgefl.commands.run.answer import RunAnswer
    from edgefl.commands.run.table import print_summary
    from edgefl.console.display import make_progress
    from edgefl.results.facts import summary

    diverged: DivergedError | None = None
    if finished is None:
        progress = make_progress()
        try:
            with interruptible(lambda: _how_to_continue(progress.folder)), progress:
                from edgefl.commands.run import command

                finished = command.run(
                    scenario, out=output, resume=resume, overrides=overrides or (), jobs=jobs, address=address,
                    shard=shard, on_progress=progress,
                )  # fmt: skip
        except DivergedError as error:
            # what was done is shown before the error
            finished, diverged = _whole(progress.folder), error
            if finished is None:
                raise
    if shard is not None and not finished.is_finished:
        from edgefl.runs import comparison

        of = len(comparison(finished.path))
        left = of - sum(each.is_finished for each in finished.runs.values())
        say(f"shard {shard} has ended; {left} of {of} runs of {finished.path} aren't done yet")
        say(f"when they are: edgefl run --resume {finished.path}")
        if diverged is not None:
            raise diverged
        return
    result = summary(finished)
    over_seeds = _over_seeds(finished, result.runs)
    told = vars(result) | ({} if over_seeds is None else {"over_seeds": over_seeds})
    if not as_json:
        if over_seeds is None or full:
            print_summary(result)
        if over_seeds is not None:
            print_comparison(over_seeds, equal=False)
            say(
                f"every run: edgefl run --resume {finished.path} --full; at equal costs: edgefl compare {finished.path}"
            )
        say(f"records, weights and figures: {finished.path}")
    if verify:
        _verify(str(finished.path), as_json, told)
    elif as_json:
        print_json(RunAnswer(**told))
    from edgefl.results.facts import fitting_of, nobody_fits
    from edgefl.results.names import some_names

    fitting = {label: fitting_of(each) for label, each in result.runs.items()}
    texts = [(text, label) for label, cells in fitting.items() for text in nobody_fits(cells)]
    for text in dict.fromkeys(text for text, _ in texts):
        labels = [label for each, label in texts if each == text]
        say(text if len(labels) == len(fitting) else f"{some_names(labels)}: {text}")
    if diverged is not None:
        say(f"to go on all the same: edgefl run --resume {finished.path} --set training.on_divergence=continue")
        raise diverged
    if any(fitting.values()) and not any(cell.eligible for cells in fitting.values() for cell in cells):
        raise typer.Exit(NOBODY)


def _begin_workers(scenario: str | None, overrides: Sequence[str] | None) -> None:
    """Let worker processes import what they need while this process imports the same, if the scenario asks for some."""
    from edgefl import start_method
    from edgefl.scenario.keys import executor_of

    if executor_of(scenario or "", overrides or ()) == "processes":
        start_method.begin("edgefl.training.worker")


def _finished_run(folder: str, *, check: bool) -> Run | None:
    """The run in this folder if it is finished, otherwise None.  Raises RunError if its files have changed."""
    from pathlib import Path

    from edgefl.runs import read_run
    from edgefl.runs.folders import check_finished, is_cut_short, tidy

    if check and os.path.isdir(folder) and is_cut_short(Path(folder)):
        return None  # the start was cut short: resuming begins it, or says that it can't
    run = read_run(folder)
    if not run.is_finished:
        return None
    if check:
        for each in run.runs.values() or (run,):
            check_finished(each.path)
            tidy(each.path)
        if run.runs and not (run.path / "curves.png").is_file():  # interrupted after the last run had ended
            from edgefl.drawing.charts import draw_curves

            draw_curves(run)
    return run


def _whole(folder: str | None) -> Run | None:
    """The run in this folder, or the comparison that it belongs to; None without a folder."""
    from pathlib import Path

    from edgefl.runs import is_comparison, read_run

    if folder is None:
        return None
    parent = Path(folder).parent
    return read_run(parent if is_comparison(parent) else folder)


def _over_seeds(run: Run, facts: Mapping[str, RunSummary]) -> ComparedRuns | None:
    """The means over seeds, from the facts of runs by label; None for a single seed or an unfinished run."""
    if not run.is_finished or len({member.settings.seed for member in run.runs.values()}) < 2:
        return None
    from edgefl.commands.compare.command import compared_runs
    from edgefl.commands.compare.members import members_of

    return compared_runs(members_of([run.path]), {str(run.runs[label].path): each for label, each in facts.items()})


def _verify(folder: str, as_json: bool, summary: Mapping[str, Any]) -> None:
    """Check a run against the conservation rules and print the result; exit with code 1 if a rule is broken.

    JSON output contains the run's summary, too.
    """
    from edgefl.commands.run.answer import RunAnswer
    from edgefl.commands.run.verified_table import print_verified
    from edgefl.commands.run.verify import verify

    result = verify(folder)
    if as_json:
        print_json(RunAnswer(**summary, verified=result))
    else:
        print_verified(result)
    if not result.valid:
        raise typer.Exit(BROKEN)


def _how_to_continue(folder: str | None) -> str:
    from pathlib import Path

    from edgefl.runs import is_comparison, is_run

    if folder is None:
        return "nothing was written"
    path = Path(folder)
    if is_comparison(path.parent):
        return f"continue with: edgefl run --resume {path.parent}"
    return f"continue with: edgefl run --resume {path}" if is_run(path) else "nothing was written"
