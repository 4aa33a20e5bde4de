"""The command ``edgefl methods``: methods and schedules with their options."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from edgefl.cli.app import AsJson, app, print_json

if TYPE_CHECKING:
    from pydantic import BaseModel


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List methods and schedules with their options."""
    from edgefl import registry
    from edgefl.report import print_methods

    result = {
        f"{noun}s": [_options(name, registry.get(noun, name)) for name in registry.names(noun)]
        for noun in ("method", "schedule")
    }
    print_json(result) if as_json else print_methods(result)


def _options(name: str, owner: Any) -> dict[str, Any]:
    """Name, summary and options of a method or schedule, as plain data."""
    model: type[BaseModel] | None = getattr(owner, "Options", None)
    summary = getattr(owner, "summary", "") or (owner.__doc__ or "").strip().partition("\n")[0]
    options = []
    fields = model.model_json_schema()["properties"] if model else {}
    for field, schema in fields.items():
        if field == "name":
            continue
        default = schema.get("default")
        text = "required" if "default" not in schema else "-" if default is None else _default_text(default)
        options.append(
            {"name": field, "default": text, "values": _values(schema), "description": schema.get("description", "")}
        )
    return {"name": name, "summary": summary, "options": options}


def _default_text(default: Any) -> str:
    return default if isinstance(default, str) else json.dumps(default)


def _values(schema: dict[str, Any]) -> str:
    """The values that a field accepts as short text, from its JSON Schema."""
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    if "anyOf" in schema:
        return " | ".join(words for choice in schema["anyOf"] if (words := _values(choice)) != "null")
    if schema.get("type") == "array":
        return f"[{_values(schema.get('items', {}))}, ...]"
    return {"boolean": "true | false", "integer": "whole number", "number": "number", "string": "text"}.get(
        str(schema.get("type", "")), str(schema.get("type", "any"))
    )
