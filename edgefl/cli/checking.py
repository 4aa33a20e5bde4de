"""The command ``edgefl check``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from edgefl.cli.old import AsJson, Overrides, Plugins, app, examples, print_json

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
