"""The parts that a scenario can name, each with a line and its options.

edgefl's own parts are read from the shipped JSON Schema of scenarios, so that listing them doesn't import torch.  Parts
of plug-ins are imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from edgefl import registry
from edgefl.commands.parts.answer import ListedPart, PartOption, Parts
from edgefl.errors import UnknownName
from edgefl.records.devices import BrokenPart
from edgefl.records.record import UNSET
from edgefl.scenario.library import SCHEMA, library_folder

if TYPE_CHECKING:
    from pydantic import BaseModel


def kind_names() -> dict[str, str]:
    """The kinds of parts as they are typed, with the registry's nouns: ``data-set`` is "data set"."""
    return {noun.replace(" ", "-"): noun for noun in registry.GROUPS}


def parts_of(kinds: Iterable[str]) -> Parts:
    """The parts of each of these kinds (``kind_names``); those of plug-ins that can't be listed are ``broken``."""
    result: dict[str, list[ListedPart]] = {}
    nouns, broken = kind_names(), {(noun, name): message for noun, name, message in registry.broken_parts()}
    for kind in kinds:
        noun, result[kind] = nouns[kind], []
        for name in registry.names(noun):
            if (noun, name) in broken:
                continue
            try:
                result[kind].append(_own(noun, name) or describe_part(noun, name))
            except Exception as error:  # a plug-in's Options may be anything
                fault = f"its Options have no JSON Schema: {registry.error_text(error)}"
                broken[noun, name] = f"{registry.describe_part(noun, name)} is broken: {fault}"
    left_out = [BrokenPart(part=noun, name=name, message=text) for (noun, name), text in broken.items()]
    return Parts(sections=result, broken=left_out or UNSET)


def only(found: Parts, kind: str, name: str) -> Parts:
    """The part of this kind and name alone.  Raises UnknownName."""
    entries = found.sections[kind]
    if name not in (names := [entry.name for entry in entries]):
        raise UnknownName(kind_names()[kind], name, names)
    return Parts(sections={kind: [entry for entry in entries if entry.name == name]}, broken=found.broken)


def _own(noun: str, name: str) -> ListedPart | None:
    """The entry of one of edgefl's own parts; None for a part of a plug-in, or of a kind that the schema leaves out."""
    schema = _shipped_schema()
    if registry.origin(noun, name).package != "edgefl" or (part := schema["x-parts"].get(noun, {}).get(name)) is None:
        return None
    reference = part.get("$ref")
    return _entry(noun, name, part["summary"], reference and schema["$defs"][reference.removeprefix("#/$defs/")])


@cache
def _shipped_schema() -> Any:
    return json.loads((library_folder() / SCHEMA).read_text(encoding="utf-8"))


def describe_part(noun: str, name: str) -> ListedPart:
    """Name, summary and options of a part, from the part itself."""
    from edgefl.scenario.schema import summary_of

    part = registry.get(noun, name)
    model: type[BaseModel] | None = getattr(part, "Options", None)
    return _entry(noun, name, summary_of(part), None if model is None else model.model_json_schema())


def _entry(noun: str, name: str, summary: str, schema: Mapping[str, Any] | None) -> ListedPart:
    if schema is None and noun not in ("method", "schedule"):
        return ListedPart(name=name, summary=summary)
    key = {"tower": "tower", "codec": "dtype"}.get(noun, "name")
    return ListedPart(name=name, summary=summary, options=_options(schema or {}, key))


def _options(schema: Mapping[str, Any], key: str) -> list[PartOption]:
    options = []
    for field, its in schema.get("properties", {}).items():
        if field == key:
            continue
        default = its.get("default")
        text = "required" if "default" not in its else "-" if default is None else _default_text(default)
        options.append(
            PartOption(name=field, default=text, values=_values(its), description=its.get("description", ""))
        )
    # an option that every method has comes after its own
    return sorted(options, key=lambda option: option.name == "personal")


def _default_text(default: Any) -> str:
    return default if isinstance(default, str) else json.dumps(default)


def _values(schema: Mapping[str, Any]) -> str:
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
