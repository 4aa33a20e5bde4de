"""The keys of a scenario, and the overrides that name them: what a mistake in is told of before torch is imported."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from edgefl import SCENARIO_FORMAT
from edgefl.errors import MOST_TOLD, ScenarioError, suggestion
from edgefl.scenario.document import Document, KeyPath, KeyPosition, Override, read_value, set_value
from edgefl.scenario.library import fields_by_section, find_document
from edgefl.scenario.problems import raise_all, show

VERSION, TOP = "edgefl", ("name", "seed", "compare")
"""The top-level keys that are not sections."""
ROWS = "rows"
"""The key of ``compare`` that has rows of fields, by label, in place of a list of values."""

NAMES = (
    "data", "model", "adapter", "pretrain", "method", "schedule", "training", "payload", "aggregation",
    "privacy", "fleet", "round", "executor", "tracker", "evaluation", "stop",
)  # fmt: skip
"""The keys of the sections (``sections.SECTIONS`` says what each holds)."""

_INDEX = re.compile("[0-9]{1,9}")


def key_path(text: str) -> KeyPath:
    """``fleet.links.0`` or ``fleet.links[0]`` -> ("fleet", "links", 0).  Raises ScenarioError for an empty part."""
    parts = [part.strip() for part in re.sub(r"\[([0-9]+)\]", r".\1", text.strip()).split(".")]
    if not all(parts):
        raise ScenarioError(f"{text!r} isn't a path; write for example fleet.budgets.memory")
    return tuple(int(part) if _INDEX.fullmatch(part) else part for part in parts)


def read_override(override: str) -> Override:
    """What an override ``path=value`` sets.  Raises ScenarioError if it isn't written so."""
    origin = f"--set {override}"
    path_text, equals, value_text = override.partition("=")
    if not equals:
        raise ScenarioError("an override is path=value, for example training.lr=1e-3", file=origin)
    try:
        path = key_path(path_text)
        value, places = read_value(value_text, origin)
    except ScenarioError as error:
        raise ScenarioError(error.message, file=origin) from None
    return Override(path, value, {path: KeyPosition(origin), **{path + inner: at for inner, at in places.items()}})


def check_keys(document: Document) -> list[ScenarioError]:
    """Errors in the top-level keys and in the version of the format.  Raises ScenarioError for a suite."""
    data = document.data
    errors: list[ScenarioError] = []
    if "variants" in data:
        raise document.error(("variants",), "belongs to a suite, which edgefl bench takes", at_key=True)
    allowed = [VERSION, *TOP[:2], *NAMES, TOP[2]]
    for key in data:
        if key not in allowed:
            hint = _unknown_key_hint(key, allowed) if len(errors) < MOST_TOLD else ""  # nobody reads the others
            errors.append(document.error((key,), f"unknown key {key!r}{hint}", at_key=True))
    version = data.get(VERSION)
    if version is None:
        errors.append(document.error((VERSION,), f"is missing: write `edgefl: {SCENARIO_FORMAT}`", at_key=True))
    elif version != SCENARIO_FORMAT or isinstance(version, bool):
        message = f"this edgefl reads version {SCENARIO_FORMAT} of the format, not {show(version)}"
        newer = isinstance(version, int) and not isinstance(version, bool) and version > SCENARIO_FORMAT
        errors.append(document.error((VERSION,), message + ("; update edgefl" if newer else "")))
    return errors


def _unknown_key_hint(key: str, allowed: Sequence[str]) -> str:
    """What may be meant by an unknown top-level key: a field of a section, or a key that is there."""
    if sections := [section for section, fields in fields_by_section().items() if key in fields]:
        of, paths = " or ".join(sections), " or ".join(f"{section}.{key}" for section in sections)
        return f"; it is a field of {of}: indent it below, or set {paths}"
    return suggestion(key, allowed)


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise ScenarioError for overrides that aren't path=value, or that name no section.  What a section may hold is
    checked where scenarios are read, which takes the seconds of ``import torch``."""
    errors: list[ScenarioError] = []
    for override in overrides:
        try:
            top = (str(read_override(override).path[0]),)
        except ScenarioError as error:
            errors.append(error)
            continue
        errors += check_keys(
            Document({VERSION: SCENARIO_FORMAT, **dict.fromkeys(top)}, {top: KeyPosition(f"--set {override}")})
        )
    raise_all([error for error in errors if error.key != VERSION])


def executor_of(scenario: str, overrides: Sequence[str]) -> str | None:
    """The executor that a scenario names, or None, as far as its text tells it: nothing is checked."""
    try:
        document = find_document(scenario)
        for override in overrides:
            change = read_override(override)
            if change.path[0] == "executor":
                document = set_value(_long(document), change)
        section = _long(document).data["executor"]
    except ScenarioError:
        return None
    name = section.get("name") if isinstance(section, dict) else None
    return name if isinstance(name, str) else None


def _long(document: Document) -> Document:
    """The document with a bare word for the executor written as its name."""
    given = document.data.get("executor")
    return replace(document, data={**document.data, "executor": {"name": given} if isinstance(given, str) else given})
