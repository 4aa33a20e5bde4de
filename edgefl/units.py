"""Parsing and printing of quantities with units ("4 GiB", "236 GFLOP/s", "12..48 MiB").

MiB is 2^20 bytes, MB is 10^6. A number without a unit is in the base unit (bytes, FLOPs, bits per second, seconds,
joules, watts); bytes between 0 and 1 MiB need one, because who writes 48 means MiB. Quantities are parsed exactly, as
fractions, and rounded once at the end. Negative values are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import inf, isfinite
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue

from edgefl.errors import UnitError, suggestion

_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(.*?)\s*", re.DOTALL | re.ASCII)
_DECIMAL: dict[str, int | Fraction] = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
}
_BINARY: dict[str, int | Fraction] = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_SMALL: dict[str, int | Fraction] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "µ": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
}
_DASHED = re.compile(r"\s*(\d.*?(?:\d|%|[A-Za-z]{2,}|\s))\s*(?:-|–|\bto\b)\s*(\d.*)", re.DOTALL)
"""What may be meant as a range: ``12-48 MiB``, ``12 to 48 MiB``; ``1e-3`` isn't."""
_MOST_DIGITS = 1000
"""Digits of a number, so that a longer one is refused in a line: Python's ``int`` raises ValueError above 4300."""
_LARGEST_INTEGER = 2**63 - 1
"""Whole amounts become arrays of int64."""


NEARLY = 0.9995
"""An amount is shown in a unit from this share of its least on: 0.9999 MiB as "1 MiB", not as "1024 KiB"."""


class ShownUnit(NamedTuple):
    """A unit in which amounts are shown: how many base units it is, and the amount from which it is used."""

    name: str
    factor: float
    least: float


