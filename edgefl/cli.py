"""The command line: thin; each command parses, calls ``edgefl.commands`` and prints.

Results go to stdout, progress and messages to stderr.  What takes long to import is imported by the commands.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from edgefl.errors import EdgeflError, UnknownName

if TYPE_CHECKING:
    from pydantic import BaseModel

    from edgefl.runs import Run

INTERRUPTED = 130

app = typer.Typer(
    name="edgefl",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Which devices can train this federated model, at what cost, and what is lost by leaving the others out?",
)

ScenarioFile = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="A scenario file, or the name of a shipped one: quickstart.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change a field: training.lr=1e-3. May be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print plain JSON instead of tables.")]


def _version(wanted: bool) -> None:
    if wanted:
        from edgefl import __version__

        typer.echo(f"edgefl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


# --- commands --------------------------------------------------------------------------------------------------------


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
    as_json: AsJson = False,
) -> None:
    """Train a scenario, or every combination that it compares, and report what it cost and learned."""
    if (scenario is None) == (resume is None):
        raise typer.BadParameter("give a scenario to run, or --resume DIR: one of the two", param_hint="SCENARIO")
    from edgefl.report import make_progress, print_summary, summary

    progress = make_progress()
    try:
        with progress:
            from edgefl.commands import run as play

            done = play(scenario, output=output, resume=resume, overrides=overrides or (), observe=progress)
    except KeyboardInterrupt:
        _message(f"interrupted; {_how_to_go_on(progress.folder)}")
        raise typer.Exit(INTERRUPTED) from None
    found = summary(done, _test_samples(done))
    if as_json:
        _print_json(found)
        return
    print_summary(found)
    _message(f"records, weights and figures: {done.path}")


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
    with _observing() as observe:
        if compare:
            from edgefl.commands.comparing_profiles import compare_profiles

            found = compare_profiles(
                scenarios, overrides or (), device=device, link=link, stage=stage, kind=kind, figure=figure,
                observe=observe,
            )  # fmt: skip
        else:
            from edgefl.commands import profile as predict

            found = predict(
                scenarios[0], overrides or (), device=device, link=link, stage=stage, kind=kind, timeline=timeline,
                figure=figure, observe=observe,
            )  # fmt: skip
        if measure or fvcore:
            from edgefl.commands import measuring

            held = {"kind": kind, "stage": stage, "hear": observe}
            if measure:
                found["measured"] = measuring.measure(scenarios[0], overrides or (), **held)
            if fvcore:
                found["fvcore"] = measuring.count(scenarios[0], overrides or (), **held)
    if as_json:
        _print_json(found)
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
    from edgefl.commands.cost_diff import RowsDiffer, share_of
    from edgefl.commands.cost_diff import cost_diff as compare
    from edgefl.report import print_cost_difference

    show = _print_json if as_json else print_cost_difference
    try:
        found = compare(old, new, fail_above=share_of(fail_above))
    except RowsDiffer as error:
        show(error.found)
        raise
    show(found)
    if found["grew"]:
        raise typer.Exit(1)


@app.command()
def sweep(
    scenario: ScenarioFile,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary", metavar="PATH=VALUE,...", help="Values to try in turn: fleet.budgets.memory=16MiB,32MiB."
        ),
    ] = None,
    overrides: Overrides = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="DIR", help="Keep rows there (jsonl, csv); known ones are reused."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Vary a scenario without training: who could take part, and what a round would cost them."""
    from edgefl.report import print_sweep

    with _observing() as observe:
        from edgefl.commands import sweep as survey

        rows = survey(scenario, vary or (), overrides=overrides or (), output=output, observe=observe)
    _print_json({"rows": rows}) if as_json else print_sweep(rows)


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

    with _observing() as observe:
        from edgefl.commands import validate as check

        found = check(scenario, overrides or (), observe=observe)
    if as_json:
        _print_json(found)
    elif resolved:
        from edgefl.scenario import load

        typer.echo(load(found["resolved"]).to_yaml(), nl=False)
    else:
        print_validation(found)


