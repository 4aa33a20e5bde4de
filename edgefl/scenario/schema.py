"""The JSON Schema of the scenario format, for editors, with all names that are registered."""

from __future__ import annotations

import json
import re

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaValue

from edgefl import SCENARIO_FORMAT, registry
from edgefl.errors import EdgeflError
from edgefl.scenario.keys import ROWS, VERSION
from edgefl.scenario.sections import SECTIONS, Section, options_of

PARTS = "x-parts"
"""The key under which the schema lists the parts; validators pass over it."""


def json_schema() -> JsonSchemaValue:
    """The schema of a whole scenario file (JSON Schema 2020-12)."""
    definitions: dict[str, JsonSchemaValue] = {}
    sections = {key: _section(key, section, definitions) for key, section in SECTIONS.items()}
    values = {"type": "array", "minItems": 1}
    rows = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "object"}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "edgefl scenario",
        "type": "object",
        "properties": {
            VERSION: {"const": SCENARIO_FORMAT, "description": "version of the format"},
            "name": {"type": "string", "minLength": 1, "maxLength": 100},
            "seed": {"type": "integer", "minimum": 0, "default": 1, "description": "seed of all random numbers"},
            **sections,
            "compare": {
                "description": "paths, each with a list of values, and rows, by label with values by path; one run per "
                "combination",
                "anyOf": [
                    {"type": "object", "properties": {ROWS: rows}, "additionalProperties": values},
                    {"type": "null"},
                ],
            },
        },
        "required": [VERSION],
        "additionalProperties": False,
        PARTS: _parts(definitions),
        "$defs": definitions,
    }


def _parts(definitions: dict[str, JsonSchemaValue]) -> JsonSchemaValue:
    """Each part's line, and the definition of its options if it has any, by the registry's noun and by name."""
    listed: JsonSchemaValue = {noun: {} for noun in registry.GROUPS if noun != "profile library"}
    for noun, entries in listed.items():
        place = _place(noun)
        for name in registry.names(noun):
            try:
                part = registry.get(noun, name)
            except EdgeflError:  # the plug-in can't be imported
                continue
            entries[name] = {"summary": summary_of(part)}
            options = getattr(part, "Options", None)
            if options is not None and f"{place}.{name}" in definitions:
                entries[name]["$ref"] = f"#/$defs/{place}.{name}"
            elif options is not None:
                entries[name] |= _define(options, f"{noun}.{name}", definitions)
    return listed


def _place(noun: str) -> str:
    """The first place in a scenario where parts of a kind are named: ``method``, ``round.selection``."""
    for key, section in SECTIONS.items():
        if section.noun == noun:
            return key
        for name, (inner, *_) in section.inner.items():
            if inner == noun:
                return f"{key}.{name}"
    return ""


def summary_of(part: object) -> str:
    """A part's line: its ``summary``, or the first sentence of its docstring."""
    # an instance, such as a data set, has its class's docstring, which says nothing about it
    documented = getattr(part, "made", part)  # a tower's own class of modules
    text = documented.__doc__ if isinstance(documented, type) or hasattr(documented, "__name__") else ""
    return getattr(part, "summary", "") or _first_sentence(text or "")


def _first_sentence(docstring: str) -> str:
    """The first sentence of a docstring's first paragraph, without its full stop and its double backticks."""
    paragraph = " ".join(docstring.strip().partition("\n\n")[0].split())
    return re.split(r"(?<!\bal)\. ", paragraph)[0].removesuffix(".").replace("``", "")


def _section(key: str, section: Section, definitions: dict[str, JsonSchemaValue]) -> JsonSchemaValue:
    forms: list[JsonSchemaValue] = []
    if section.noun:
        names = registry.names(section.noun)
        forms = [
            _define_part(section.noun, name, "name", section.default, definitions, f"{key}.{name}") for name in names
        ]
        forms.append({"enum": names})
    else:
        assert section.owner is not None
        forms = [_define(section.owner, key, definitions)]
        for name, (noun, name_key, default) in section.inner.items():
            alternatives = [
                _define_part(noun, tower, name_key, default, definitions, f"{key}.{name}.{tower}")
                for tower in registry.names(noun)
            ]
            schema = definitions[key]["properties"][name]
            # a field that also takes a bare name has a string among its own forms
            text_forms = [form for form in schema.get("anyOf", ()) if form.get("type") == "string"]
            definitions[key]["properties"][name] = {**schema, "anyOf": [*alternatives, *text_forms, {"type": "null"}]}
        if section.short:
            forms.append({"type": "string"})
    return {"description": section.title, "anyOf": [*forms, {"type": "null"}]}


def _define_part(
    noun: str, name: str, name_key: str, default: str, definitions: dict[str, JsonSchemaValue], definition: str
) -> JsonSchemaValue:
    """Define the options registered under ``name``, including the key that holds the name; return the reference."""
    try:
        options = options_of(noun, name)
    except EdgeflError:  # the plug-in can't be imported: allow its name only
        definitions[definition] = {"type": "object", "properties": {name_key: {"const": name}}, "required": [name_key]}
        return {"$ref": f"#/$defs/{definition}"}
    reference = _define(options, definition, definitions)
    body = definitions[definition]
    body["properties"] = {**body.get("properties", {}), name_key: {"const": name}}
    required = set(body.get("required", [])) - {name_key} | (set() if name == default else {name_key})
    body["required"] = sorted(required)
    return reference


def _define(model: type[BaseModel], definition: str, definitions: dict[str, JsonSchemaValue]) -> JsonSchemaValue:
    """Add the model's schema under ``definition``, its inner ones under longer names; return the reference."""
    body = model.model_json_schema(ref_template="#/$defs/" + definition + ".{model}")
    for name, inner in body.pop("$defs", {}).items():
        definitions[f"{definition}.{name}"] = inner
    definitions[definition] = json.loads(json.dumps(body))
    return {"$ref": f"#/$defs/{definition}"}