@dataclass(frozen=True, eq=False)
class Quantity:
    """One kind of quantity: its noun and example for error messages, and the factor of each unit to the base unit.

    ``whole`` quantities are rounded to integers; values above ``most`` are refused, and so are those between 0 and
    ``least_bare`` without a unit.  ``word`` is what the names of fields with such amounts end with.
    """

    noun: str
    example: str
    factors: Mapping[str, Fraction]
    whole: bool = False
    most: float = inf
    least_bare: int = 0
    word: str = ""
    shown: Mapping[str, float] = field(default_factory=dict)
    """The units in which amounts are shown, each with the amount from which it is, ascending; by default the base unit.

    Every table, figure and page reads them here, the scripts of pages from ``to_page``.
    """

    @property
    def unit(self) -> str:
        """The base unit; empty if it has no name."""
        return next((name for name, factor in self.factors.items() if name and factor == 1), "")

    @cached_property
    def steps(self) -> Sequence[ShownUnit]:
        """The units in which amounts are shown, ascending."""
        found = self.shown or {self.unit: 1.0}
        return [ShownUnit(name, float(self.factors.get(name, 1)), least) for name, least in found.items()]

    def unit_for(self, amount: float) -> ShownUnit:
        """The unit in which an amount is shown: the largest that isn't above it, for 0 the base unit."""
        steps = self.steps
        if amount == 0:
            return next((step for step in steps if step.factor == 1), steps[0])
        return next((step for step in reversed(steps) if amount >= step.least * NEARLY), steps[0])

    def show(self, amount: float, digits: int = 3) -> str:
        """An amount as text with about so many digits: "12.3 MiB"; a share in percent."""
        if amount == inf:
            return "unlimited"
        if amount < 0:
            return "-" + self.show(-amount, digits)
        unit = self.unit_for(amount)
        number = amount / unit.factor
        if unit.name == "%":
            return f"{float(f'{number:.{digits}g}'):.15g} {unit.name}"
        places = max(0, digits - len(str(int(number + 0.5 * 10 ** (1 - digits)))))
        text = f"{number:.{places}f}"
        return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {unit.name}".rstrip()

    def to_page(self) -> dict[str, Any]:
        """What a page's script needs to write and read amounts as this does (``explore/units.js``)."""
        return {
            "steps": self.steps, "factors": {name: float(factor) for name, factor in self.factors.items()},
            "binary": any(step.factor == 1024 for step in self.steps), "example": self.example,
            "least_bare": self.least_bare,
        }  # fmt: skip

    def parse(self, value: object) -> float:
        """``value`` in the base unit.  Raises UnitError if it can't be parsed, is negative, or is too large."""
        if isinstance(value, str):
            if ".." in value:
                raise UnitError(f"{value!r} is a range, and one {self.noun} is needed, for example {self.example!r}")
            number, unit = _split(value, self)
            return self._finish(number * self._factor(unit, value), value, bare=not unit)
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not isfinite(value):
                raise UnitError(f"{value!r} is not a finite {self.noun}")
            return self._finish(Fraction(*value.as_integer_ratio()), value, bare=True)
        raise UnitError(f"{value!r} is not a {self.noun}; write for example {self.example!r}")

    def parse_range(self, value: object) -> tuple[float, float]:
        """(lowest, highest) in the base unit, of "12..48 MiB", "800 MB..1 GB" or [lowest, highest].

        A single value is both ends.  Raises UnitError as ``parse`` does, and if the lower end is above the upper end.
        """
        if isinstance(value, list | tuple):
            if len(value) != 2:
                raise UnitError(f"{list(value)!r} is not a range of a {self.noun}; write [lowest, highest]")
            low, high = self.parse(value[0]), self.parse(value[1])
        elif isinstance(value, str) and ".." in value:
            left, _, right = (part.strip() for part in value.partition(".."))
            if not left or not right:
                raise UnitError(f"{value!r} is not a range of a {self.noun}; write for example '12..48' with a unit")
            number, unit = _split(left, self)
            # in "12..48 MiB" the unit of the upper end holds for both
            upper, of_upper = _split(right, self)
            high = self._finish(upper, value, bare=False) if unit and not of_upper else self.parse(right)
            low = self._finish(number * self._factor(unit or of_upper, value), value, bare=not (unit or of_upper))
            if unit and not of_upper and (low > high or high < self.least_bare):
                raise UnitError(f"{value!r}: the upper end has no unit; did you mean '{left}..{right} {unit}'?")
        else:
            try:
                low = high = self.parse(value)
            except UnitError:
                if isinstance(value, str) and (ends := _DASHED.fullmatch(value)):
                    meant = f"{ends[1].strip()}..{ends[2].strip()}"
                    raise UnitError(f"{value!r} is not a {self.noun}; a range is written {meant!r}") from None
                raise
        if low > high:
            raise UnitError(f"{value!r} is an empty range of a {self.noun}: its lower end is above its upper end")
        return low, high

    def write(self, low: float, high: float | None = None) -> str:
        """An amount, or a range, as a user writes it: exactly, in the unit that takes the fewest digits."""
        ends = [self._texts(end) for end in ({low, low if high is None else high})]
        shared = [unit for unit in ends[0] if all(unit in texts for texts in ends)]
        if not shared:
            return f"{self.write(low)}..{self.write(low if high is None else high)}"
        unit = min(shared, key=lambda unit: (sum(len(texts[unit]) for texts in ends), unit != self.unit))
        numbers = sorted((texts[unit] for texts in ends), key=float)
        return f"{'..'.join(numbers)}{'' if unit == '%' else ' '}{unit}".rstrip()

    def _texts(self, amount: float) -> dict[str, str]:
        """The amount as a number in each unit in which it has at most ten digits; of equal units in the shortest."""
        names: dict[Fraction, str] = {}
        for name in sorted(self.factors, key=len):
            if name and (name.endswith(self.unit) or self.unit == "s"):
                names.setdefault(self.factors[name], name)
        exact, found = Fraction(repr(amount)), dict[str, str]()
        for factor, name in names.items():
            text = f"{float(exact / factor):.10g}"
            if Fraction(text) * factor == exact:
                found[name] = text
        return found or {self.unit: repr(amount)}

    def _factor(self, unit: str, value: str) -> Fraction:
        if unit not in self.factors:
            # a unit that differs in case alone is suggested first, for "MIB" MiB, not MB; then those that begin so
            similar = [known for known in self.factors if known.lower() == unit.lower()][-1:]
            begun: dict[Fraction, str] = {}  # of units that are equal the shortest, largest first
            for known in sorted(self.factors, key=lambda known: (-self.factors[known], len(known))):
                if known.startswith(unit):
                    begun.setdefault(self.factors[known], known)
            meant = " or ".join(map(repr, similar or begun.values()))
            hint = f"; did you mean {meant}?" if meant else suggestion(unit, filter(None, self.factors))
            raise UnitError(f"{value!r}: unknown unit {unit!r} of a {self.noun}{hint}")
        return self.factors[unit]

    def to_data(self, number: float) -> float | str:
        """A number as it can be read again: with its unit where it needs one."""
        return f"{number} {self.unit}" if 0 < number < self.least_bare else number

    def _finish(self, exact: Fraction, value: object, *, bare: bool) -> float:
        if exact < 0:
            raise UnitError(f"{value!r} is negative; a {self.noun} must be 0 or more")
        if bare and 0 < exact < self.least_bare:
            raise UnitError(f"{value!r} has no unit: write {value} {self.unit} or {value} Mi{self.unit}")
        if self.whole:
            if exact > _LARGEST_INTEGER:
                raise UnitError(f"{value!r} is too large for a {self.noun}")
            return round(exact)
        try:
            number = float(exact)
        except OverflowError:
            raise UnitError(f"{value!r} is too large for a {self.noun}") from None
        if number > self.most:
            raise UnitError(f"{value!r} is too large: a {self.noun} must be between 0 and 1 (0 % and 100 %)")
        return number


