"""Labels: short names for the values of axes, usable as folder names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, get_args

from edgefl.devices.budgets import budget_named
from edgefl.errors import EdgeflError
from edgefl.scenario.axes import ScenarioAxis
from edgefl.scenario.document import LEAVES, SHARES, spell
from edgefl.scenario.problems import alternatives, is_model, show
from edgefl.scenario.sections import SECTIONS
from edgefl.units import SHARE, Quantity, setting_text
from edgefl.yaml_lines import flow


def labels_of(axes: Sequence[ScenarioAxis]) -> list[list[str]]:
    """The label of each value of each axis, unique within the axis even if case is ignored."""
    lasts = [str(axis.path[-1]) for axis in axes]
    labels = []
    for axis in axes:
        section = SECTIONS.get(str(axis.path[0])) if len(axis.path) == 1 else None
        short = section.short if section else None
        key = "" if short else (str(axis.path[-1]) if lasts.count(str(axis.path[-1])) == 1 else spell(axis.path)) + "="
        alike = [value for value in axis.values if isinstance(value, dict)]
        words = [folder_name(key + _word(value, short, str(axis.path[-1]), alike)) for value in axis.values]
        if axis.are_rows:
            words = [folder_name(re.sub(r"\s+", "-", label.strip())) for label in axis.values]
        if not _differ(words):  # values with the same name: append the fields that differ
            words = [folder_name(word + _difference(value, axis.values, short))
                     for word, value in zip(words, axis.values, strict=True)]  # fmt: skip
        if not _differ(words):
            words = [f"{word}#{i + 1}" for i, word in enumerate(words)]
        labels.append(words)
    return labels


def folder_name(word: str) -> str:
    """``word`` without spaces; characters that are unsafe in file names become ``_``."""
    return re.sub(r"[^\w.,=%+#\[\]-]", "_", re.sub(r"\s+", "", word)).strip(".")[:80] or "_"


def quantity_of(path: str) -> Quantity | None:
    """The quantity of the field at a dotted path of a resolved scenario; None if it has none."""
    section, *keys = path.split(".")
    if path in LEAVES:
        return SHARE
    hint: Any = SECTIONS[section].owner if section in SECTIONS else None
    for key in keys:
        fields = [model.model_fields for model in alternatives(hint) if is_model(model)]
        hint = next((Annotated[of[key].annotation, *of[key].metadata, ""] for of in fields if key in of), None)
    if path.startswith("fleet.budgets.") and hint is None:
        try:
            return budget_named(keys[-1]).quantity
        except EdgeflError:  # of a plug-in that is gone
            return None
    return _quantity_in(hint)


def field_text(path: str, value: object) -> str:
    """A field's value as a user writes it."""
    quantity = quantity_of(path)
    if quantity is None:
        return repr(value) if isinstance(value, float) else flow(value)  # YAML would write 1.0e-06
    return setting_text(value, quantity)


def in_a_cell(path: str, value: object) -> object:
    """A field's value for a table's cell: ranges and mixtures of amounts as they are written, others as they are."""
    return field_text(path, value) if isinstance(value, list | dict) and quantity_of(path) else value


def _quantity_in(hint: Any) -> Quantity | None:
    """The quantity that annotates a type, at any depth."""
    inner = (part if isinstance(part, Quantity) else _quantity_in(part) for part in get_args(hint))
    return next((part for part in inner if part is not None), None)


def _differ(words: Sequence[str]) -> bool:
    return len({word.lower() for word in words}) == len(words)


def _word(value: Any, short: str | None, field: str = "", alike: Sequence[Any] = ()) -> str:
    """A value as a word: a mapping by its name, otherwise by its fields that differ from those of ``alike``.

    ``field`` is the name of the field that has the value.  A single device or link stands alone.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "[" + ",".join(_word(each, None) for each in value) + "]"
    if not isinstance(value, dict):
        return show(value).replace('"', "")
    named = value.get(short) if short else value.get("name")
    if isinstance(named, str):
        return named
    if field in SHARES and len(value) == 1:
        return str(next(iter(value)))
    others = [other for other in alike if isinstance(other, dict)]
    differing = [key for key in value if any(other.get(key) != value[key] for other in others)] or list(value)
    if field in SHARES:
        differing = list(value)
    return "+".join(
        f"{key}={_word(value[key], None, str(key), [other.get(key) for other in others])}" for key in differing
    )


def _difference(value: Any, values: Sequence[Any], short: str | None) -> str:
    if not isinstance(value, dict):
        return ""
    namesakes = [other for other in values if isinstance(other, dict) and _word(other, short) == _word(value, short)]
    differing = [key for key in value if any(other.get(key) != value[key] for other in namesakes)]
    return "".join(f"-{_word(value[key], None, str(key))}" for key in differing)
