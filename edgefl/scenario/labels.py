"""Labels: short names for the values of axes, usable as folder names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from edgefl.scenario.axes import Axis
from edgefl.scenario.document import spell
from edgefl.scenario.problems import show
from edgefl.scenario.sections import SECTIONS


def labels_of(axes: Sequence[Axis]) -> list[list[str]]:
    """The label of each value of each axis, unique within the axis even if case is ignored."""
    lasts = [str(axis.path[-1]) for axis in axes]
    labels = []
    for axis in axes:
        section = SECTIONS.get(str(axis.path[0])) if len(axis.path) == 1 else None
        short = section.short if section else None
        key = "" if short else (str(axis.path[-1]) if lasts.count(str(axis.path[-1])) == 1 else spell(axis.path)) + "="
        words = [folder_name(key + _word(value, short)) for value in axis.values]
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


def _differ(words: Sequence[str]) -> bool:
    return len({word.lower() for word in words}) == len(words)


def _word(value: Any, short: str | None) -> str:
    if isinstance(value, dict):
        named = value.get(short) if short else value.get("name")
        if isinstance(named, str):
            return named
    return value if isinstance(value, str) else show(value).replace('"', "")


def _difference(value: Any, values: Sequence[Any], short: str | None) -> str:
    if not isinstance(value, dict):
        return ""
    namesakes = [other for other in values if isinstance(other, dict) and _word(other, short) == _word(value, short)]
    differing = [key for key in value if any(other.get(key) != value[key] for other in namesakes)]
    return "".join(f"-{_word(value[key], None)}" for key in differing)
