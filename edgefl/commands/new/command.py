"""``edgefl new`` as it is typed, and ``edgefl.new`` as it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from edgefl.console.derived import argument, command, option
from edgefl.console.options import Force, shipped_and_files

if TYPE_CHECKING:
    from edgefl.commands.new.answer import NewScenario


def _fleets(incomplete: str) -> list[str]:
    from edgefl.devices.fleet_profile import fleet_names

    return [name for name in fleet_names() if name.startswith(incomplete)]


@command(
    "edgefl new mine", "edgefl new study/first --like papers/fedcola-colayer-none", "edgefl new night --fleet phones",
    answer="edgefl.commands.new.answer:NewScenario", forms={"table": "edgefl.commands.new.answer:lines_of"},
)  # fmt: skip
def new(
    name: Annotated[str, argument("Name of the scenario; the file is NAME.yaml, in folders that are made.", "NAME")],
    like: Annotated[
        str,
        option(
            "Scenario to begin with: a shipped one (tour explains every section) or a file.",
            "SCENARIO",
            autocompletion=shipped_and_files,
        ),
    ] = "quickstart",
    fleet: Annotated[
        str | None,
        option("Fleet of the library that takes the place of the scenario's: phones.", "FLEET", autocompletion=_fleets),
    ] = None,
    *,
    force: Force = False,
) -> NewScenario:
    """Write a commented scenario to begin with.

    It is a copy of another with its comments, and the schema with which editors check it lies next to it.

    Returns:
        ``scenario``, ``schema`` (their files), ``like`` and ``fleet``.

    Raises:
        UnknownName: There is no such fleet.
        ScenarioError: There is no scenario ``like``, or a file of that name already, or a file can't be written.

    Examples:
        >>> import edgefl
        >>> edgefl.new("mine", like="quickstart").scenario
        'mine.yaml'
    """
    from pathlib import Path

    from edgefl.commands.new.answer import NewScenario
    from edgefl.commands.new.copied_text import copied_text
    from edgefl.commands.validate.schemas import scenario_schema_text
    from edgefl.errors import ScenarioError, printable
    from edgefl.files import output
    from edgefl.scenario.library import SCHEMA

    path = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    if not path.stem.strip() or not path.stem.isprintable() or "\0" in name:
        raise ScenarioError(f"{printable(name)!r} can't be the name of a scenario")
    text, schema = copied_text(like, path, fleet), path.parent / SCHEMA
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ScenarioError(f"its folder can't be made: {error.strerror}", file=str(path)) from error
    try:
        if path.exists() and not force:
            raise FileExistsError
        with output(path) as file:
            file.write(text.encode())
        if not schema.exists():
            with output(schema) as file:
                file.write(scenario_schema_text().encode())
    except FileExistsError:
        told = "there is such a file already: choose another name, or add --force"
        raise ScenarioError(told, file=str(path)) from None
    except OSError as error:
        raise ScenarioError(f"can't be written: {error.strerror}", file=str(path)) from error
    return NewScenario(scenario=str(path), schema=str(schema), like=like, fleet=fleet)
