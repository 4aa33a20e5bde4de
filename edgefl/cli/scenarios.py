"""The commands ``edgefl new`` and ``edgefl schema``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgefl.cli.old import AsJson, Plugins, app, examples, print_json, shipped_and_files


@app.command(epilog=examples("edgefl new mine", "edgefl new study/first --like papers/fedcola-colayer-none"))
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the scenario; the file is NAME.yaml.")],
    like: Annotated[
        str,
        typer.Option(
            "--like",
            metavar="SCENARIO",
            help="Scenario to begin with: a shipped one (tour explains every section) or a file.",
            autocompletion=shipped_and_files,
        ),
    ] = "quickstart",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a commented scenario to begin with, and beside it the schema with which editors check it."""
    from edgefl.commands.new.command import new as command

    result = command(name, like, force=force)
    if as_json:
        print_json(result)
    else:
        typer.echo(f"{result['scenario']}: a copy of {result['like']}, which {result['schema']} lets editors check")
        typer.echo(f"next: edgefl validate {result['scenario']}")


@app.command(epilog=examples("edgefl schema", "edgefl schema -o edgefl.schema.json", "edgefl schema records rounds"))
def schema(
    of: Annotated[
        str, typer.Argument(metavar="[scenario|records]", help="What the schema is of.", show_default=False)
    ] = "scenario",
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="One record, such as rounds or explain; all by default.", show_default=False
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE", help="Write the schema to a file.")
    ] = None,
    plugins: Plugins = None,
) -> None:
    """Print the JSON Schema of scenarios, with the parts of installed plug-ins, for editors; or those of records."""
    if of not in ("scenario", "records") or (name and of == "scenario"):
        raise typer.BadParameter(f"{of} {name or ''}".strip() + " isn't scenario, records, or records and one's name")
    from edgefl.commands.new.command import record_schemas, schema_text

    text = schema_text() if of == "scenario" else record_schemas(name)
    if output is None:
        typer.echo(text, nl=False)
        return
    from pathlib import Path

    from edgefl.runs.durable import write_output

    write_output(Path(output), text.encode())
