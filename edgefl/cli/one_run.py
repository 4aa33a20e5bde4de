"""The command ``edgefl explain``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgefl.cli.old import AsJson, Plugins, app, examples, observing, print_json

OneRun = Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run, finished or not: runs/quickstart.")]


@app.command(epilog=examples("edgefl explain runs/mine --round 2", "edgefl explain runs/mine --round 2 --client 0"))
def explain(
    run: OneRun,
    round: Annotated[int, typer.Option("--round", metavar="N", min=1, help="The round, from 1.")],
    client: Annotated[
        int | None, typer.Option("--client", metavar="K", min=0, help="Tell this client's round in detail.")
    ] = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Explain a round: what its length is made of, what would have shortened it, and why each absent client was."""
    from edgefl.commands.explain.table import print_explanation

    with observing():
        from edgefl.commands.explain.command import explain as command

        result = command(run, round, client=client)
    print_json(result) if as_json else print_explanation(result)
