"""The command ``edgefl doctor``: whether this machine can run edgefl.

It prints plain lines and imports no tables, since what tables need may be what is broken.
"""

from __future__ import annotations

from typing import Annotated

import typer

from edgefl.cli.app import AsJson, app, examples, print_json, say

UNHEALTHY = 1
"""Exit code if a check found an error."""


@app.command(epilog=examples("edgefl doctor --quick", "edgefl doctor --quick --json"))
def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the runs, which take about ten seconds.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check versions, GPU, cache, disk and memory, and run a small scenario."""
    from edgefl.commands import doctor as command

    result = command.doctor(runs=not quick, on_progress=lambda event, facts: say(facts["what"]))
    if as_json:
        print_json(result)
    else:
        width = max(len(check["name"]) for check in result["checks"])
        for check in result["checks"]:
            advice = f"; {check['advice']}" if check["advice"] else ""
            typer.echo(f"{check['status']:<8}{check['name']:<{width}}  {check['found']}{advice}")
    if not result["healthy"]:
        raise typer.Exit(UNHEALTHY)
