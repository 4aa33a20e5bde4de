"""Errors of a scenario in short sentences, translated from pydantic's errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from edgefl.errors import MOST_TOLD, EdgeflError, ScenarioError, UnknownName, list_errors, suggestion
from edgefl.registry.part_fields import BESIDE
from edgefl.scenario.document import Document, KeyPath, spell

Nested = Callable[[KeyPath, Any], type[BaseModel] | None]
"""Chooses the model of a value by its path in the section and its content, where the annotation can't."""


Complaint = tuple[str, Mapping[str, object], Any, bool]
"""Of pydantic about a value: its type and context, the value, and whether its path is the data's own."""


class ScenarioErrors(ScenarioError):
    """Several errors of one scenario, a line for each of the first; file, line, key and message are the first one's."""

    def __init__(self, errors: Sequence[ScenarioError]):
        first = errors[0]
        super().__init__(first.message, file=first.file, line=first.line, key=first.key)
        self.errors = tuple(errors)
        self.args = (list_errors(errors),)


def each_of(errors: Sequence[ScenarioError]) -> list[ScenarioError]:
    """The single errors, where some are several."""
    return [item for error in errors for item in (error.errors if isinstance(error, ScenarioErrors) else (error,))]


@contextmanager
def collecting(errors: list[ScenarioError]) -> Iterator[None]:
    """Add the ScenarioError that ends the block to ``errors``, in place of raising it."""
    try:
        yield
    except ScenarioError as error:
        errors.append(error)


def raise_all(errors: Sequence[ScenarioError]) -> None:
    """Raise the errors together, in the order of their lines, if there are any."""
    unique = list({str(error): error for error in each_of(errors)}.values())
    unique.sort(key=lambda error: (error.line is None, error.line or 0))
    if len(unique) == 1:
        raise unique[0]
    if unique:
        raise ScenarioErrors(unique)


def reason(error: EdgeflError) -> str:
    """The error in one line, without the file and line of a scenario's errors: ``schedule.stages: 8 stages ...``."""
    errors = error.errors if isinstance(error, ScenarioErrors) else (error,)
    texts = [f"{e.key}: {e.message}" if isinstance(e, ScenarioError) and e.key else str(e) for e in errors]
    return " ".join("; ".join(dict.fromkeys(texts)).split())


def validate(
    model: type[BaseModel], data: Mapping[str, object], document: Document, path: KeyPath, nested: Nested | None = None
) -> BaseModel:
    """Validate the section at ``path`` as its model.  Raises ScenarioError with all errors in it."""
    given = list(leaves(data))
    errors = [
        document.error((*path, *inner), f"must be {_alternatives_text(_type_names(hints))}, not {show(value)}")
        for inner, value, hints in _misplaced_booleans(model, data, given, nested)
    ]
    errors += [
        document.error((*path, *inner), f"must be a finite number, not {value}")
        for inner, value in given
        if isinstance(value, float) and not isfinite(value)
    ]
    reported = {error.key for error in errors}
    token = BESIDE.set(Path(document.file or "").parent)
    try:
        section = model.model_validate(data)
        errors += [
            document.error((*path, *inner), f"must be a finite number, not {value}")
            for inner, value in leaves(section.model_dump(by_alias=True, round_trip=True))
            if isinstance(value, float) and not isfinite(value) and spell((*path, *inner)) not in reported
        ]
    except ValidationError as error:
        errors += [e for e in _translate_error(error, model, data, document, path, nested) if e.key not in reported]
    except EdgeflError as error:  # pydantic passes these on without the path of the value
        inner, at_key = _error_path(error, model, data)
        errors.append(document.error((*path, *inner), str(error), at_key=at_key))
    finally:
        BESIDE.reset(token)
    raise_all(errors)
    return section


def show(value: Any) -> str:
    """A value as short text for an error message."""
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    if value is None:
        return "empty"
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


# The expected value by pydantic's error type; {fields} come from the error's context.  The table covers numbers, text,
# literals, lists and mappings; a message about any other type shows the value only.
_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
    "string_pattern_mismatch": "text that matches {pattern}",
    "path_type": "text",
    "literal_error": "{expected}",
    "list_type": "a list",
    "tuple_type": "a list",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "dict_type": "a mapping (`key: value`)",
    "model_type": "a mapping (`key: value`)",
}


def sentence(fault: str, context: Mapping[str, object], value: Any) -> str:
    """The message about ``value`` for the type and the context of a pydantic error."""
    if fault in ("value_error", "assertion_error"):
        message = str(context.get("error", "")).strip()
        return message or f"{show(value)} isn't allowed here"
    expected = _expectation(fault, context)
    return f"must be {expected}, not {show(value)}" if expected else f"{show(value)} isn't allowed here"


