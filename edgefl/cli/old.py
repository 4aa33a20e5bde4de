"""Goes with the last of cli.

Results go to stdout, progress and messages to stderr.  Modules that are slow to import are imported inside the
commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgefl.console.app import app as app
from edgefl.console.app import examples as examples
from edgefl.console.app import interruptible as interruptible
from edgefl.console.app import print_json as print_json
from edgefl.terminal import say

if TYPE_CHECKING:
    from edgefl.records.devices import BrokenPart


def shipped_and_files(incomplete: str) -> list[str]:
    """Shipped scenarios and YAML files that begin with these characters, for the shell's completion."""
    from glob import escape, glob

    from edgefl.scenario.library import scenario_names

    files = [name for pattern in ("*.yaml", "*.yml", "*/") for name in glob(escape(incomplete) + pattern)]
    return [*(name for name in scenario_names() if name.startswith(incomplete)), *sorted(files)]


def check_scenario_exists(context: typer.Context, given: Any) -> Any:
    """Raise ScenarioError for a scenario that isn't there or isn't YAML, before torch is imported."""
    if given and not context.resilient_parsing:  # the shell asks what may follow
        from edgefl.scenario.library import find_document

        for scenario in [given] if isinstance(given, str) else given:
            find_document(scenario)
    return given


def _name_sections(context: typer.Context, overrides: list[str] | None) -> list[str] | None:
    """Raise ScenarioError for overrides that no scenario can take, before torch is imported."""
    if overrides and not context.resilient_parsing:
        from edgefl.scenario.keys import check_overrides

        check_overrides(overrides)
    return overrides


ScenarioFile = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO",
        help="A scenario file, or the name of a shipped one: quickstart.",
        autocompletion=shipped_and_files,
        callback=check_scenario_exists,
    ),
]
ScenarioFiles = Annotated[
    list[str],
    typer.Argument(
        metavar="SCENARIO...",
        help="A scenario file, or the name of a shipped one: quickstart. May be several.",
        autocompletion=shipped_and_files,
        callback=check_scenario_exists,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        callback=_name_sections,
        help="Change a field: training.lr=1e-3. May be repeated.",
    ),
]


def _load_plug_ins(context: typer.Context, files: list[str] | None) -> list[str] | None:
    """Load plug-in files as soon as they are read from the command line, before any scenario is."""
    if files and not context.resilient_parsing:  # the shell asks what may follow
        from edgefl import registry

        for file in files:
            registry.load_plug_in(file)
    return files


Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        callback=_load_plug_ins,
        help="Run a Python file of yours first, whose parts (edgefl.register) are then known. May be repeated.",
    ),
]
"""Parameter of each command that takes a scenario or a run; its callback does all the work."""

Jobs = Annotated[
    int, typer.Option("--jobs", metavar="N", min=1, help="Run N of several runs side by side, in processes.")
]
PricingJobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", metavar="N", min=1, help="Price more than four works in N processes; default: one for each core."
    ),
]
Address = Annotated[
    str | None,
    typer.Option("--address", metavar="HOST:PORT|auto", help="Run the N jobs on the nodes of this Ray cluster."),
]
Shard = Annotated[
    str | None,
    typer.Option("--shard", metavar="K/M", help="Do the K-th of M shares; the others may write to the folder too."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print plain JSON instead of tables.")]


def say_broken(broken: Iterable[BrokenPart]) -> None:
    """Print a line on stderr for each part that a list leaves out because it is broken."""
    for each in broken:
        say(f"left out: {each.message}")


@contextmanager
def observing(what: str = "") -> Iterator[Any]:
    """Yield the progress display of a command, which ends as one that is ``interruptible``."""
    from edgefl.console.display import make_progress

    with interruptible(lambda: what), make_progress() as progress:
        yield progress
