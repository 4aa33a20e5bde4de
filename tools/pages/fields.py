"""Tables of the fields of a pydantic model."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from edgefl import units
from edgefl.modalities import MODALITIES
from edgefl.scenario.sections import SECTIONS
from tools.pages.markdown import anchor, code, first_paragraph, listed, sentence, table

QUANTITIES: dict[str, tuple[units.Quantity, str]] = {
    "bytes": (units.BYTES, "show_bytes"),
    "FLOPs": (units.FLOPS, "show_flops"),
    "FLOP/s": (units.RATE, "show_rate"),
    "bit/s": (units.BITS_PER_SECOND, "show_bits_per_second"),
    "bytes/s": (units.BYTES_PER_SECOND, "show_bytes_per_second"),
    "seconds": (units.SECONDS, "show_seconds"),
    "joules": (units.JOULES, "show_joules"),
    "watts": (units.WATTS, "show_watts"),
    "share": (units.SHARE, "show_share"),
}
"""Base units with the quantity that parses each and the function of ``units`` that formats it."""

OTHER_VALUES = {
    **{f"model.{modality}": "mapping: fields of a [tower](#towers)" for modality in MODALITIES},
    "model.MODALITY.config": "mapping, or a folder",
    "data.missing": "share, or mapping (see the description)",
    "evaluation.missing": "as `data.missing`",
    "round.selection": "name, or mapping: [selections](#selections)",
    **dict.fromkeys(("training.optimizer", "training.by.KEY.optimizer"), "name, or mapping: [optimizers](#optimizers)"),
    **dict.fromkeys(
        ("training.lr_schedule", "training.by.KEY.lr_schedule"),
        "name, or mapping: [rate schedules](#rate-schedules)",
    ),
    "method.server_training": "mapping: [fields](scenario/training.md#trainingbykey)",
    "evaluation.metrics": "list of names, or of mappings with `name` and its fields",
    "round.staleness": "name, or mapping: [fields](#roundstaleness)",
    "round.policy": "name, or mapping: [policies](#round-policies)",
    "aggregation.rule": "name, or mapping: [rules](#aggregation-rules)",
    "aggregation.optimizer": "name, or mapping: [server optimizers](#server-optimizers)",
    "payload.down": "name, or mapping: [codecs](#codecs)",
    "payload.up": "name, or mapping: [codecs](#codecs)",
    "round.over_selection": "share, also above 1, such as `30%` or `150%`",
    "fleet.devices": "name, or mapping from name to share or count",
    "fleet.links": "name, or mapping from name to share or count",
    "fleet.budgets.memory": "bytes or share of the device, such as `48 MiB` or `40% of device`; or a range; or a "
    "mapping of these to shares or counts",
    "fleet.availability.diurnal.hours": "hours, such as `8 h`; or a range, `8..10 h`",
    "fleet.availability.diurnal.start": "`spread`, or a time of day such as `18:00`; or a range, `18:00..23:00`",
    "fleet.availability.diurnal.begins": "time of day, such as `9:00`",
    "fleet.failures.attack": "mapping: [attacks](#attacks)",
    "fleet.failures.slow_down.factor": "number, 1 or more; or a range, `2..5`",
    "training.rates": "mapping from tower or part to a rate, a list of rates, or [fields](#trainingrateskey)",
    "data.samples": "whole number, range such as `50..200`, or mapping from kind to one of these",
    "data.partition": "name, or mapping: [partitions](#partitions)",
    "data.source": "name, or mapping from kind (or `public`, `test`) to name, of a kind also names: "
    "[data sets](#data-sets)",
    "data.draw": "mapping from kind (or `test`) to whole number, 1 or more",
}
"""Allowed values of the fields whose validator accepts more than their JSON Schema states."""


Row = tuple[str, str, str, str]
"""Name, values, default and meaning of a field."""
HEAD = ("Field", "Values", "Default", "Meaning")


def fields_table(
    model: type[BaseModel], path: str, of: str = "", known: Container[Row] = (), level: int = 2
) -> Iterator[str]:
    """A table of a model's fields but for those that are ``known``, then one for each model that a field contains.

    ``level`` is that of the headings above these.
    """
    rows, inner = _fields(model, path, of)
    rest = [row for row in rows if row not in known]
    if rest or not rows:
        yield table(HEAD, rest) if rest else "No fields."
    for nested, keys in inner.items():
        yield f"{'#' * level} {_titled(keys, of)}"
        yield sentence(first_paragraph(nested.__doc__)) + "."
        yield from fields_table(nested, keys[0], level=level)


def shared_rows(models: Mapping[str, type[BaseModel]], path: str) -> dict[Row, list[str]]:
    """The fields that stand in several of these models, each with the names of those."""
    found: dict[Row, list[str]] = {}
    for name, model in models.items():
        for row in _fields(model, path, name)[0]:
            found.setdefault(row, []).append(name)
    return {row: names for row, names in found.items() if len(names) > 1}


def _fields(model: type[BaseModel], path: str, of: str) -> tuple[list[Row], dict[type[BaseModel], list[str]]]:
    """The rows of a model's fields, and the models that they contain with the keys at which they stand."""
    properties = model.model_json_schema().get("properties", {})
    rows: list[Row] = []
    inner: dict[type[BaseModel], list[str]] = {}
    # what stands behind the fields in the schema is registered: a budget
    registered = [FieldInfo(default=None, description=schema["description"])
                  for schema in list(properties.values())[len(model.model_fields) :]]  # fmt: skip
    fields = list(zip([*model.model_fields.values(), *registered], properties.items(), strict=True))
    for field, (name, _) in fields:
        key = f"{path}.{name}.KEY" if "dict" in str(field.annotation).split("[")[0] else f"{path}.{name}"
        for nested in _models(field.annotation) if key not in _TOLD else ():
            if nested not in _OWNERS:
                inner.setdefault(nested, []).append(key)
    for field, (name, schema) in fields:
        if name in ("name", "tower", "kind") and of:
            continue
        key = f"{path}.{name}"
        if field.description is None:
            raise ValueError(f"{model.__module__}.{model.__qualname__}.{name} has no description")
        titles = {nested.__name__: _titled(keys, of) for nested, keys in inner.items()}
        values = OTHER_VALUES.get(key) or _values(schema, key, titles)
        default = "required" if field.is_required() else _default(schema, field)
        rows.append((f"`{name}`", values, default, sentence(field.description, _allowed(schema))))
    return rows, inner


