"""The command ``edgefl compare``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from edgefl.cli.old import AsJson, Plugins, app, examples, observing, print_json
from edgefl.terminal import say


@app.command(epilog=examples("edgefl compare runs/mine", "edgefl compare runs/mine --latex"))
def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Folders of finished runs, or of comparisons.")],
    full: Annotated[bool, typer.Option("--full", help="Show all metrics and costs.")] = False,
    orderings: Annotated[
        bool, typer.Option("--orderings", help="Print as Markdown which row beats which beyond chance.")
    ] = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="Print the rows as a table for LaTeX (booktabs).")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV instead of tables.")] = False,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs over their seeds: mean and spread of metrics and costs, also at equal time, bytes and joules."""
    from edgefl.commands.compare.latex import comparison_latex
    from edgefl.commands.compare.table import comparison_csv, orderings_markdown, print_comparison

    if as_csv + as_json + as_latex + orderings > 1:
        raise typer.BadParameter("--csv, --latex, --json and --orderings can't be combined", param_hint="--csv")
    with observing() as on_progress:
        from edgefl.commands.compare import command

        result = command.compare(runs, on_progress=on_progress)
    for sentence in result.left_out:
        say(f"left out: {sentence}")
    if as_json:
        print_json(result)
    elif as_csv:
        sys.stdout.write(comparison_csv(result))
    elif as_latex:
        sys.stdout.write(comparison_latex(result, full=full))
    elif orderings:
        sys.stdout.write(orderings_markdown(result.orderings, result.split))
    else:
        print_comparison(result, full=full)
