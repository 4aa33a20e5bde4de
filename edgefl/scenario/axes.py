"""Axes of a comparison: paths in a scenario, each with a list of values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from edgefl.errors import ScenarioError, suggestion
from edgefl.scenario.document import Document, KeyPath, KeyPosition, Override, read_value, spell
from edgefl.scenario.fields import plain_section, read_section
from edgefl.scenario.keys import TOP, key_path
from edgefl.scenario.overrides import with_overrides
from edgefl.scenario.problems import collecting, raise_all, show
from edgefl.scenario.sections import SECTIONS

MOST_COMBINATIONS = 10_000
"""A choice, not measured: each is a whole scenario in memory, and a typing error shouldn't begin a million."""


@dataclass(frozen=True)
class ScenarioAxis:
    """A path in a scenario, its values, and the source places of each value."""

    path: KeyPath
    values: tuple[Any, ...]
    places: tuple[dict[KeyPath, KeyPosition], ...]

    @classmethod
    def from_compare(cls, document: Document, key: str) -> ScenarioAxis:
        """The axis under ``key`` of ``compare``, which ``check_compare`` must have accepted."""
        path, values = key_path(key), document.data["compare"][key]
        places = tuple(document.move_places(("compare", key, i), path) or {path: KeyPosition(document.file)}
                       for i in range(len(values)))  # fmt: skip
        return cls(path, tuple(values), places)

    @classmethod
    def from_text(cls, text: str, option: str = "--vary") -> ScenarioAxis:
        """The axis written as ``training.batch=8,16``: commas in brackets and quotes don't separate values.

        Messages begin with the ``option`` that was given.  Raises ScenarioError for any other syntax and for a repeated
        value.
        """
        origin = f"{option} {text}"
        path_text, equals, values_text = text.partition("=")
        if not equals or not values_text.strip():
            raise ScenarioError("an axis is path=value,value, for example training.lr=1e-3,1e-2", file=origin)
        try:
            path = key_path(path_text)
            texts = _split(values_text)
            if len(texts) > MOST_COMBINATIONS:
                raise ScenarioError(f"{len(texts):,} cells are more than {MOST_COMBINATIONS:,}: leave values out")
            parsed = [read_value(value_text, origin) for value_text in texts]
        except ScenarioError as error:
            raise ScenarioError(error.message, file=origin) from None
        for i in _repeated_indices([value for value, _ in parsed]):
            raise ScenarioError(f"{show(parsed[i][0])} is listed twice", file=origin, key=spell(path))
        places = tuple(
            {path: KeyPosition(origin), **{path + key: place for key, place in inner.items()}} for _, inner in parsed
        )
        return cls(path, tuple(value for value, _ in parsed), places)

    def override(self, index: int) -> Override:
        """What sets value ``index``."""
        return Override(self.path, self.values[index], self.places[index])


def _repeated_indices(values: Iterable[Any]) -> Iterator[int]:
    """Places of the values that equal one before them."""
    hashed: set[Any] = set()
    others: list[Any] = []  # lists and mappings, which can only be compared one by one
    for i, value in enumerate(values):
        try:
            twice = value in hashed
            hashed.add(value)
        except TypeError:
            twice = value in others
            others.append(value)
        if twice:
            yield i


def _split(text: str) -> list[str]:
    """Split at the commas that are outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"" and not parts[-1].strip():
            quote = character
        elif character in "[{(":
            depth += 1
        elif character in "]})":
            depth -= 1
        elif character == "," and depth <= 0:
            parts.append("")
            continue
        parts[-1] += character
    if not all(part.strip() for part in parts):
        raise ScenarioError("a value is missing beside a comma")
    return [part.strip() for part in parts]


def check_compare(document: Document, compare: Any) -> list[ScenarioError]:
    """Errors in the form of ``compare``; the values themselves are checked later."""
    if not isinstance(compare, dict):
        message = f"must map paths to lists, such as `schedule: [end-to-end, layerwise]`, not {show(compare)}"
        return [document.error(("compare",), message)]
    errors, count = [], 1
    for key, values in compare.items():
        path: KeyPath = ("compare", key)
        try:
            target = key_path(key)
        except ScenarioError as error:
            errors.append(document.error(path, error.message, at_key=True))
            continue
        known = [*TOP[:2], *SECTIONS]
        if target[0] not in known or target[0] == "name":
            hint = suggestion(str(target[0]), [key for key in known if key != "name"])
            errors.append(document.error(path, f"{target[0]!r} can't be compared{hint}", at_key=True))
        elif not isinstance(values, list) or not values:
            errors.append(document.error(path, f"must be a list of the values to compare, not {show(values)}"))
        else:
            count *= len(values)
            if len(values) > MOST_COMBINATIONS:
                continue  # too many in any case
            for i in _repeated_indices((type(value), value) for value in values):
                errors.append(document.error((*path, i), f"{show(values[i])} is listed twice"))
    if count > MOST_COMBINATIONS:
        errors.append(document.error(("compare",), f"{count} combinations are more than {MOST_COMBINATIONS}"))
    return errors


def complete_compare(document: Document, compare: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """``compare`` with all defaults written into the values that are whole sections.

    Raises ScenarioError for an invalid section.
    """
    complete: dict[str, list[Any]] = {}
    base = without_compare(document)
    errors: list[ScenarioError] = []
    for key in compare:
        axis = ScenarioAxis.from_compare(document, key)
        complete[key] = list(axis.values)
        if len(axis.path) > 1 or axis.path[0] not in SECTIONS:
            continue
        section = str(axis.path[0])
        for i in range(len(axis.values)):
            with collecting(errors):
                complete[key][i] = plain_section(*read_section(with_overrides(base, [axis.override(i)]), section))
    raise_all(errors)
    return complete


def without_compare(document: Document) -> Document:
    """The document without its ``compare``."""
    return replace(document, data={key: value for key, value in document.data.items() if key != "compare"})