def _expectation(fault: str, context: Mapping[str, object]) -> str | None:
    if fault in ("too_short", "too_long") and context.get("field_type") == "Dictionary":
        return (f"a mapping with at least {context['min_length']} keys" if fault == "too_short"
                else f"a mapping with at most {context['max_length']} keys")  # fmt: skip
    formatted = {k: f"{v:g}" if isinstance(v, float) else v for k, v in context.items()}
    try:
        return _EXPECTED[fault].format(**formatted)
    except KeyError:
        return None


def _translate_error(
    error: ValidationError,
    model: type[BaseModel],
    data: Mapping[str, object],
    document: Document,
    path: KeyPath,
    nested: Nested | None,
) -> Iterator[ScenarioError]:
    groups: dict[KeyPath, list[Complaint]] = {}
    unknown = 0
    for item in error.errors(include_url=False):
        # an unknown key may come from a file that the section refers to: it isn't in the section's data
        is_missing = item["type"] in ("missing", "extra_forbidden")
        key, exact = _locate(item["loc"], data, is_missing)
        of_key = item["loc"][-1:] == ("[key]",)
        fault = "bad_key" if of_key and item["type"] == "literal_error" else item["type"]
        groups.setdefault(key, []).append((fault, item.get("ctx", {}), item["input"], exact))
    # of the errors of a union, keep those of the member that matched deepest
    deeper = {key[:length] for key in groups for length in range(len(key))}
    for key, items in groups.items():
        if key in deeper and not all(exact for *_, exact in items):
            continue
        faults = {fault for fault, *_ in items}
        full_path = (*path, *key)
        if faults & {"extra_forbidden", "bad_key"}:
            allowed = []
            if (unknown := unknown + 1) > MOST_TOLD:
                pass  # a hint takes .4 ms, and nobody reads this one
            elif "extra_forbidden" in faults:
                allowed = sorted({n for m in models_at(model, key[:-1], data, nested) for n in _field_names(m)})
            else:
                expected = next((str(c["expected"]) for _, c, *_ in items if "expected" in c), "")
                allowed = re.findall(r"'([^']*)'", expected)
            hint = suggestion(str(key[-1]), allowed)
            yield document.error(full_path, f"unknown key {str(key[-1])!r}{hint}", at_key=True)
        elif "missing" in faults:
            yield document.error(full_path, f"is missing{_description(model, key, data, nested)}", at_key=True)
        else:
            at_key = not key
            is_mapping = key and faults <= {"dict_type", "model_type"}
            told = _description(model, key, data, nested).partition(";")[0] if is_mapping else ""
            # a profile that the value names has a line for each of its errors
            yield from (
                document.error(full_path, line + told, at_key=at_key) for line in _combine_complaints(items).split("\n")
            )


def _combine_complaints(items: Sequence[Complaint]) -> str:
    messages = [sentence(fault, context, value) for fault, context, value, _ in items if fault == "value_error"]
    if messages:  # of several values that are put together, such as two devices of a list, a line each
        alike = all(value == items[0][2] for _, _, value, _ in items)
        return (" or " if alike else "\n").join(dict.fromkeys(messages))
    fault, context, value, _ = items[0]
    expected = [text for k, c, *_ in items if (text := _expectation(k, c))]
    if not expected:
        return sentence(fault, context, value)
    literals = [str(c["expected"]) for k, c, *_ in items if k == "literal_error"]
    words = [word for allowed in literals for word in re.findall(r"'([^']*)'", allowed)]
    matches = get_close_matches(value, words, 1) if isinstance(value, str) else []
    hint = f"; did you mean {matches[0]!r}?" if matches else ""
    return f"must be {_alternatives_text(expected)}, not {show(value)}{hint}"


def _alternatives_text(expected: Iterable[str]) -> str:
    different = list(dict.fromkeys(expected))
    if "a number" in different:  # of which a whole one is one
        different = [text for text in different if text != "a whole number"]
    return " or ".join(different)


def _locate(loc: Sequence[str | int], data: Any, is_missing: bool) -> tuple[KeyPath, bool]:
    """The path in the data without pydantic's names of union members, and whether it had none."""
    path: list[str | int] = []
    exact = True
    for i, part in enumerate(loc):
        in_list = isinstance(data, list | tuple) and isinstance(part, int) and part < len(data)
        if in_list or (isinstance(data, Mapping) and part in data):
            path.append(part)
            data = data[part]
        elif is_missing and i == len(loc) - 1:
            path.append(part)
        else:
            exact = False
    return tuple(path), exact


