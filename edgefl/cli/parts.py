"""The commands that list parts (``edgefl methods``, ``schedules``, ...), and ``edgefl check``, which checks a part."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from edgefl.console.app import AsJson, Overrides, Plugins, app, examples, print_json, say_broken


@app.command(epilog=examples("edgefl methods", "edgefl methods fedcola"))
def methods(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A method or a schedule, to print with its options.")
    ] = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """List methods and schedules with a line each, or one with its options; and broken parts of plug-ins."""
    _list("methods", "schedules", name=name, as_json=as_json)


@app.command(epilog=examples("edgefl models", "edgefl models --json"))
def models(plugins: Plugins = None, as_json: AsJson = False) -> None:
    """List the towers that encode a modality, and the models that towers form, with a line each."""
    _list("towers", "models", as_json=as_json)


@app.command(epilog=examples("edgefl data", "edgefl data --json"))
def data(plugins: Plugins = None, as_json: AsJson = False) -> None:
    """List data sets and partitions over clients, with a line each."""
    _list("data_sets", "partitions", as_json=as_json)


@app.command(epilog=examples("edgefl schedules", "edgefl schedules --json"))
def schedules(plugins: Plugins = None, as_json: AsJson = False) -> None:
    """List schedules, which say what trains in which round, with a line each."""
    _list("schedules", as_json=as_json)


@app.command(epilog=examples("edgefl selections", "edgefl selections --json"))
def selections(plugins: Plugins = None, as_json: AsJson = False) -> None:
    """List selections, which choose the clients of a round, with a line each."""
    _list("selections", as_json=as_json)


@app.command(epilog=examples("edgefl policies", "edgefl policies --json"))
def policies(plugins: Plugins = None, as_json: AsJson = False) -> None:
    """List round policies, which say when a round ends, with a line each."""
    _list("policies", as_json=as_json)


@app.command(epilog=examples("edgefl aggregations", "edgefl aggregations --json"))
def aggregations(plugins: Plugins = None, as_json: AsJson = False) -> None:
    """List rules of aggregation, server optimizers and codecs of payloads, with a line each."""
    _list("rules", "server_optimizers", "codecs", as_json=as_json)


@app.command(epilog=examples("edgefl metrics", "edgefl metrics --json"))
def metrics(plugins: Plugins = None, as_json: AsJson = False) -> None:
    """List the metrics that an evaluation may have, with a line each."""
    _list("metrics", as_json=as_json)


@app.command(epilog=examples("edgefl optimizers", "edgefl optimizers --json"))
def optimizers(plugins: Plugins = None, as_json: AsJson = False) -> None:
    """List the optimizers and rate schedules that clients may train with, with a line each."""
    _list("optimizers", "rate_schedules", as_json=as_json)


def _list(*sections: str, as_json: bool, name: str | None = None) -> None:
    """Print these sections of the parts, or the part of this ``name``, as JSON or as text."""
    from edgefl.commands.parts.command import only, parts

    result = parts(sections) if name is None else only(parts(sections), name)
    if as_json:
        print_json(result)
        return
    from edgefl.commands.run.table import print_options, print_parts

    print_parts(result) if name is None else print_options(result)
    say_broken(result.broken or ())


BROKEN = 1
"""Exit code if a rule is broken."""


@app.command(epilog=examples("edgefl check schedule layerwise", "edgefl check selection oort --set round.cohort=3"))
def check(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="method, schedule, selection, policy or aggregation.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The part: a registered name.")],
    overrides: Overrides = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Check that a part of your own keeps the rules: repeatable, resumed alike, costs as predicted."""
    from edgefl.commands.check.check import check as command

    report = command(kind, name, overrides=overrides or ())
    if as_json:
        print_json({"kind": kind, **asdict(report), "ok": report.ok})
    else:
        typer.echo(str(report))
    if not report.ok:
        raise typer.Exit(BROKEN)