def _titled(keys: Sequence[str], of: str) -> str:
    return f"{', '.join(keys)} ({of})" if of else ", ".join(keys)


def _allowed(schema: Mapping[str, Any]) -> set[str]:
    """The words that a field's enumerations allow."""
    return {str(word) for option in (schema, *schema.get("anyOf", ())) for word in option.get("enum", ())}


_TOLD = ("training.by.KEY.lr_schedule", "method.server_training")
"""Fields whose models another table tells."""
_OWNERS = {section.owner: key for key, section in SECTIONS.items() if section.owner is not None}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Every pydantic model in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation is not BaseModel:
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _values(schema: Mapping[str, Any], key: str, titles: Mapping[str, str]) -> str:
    """Allowed values of a field in words, from its JSON Schema."""
    if quantity := _quantity(schema):
        base, example, types = quantity
        mixed = "; or a mapping of these to shares or counts" if "object" in types else ""
        return f"{base}, such as `{example}`" + ("; or a range" if "array" in types else "") + mixed
    if "enum" in schema:
        return listed([code(value) for value in schema["enum"]])
    if "const" in schema:
        return code(schema["const"])
    if "anyOf" in schema:
        options = [_values(option, key, titles) for option in schema["anyOf"] if option.get("type") != "null"]
        return "; or ".join(dict.fromkeys(options))
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if owner := next((key for model, key in _OWNERS.items() if model.__name__ == name), ""):
            return f"as the section [`{owner}`](#{owner})"
        return f"mapping: [fields](#{anchor(titles[name])})"
    match schema.get("type"):
        case "boolean":
            return "`true` or `false`"
        case "integer" | "number" as kind:
            return _number(schema, whole=kind == "integer")
        case "array":
            return _array(schema, key, titles)
        case "object":
            keys = schema.get("propertyNames", {}).get("enum")
            inner = _values(schema.get("additionalProperties", {}), key, titles)
            return f"mapping from {listed([f'`{key}`' for key in keys]) if keys else 'name'} to {inner}"
        case "string":
            return "path" if schema.get("format") == "path" else "text"
    raise ValueError(f"{key}: no words for the JSON Schema {dict(schema)}; add the key to OTHER_VALUES")


def _quantity(schema: Mapping[str, Any]) -> tuple[str, str, set[str]] | None:
    """Base unit, example, and the types that are allowed; None if the field isn't a quantity."""
    for base, (quantity, _) in QUANTITIES.items():
        if schema.get("examples") == [quantity.example]:
            return base, quantity.example, {option.get("type", "") for option in schema.get("anyOf", ())}
    return None


def _number(schema: Mapping[str, Any], *, whole: bool) -> str:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if whole and above is not None:
        low, above = above + 1, None
    bounds = []
    if low is not None and high is not None:
        bounds.append(f"{low:g} to {high:g}")
    else:
        bounds += [f"{low:g} or more"] if low is not None else []
        bounds += [f"at most {high:g}"] if high is not None else []
    bounds += [f"above {above:g}"] if above is not None else []
    bounds += [f"below {below:g}"] if below is not None else []
    # "above 0, at most 1"
    bounds.sort(key=lambda words: words.startswith(("at most", "below")))
    return ", ".join([("whole number" if whole else "number"), *bounds])


def _array(schema: Mapping[str, Any], key: str, titles: Mapping[str, str]) -> str:
    if "prefixItems" in schema:
        entries = [_values(item, key, titles) for item in schema["prefixItems"]]
        return f"list of {len(entries)}: {', '.join(entries)}"
    items = schema.get("items", {})
    plural = re.sub(r"^(whole )?number\b", r"\1numbers", _values(items, key, titles))
    return f"list of {plural}"


def _default(schema: Mapping[str, Any], field: FieldInfo) -> str:
    """The default as a scenario would write it; a nested section without a name has "its defaults"."""
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        named = schema.get("default", {}).get("name")
        return code({"name": named}) if named else "its defaults"
    quantity = next((q for option in (schema, *schema.get("anyOf", ())) if (q := _quantity(option))), None)
    if quantity and isinstance(value, int | float):
        return f"`{getattr(units, QUANTITIES[quantity[0]][1])(value)}`"
    return code(list(value) if isinstance(value, tuple) else value)
