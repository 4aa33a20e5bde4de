"""Overrides: one value of a scenario's document set to another, from ``path=value`` or an axis of a grid."""

from __future__ import annotations

import re
from typing import Any

from edgefl.errors import EdgeflError, ScenarioError
from edgefl.scenario.document import Document, KeyPath, Place, placed, read_value
from edgefl.scenario.sections import SECTIONS, Section


def key_path(text: str) -> KeyPath:
    """``fleet.links.0`` or ``fleet.links[0]`` -> ("fleet", "links", 0).  Raises ScenarioError for an empty part."""
    parts = [part.strip() for part in re.sub(r"\[(\d+)\]", r".\1", text.strip()).split(".")]
    if not all(parts):
        raise ScenarioError(f"{text!r} isn't a path; write for example fleet.budgets.memory")
    return tuple(int(part) if part.isdigit() else part for part in parts)


def with_override(document: Document, override: str) -> Document:
    """The document with an override such as ``training.lr=1e-3``.  Raises ScenarioError."""
    place = f"--set {override}"
    path_text, equals, value_text = override.partition("=")
    if not equals:
        raise ScenarioError("an override is path=value, for example training.lr=1e-3", file=place)
    try:
        path = key_path(path_text)
        value, places = read_value(value_text, place)
    except ScenarioError as error:
        raise ScenarioError(error.message, file=place) from None
    moved = {path + inner: where for inner, where in places.items()}
    return with_value(document, path, value, {path: Place(place), **moved})


def with_value(document: Document, path: KeyPath, value: Any, places: dict[KeyPath, Place]) -> Document:
    """The document with ``value`` at ``path``; a word for a section keeps the fields that apply to what it names.

    ``places`` are those of the value and its parts, by their paths in the document.  Raises ScenarioError for a path
    through something that has no keys.
    """
    section = SECTIONS.get(str(path[0]))
    if len(path) == 1 and section and section.short and isinstance(value, str):
        return _with_word(document, str(path[0]), section, section.short, value, places)
    made = {path[:i]: places[path] for i in range(1, len(path)) if not _holds(document.data, path[:i])}
    return placed(document, path, value, {**made, **places})


def _with_word(
    document: Document, key: str, section: Section, short: str, word: str, places: dict[KeyPath, Place]
) -> Document:
    """The document with ``word`` in the ``short`` field of a section."""
    held = document.data.get(key)
    held = held if isinstance(held, dict) and not section.whole else {}
    fields = {k: v for k, v in held.items() if k != short}
    if section.noun:
        try:
            known = section.model({"name": word}).model_fields
        except EdgeflError:
            known = {}  # the unknown name is reported when the section is read
        fields = {k: v for k, v in fields.items() if k in known}
    kept = {p: w for p, w in document.places.items() if len(p) > 1 and p[0] == key and p[1] in fields}
    return placed(document, (key,), {short: word, **fields}, {**kept, **places, (key, short): places[(key,)]})


def _holds(data: Any, path: KeyPath) -> bool:
    """Whether there is a value at ``path``."""
    for part in path:
        if isinstance(data, list):
            if not isinstance(part, int) or part >= len(data):
                return False
            data = data[part]
        elif isinstance(data, dict) and part in data:
            data = data[part]
        else:
            return False
    return True


def long_forms(document: Document) -> Document:
    """The document with every bare word of a section replaced by the mapping that it stands for."""
    for key, section in SECTIONS.items():
        word = document.data.get(key)
        if isinstance(word, str) and section.short:
            place = document.places.get((key,), Place(document.file))
            document = with_value(document, (key,), word, {(key,): place})
    return document
