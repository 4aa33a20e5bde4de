"""The command ``edgefl papers``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgefl.cli.old import AsJson, app, examples, observing, print_json

OUTPUT = "runs/papers"


@app.command(epilog=examples("edgefl papers", "edgefl papers fedcola-colayer -o out", "edgefl papers --all -o out"))
def papers(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="A page of docs/papers; none: list the pages.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All pages.")] = False,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="DIR", help="Folder for the tables and figures.")
    ] = OUTPUT,
    train: Annotated[
        bool, typer.Option("--train", help="Also train what tables need, which takes an hour; can be resumed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make the tables and figures of docs/papers again, and say which cells differ from the committed ones.

    Without a name: list the pages.  Exit codes: 1 if a table differs or could not be made, 2 for an error in the call.
    """
    from edgefl.paper_tables.printed import print_page_list, print_papers

    if everything and names:
        raise typer.BadParameter("give names or --all, not both", param_hint="--all")
    if not names and not everything:
        from edgefl.paper_tables.papers import list_papers

        listed = list_papers()
        print_json(listed) if as_json else print_page_list(listed)
        return
    with observing("repeat the command to continue") as on_progress:
        from edgefl.paper_tables import papers as command

        result = command.papers(names or (), output=output, train=train, on_progress=on_progress)
    print_json(result) if as_json else print_papers(result)
    if not result.equal:
        raise typer.Exit(1)
