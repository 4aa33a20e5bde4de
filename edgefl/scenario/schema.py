"""The JSON Schema of the scenario format, for editors, with all names that are registered."""

from __future__ import annotations

import json

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaValue

from edgefl import registry
from edgefl.errors import EdgeflError
from edgefl.scenario.sections import FORMAT, SECTIONS, VERSION, Section, options_of


def json_schema() -> JsonSchemaValue:
    """The schema of a whole scenario file (JSON Schema 2020-12)."""
    definitions: dict[str, JsonSchemaValue] = {}
    sections = {key: _section(key, section, definitions) for key, section in SECTIONS.items()}
    values = {"type": "array", "minItems": 1}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "edgefl scenario",
        "type": "object",
        "properties": {
            VERSION: {"const": FORMAT, "description": "version of the format"},
            "name": {"type": "string", "minLength": 1, "maxLength": 100},
            "seed": {"type": "integer", "minimum": 0, "default": 1, "description": "seed of all random numbers"},
            **sections,
            "compare": {
                "description": "paths, each with a list of values; one run per combination",
                "anyOf": [{"type": "object", "additionalProperties": values}, {"type": "null"}],
            },
        },
        "required": [VERSION],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _section(key: str, section: Section, definitions: dict[str, JsonSchemaValue]) -> JsonSchemaValue:
    forms: list[JsonSchemaValue] = []
    if section.noun:
        names = registry.names(section.noun)
        forms = [_named(section.noun, name, "name", section.default, definitions, f"{key}.{name}") for name in names]
        forms.append({"enum": names})
    else:
        assert section.owner is not None
        forms = [_define(section.owner, key, definitions)]
        for name, (noun, name_key, default) in section.inner.items():
            alternatives = [
                _named(noun, tower, name_key, default, definitions, f"{key}.{name}.{tower}")
                for tower in registry.names(noun)
            ]
            schema = definitions[key]["properties"][name]
            # a field that also takes a bare name has a string among its own forms
            text_forms = [form for form in schema.get("anyOf", ()) if form.get("type") == "string"]
            definitions[key]["properties"][name] = {**schema, "anyOf": [*alternatives, *text_forms, {"type": "null"}]}
        if section.short:
            forms.append({"type": "string"})
    return {"description": section.title, "anyOf": [*forms, {"type": "null"}]}


def _named(
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
