"""Options and arguments that several commands share, each said once; a command's own stand in its function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import os

    from edgefl.scenario import Scenario

    Given = str | os.PathLike[str] | Mapping[str, Any] | Scenario
    Changes = Sequence[str]
    Place = str | os.PathLike[str]
else:  # the command line reads words
    Given, Changes, Place = str, Sequence[str], str


def option(help: str, metavar: str | None = None, *flags: str, **more: Any) -> Any:
    """What an option is: its help, what stands for its value, and its flags if they aren't its name."""
    return typer.Option(*flags, help=help, metavar=metavar, **more)


def argument(help: str, metavar: str, **more: Any) -> Any:
    """What an argument is: its help, and what stands for it."""
    return typer.Argument(help=help, metavar=metavar, **more)


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


def _load_plug_ins(context: typer.Context, files: list[str] | None) -> list[str] | None:
    """Load plug-in files as soon as they are read from the command line, before any scenario is."""
    if files and not context.resilient_parsing:  # the shell asks what may follow
        from edgefl import registry

        for file in files:
            registry.load_plug_in(file)
    return files


_ONE_SCENARIO = argument(
    "A scenario file, or the name of a shipped one: quickstart.",
    "SCENARIO", autocompletion=shipped_and_files, callback=check_scenario_exists,
)  # fmt: skip

ScenarioFile = Annotated[Given, _ONE_SCENARIO]
MaybeScenario = Annotated[Given | None, _ONE_SCENARIO]
RunFolder = Annotated[Place, argument("The folder of a run or of a comparison, finished or not.", "RUN")]
RunOrScenario = Annotated[
    Given, argument("The folder of a run or a comparison, finished or not; for executorch a scenario.", "RUN|SCENARIO")
]
OneRun = Annotated[Place, argument("The folder of a run, finished or not: runs/quickstart.", "RUN")]
Overrides = Annotated[
    Changes,
    option("Change a field: training.lr=1e-3; may be repeated.", "PATH=VALUE", "--set", callback=_name_sections),
]
OneKind = Annotated[str | None, option("Only this kind of client.", "NAME")]
Force = Annotated[bool, option("Overwrite an existing file.")]
Jobs = Annotated[int, option("Run N of several runs side by side, in processes.", "N", min=1)]
PricingJobs = Annotated[
    int | None, option("Price more than four works in N processes; default: one for each core.", "N", min=1)
]
Address = Annotated[str | None, option("Run the N jobs on the nodes of this Ray cluster.", "HOST:PORT|auto")]
Shard = Annotated[str | None, option("Do the K-th of M shares; the others may write to the folder too.", "K/M")]
PLUGIN = option(
    "Run a Python file of yours first, whose parts (edgefl.register) are then known. May be repeated.",
    "FILE", "--plugin", callback=_load_plug_ins,
)  # fmt: skip
"""Each command has it; its callback does all the work."""
