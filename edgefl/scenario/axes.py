"""Axes of a comparison: paths in a scenario, each with a list of values, and rows, which set several paths each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from edgefl.errors import ScenarioError, suggestion
from edgefl.scenario.document import Document, KeyPath, KeyPosition, Override, read_value, spell
from edgefl.scenario.fields import plain_section, read_section
from edgefl.scenario.keys import ROWS, TOP, VERSION, key_path
from edgefl.scenario.overrides import Fields, in_order, override_of, overrides_of, with_overrides
from edgefl.scenario.problems import collecting, raise_all, show
from edgefl.scenario.sections import SECTIONS

MOST_COMBINATIONS = 10_000
"""A choice, not measured: each is a whole scenario in memory, and a typing error shouldn't begin a million."""

Places = dict[KeyPath, KeyPosition]
"""Where each part of a value stands."""
FIXED = {
    **dict.fromkeys(("name", "compare", VERSION), "it is the same for all"),
    **dict.fromkeys(("executor", "tracker"), "results don't depend on it"),
    "seed": "all run over the same seeds",
}
"""Sections that no row, variant or condition sets, with the reason."""


@dataclass(frozen=True)
class ScenarioAxis:
    """A path in a scenario and its values, or ROWS and their labels; ``sets`` has what each of them sets."""

    path: KeyPath
    values: tuple[Any, ...]
    sets: tuple[tuple[Override, ...], ...]

    @classmethod
    def from_values(cls, path: KeyPath, values: Iterable[Any], places: Iterable[Places]) -> ScenarioAxis:
        """The axis of a path, with the source places of each value."""
        pairs = tuple(zip(values, places, strict=True))
        return cls(path, tuple(v for v, _ in pairs), tuple((Override(path, *pair),) for pair in pairs))

    @classmethod
    def from_rows(cls, document: Document, at: KeyPath, rows: Mapping[str, Fields]) -> ScenarioAxis:
        """The axis of rows that stand under ``at`` in a document, whose fields ``field_errors`` must have accepted."""
        sets = (overrides_of(document, (*at, label), fields) for label, fields in rows.items())
        return cls((ROWS,), tuple(rows), tuple(sets))

    @classmethod
    def from_compare(cls, document: Document, key: str) -> ScenarioAxis:
        """The axis under ``key`` of ``compare``, which ``check_compare`` must have accepted."""
        path, values = key_path(key), document.data["compare"][key]
        if path == (ROWS,):
            return cls.from_rows(document, ("compare", key), values)
        sets = (override_of(document, ("compare", key, i), path, value) for i, value in enumerate(values))
        return cls(path, tuple(values), tuple((each,) for each in sets))

    @property
    def are_rows(self) -> bool:
        """Whether its values are labels of rows."""
        return self.path == (ROWS,)

    @property
    def paths(self) -> set[KeyPath]:
        """The paths that it sets."""
        return {override.path for of in self.sets for override in of}

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
        places = (
            {path: KeyPosition(origin), **{path + key: place for key, place in inner.items()}} for _, inner in parsed
        )
        return cls.from_values(path, (value for value, _ in parsed), places)


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
        if target == (ROWS,):
            errors += _row_errors(document, path, values)
            count *= len(values) if isinstance(values, dict) else 1
            continue
        known = [ROWS, *TOP[1:2], *SECTIONS]
        if target[0] not in known[1:]:
            hint = suggestion(str(target[0]), known)
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


def _row_errors(document: Document, path: KeyPath, rows: Any) -> Iterator[ScenarioError]:
    """Errors in the form of the rows under ``path``."""
    if not isinstance(rows, dict) or not rows:
        message = f"must map labels to fields, such as `prox: {{method: fedprox}}`, not {show(rows)}"
        yield document.error(path, message)
        return
    for label, fields in rows.items():
        if isinstance(fields, dict):
            yield from field_errors(document, (*path, label), fields)
        else:
            message = f"must map paths to values, or be {{}} for the scenario as it is, not {show(fields)}"
            yield document.error((*path, label), message)


def field_errors(document: Document, path: KeyPath, fields: Fields) -> Iterator[ScenarioError]:
    """Errors in the label and the paths of a row, a variant or a condition; the values are checked later."""
    if not str(path[-1]).strip() or not str(path[-1]).isprintable() or len(str(path[-1])) > 60:
        yield document.error(path, "a name is 1 to 60 printable characters", at_key=True)
    for field in fields:
        try:
            section = key_path(field)[0]
        except ScenarioError as error:
            yield document.error((*path, field), error.message, at_key=True)
            continue
        if section in FIXED:
            yield document.error((*path, field), f"isn't set here: {FIXED[str(section)]}", at_key=True)
        elif section not in SECTIONS:
            hint = suggestion(str(section), SECTIONS)
            yield document.error((*path, field), f"unknown section {section!r}{hint}", at_key=True)


def complete_compare(document: Document, compare: Mapping[str, Any]) -> dict[str, list[Any] | dict[str, Fields]]:
    """``compare`` with all defaults written into the values that are whole sections.

    Raises ScenarioError for an invalid section.
    """
    complete: dict[str, list[Any] | dict[str, Fields]] = {}
    base = without_compare(document)
    errors: list[ScenarioError] = []
    for key in compare:
        axis = ScenarioAxis.from_compare(document, key)
        values = [[_complete_value(base, override, of, errors) for override in of] for of in axis.sets]
        if axis.are_rows:
            rows = zip(compare[key].items(), values, strict=True)
            complete[key] = {label: dict(zip(fields, of, strict=True)) for (label, fields), of in rows}
        else:
            complete[key] = [value for (value,) in values]
    raise_all(errors)
    return complete


def _complete_value(base: Document, override: Override, beside: Iterable[Override], errors: list[ScenarioError]) -> Any:
    """The value of an override, with all defaults if it is a whole section, of which others ``beside`` set fields."""
    if len(override.path) > 1 or override.path[0] not in SECTIONS:
        return override.value
    section = str(override.path[0])
    of_section = in_order(each for each in beside if each.path[0] == section)
    with collecting(errors):
        return plain_section(*read_section(with_overrides(base, of_section), section))
    return override.value


def without_compare(document: Document) -> Document:
    """The document without its ``compare``."""
    return replace(document, data={key: value for key, value in document.data.items() if key != "compare"})
