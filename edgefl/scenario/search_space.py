"""Search spaces: fields of a scenario with a range of numbers or a list of values, from which trials are made."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, log
from typing import Any, Literal

from edgefl.errors import ScenarioError
from edgefl.scenario.axes import ScenarioAxis, without_compare
from edgefl.scenario.document import KeyPath, KeyPosition, read_value, spell, write
from edgefl.scenario.fields import read_parts
from edgefl.scenario.keys import key_path
from edgefl.scenario.overrides import with_overrides
from edgefl.scenario.problems import collecting, raise_all, show
from edgefl.scenario.scenario import Scenario, combinations_of

OPTION = "--search"
LOG_FROM = 10
"""A range of positive numbers whose ends differ by this factor or more is searched by its logarithm.

A choice: evenly drawn, a range of one decade has a quarter of its numbers below its middle by the logarithm.
"""
DECADE = 10
"""The factor by which a range is widened: users write ranges in decades. A smaller one needs more widenings, of two."""
EDGE = 0.1
"""The share of a range, at each end, that is its edge.

A choice, not measured: with a larger one a best that lies well within a range widens it, which spends trials outside.
"""
DIGITS = 4
"""Significant digits of a number that is drawn from a range, since results don't depend on more, and users copy it."""

FIXED = {
    "seed": "trials are compared over the same seeds, which --seeds counts",
    "evaluation": "all trials are scored in one way",
    **dict.fromkeys(("executor", "tracker", "name", "compare", "edgefl"), "results don't depend on it"),
}
"""Sections and fields that trials share, with the reason."""

Side = Literal["lower", "upper"]

_RANGE = re.compile(r"(?:(linear|log):)?\s*([^\s,\[\]{}]+?)\s*\.\.\s*([^\s,\[\]{}]+)")


