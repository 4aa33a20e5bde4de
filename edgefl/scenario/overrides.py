"""Overrides: set values in a scenario's document, from ``path=value`` or axes of a grid, and tell what they cause."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from edgefl.errors import EdgeflError, ScenarioError, suggestion
from edgefl.scenario.document import Document, KeyPath, KeyPosition, Override, set_value, spell
from edgefl.scenario.fields import read_parts
from edgefl.scenario.keys import ROWS, key_path, read_override
from edgefl.scenario.problems import collecting, each_of, raise_all
from edgefl.scenario.sections import SECTIONS

SET = "--set "
"""How the origin of an override begins that is no value of an axis."""

_ROWS: KeyPath = ("compare", ROWS)
_RATES: KeyPath = ("training", "rates")

Fields = dict[str, Any]
"""Fields of a scenario by dotted path, with their values."""
Fault = tuple[str | None, str]
"""The key and the message of an error."""


class LeftOut(UserWarning):
    """Fields are left out that a part doesn't take which an override names."""


def with_texts(document: Document, texts: Sequence[str]) -> Document:
    """Apply overrides such as ``training.lr=1e-3``; what they set is compared no longer.

    ``compare.rows=LABEL`` is what that row sets, and ``compare.rows=[LABEL, LABEL]`` leaves the other rows out.  Raises
    ScenarioError with all that are invalid, name a part beside one that names another, or set what rows set.
    """
    errors: list[ScenarioError] = []
    overrides: list[Override] = []
    for text in texts:
        with collecting(errors):
            overrides.append(read_override(text))
    with collecting(errors):
        document, overrides = _choose_rows(document, overrides)
    compare = document.data.get("compare")
    if isinstance(compare, dict):
        compare = {key: values for key, values in compare.items() if not any(_names(key, o.path) for o in overrides)}
        document = replace(document, data={**document.data, "compare": compare})
    for override in overrides:
        if (part := _named_part(override.path)) is None:
            continue
        other = next((o for o in overrides if o.path == part and o.value != override.value), None)
        if other is not None:
            errors.append(override.error(f"{other.origin} names {other.value!r}: give one of both"))
        elif isinstance(compare, dict) and any(_names(key, part) for key in compare):
            errors.append(override.error(f"{spell(part)} is compared: to run one alone write {_other_form(override)}"))
    with collecting(errors):
        document = with_overrides(document, overrides, quiet=bool(errors))
    raise_all(errors)
    return document


def _choose_rows(document: Document, overrides: list[Override]) -> tuple[Document, list[Override]]:
    """The document with the rows that overrides choose, and the overrides with what one row alone sets.

    Raises ScenarioError for a row that isn't there, and for what rows set that are compared still.
    """
    compare = document.data.get("compare")
    if not isinstance(compare, dict) or not isinstance(rows := compare.get(ROWS), dict):
        return document, overrides
    kept, changed = rows, list[Override]()
    for override in overrides:
        given = override.value
        if override.path == _ROWS and not isinstance(given, dict):
            labels = [] if given is None else [str(label) for label in (given if isinstance(given, list) else [given])]
            if unknown := [label for label in labels if not isinstance(rows.get(label), dict)]:
                raise override.error(f"there is no row {unknown[0]!r}{suggestion(unknown[0], rows)}")
            kept = {label: rows[label] for label in labels} if isinstance(given, list) else {}
            for label in labels if not kept else ():
                changed += in_order(overrides_of(document, (*_ROWS, label), rows[label]))
        else:
            kept = {} if override.path in (_ROWS, _ROWS[:1]) else kept  # it says itself what is compared
            changed.append(override)
    for override in changed:
        paths = {override.path, _named_part(override.path)}
        setting = [
            label for label, fields in kept.items() if isinstance(fields, dict)
            and any(_names(field, path) for field in fields for path in paths)
        ]  # fmt: skip
        if setting:
            raise override.error(
                f"{', '.join(setting)} set{'' if len(setting) > 1 else 's'} it: choose a row with "
                f"{SET}compare.rows={setting[0]}, or none with {SET}compare.rows=null"
            )
    left = {key: kept if key == ROWS else values for key, values in compare.items() if key != ROWS or kept}
    return replace(document, data={**document.data, "compare": left}), changed


def overrides_of(document: Document, at: KeyPath, fields: Fields) -> tuple[Override, ...]:
    """What sets the fields that stand under ``at`` in a document."""
    return tuple(override_of(document, (*at, field), key_path(field), value) for field, value in fields.items())


def override_of(document: Document, at: KeyPath, path: KeyPath, value: Any) -> Override:
    """What sets a path to a value that stands elsewhere in the document."""
    return Override(path, value, document.move_places(at, path) or {path: KeyPosition(document.file)})