def _split(text: str, quantity: Quantity) -> tuple[Fraction, str]:
    match = _NUMBER.fullmatch(text)
    if not match:
        raise UnitError(f"{text!r} is not a {quantity.noun}; write for example {quantity.example!r}")
    if len(match[1]) > _MOST_DIGITS:
        raise UnitError(f"{text!r} has more than {_MOST_DIGITS} digits; write for example {quantity.example!r}")
    return Fraction(match[1].replace("_", "")), match[2]


def _units(*names: str, binary: bool = False, small: bool = False, scale: int | Fraction = 1) -> dict[str, Fraction]:
    """Factors of the units ``names`` with every prefix: ``{"kB": 1000, ...}``."""
    prefixes = {**_DECIMAL, **(_BINARY if binary else {}), **(_SMALL if small else {})}
    return {prefix + name: Fraction(1) * factor * scale for name in names for prefix, factor in prefixes.items()}


def _decimal(unit: str) -> dict[str, float]:
    """The units with decimal prefixes, each shown from its own size on."""
    return {prefix + unit: float(factor) for prefix, factor in _DECIMAL.items() if prefix != "K"}


_PLAIN = {"": Fraction(1)}
_TIME = {"ns": Fraction(1, 10**9), "us": Fraction(1, 10**6), "µs": Fraction(1, 10**6), "ms": Fraction(1, 1000)}
_TIME |= {name: Fraction(1) for name in ("s", "sec", "second", "seconds")}
_TIME |= {name: Fraction(60) for name in ("min", "minute", "minutes")}
_TIME |= {name: Fraction(3600) for name in ("h", "hour", "hours")}
_TIME |= {name: Fraction(86400) for name in ("d", "day", "days")}

