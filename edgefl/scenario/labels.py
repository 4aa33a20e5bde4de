"""Labels: short words for the values of axes, fit for the names of folders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from edgefl.scenario.axes import Axis
from edgefl.scenario.document import spell
from edgefl.scenario.problems import show
from edgefl.scenario.sections import SECTIONS


def labels_of(axes: Sequence[Axis]) -> list[list[str]]:
    """The label of each value of each axis; the labels of an axis differ, also where case doesn't count."""
    lasts = [str(axis.path[-1]) for axis in axes]
    labels = []
    for axis in axes:
        section = SECTIONS.get(str(axis.path[0])) if len(axis.path) == 1 else None
        short = section.short if section else None
        key = "" if short else (str(axis.path[-1]) if lasts.count(str(axis.path[-1])) == 1 else spell(axis.path)) + "="
        words = [folder_name(key + _word(value, short)) for value in axis.values]
        if not _differ(words):  # several values of one name: what distinguishes them follows
            words = [folder_name(word + _difference(value, axis.values, short))
                     for word, value in zip(words, axis.values, strict=True)]  # fmt: skip
        if not _differ(words):
            words = [f"{word}#{i + 1}" for i, word in enumerate(words)]
        labels.append(words)
    return labels


def folder_name(word: str) -> str:
    """The word without spaces and what a file system doesn't take."""
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
    alike = [v for v in values if isinstance(v, dict) and _word(v, short) == _word(value, short)]
    differing = [k for k in value if any(v.get(k) != value[k] for v in alike)]
    return "".join(f"-{_word(value[k], None)}" for k in differing)
