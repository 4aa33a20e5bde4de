"""Read the fields of a scenario from its document, and write them as plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from edgefl.data import DataOptions, with_named_clients
from edgefl.errors import EdgeflError, ScenarioError
from edgefl.scenario.disagreements import data_errors, disagreements
from edgefl.scenario.document import Document
from edgefl.scenario.keys import check_keys
from edgefl.scenario.problems import collecting, raise_all, show, validate
from edgefl.scenario.sections import SECTIONS

LARGEST_SEED = 2**63 - 1
"""The largest signed integer of 64 bits, which NumPy and torch take."""
MOST_KNOWN = 200
"""Sections that are held of a document and its cells: some ten cells without a section in common."""


def read_parts(document: Document) -> tuple[dict[str, Any], list[ScenarioError], list[ScenarioError]]:
    """The valid fields of a ``Scenario`` except ``compare``, errors of single fields, and contradictions of sections.

    Contradictions are looked for only where every field is valid.
    """
    errors = check_keys(document)
    names: dict[str, str] = {}
    options: dict[str, BaseModel] = {}
    for key in SECTIONS:
        with collecting(errors):
            name, options[key] = _known_section(document, key)
            if name is not None:
                names[key] = name
    fields: dict[str, Any] = {f"{key}_name": name for key, name in names.items()}
    for key, read in (("name", _name), ("seed", _seed)):
        with collecting(errors):
            fields[key] = read(document)
    fields |= {f"{key}_options" if key in names else key: section for key, section in options.items()}
    return fields, errors, [] if errors else disagreements(document, options, names)


def _known_section(document: Document, key: str) -> tuple[str | None, BaseModel]:
    """``read_section``, once for each section that documents share, with what the data themselves say.

    Raises ScenarioError.
    """
    given = document.data.get(key)
    if (found := document.known.get((key, id(given)))) is None:
        if len(document.known) >= MOST_KNOWN:
            document.known.clear()
        name, options = read_section(document, key)
        if isinstance(options, DataOptions):
            options = _checked_data(document, options)
        # the section is held, so that no other one gets its identity
        found = document.known[key, id(given)] = (given, name, options)
    return found[1:]


def _checked_data(document: Document, options: DataOptions) -> DataOptions:
    """The options with the clients that the data name.  Raises ScenarioError with all that is wrong with the data."""
    errors: list[ScenarioError] = []
    try:
        options = with_named_clients(options)
    except EdgeflError as error:
        errors.append(document.error(("data",), str(error)))
    raise_all(errors + data_errors(document, options))
    return options


def read_section(document: Document, key: str) -> tuple[str | None, BaseModel]:
    """The registered name that a section chooses (None for a section without one), and its options.

    Raises ScenarioError for an invalid section.
    """
    section, given = SECTIONS[key], document.data.get(key)
    if given is None:
        given = {}
    if not isinstance(given, dict):
        word = f", or one word for its {section.short!r}" if section.short else ""
        raise document.error((key,), f"must be a mapping of fields{word}, not {show(given)}")
    if section.noun is None:
        return None, validate(section.model(given), given, document, (key,), section.nested_model)
    name = given.get("name", section.default)
    if not isinstance(name, str):
        raise document.error((key, "name"), f"must be the name of a {section.noun}, not {show(name)}")
    try:
        model = section.model(given)
    except EdgeflError as error:
        raise document.error((key, "name"), str(error)) from error
    fields = given if "name" in model.model_fields else {k: v for k, v in given.items() if k != "name"}
    return name, validate(model, fields, document, (key,))


def plain_section(name: str | None, options: BaseModel) -> dict[str, object]:
    """A section as plain data with every default written out, readable by ``read_section``."""
    # round_trip omits computed fields (the width of a ResNet), which a scenario can't set
    fields = options.model_dump(mode="json", by_alias=True, round_trip=True)
    if name is None:
        return fields
    return {"name": name, **{k: v for k, v in fields.items() if k != "name"}}


def _name(document: Document) -> str:
    name = document.data.get("name")
    if name is None:
        return Path(document.file).stem if document.file else "scenario"
    if not isinstance(name, str):
        raise document.error(("name",), f"must be text, not {show(name)}; put it in quotes")
    if not name.strip() or len(name) > 100 or not name.isprintable():
        raise document.error(("name",), f"must be 1 to 100 printable characters, not {show(name)}")
    return name


def _seed(document: Document) -> int:
    seed = document.data.get("seed")
    if seed is None:
        return 1
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= LARGEST_SEED:
        raise document.error(("seed",), f"must be a whole number from 0 to 2^63 - 1, not {show(seed)}")
    return seed
