"""The shipped scenarios, and the lookup of a scenario by path or shipped name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from edgefl.errors import ScenarioError
from edgefl.scenario.document import Document, read_file

SCHEMA = "edgefl.schema.json"
"""File of the scenarios' JSON Schema, in the library's folder and beside a user's scenario."""


def library_folder() -> Path:
    """The folder of the shipped scenarios: inside an installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    shipped = package / "shipped" / "scenarios"
    return shipped if shipped.is_dir() else package.parent / "scenarios"


@cache
def fields_by_section() -> dict[str, set[str]]:
    """The names of the fields of each section of a scenario, by the shipped JSON Schema; imports nothing."""
    schema = json.loads((library_folder() / SCHEMA).read_text(encoding="utf-8"))

    def fields(part: Mapping[str, Any]) -> Iterator[str]:
        yield from part.get("properties", ())
        for inner in part.get("anyOf", ()):
            yield from fields(inner)
        if name := part.get("$ref"):
            yield from fields(schema["$defs"][name.rpartition("/")[2]])

    return {section: set(fields(part)) for section, part in schema["properties"].items()}


SUITES = "suites"
"""The folder of the shipped suites, in the library's."""


def scenario_names() -> list[str]:
    """The names of the shipped scenarios: ``quickstart``, ``papers/fedcola-colayer-none``, ..."""
    folder = library_folder()
    paths = [path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")]
    return sorted(path for path in paths if not path.startswith(f"{SUITES}/"))


def suite_names() -> list[str]:
    """The names of the shipped suites: ``memory``, ``small``, ..."""
    return sorted(path.stem for path in (library_folder() / SUITES).glob("*.yaml"))


def text_of(path: str | Path) -> str:
    """The text of a file or a shipped scenario that ``find_document`` has found."""
    direct = Path(path)
    file = direct if direct.is_file() else library_folder() / f"{str(path).removesuffix('.yaml')}.yaml"
    return file.read_text(encoding="utf-8-sig")


def find_document(path: str | Path) -> Document:
    """The document in this file or of this shipped name.  Raises ScenarioError with the nearest name."""
    given = str(path)
    if "\0" in given or not given.strip():
        raise ScenarioError(f"{given!r} can't be the name of a file")
    direct = Path(path)
    try:
        if direct.is_file():
            return read_file(direct, given)
        names = scenario_names()
        name = given.removesuffix(".yaml")
        if name in names:
            return read_file(library_folder() / f"{name}.yaml", given)
        if direct.exists():
            return read_file(direct, given)
    except OSError as error:  # the name is too long, or a folder is not accessible
        raise ScenarioError(f"this file can't be read: {error.strerror}", file=given) from error
    beside = [p.name for p in direct.parent.glob("*.y*ml")] if direct.parent.is_dir() else []
    near = get_close_matches(direct.name, beside, 1) or get_close_matches(name, names, 1, 0.5)
    top = [name for name in names if "/" not in name]
    others = f" and {len(names) - len(top)} in folders such as papers/" if len(top) < len(names) else ""
    hint = f"; did you mean {near[0]!r}?" if near else f"; shipped scenarios: {', '.join(top)}{others}" if names else ""
    raise ScenarioError(f"there is no such file or shipped scenario{hint}", file=given)
