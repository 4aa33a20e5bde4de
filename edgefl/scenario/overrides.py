"""Overrides: set a value in a scenario's document, from ``path=value`` or an axis of a grid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgefl.errors import EdgeflError, ScenarioError
from edgefl.scenario.document import Document, KeyPath, KeyPosition, set_value
from edgefl.scenario.keys import key_path, read_override
from edgefl.scenario.sections import SECTIONS, Section


def with_override(document: Document, override: str) -> Document:
    """Apply an override such as ``training.lr=1e-3``; what it sets is compared no longer.

    Raises ScenarioError if it is invalid.
    """
    path, value, places = read_override(override)
    return with_value(_without_axis(document, path), path, value, places)


def _without_axis(document: Document, path: KeyPath) -> Document:
    """The document whose ``compare`` has no list for this path."""
    compare = document.data.get("compare")
    if not isinstance(compare, dict):
        return document
    left = {key: values for key, values in compare.items() if not _names(key, path)}
    return document if len(left) == len(compare) else replace(document, data={**document.data, "compare": left})


def _names(key: Any, path: KeyPath) -> bool:
    try:
        return isinstance(key, str) and key_path(key) == path
    except ScenarioError:  # reported where compare is checked
        return False


def with_value(document: Document, path: KeyPath, value: Any, places: dict[KeyPath, KeyPosition]) -> Document:
    """The document with ``value`` at ``path``; a word for a section keeps the fields that still apply.

    ``places`` maps the paths of the value and its parts to their places.  Raises ScenarioError for a path through a
    value without keys.
    """
    section = SECTIONS.get(str(path[0]))
    if len(path) == 1 and section and section.short and isinstance(value, str):
        return _with_word(document, str(path[0]), section, section.short, value, places)
    if section and len(path) > 2 and (short := section.key_of_word(str(path[1]))):
        document = _with_long_form(document, path[:2], short)
    new_places = {path[:i]: places[path] for i in range(1, len(path)) if not _holds(document.data, path[:i])}
    return set_value(document, path, value, {**new_places, **places})


def _with_word(
    document: Document, key: str, section: Section, short: str, word: str, places: dict[KeyPath, KeyPosition]
) -> Document:
    """The document with ``word`` in the ``short`` field of a section."""
    section_data = document.data.get(key)
    section_data = section_data if isinstance(section_data, dict) and not section.whole else {}
    fields = {k: v for k, v in section_data.items() if k != short}
    if section.noun:
        try:
            known = section.model({"name": word}).model_fields
        except EdgeflError:
            known = {}  # the unknown name is reported when the section is read
        fields = {k: v for k, v in fields.items() if k in known}
    kept_places = {
        path: place for path, place in document.places.items() if len(path) > 1 and path[0] == key and path[1] in fields
    }
    return set_value(document, (key,), {short: word, **fields}, {**kept_places, **places, (key, short): places[(key,)]})


def _with_long_form(document: Document, path: KeyPath, short: str) -> Document:
    """The document with a bare word or number at ``path`` written as a mapping with the key ``short``."""
    section = document.data.get(str(path[0]))
    word = section.get(str(path[1])) if isinstance(section, dict) else None
    if not isinstance(word, str | int) or isinstance(word, bool):
        return document
    place = document.places.get(path, KeyPosition(document.file))
    return set_value(document, path, {short: word}, {path: place, (*path, short): place})


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
    """The document with each section that is a bare word written as a mapping."""
    for key, section in SECTIONS.items():
        word = document.data.get(key)
        if isinstance(word, str) and section.short:
            place = document.places.get((key,), KeyPosition(document.file))
            document = with_value(document, (key,), word, {(key,): place})
    return document
