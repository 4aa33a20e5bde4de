"""Fields of a scenario that name registered parts: what they may hold, as JSON Schema."""

from __future__ import annotations

from typing import Any

from edgefl import registry
from edgefl.errors import EdgeflError


class NamesOf:
    """Annotates a field that holds the name of a part of this noun."""

    def __init__(self, noun: str):
        self.noun = noun

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": "string", "enum": registry.names(self.noun)}


class OptionsOf:
    """Annotates a field that holds the fields of a part of this noun, with its name under ``key``."""

    def __init__(self, noun: str, key: str):
        self.noun, self.key = noun, key

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        forms = []
        for name in registry.names(self.noun):
            form: dict[str, Any] = {"type": "object", "properties": {}}
            try:
                form = handler.resolve_ref_schema(
                    handler(registry.get(self.noun, name).Options.__pydantic_core_schema__)
                )
            except EdgeflError:  # the plug-in can't be imported: its name alone
                form = {"type": "object", "properties": {}}
            forms.append({**form, "properties": {**form["properties"], self.key: {"const": name}}})
        return {"anyOf": forms}