@app.command()
def devices(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One device or link, with its sources.")] = None,
    as_json: AsJson = False,
) -> None:
    """List devices and links with their numbers; with a name, ranges and sources too."""
    from edgefl.devices import device, device_names, link, link_names
    from edgefl.report import print_devices

    found: dict[str, Any]
    if name is None:
        found = {
            "devices": [_described(device(n)) for n in device_names()],
            "links": [_described(link(n)) for n in link_names()],
        }
    elif name in device_names():
        found = _described(device(name))
    elif name in link_names():
        found = _described(link(name))
    else:
        raise UnknownName("device or link", name, [*device_names(), *link_names()])
    _print_json(found) if as_json else print_devices(found)


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List methods and schedules with their options."""
    from edgefl import registry
    from edgefl.report import print_methods

    found = {
        f"{noun}s": [_options(name, registry.get(noun, name)) for name in registry.names(noun)]
        for noun in ("method", "schedule")
    }
    _print_json(found) if as_json else print_methods(found)


# --- what commands print ---------------------------------------------------------------------------------------------


def _print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def _message(text: str) -> None:
    sys.stderr.write(f"edgefl: {text}\n")


@contextmanager
def _observing() -> Iterator[Any]:
    """Progress of a command that only predicts."""
    from edgefl.report import make_progress

    try:
        with make_progress() as progress:
            yield progress
    except KeyboardInterrupt:
        _message("interrupted")
        raise typer.Exit(INTERRUPTED) from None


def _how_to_go_on(folder: str | None) -> str:
    from pathlib import Path

    from edgefl.runs import begun, is_comparison

    if folder is None:
        return "nothing was written"
    place = Path(folder)
    if is_comparison(place.parent):
        return f"go on with: edgefl run --resume {place.parent}"
    return f"go on with: edgefl run --resume {place}" if begun(place) else "nothing was written"


def _test_samples(done: Run) -> dict[str, dict[str, int]]:
    """How many samples each split of the server has, by kind.  Of a comparison whose runs differ in it: nothing."""
    from edgefl.commands.composing import federation_of
    from edgefl.scenario import load

    scenario = load(dict(done.scenario))
    if any(path.partition(".")[0] in ("data", "seed", "model") for path in scenario.compare):
        return {}
    held = federation_of(scenario, lambda _: None).server_samples
    return {split: dict(sizes) for split, sizes in held.items()}


def _described(profile: Any) -> dict[str, Any]:
    values = {}
    for name, fact in profile.facts.items():
        source = {**fact.source.model_dump(mode="json")}
        values[name] = {"value": fact.value, "low": fact.low, "high": fact.high, "confidence": fact.confidence,
                        "source": source}  # fmt: skip
    return {"name": profile.name, "title": profile.title, "values": values}


def _options(name: str, owner: Any) -> dict[str, Any]:
    model: type[BaseModel] | None = getattr(owner, "Options", None)
    text = getattr(owner, "summary", "") or (owner.__doc__ or "").strip().partition("\n")[0]
    options = []
    schema = model.model_json_schema()["properties"] if model else {}
    for field, about in schema.items():
        if field == "name":
            continue
        default = about.get("default")
        shown = "required" if "default" not in about else "-" if default is None else _spelled(default)
        options.append(
            {"name": field, "default": shown, "values": _values(about), "description": about.get("description", "")}
        )
    return {"name": name, "summary": text, "options": options}


def _spelled(default: Any) -> str:
    return default if isinstance(default, str) else json.dumps(default)


def _values(about: dict[str, Any]) -> str:
    """What a field takes, in few words, from its JSON Schema."""
    if "enum" in about:
        return " | ".join(map(str, about["enum"]))
    if "const" in about:
        return str(about["const"])
    if "anyOf" in about:
        return " | ".join(words for one in about["anyOf"] if (words := _values(one)) != "null")
    if about.get("type") == "array":
        return f"[{_values(about.get('items', {}))}, ...]"
    return {"boolean": "true | false", "integer": "whole number", "number": "number", "string": "text"}.get(
        str(about.get("type", "")), str(about.get("type", "any"))
    )


# --- the entry point -------------------------------------------------------------------------------------------------


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int,
    file: TextIO | None = None, line: str | None = None,
) -> None:  # fmt: skip
    _message("warning: " + " ".join(str(message).split()))


def main(arguments: Sequence[str] | None = None) -> None:
    """The console command: ends with exit code 0, 2 for what the user can mend, 1 for what failed, 130 if stopped."""
    with warnings.catch_warnings():
        warnings.showwarning = _one_line
        try:
            app(list(arguments) if arguments is not None else None, prog_name="edgefl")
        except EdgeflError as error:
            _message(f"error: {error}")
            sys.exit(error.exit_code)
        except BrokenPipeError:
            # whoever read our output has seen enough; nothing more may be written at the end either
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)


if __name__ == "__main__":
    main()
