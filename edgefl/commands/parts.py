"""The parts that a scenario can name, each with a line and its options, as plain data.

edgefl's own parts stand in ``own_parts.json``, so that listing them doesn't import torch; ``tools/own_parts.py`` writes
the file, and a test compares it with the parts.  Parts of plug-ins are imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefl import registry

if TYPE_CHECKING:
    from pydantic import BaseModel

OWN = Path(__file__).with_name("own_parts.json")

LISTED = {
    "methods": "method",
    "schedules": "schedule",
    "towers": "tower",
    "models": "model",
    "data_sets": "data set",
    "partitions": "partition",
    "selections": "selection",
    "policies": "round policy",
    "rules": "aggregation",
    "server_optimizers": "server optimizer",
    "codecs": "codec",
    "metrics": "metric",
    "optimizers": "optimizer",
    "rate_schedules": "rate schedule",
}
"""What is listed under each name, as the registry calls it."""


def parts(sections: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """The parts of each of these sections of ``LISTED``, by name.

    A part has ``name``, ``summary``, and where it has any ``options``: name, default, values and description.  Where
    parts of plug-ins can't be listed, ``broken`` has them: part, name and message.
    """
    result: dict[str, list[dict[str, Any]]] = {}
    broken = {(noun, name): message for noun, name, message in registry.broken()}
    for section in sections:
        noun, result[section] = LISTED[section], []
        for name in registry.names(noun):
            if (noun, name) in broken:
                continue
            try:
                result[section].append(_own(section, name) or described(noun, name))
            except Exception as error:  # a plug-in's Options may be anything
                fault = f"its Options have no JSON Schema: {registry.said(error)}"
                broken[noun, name] = f"{registry.described(noun, name)} is broken: {fault}"
    if broken:
        result["broken"] = [{"part": noun, "name": name, "message": text} for (noun, name), text in broken.items()]
    return result


def _own(section: str, name: str) -> dict[str, Any] | None:
    """The entry of one of edgefl's own parts; None for a part of a plug-in."""
    if registry.origin(LISTED[section], name).package != "edgefl":
        return None
    return _entries().get(section, {}).get(name)


@cache
def _entries() -> dict[str, dict[str, dict[str, Any]]]:
    sections = json.loads(OWN.read_text(encoding="utf-8"))
    return {section: {entry["name"]: entry for entry in entries} for section, entries in sections.items()}


def described(noun: str, name: str) -> dict[str, Any]:
    """Name, summary and options of a part, from the part itself."""
    part = registry.get(noun, name)
    model: type[BaseModel] | None = getattr(part, "Options", None)
    # an instance, such as a data set, has its class's docstring, which says nothing about it
    documented = getattr(part, "made", part)  # a tower's own class of modules
    text = documented.__doc__ if isinstance(documented, type) or hasattr(documented, "__name__") else ""
    summary = getattr(part, "summary", "") or _first_sentence(text or "")
    entry: dict[str, Any] = {"name": name, "summary": summary}
    if noun in ("method", "schedule") or model is not None:
        key = {"tower": "tower", "codec": "dtype"}.get(noun, "name")
        entry["options"] = _options(model, key) if model is not None else []
    return entry


def _first_sentence(docstring: str) -> str:
    """The first sentence of a docstring's first paragraph, without its full stop and its double backticks."""
    paragraph = " ".join(docstring.strip().partition("\n\n")[0].split())
    return re.split(r"(?<!\bal)\. ", paragraph)[0].removesuffix(".").replace("``", "")


def _options(model: type[BaseModel], key: str) -> list[dict[str, str]]:
    options = []
    for field, schema in model.model_json_schema().get("properties", {}).items():
        if field == key:
            continue
        default = schema.get("default")
        text = "required" if "default" not in schema else "-" if default is None else _default_text(default)
        options.append(
            {"name": field, "default": text, "values": _values(schema), "description": schema.get("description", "")}
        )
    # an option that every method has comes after its own
    return sorted(options, key=lambda option: option["name"] == "personal")


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