def alternatives(annotation: Any) -> Iterator[Any]:
    """The members of a union, without aliases and annotations."""
    if hasattr(annotation, "__value__"):
        yield from alternatives(annotation.__value__)
    elif get_origin(annotation) is Annotated:
        yield from alternatives(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from alternatives(member)
    else:
        yield annotation


def is_model(annotation: Any) -> bool:
    """Whether this is a class of options."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _annotations_at(
    model: type[BaseModel], path: KeyPath, data: Any, nested: Nested | None
) -> list[tuple[Any, tuple[Any, ...]]]:
    """``(alternative, metadata)`` of the value at ``path``."""
    candidates: list[tuple[Any, tuple[Any, ...]]] = [(model, ())]
    for i, part in enumerate(path):
        data = data.get(part) if isinstance(data, Mapping) else None
        next_candidates: list[tuple[Any, tuple[Any, ...]]] = []
        nested_model = nested(path[: i + 1], data) if nested else None
        if nested_model is not None:
            candidates = [(nested_model, ())]
            continue
        for annotation, _ in candidates:
            if is_model(annotation):
                for name, info in annotation.model_fields.items():
                    if part in (name, info.alias):
                        next_candidates += [(a, tuple(info.metadata)) for a in alternatives(info.annotation)]
            elif get_origin(annotation) in (dict, Mapping):
                next_candidates += [(a, ()) for a in alternatives(get_args(annotation)[1])]
            elif get_origin(annotation) in (list, tuple, set, frozenset, Sequence):
                next_candidates += [(a, ()) for member in get_args(annotation) for a in alternatives(member)]
        candidates = next_candidates
    return candidates


def models_at(model: type[BaseModel], path: KeyPath, data: Any, nested: Nested | None = None) -> list[type[BaseModel]]:
    """The models that the value at ``path`` may be, following the annotations of ``model``."""
    return [a for a, _ in _annotations_at(model, path, data, nested) if is_model(a)]


def _field_names(model: type[BaseModel]) -> list[str]:
    return [info.alias or name for name, info in model.model_fields.items()]


def _description(model: type[BaseModel], path: KeyPath, data: Any, nested: Nested | None) -> str:
    for owner in models_at(model, path[:-1], data, nested):
        for name, info in owner.model_fields.items():
            if path[-1] in (name, info.alias) and info.description:
                return f": {info.description}"
    return ""


def leaves(data: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Every value that is neither a mapping nor a list, with its path."""
    if data is None or isinstance(data, str | int | float):
        yield path, data
    elif isinstance(data, Mapping):
        for key, value in data.items():
            yield from leaves(value, (*path, key))
    elif isinstance(data, list | tuple):
        for i, value in enumerate(data):
            yield from leaves(value, (*path, i))
    else:
        yield path, data


_NAMES = {int: "a whole number", float: "a number", str: "text", list: "a list", tuple: "a list", dict: "a mapping"}


def _misplaced_booleans(
    model: type[BaseModel], data: Any, given: Iterable[tuple[KeyPath, Any]], nested: Nested | None
) -> Iterator[tuple[KeyPath, bool, list[Any]]]:
    """Booleans where none is allowed, of the data's leaves: pydantic would take ``true`` as the number 1."""

    for path, value in given:
        if not isinstance(value, bool):
            continue
        hints = [a for a, _ in _annotations_at(model, path, data, nested)]
        if hints and not any(_takes_boolean(hint) for hint in hints):
            yield path, value, hints


def _takes_boolean(hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return any(isinstance(value, bool) for value in get_args(hint))
    return not (hint in (int, float, NoneType) or get_origin(hint) in (list, tuple, dict) or is_model(hint))


def _type_names(hints: Iterable[Any]) -> Iterator[str]:
    for hint in hints:
        if get_origin(hint) is Literal:
            yield from map(repr, get_args(hint))
        elif hint is not NoneType:
            yield _NAMES.get(get_origin(hint) or hint, "a mapping")


def _error_path(error: EdgeflError, model: type[BaseModel], data: Mapping[str, object]) -> tuple[KeyPath, bool]:
    """The path of the value that raised an EdgeflError, and whether it is a key, searched by the error's text."""

    def search(value: Any, path: KeyPath) -> tuple[KeyPath, bool] | None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                if isinstance(error, UnknownName) and key == error.name:
                    return (*path, key), True
                if match := search(inner, (*path, key)):
                    return match
        elif isinstance(value, list | tuple):
            for i, inner in enumerate(value):
                if match := search(inner, (*path, i)):
                    return match
        elif isinstance(error, UnknownName):
            return (path, False) if value == error.name else None
        elif isinstance(value, str) and value and repr(value) in str(error):
            return path, False
        return None

    for key, value in data.items():
        try:
            model.model_validate({key: value})
        except ValidationError:
            continue
        except EdgeflError:
            return search(value, (key,)) or ((key,), False)
    return search(data, ()) or ((), True)
