"""Fields of a scenario, and those of them that name registered parts: what they may hold, as JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import JsonSchemaValue

from edgefl import registry
from edgefl.errors import EdgeflError


class Fields(BaseModel):
    """Base class of options: a field that isn't one of theirs is an error, and none can be set later."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def parse_options(noun: str, default: str, value: object, shape: str) -> BaseModel:
    """Options of a part of this noun, from its name or from a mapping with a ``name``; ``shape`` says what it may be.

    Raises UnknownName, and pydantic's ValidationError for wrong fields.
    """
    if isinstance(value, BaseModel):
        return value
    fields = {"name": value} if isinstance(value, str) else value
    if not isinstance(fields, Mapping):
        raise ValueError(f"{shape}, not {value!r}")
    name = fields.get("name", default)
    options: type[BaseModel] = registry.get(noun, name).Options
    return options.model_validate({**fields, "name": name})


class NamesOf:
    """Annotates a field that holds the name of a part of this noun."""

    def __init__(self, noun: str):
        self.noun = noun

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> JsonSchemaValue:
        return {"type": "string", "enum": registry.names(self.noun)}


class OptionsOf:
    """Annotates a field that holds the fields of a part of this noun, with its name under ``key``."""

    def __init__(self, noun: str, key: str):
        self.noun, self.key = noun, key

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> JsonSchemaValue:
        forms = []
        for name in registry.names(self.noun):
            try:
                form = handler.resolve_ref_schema(
                    handler(registry.get(self.noun, name).Options.__pydantic_core_schema__)
                )
            except EdgeflError:  # the plug-in can't be imported: its name alone
                form = {"type": "object", "properties": {}}
            forms.append({**form, "properties": {**form["properties"], self.key: {"const": name}}})
        return {"anyOf": forms}
