"""``edgefl run`` and ``edgefl validate``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgefl.cli.app import INTERRUPTED, AsJson, Overrides, ScenarioFile, app, observing, print_json, say
from edgefl.errors import EdgeflError

if TYPE_CHECKING:
    from edgefl.runs import Run

BROKEN = 1
"""Exit code where a run breaks a rule."""


@app.command()
def run(
    scenario: Annotated[
        str | None,
        typer.Argument(metavar="SCENARIO", help="A scenario file, or the name of a shipped one: quickstart."),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="DIR", help="A new folder for it, else runs/NAME.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="DIR", help="Go on with the run or comparison in this folder.")
    ] = None,
    overrides: Overrides = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Check that the records keep the rules of conservation; with --resume of a finished run, only that.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a scenario, or every combination that it compares, and report what it cost and learned."""
    if (scenario is None) == (resume is None):
        raise typer.BadParameter("give a scenario to run, or --resume DIR: one of the two", param_hint="SCENARIO")
    done = _finished(resume) if resume is not None and not overrides and output is None else None
    if verify and done is not None:
        _verify(str(done.path), as_json)
        return
    from edgefl.report import make_progress, print_summary, summary

    if done is None:
        progress = make_progress()
        try:
            with progress:
                from edgefl.commands import run as command

                done = command.run(
                    scenario, output=output, resume=resume, overrides=overrides or (), on_progress=progress
                )
        except KeyboardInterrupt:
            say(f"interrupted; {_how_to_go_on(progress.folder)}")
            raise typer.Exit(INTERRUPTED) from None
    found = summary(done, _samples_of)
    if not as_json:
        print_summary(found)
        say(f"records, weights and figures: {done.path}")
    if verify:
        _verify(str(done.path), as_json, found)
    elif as_json:
        print_json(found)


@app.command()
def validate(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Print the whole scenario, with every default written out.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a scenario as far as that goes without running it."""
    from edgefl.report import print_validation

    with observing() as on_progress:
        from edgefl.commands import validate as command

        found = command.validate(scenario, overrides or (), on_progress=on_progress)
    if as_json:
        print_json(found)
    elif resolved:
        from edgefl.scenario import load

        typer.echo(load(found["resolved"]).to_yaml(), nl=False)
    else:
        print_validation(found)


def _finished(folder: str) -> Run | None:
    """The run in this folder, if nothing of it is left to do."""
    from edgefl.runs import read_run

    run = read_run(folder)
    return run if run.finished else None


def _verify(folder: str, as_json: bool, summary: Mapping[str, Any] | None = None) -> None:
    """Print what the rules say of a run, as JSON beside its summary; ends with exit code 1 if one is broken."""
    from edgefl.commands.verify.verify import verify
    from edgefl.report.verified import print_verified

    found = verify(folder)
    if as_json:
        print_json({**(summary or {}), "verified": found})
    else:
        print_verified(found)
    if not found["valid"]:
        raise typer.Exit(BROKEN)


def _how_to_go_on(folder: str | None) -> str:
    from pathlib import Path

    from edgefl.runs import begun, is_comparison

    if folder is None:
        return "nothing was written"
    place = Path(folder)
    if is_comparison(place.parent):
        return f"go on with: edgefl run --resume {place.parent}"
    return f"go on with: edgefl run --resume {place}" if begun(place) else "nothing was written"


def _samples_of(run: Run) -> Mapping[str, Mapping[str, int]]:
    """How many samples each split of the server has, by kind, from the data of a run whose folder doesn't say it."""
    from edgefl.commands.compose import federation_of
    from edgefl.scenario import load

    try:
        return federation_of(load(dict(run.scenario)), lambda _: None).server_samples
    except (EdgeflError, OSError) as error:
        say(
            f"{run.path} doesn't record its test samples and chance levels, and its data can't be opened; "
            f"the tables leave out what needs them: {error}"
        )
        return {}
