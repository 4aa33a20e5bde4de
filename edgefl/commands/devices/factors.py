"""Classes of devices that share an efficiency, and the factors that were fitted for them: `profiles/factors/`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from pydantic import PositiveFloat, PositiveInt, TypeAdapter, ValidationError

from edgefl.devices.browsing import describe
from edgefl.devices.profile import Device, is_file_name, library_folder, split_mode
from edgefl.devices.written_facts import read_written
from edgefl.records.devices import DeviceProfile, FleetSheet, HeldAgainst, LinkProfile
from edgefl.registry.part_fields import Fields

FittedNumber = Literal["float32", "tf32", "float16", "bfloat16", "seconds_per_operator"]
"""What a factor multiplies: the sustained rate in a precision, or the seconds of every operator."""

LOADING_SECONDS = 0.02
"""Where the loading of data was measured too, steps that are predicted to be shorter say nothing of the processor."""

ENOUGH_ROWS = 3
"""Held-out rows of a class from which its residuals are taken as known."""


class DeviceClass(Fields):
    """Devices that share the efficiency of their processor; ``gpu``: a GPU trains, which updates weights at once."""

    about: str
    gpu: bool
    devices: tuple[str, ...]
    fitted: tuple[FittedNumber, ...]


class Against(Fields):
    """What published seconds say of predictions, as predicted / measured: their number, median and range.

    ``error`` is the factor exp(sqrt(mean(log(ratio)^2))), which bias and spread enter alike.
    """

    rows: PositiveInt
    median: PositiveFloat
    low: PositiveFloat
    high: PositiveFloat
    error: PositiveFloat


class Fitted(Fields):
    """The content of ``fitted.yaml``, which ``tools/fit_rates.py`` writes.

    ``factors`` are by class and number.  ``devices`` are held against all rows, by the profiles' own numbers.
    ``classes`` have the held-out rows alone, by the same numbers, without the steps that loading of data may hide
    (``LOADING_SECONDS``).
    """

    title: str
    loss: str
    factors: dict[str, dict[FittedNumber, PositiveFloat]]
    devices: dict[str, Against]
    classes: dict[str, Against]


@dataclass(frozen=True)
class Classes:
    """The classes by name."""

    by_name: dict[str, DeviceClass]

    def of(self, device: str) -> str | None:
        """The name of the device's class, in any power mode; None for a device that is in none."""
        own = split_mode(device)[0]
        return next((name for name, one in self.by_name.items() if own in one.devices), None)


@cache
def classes() -> Classes:
    """The classes of the library's devices.  Raises DeviceError for an invalid file."""
    return Classes(_read("classes", TypeAdapter(dict[str, DeviceClass]), "classes"))


@cache
def fitted() -> Fitted:
    """What was fitted.  Raises DeviceError for an invalid file."""
    result: Fitted = _read("fitted", TypeAdapter(Fitted), None)
    return result


def _read(name: str, shape: TypeAdapter[Any], field: str | None) -> Any:
    written = read_written(library_folder() / "factors" / f"{name}.yaml", "a file of factors is a mapping with a title")
    data = dict(written.data)
    try:
        return shape.validate_python(data if field is None else data.get(field))
    except ValidationError as error:
        raise written.invalid(error, () if field is None else (field,), "see tools/fit_rates.py") from None


def held_against(device: str) -> Against | None:
    """What published measurements say of this device; None if nothing published was found."""
    return fitted().devices.get(device)


def described(name: str) -> DeviceProfile | LinkProfile | FleetSheet:
    """``describe`` with ``held_against`` for a device of the library.

    A device in a power mode has no such entry, as rows are of the default mode.

    Raises UnknownName and DeviceError as ``describe`` does.
    """
    result = describe(name)
    if not isinstance(result, DeviceProfile) or is_file_name(name) or split_mode(name)[1] is not None:
        return result
    known = held_against(name)
    return replace(result, held_against=None if known is None else HeldAgainst(**known.model_dump()))


def residual_factor(device: str) -> float | None:
    """By how much seconds on a device are off in the held-out half; None where too few rows say it.

    It is the device's class's, so it also holds for devices of the class that nobody measured.
    """
    known = fitted().classes.get(classes().of(device) or "")
    return known.error if known is not None and known.rows >= ENOUGH_ROWS else None


def corrected(device: Device, precision: str, factors: dict[FittedNumber, float]) -> Device:
    """The device with its rate in the measurement's precision and its seconds per operator times their factors."""
    rate = "float32" if precision == "tf32" else precision
    number = "flops_per_second" if rate == "float32" else f"{rate}_flops_per_second"
    times = {name: factor for name, factor in factors.items() if name in (precision, "seconds_per_operator")}
    changed = {
        (name if name == "seconds_per_operator" else number): factor
        * (device.seconds_per_operator if name == "seconds_per_operator" else device.rate(rate))
        for name, factor in times.items()
    }
    return replace(device, **changed) if changed else device  # type: ignore[arg-type]