@dataclass(frozen=True)
class NumberRange:
    """A field and the range of its numbers, ends included; ``whole`` ones only, by their logarithm or not."""

    path: KeyPath
    low: float
    high: float
    by_log: bool
    whole: bool
    text: str

    @property
    def name(self) -> str:
        """The path as it is written."""
        return spell(self.path)

    @property
    def canonical_text(self) -> str:
        """What is searched, in one form for equal ranges: ``log:0.0001..0.1``."""
        return f"{'log' if self.by_log else 'linear'}:{self.low:.12g}..{self.high:.12g}"

    @property
    def size(self) -> int | None:
        """How many values there are; None for a range of real numbers."""
        return int(self.high) - int(self.low) + 1 if self.whole else None

    def setting(self, drawn: Any) -> int | float:
        """The number that a trial gets for one that was drawn: rounded to DIGITS, within the range."""
        if self.whole:
            return int(drawn)
        return min(max(float(f"{drawn:.{DIGITS}g}"), self.low), self.high)

    def axis(self, value: Any) -> ScenarioAxis:
        """The axis that sets this value."""
        return ScenarioAxis.from_values(self.path, [value], [{self.path: KeyPosition(self.text)}])

    def holds(self, value: Any) -> bool:
        """Whether the range has this value."""
        return bool(self.low <= value <= self.high)

    def all_drawn(self) -> list[Any]:
        """Every value of a range of whole numbers."""
        return list(range(int(self.low), int(self.high) + 1))

    def edge(self, value: float) -> Side | None:
        """The end of the range within whose last tenth this value is, by the logarithm if the range is searched so."""
        a, b, x = (log(each) if self.by_log else each for each in (self.low, self.high, value))
        share = (x - a) / (b - a)
        return "lower" if share <= EDGE else "upper" if share >= 1 - EDGE else None

    def widen(self, side: Side) -> NumberRange:
        """The range with ten times as much on this side; whole numbers stay positive."""
        if side == "upper":
            return replace(self, high=self.high * DECADE)
        return replace(self, low=max(1, int(self.low) // DECADE) if self.whole else _tenth(self.low))

    def added_interval(self, to: NumberRange) -> tuple[float, float]:
        """What ``to``, this one widened, has more: from the end until now to the new one."""
        return (self.low, to.low) if to.low < self.low else (self.high, to.high)


def _tenth(low: float) -> float:
    """A tenth, as short as it is written: 1e-4 becomes 1e-5, and not 1.0000000000000001e-05."""
    return float(f"{low / DECADE:.12g}")


@dataclass(frozen=True)
class ValueList:
    """A field and the values that it may have; ``labels`` tell them apart."""

    path: KeyPath
    values: ScenarioAxis
    labels: tuple[str, ...]

    @property
    def name(self) -> str:
        """The path as it is written."""
        return spell(self.path)

    @property
    def canonical_text(self) -> str:
        """The values."""
        return ",".join(self.labels)

    @property
    def size(self) -> int:
        """How many values there are."""
        return len(self.labels)

    def setting(self, drawn: Any) -> Any:
        """The value with this label."""
        return self.values.values[self.labels.index(drawn)]

    def axis(self, value: Any) -> ScenarioAxis:
        """The axis that sets this value."""
        i = next(i for i, each in enumerate(self.values.values) if each == value and type(each) is type(value))
        return replace(self.values, values=(value,), sets=(self.values.sets[i],))

    def holds(self, value: Any) -> bool:
        """Whether this is one of the values."""
        return True

    def all_drawn(self) -> list[Any]:
        """Every label."""
        return list(self.labels)

    def edge(self, value: Any) -> Side | None:
        """The end of a list of ordered numbers at which this value is; None for another list."""
        values = self.values.values
        numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)
        if not numbers or list(values) not in (sorted(values), sorted(values, reverse=True)) or len(values) < 3:
            return None
        return "lower" if value == min(values) else "upper" if value == max(values) else None


Searched = NumberRange | ValueList


def parse_search_space(scenario: Scenario, texts: Sequence[str]) -> list[Searched]:
    """The fields in texts such as ``training.lr=1e-4..1e-1``, ``linear:0..1`` and ``method.mu=0.01,0.1,1``.

    A range of positive numbers whose ends differ by LOG_FROM or more is searched by its logarithm, unless ``linear:``
    or ``log:`` stands before it.  It has whole numbers if its ends are, and the field takes no others or has one now
    (``epochs: 2``).  Raises ScenarioError for another form, a path that can't be set, ends or values that the field
    doesn't take, and a field that is given twice.
    """
    if isinstance(texts, str) or not all(isinstance(each, str) for each in texts):
        raise ScenarioError(f'search is a list such as ["training.lr=1e-4..1e-1"], not {show(texts)}')
    if not texts:
        raise ScenarioError(f"nothing is searched: add {OPTION} training.lr=1e-4..1e-1")
    found: list[Searched] = []
    errors: list[ScenarioError] = []
    for text in texts:
        with collecting(errors):
            each = _parse_searched_field(scenario, text)
            if any(other.path == each.path for other in found):
                raise ScenarioError(f"is searched twice; put its values into one {OPTION}", key=each.name)
            found.append(each)
    raise_all(errors)
    return found


def _parse_searched_field(scenario: Scenario, text: str) -> Searched:
    path_text, equals, values = text.partition("=")
    if equals and (matched := _RANGE.fullmatch(values.strip())):
        return _span(scenario, f"{OPTION} {text}", path_text, *matched.groups())
    axis = ScenarioAxis.from_text(text, OPTION)
    if len(axis.values) < 2:
        raise ScenarioError(
            "one value leaves nothing to search; a range is 1e-4..1e-1, a list 0.01,0.1,1, and --set sets one value",
            file=f"{OPTION} {text}",
            key=spell(axis.path),
        )
    raise_all([error for i in range(len(axis.values)) for error in _invalid(scenario, axis, i)])
    _check_path(axis.path, f"{OPTION} {text}")
    return ValueList(axis.path, axis, tuple(map(_as_text, axis.values)))


def _span(scenario: Scenario, origin: str, path_text: str, scale: str | None, *ends: str) -> NumberRange:
    try:
        path = key_path(path_text)
        low, high = (read_value(end, origin)[0] for end in ends)
    except ScenarioError as error:
        raise ScenarioError(error.message, file=origin) from None
    key = spell(path)
    _check_path(path, origin)
    for end, value in zip(ends, (low, high), strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise ScenarioError(
                f"a range goes from a number to a number, and {end!r:.60} is none", file=origin, key=key
            )
    if not low < high:
        raise ScenarioError(
            f"{ends[0]}..{ends[1]} is empty: the first number must be the lower one", file=origin, key=key
        )
    if scale == "log" and low <= 0:
        raise ScenarioError(f"{ends[0]} has no logarithm; write linear: or a number above 0", file=origin, key=key)
    by_log = scale == "log" or (scale is None and low > 0 and high / low >= LOG_FROM)
    whole = isinstance(low, int) and isinstance(high, int)
    span = NumberRange(path, low, high, by_log, whole, origin)
    raise_all([error for end in (low, high) for error in span_errors(scenario, span, end)])
    if whole and not _has_whole_number(scenario, path) and not span_errors(scenario, span, low + 0.5):
        span = replace(span, whole=False)
    return span if span.whole else replace(span, low=float(low), high=float(high))


def _has_whole_number(scenario: Scenario, path: KeyPath) -> bool:
    """Whether the scenario's field is a whole number: false for a share written as 1.0, and for a missing one."""
    value: Any = scenario.to_data()
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return isinstance(value, int) and not isinstance(value, bool)


def span_errors(scenario: Scenario, span: NumberRange, value: float) -> list[ScenarioError]:
    """Why the field doesn't take this value by itself."""
    return _invalid(scenario, span.axis(value), 0)


def _invalid(scenario: Scenario, axis: ScenarioAxis, index: int) -> list[ScenarioError]:
    try:
        return read_parts(with_overrides(without_compare(scenario._document), axis.sets[index]))[1]
    except ScenarioError as error:
        return [error]


def _check_path(path: KeyPath, origin: str) -> None:
    """Raise ScenarioError for a field that isn't to be searched."""
    if path[0] in FIXED:
        raise ScenarioError(f"is no setting to search: {FIXED[str(path[0])]}", file=origin, key=spell(path))


def with_settings(scenario: Scenario, space: Sequence[Searched], settings: Mapping[str, Any]) -> Scenario:
    """The scenario with the settings of a trial, by name.  Raises ScenarioError if they contradict each other."""
    return combinations_of(scenario, [each.axis(settings[each.name]) for each in space])[0][1]


def settings_yaml(scenario: Scenario, space: Sequence[Searched]) -> str:
    """The searched fields of a trial's scenario as sections of a scenario file, to be merged into one."""
    nested: dict[str, Any] = {}
    for path in sorted((_before_index(each.path) for each in space), key=len):
        node, value = nested, _at(scenario._document.data, path)
        for key in path[:-1]:
            inner = node.setdefault(str(key), {})
            if not isinstance(inner, dict):
                break
            node = inner
        else:
            node[str(path[-1])] = value
    return write(nested)


def _at(value: Any, path: KeyPath) -> Any:
    for key in path:
        value = value[key]
    return value


def _before_index(path: KeyPath) -> KeyPath:
    """The path up to the first number, behind which it leads into a list that only the whole can be merged as."""
    return next((path[:i] for i, key in enumerate(path) if isinstance(key, int)), path)


def settings_sets(space: Sequence[Searched], settings: Mapping[str, Any]) -> list[str]:
    """The settings of a trial as ``path=value``, for ``--set``."""
    return [f"{each.name}={_as_text(settings[each.name])}" for each in space]


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w.-]*", value) else json.dumps(value)