BYTES = Quantity(
    "number of bytes", "48 MiB", _PLAIN | _units("B", binary=True) | {"bytes": Fraction(1)}, whole=True,
    least_bare=2**20, word="bytes", shown={"B": 1.0, **{f"{prefix}B": float(size) for prefix, size in _BINARY.items()}},
)  # fmt: skip
FLOPS = Quantity("number of FLOPs", "2 TFLOP", _PLAIN | _units("FLOP", "FLOPs"), word="flops", shown=_decimal("FLOP"))
RATE = Quantity(
    "rate of FLOPs per second", "236 GFLOP/s", _PLAIN | _units("FLOP/s", "FLOPs/s", "FLOPS"), word="flops_per_second",
    shown=_decimal("FLOP/s"),
)  # fmt: skip
BITS_PER_SECOND = Quantity(
    "rate of bits per second", "20 Mbit/s",
    _PLAIN | _units("bit/s", "bps", "b/s", binary=True) | _units("B/s", binary=True, scale=8),
    word="bits_per_second", shown=_decimal("bit/s"),
)  # fmt: skip
BYTES_PER_SECOND = Quantity(
    "rate of bytes per second", "25.6 GB/s", _PLAIN | _units("B/s", binary=True), word="bytes_per_second",
    shown=_decimal("B/s"),  # as data sheets give bandwidths
)  # fmt: skip
SECONDS = Quantity(
    "number of seconds", "10 min", _PLAIN | _TIME, word="seconds",
    shown={"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 120.0, "h": 7200.0, "d": 172800.0},
)  # fmt: skip
JOULES = Quantity(
    "number of joules", "2 kJ", _PLAIN | _units("J", small=True) | _units("Wh", small=True, scale=3600), word="joules",
    shown={"mJ": 1e-3, **_decimal("J")},
)  # fmt: skip
WATTS = Quantity(
    "number of watts", "6.4 W", _PLAIN | _units("W", small=True), word="watts", shown={"mW": 1e-3, **_decimal("W")}
)
GRAMS = Quantity(
    "number of grams", "3 kg", _PLAIN | _units("g", small=True) | {"t": Fraction(10**6)}, word="grams",
    shown={"ug": 1e-6, "mg": 1e-3, "g": 1.0, "kg": 1e3, "t": 1e6},
)  # fmt: skip
CARBON_INTENSITY = Quantity(
    "number of grams per kWh", "400 g/kWh",
    _PLAIN | {"g/kWh": Fraction(1), "kg/kWh": Fraction(1000), "kg/MWh": Fraction(1), "g/MJ": Fraction(36, 10)},
)  # fmt: skip
STEPS_PER_SECOND = Quantity(
    "rate of steps per second", "2.5 steps/s", {u: Fraction(1) for u in ("", "steps/s", "it/s")}
)
SAMPLES_PER_SECOND = Quantity(
    "rate of samples per second", "120 samples/s",
    {u: Fraction(1) for u in ("", "samples/s", "images/s", "img/s", "sequences/s")},
)  # fmt: skip
SHARE = Quantity("share", "40%", _PLAIN | {"%": Fraction(1, 100)}, most=1.0, word="share", shown={"%": 0.01})

NAMED: Mapping[str, Quantity] = {
    each.word: each
    for each in (RATE, BITS_PER_SECOND, BYTES_PER_SECOND, BYTES, FLOPS, SECONDS, JOULES, WATTS, GRAMS, SHARE)
}
"""Quantities by the words that names of fields end with."""

show_bytes, show_flops, show_rate = BYTES.show, FLOPS.show, RATE.show
show_bits_per_second, show_bytes_per_second = BITS_PER_SECOND.show, BYTES_PER_SECOND.show
show_seconds, show_joules, show_watts, show_grams = SECONDS.show, JOULES.show, WATTS.show, GRAMS.show
show_share = SHARE.show


def setting_text(value: object, quantity: Quantity) -> str:
    """A setting in a quantity as a user writes it: ``3 MiB``, ``12..48 MiB``, ``{6 MiB: 70%}``, ``unlimited`` for None.

    Whole numbers of shares are counts.
    """
    if isinstance(value, Mapping):
        return (
            f"{{{', '.join(f'{_key(name, quantity)}: {setting_text(part, SHARE)}' for name, part in value.items())}}}"
        )
    if isinstance(value, list | tuple):
        return quantity.write(*(quantity.parse(end) if isinstance(end, str) else end for end in value))
    if isinstance(value, float) or (isinstance(value, int) and quantity is not SHARE):
        return quantity.write(value)
    return "unlimited" if value is None else str(value)


def _key(name: str, quantity: Quantity) -> str:
    try:
        return quantity.write(*quantity.parse_range(name))
    except UnitError:
        return name  # of a device; "unlimited", "40% of device"


def _validator(parse: Callable[[object], Any]) -> BeforeValidator:
    def read(value: object) -> Any:
        try:
            return parse(value)
        except UnitError as error:  # pydantic collects ValueErrors and adds the field's name
            raise ValueError(str(error)) from None

    return BeforeValidator(read)


def _schema(quantity: Quantity) -> WithJsonSchema:
    return WithJsonSchema(
        {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}], "examples": [quantity.example]}
    )


def range_schema(quantity: Quantity) -> JsonSchemaValue:
    """The JSON Schema of a range: a number, a text, or a list of both ends."""
    item = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]}
    ends = {"type": "array", "items": item, "minItems": 2, "maxItems": 2}
    return {"anyOf": [*item["anyOf"], ends], "examples": [quantity.example]}


def _range_schema(quantity: Quantity) -> WithJsonSchema:
    return WithJsonSchema(range_schema(quantity))


# Types of pydantic fields: each accepts a number in the base unit or a text with a unit.
_BYTES_AS_DATA = PlainSerializer(BYTES.to_data, return_type=int | str, when_used="json")
Bytes = Annotated[int, _validator(BYTES.parse), _BYTES_AS_DATA, _schema(BYTES), BYTES]
BitsPerSecond = Annotated[float, _validator(BITS_PER_SECOND.parse), _schema(BITS_PER_SECOND), BITS_PER_SECOND]
Seconds = Annotated[float, _validator(SECONDS.parse), _schema(SECONDS), SECONDS]
Watts = Annotated[float, _validator(WATTS.parse), _schema(WATTS), WATTS]
Share = Annotated[float, _validator(SHARE.parse), _schema(SHARE), SHARE]
CarbonIntensity = Annotated[float, _validator(CARBON_INTENSITY.parse), _schema(CARBON_INTENSITY), CARBON_INTENSITY]

JoulesRange = Annotated[tuple[float, float], _validator(JOULES.parse_range), _range_schema(JOULES), JOULES]
ShareRange = Annotated[tuple[float, float], _validator(SHARE.parse_range), _range_schema(SHARE), SHARE]


def show_interval(*factors: float) -> str:
    """Intervals in words: ``x1.4 either way (80 %)``, or ``x1.4 to x2.3`` of unequal devices."""
    ends = dict.fromkeys(f"x{factor:.2g}" for factor in (min(factors), max(factors)))
    return f"{' to '.join(ends)} either way (80 %)"