def in_order(overrides: Iterable[Override]) -> list[Override]:
    """Whole sections before their fields, in any order of the file."""
    return sorted(overrides, key=lambda override: len(override.path))


def _names(key: Any, path: KeyPath | None) -> bool:
    try:
        return isinstance(key, str) and key_path(key) == path
    except ScenarioError:  # reported where compare is checked
        return False


def with_overrides(document: Document, overrides: Sequence[Override], *, quiet: bool = False) -> Document:
    """The document with these values set, one after the other; a word for a part keeps the fields that the part takes.

    Warns of those that it doesn't take, unless it is ``quiet``.  Raises ScenarioError with all paths that lead through
    a value without keys.
    """
    errors: list[ScenarioError] = []
    changed = document
    for override in overrides:
        with collecting(errors):
            changed = _with_override(changed, override)
    raise_all(errors)
    changed = replace(changed, before=document.before or document, overrides=(*document.overrides, *overrides))
    for override in overrides:
        name = override.value.get("name", "") if isinstance(override.value, dict) else override.value
        changed, lost = _drop_refused_fields(document, changed, override)
        if not override.origin.startswith(SET) or override.origin.startswith(f"{SET}compare"):
            # whoever lists words to compare means parts, not their fields
            lost = [field for field in lost if not field.startswith(f"{spell(override.path)}.")]
        if lost and not quiet:
            text = f"{override.origin} leaves out {', '.join(lost)}, which {name} doesn't take"
            if any(field.startswith(f"{spell(_RATES)}.") for field in lost):
                text += ", so what has no other rate trains at training.lr"
            warnings.warn(text, LeftOut, stacklevel=1)
    return changed


def _with_override(document: Document, override: Override) -> Document:
    """The document with a value set; a word for a part stands in the field with its name, if the part has others."""
    path, target = override.path, _target(document, override)
    section, place = SECTIONS.get(str(path[0])), override.places.get(path, KeyPosition(document.file))
    if section and len(target) > 2 and (short := section.key_of_word(str(target[1]))):
        document = _with_long_form(document, target[:2], short)
    if target == path:
        new = {path[:i]: place for i in range(1, len(path)) if _at(document.data, path[:i]) is _ABSENT}
        return set_value(document, replace(override, places={**new, **override.places}))
    if section and (section.whole and len(path) == 1 or not isinstance(_at(document.data, path), dict)):
        document = set_value(document, Override(path, {}, {}))
    words = {target[:i]: place for i in range(len(path), len(target) + 1)}
    return set_value(document, Override(target, override.value, words))


def _target(document: Document, override: Override) -> KeyPath:
    """Where a value is set: a word for a section, or for a part with other fields, in the field for its name."""
    path, value = override.path, override.value
    section = SECTIONS.get(str(path[0]))
    if section is None or isinstance(value, bool) or not isinstance(value, str | int):
        return path
    if len(path) == 1 and section.short and isinstance(value, str):
        path = (*path, section.short)
    where = ".".join(map(str, path[1:]))
    short = section.key_of_word(where) if isinstance(value, str) or where in section.words else None
    return (*path, short) if short and isinstance(_at(document.data, path), dict) else path


def _with_long_form(document: Document, path: KeyPath, short: str) -> Document:
    """The document with a bare word or number at ``path`` written as a mapping with the key ``short``."""
    word = _at(document.data, path)
    if not isinstance(word, str | int) or isinstance(word, bool):
        return document
    place = document.places.get(path, KeyPosition(document.file))
    return set_value(document, Override(path, {short: word}, {path: place, (*path, short): place}))


def long_forms(document: Document) -> Document:
    """The document with each section that is a bare word written as a mapping."""
    for key, section in SECTIONS.items():
        if section.short and isinstance(document.data.get(key), str):
            document = _with_long_form(document, (key,), section.short)
    return document


_ABSENT = object()


def _at(data: Any, path: KeyPath) -> Any:
    """The value at ``path``, or ``_ABSENT``."""
    for part in path:
        if isinstance(data, list):
            data = data[part] if isinstance(part, int) and part < len(data) else _ABSENT
        else:
            data = data.get(part, _ABSENT) if isinstance(data, dict) else _ABSENT
    return data


def _without(document: Document, path: KeyPath) -> Document:
    """The document without the field at ``path``."""
    fields = {key: value for key, value in _at(document.data, path[:-1]).items() if key != path[-1]}
    return replace(document, data=set_value(document, Override(path[:-1], fields, {})).data)


# --- parts that are switched -----------------------------------------------------------------------------------------


def _named_part(path: KeyPath) -> KeyPath | None:
    """The part whose name stands at ``path``: ``schedule`` for ``schedule.name``."""
    section = SECTIONS.get(str(path[0]))
    if section is None or len(path) < 2:
        return None
    short = section.short if len(path) == 2 else section.key_of_word(".".join(map(str, path[1:-1])))
    return path[:-1] if path[-1] == short else None


