"""``edgefl new`` and ``edgefl schema``: a scenario to begin with, and the JSON Schema that editors check it with."""

from __future__ import annotations

import json
import re
from pathlib import Path

from edgefl import registry
from edgefl.errors import ScenarioError, UnknownName, printable
from edgefl.files import output
from edgefl.scenario.document import write
from edgefl.scenario.library import SCHEMA, find_document, library_folder, text_of

MODELINE = "# yaml-language-server: $schema="
"""The comment by which editors with yaml-language-server find a file's schema; a path relative to the file follows."""


def record_schemas(name: str | None = None) -> str:
    """The JSON Schema of a record, or a mapping from each record's name to its schema, as JSON text.

    Raises UnknownName.
    """
    from edgefl.commands.validate.schemas import RECORDS
    from edgefl.records.reading import schema

    if name is None:
        return json.dumps({name: schema(cls) for name, cls in RECORDS.items()}, indent=2) + "\n"
    if name not in RECORDS:
        raise UnknownName("record", name, RECORDS)
    return json.dumps(schema(RECORDS[name]), indent=2) + "\n"


def schema_text() -> str:
    """The JSON Schema of a scenario with the names of all registered parts, as text.

    It is the shipped file, unless parts of plug-ins are installed.
    """
    nouns = (noun for noun in registry.GROUPS if noun != "profile library")
    if all(registry.origin(noun, name).package == "edgefl" for noun in nouns for name in registry.names(noun)):
        return (library_folder() / SCHEMA).read_text(encoding="utf-8")
    from edgefl.scenario.schema import json_schema

    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def new(name: str, like: str = "quickstart", *, force: bool = False) -> dict[str, str]:
    """Write the scenario ``NAME.yaml``, a copy of another with its comments, and the schema beside it.

    Args:
        name: The new scenario's name, which may have folders before it, which are made, and ``.yaml`` behind it.
        like: A shipped scenario or a file.
        force: Overwrite a file of that name.

    Returns:
        ``scenario``, ``schema`` (their files) and ``like``.  A schema that is there already stays as it is.

    Raises:
        ScenarioError: There is no scenario ``like``, or a file of that name already, or a file can't be written.
    """
    path = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    if not path.stem.strip() or not path.stem.isprintable() or "\0" in name:
        raise ScenarioError(f"{printable(name)!r} can't be the name of a scenario")
    document = find_document(like)  # raises for a file that is no scenario
    text = _rename_scenario(text_of(like), path.stem)
    head = (
        f"{MODELINE}{SCHEMA}\n"
        f"# Begun as a copy of {printable(like)}.\n"
        f"#   edgefl validate {path.name}    checks it, and with --resolved prints every default\n"
        f"#   edgefl profile {path.name}     predicts costs without training\n"
        f"#   edgefl run {path.name}\n"
    )
    assert document.data
    schema = path.parent / SCHEMA
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ScenarioError(f"its folder can't be made: {error.strerror}", file=str(path)) from error
    try:
        if path.exists() and not force:
            raise FileExistsError
        with output(path) as file:
            file.write((head + text).encode())
        if not schema.exists():
            with output(schema) as file:
                file.write(schema_text().encode())
    except FileExistsError:
        raise ScenarioError(
            "there is such a file already: choose another name, or add --force", file=str(path)
        ) from None
    except OSError as error:
        raise ScenarioError(f"can't be written: {error.strerror}", file=str(path)) from error
    return {"scenario": str(path), "schema": str(schema), "like": like}


def _rename_scenario(text: str, name: str) -> str:
    """A scenario's text without its modeline and with this name."""
    lines = [line for line in text.splitlines() if not line.startswith(MODELINE)]
    named = write({"name": name}).strip()
    for number, line in enumerate(lines):
        if re.match(r"name\s*:", line):
            lines[number] = named
            break
    else:
        first = next((i for i, line in enumerate(lines) if re.match(r"edgefl\s*:", line)), -1)
        lines.insert(first + 1, named)
    return "\n".join(lines) + "\n"
