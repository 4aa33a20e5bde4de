"""The command ``edgefl methods``: methods and schedules with their options."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from edgefl.cli.app import AsJson, app, interruptible, print_json, say_broken

if TYPE_CHECKING:
    from pydantic import BaseModel


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List methods and schedules with their options, and the parts of plug-ins that are broken."""
    from edgefl import registry
    from edgefl.report import print_methods

    with interruptible():
        broken = {(noun, name): message for noun, name, message in registry.broken()}
        result: dict[str, list[dict[str, Any]]] = {"methods": [], "schedules": []}
        for noun in ("method", "schedule"):
            for name in registry.names(noun):
                if (noun, name) not in broken:
                    try:
                        result[f"{noun}s"].append(_options(name, registry.get(noun, name)))
                    except Exception as error:  # a plug-in's Options may be anything
                        fault = f"its Options have no JSON Schema: {registry.said(error)}"
                        broken[noun, name] = f"{registry.described(noun, name)} is broken: {fault}"
    faults = [{"part": noun, "name": name, "message": message} for (noun, name), message in broken.items()]
    print_json({**result, **({"broken": faults} if faults else {})}) if as_json else print_methods(result)
    if not as_json:
        say_broken(faults)


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