def _other_form(override: Override) -> str:
    """A word for the part whose name an override sets."""
    return f"{SET if override.origin.startswith(SET) else ''}{spell(override.path[:-1])}={override.value}"


def _drop_refused_fields(before: Document, changed: Document, override: Override) -> tuple[Document, list[str]]:
    """The document without the fields that a part doesn't take which a word has named, and which the one before took.

    So are lists of rates for the stages of another schedule.  Fields that an override gives stay.  Returns their paths,
    too.
    """
    lost: list[str] = []
    section, where = SECTIONS.get(str(override.path[0])), ".".join(map(str, override.path[1:]))
    if section is None or not (isinstance(override.value, str) or override.path == ("schedule",)):
        return changed, lost
    if f"{where}.*" in section.deep and isinstance(old := _at(before.data, override.path), dict):
        return changed, [spell((*override.path, field)) for field in old]
    if not (section.key_of_word(where) if where else section.short and not section.whole):
        return changed, lost
    known = _faults(before) if (faults := _faults(changed)) else set()
    while faults := faults - known:
        for path in _fields_beside(changed, _target(changed, override)):
            without = _without(changed, path)
            left = _faults(without)
            # the key of an error that stays may be another one's
            gone = Counter(message for _, message in faults) - Counter(message for _, message in left)
            if gone and spell(path) not in {key for key, _ in left - known}:
                changed, faults = without, left
                lost.append(spell(path))
                break
        else:
            break  # the word itself is wrong, or what an override gives beside it
    return changed, lost


def _fields_beside(document: Document, target: KeyPath) -> Iterator[KeyPath]:
    """The fields beside a part's name and beside the part, and of a schedule the rates by stage, but for those that an
    override wrote."""
    rates = _at(document.data, _RATES) if target[0] == "schedule" else None
    parents = [target[:depth] for depth in range(len(target) - 1, 0, -1)]
    for parent in [*parents, *((*_RATES, key) for key in rates), _RATES] if isinstance(rates, dict) else parents:
        fields = _at(document.data, parent)
        for path in [(*parent, field) for field in fields] if isinstance(fields, dict) else ():
            place = document.places.get(path)
            written = any(place in override.places.values() for override in document.overrides)
            if path != target[: len(path)] and not (place and written):
                yield path


def _faults(document: Document) -> set[Fault]:
    """What is wrong with the fields of a document, and with its rates."""
    _, invalid, contradictions = read_parts(document)
    of_rates = [error for error in contradictions if str(error.key).startswith(spell(_RATES))]
    return {fault(error) for error in each_of(invalid + of_rates)}


# --- what an override causes -----------------------------------------------------------------------------------------


def blame(
    errors: Sequence[ScenarioError],
    document: Document,
    check: Callable[[Document], object],
    unasked: Sequence[str] = (),
) -> list[ScenarioError]:
    """The errors of a document, each named as those of the overrides without which ``check`` doesn't raise it.

    Errors that stand at an override already stay as they are.  ``unasked`` are sections whose overrides aren't tried.
    """
    found = each_of(errors)
    places = {place for override in document.overrides for place in override.places.values()}
    own = {(place.file, line) for place in places for line in (place.key_line, place.value_line)}
    causes: dict[Fault, list[Override]] = {fault(e): [] for e in found if (e.file, e.line) not in own}
    for override in document.overrides if causes else ():
        if override.path[0] in unasked or document.before is None:
            continue
        others = [other for other in document.overrides if other is not override]
        left: list[ScenarioError] = []
        try:
            with collecting(left):
                check(
                    replace(with_overrides(document.before, others, quiet=True), overrides=())
                )  # which blames nothing
        except EdgeflError:
            continue
        stay = set(map(fault, each_of(left)))
        if stay <= set(map(fault, found)):  # else it may have hidden them
            for each in causes.keys() - stay:
                causes[each].append(override)
    return [_name_causes(error, by) if (by := causes.get(fault(error))) else error for error in found]


def _name_causes(error: ScenarioError, by: Sequence[Override]) -> ScenarioError:
    """The error, named as one of these overrides."""
    origin, message, line = " and ".join(override.origin for override in by), error.message, error.line
    part, place = _named_part(by[0].path), by[0].places.get(by[0].path)
    if part is not None and str(error.key).startswith(spell(part)):
        message += f"; {_other_form(by[0])} leaves it out"
    if len(by) == 1 and place and place.file == error.file:
        origin, line = str(place.file), place.value_line
    elif error.file:
        origin = f"{origin}: {error.file}"
    return ScenarioError(message, file=origin, line=line, key=error.key)


def fault(error: ScenarioError) -> Fault:
    """What an error says of which key, wherever it stands."""
    return error.key, error.message
