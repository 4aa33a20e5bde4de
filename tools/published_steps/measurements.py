"""Published measurements of training on devices of the library: `profiles/measurements/*.yaml`.

Predictions are held against them.  A hash puts each into one of two halves, so that factors that are fitted to one
half can be judged on the other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import Literal, cast

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from edgefl import units
from edgefl.devices.profile import device_names, library_files
from edgefl.devices.written_facts import SOURCE_SHAPE, FactSource, ProfileFile, read_written
from edgefl.errors import UnitError, suggestion

Half = Literal["fitted", "held-out"]
Measured = Literal[
    "seconds_per_step", "seconds_per_epoch", "steps_per_second", "samples_per_second", "peak_memory", "power", "energy"
]

QUANTITIES = MappingProxyType(
    {
        "seconds_per_step": units.SECONDS,
        "seconds_per_epoch": units.SECONDS,
        "steps_per_second": units.STEPS_PER_SECOND,
        "samples_per_second": units.SAMPLES_PER_SECOND,
        "peak_memory": units.BYTES,
        "power": units.WATTS,
        "energy": units.JOULES,
    }
)
"""The quantity of each kind of measurement; ``energy`` is of one epoch."""

_SHAPE = (
    "a measurement is {device, model, library, batch, input, precision, framework, measured, value, "
    "source: {title, date, quote}}"
)
_FILE = "a file of measurements is a mapping with a title, the licence of its source, and a list, measurements"
_SOFTWARE = re.compile(r"([A-Za-z]+)(?: (\d+)\.(\d+))?")
_KEYS = ("title", "licence", "measurements")


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid")

    device: str
    model: str = Field(min_length=1)
    library: Literal["torchvision", "timm", "transformers", "other"]
    architecture: str | None = Field(default=None, min_length=1)
    trained: Literal["all", "last layer"] = "all"
    batch: PositiveInt
    input: list[PositiveInt] = Field(min_length=1)
    classes: PositiveInt | None = None
    precision: Literal["float32", "tf32", "float16", "bfloat16"]
    half: Literal["autocast", "model"] | None = None
    optimizer: str | None = Field(default=None, min_length=1)
    framework: str = Field(min_length=1)
    measured: Measured
    value: float | str
    watts: float | str | None = None
    samples: PositiveInt | None = None
    includes: list[Literal["data loading", "validation"]] = []
    notes: str | None = Field(default=None, min_length=1)
    source: FactSource


@dataclass(frozen=True)
class Software:
    """What trained: ``name`` is pytorch, tensorflow or mnn, ``version`` is None where the source doesn't say it.

    ``compiled``: operators were fused by XLA or torch.compile before they ran.
    """

    name: str
    version: tuple[int, int] | None
    compiled: bool

    @property
    def key(self) -> str:
        """By which efficiencies are fitted: ``pytorch 1.13``, ``pytorch compiled``."""
        version = "" if self.version is None else " {}.{}".format(*self.version)
        return self.name + version + (" compiled" if self.compiled else "")


@dataclass(frozen=True)
class Measurement:
    """One published figure of training on a device, in the base unit of ``QUANTITIES[measured]``.

    ``device`` names a device of the library, or a processor of `profiles/hardware/`.  ``model`` is the name in
    ``library``; of a model of another library, ``architecture`` describes it.  ``input`` is the shape of one sample:
    channels, height and width of an image, or the number of tokens of a text.  With the precision ``tf32``, matrix
    multiplications and convolutions of float32 tensors round their inputs to 10 bits, the default of cuDNN on Ampere
    and later; ``float16`` and ``bfloat16`` are autocast, or with ``half_model`` the dtype of the whole model, whose
    optimizer updates copies in float32 (apex, level O2).  ``watts`` is the power while it was timed.  ``samples`` is
    the number in an epoch.  ``includes`` lists what was measured beside the steps.  ``notes`` says what had to be
    assumed.  ``licence`` is that of the source, if the file says it.
    """

    device: str
    model: str
    library: str
    architecture: str | None
    trained: str
    batch: int
    input: tuple[int, ...]
    classes: int | None
    precision: str
    half_model: bool
    optimizer: str | None
    framework: str
    measured: Measured
    value: float
    watts: float | None
    samples: int | None
    includes: tuple[str, ...]
    notes: str | None
    licence: str | None
    source: FactSource

    @property
    def seconds_per_step(self) -> float | None:
        """Seconds of one training step; None for a figure that isn't a duration."""
        if self.measured == "seconds_per_step":
            return self.value
        if self.measured == "steps_per_second":
            return 1 / self.value
        if self.measured == "samples_per_second":
            return self.batch / self.value
        if self.measured == "seconds_per_epoch":
            assert self.samples is not None  # read_measurements refuses such a row
            return self.value / ceil(self.samples / self.batch)
        return None

    @property
    def joules_per_step(self) -> float | None:
        """Joules of one training step: its seconds times its watts; None where one of them wasn't measured."""
        seconds = self.seconds_per_step
        return None if seconds is None or self.watts is None else seconds * self.watts

    @property
    def software(self) -> Software:
        """What trained, from the first words of ``framework``: "PyTorch 1.13.1, timm 0.9.10" is pytorch 1.13."""
        name, major, minor = _SOFTWARE.match(self.framework).groups()  # type: ignore[union-attr]
        compiled = "XLA" in self.framework or "torch.compile" in self.framework
        return Software(name.lower(), (int(major), int(minor)) if major else None, compiled)

    @property
    def fuses_attention(self) -> bool:
        """Whether attention was one operator: PyTorch has it since 2.0, TensorFlow and MNN multiply and normalise."""
        return self.software.name == "pytorch" and (self.software.version or (2, 0)) >= (2, 0)

    def updates_together(self, lists: bool) -> bool:
        """Whether a GPU's optimizer updates all parameters in a few operators.

        Fused optimizers do, and NVIDIA's BertAdam doesn't.  Others of PyTorch do since 2.0 on processors with kernels
        on ``lists`` of tensors.
        """
        name = (self.optimizer or "").partition(",")[0]
        if self.software.name != "pytorch" or name.startswith("Fused"):
            return True
        return lists and name != "BertAdam" and (self.software.version or (2, 0)) >= (2, 0)

    @property
    def half(self) -> Half:
        """Whether efficiencies may be fitted to this measurement, or are judged on it.

        All measurements of a model on a device are in the same half, whatever the batch, the source and what trains: a
        batch of another size is no new fact.  So the held-out half asks for models that the fit hasn't seen on that
        device.  Devices and sources that it hasn't seen are asked by leaving out one at a time.
        """
        return "fitted" if sha256(f"{self.device}\n{self.model}".encode()).digest()[0] % 2 == 0 else "held-out"


def measurements() -> list[Measurement]:
    """The measurements of the profile libraries, in the order of their files' names.

    Raises DeviceError for an invalid file.
    """
    files = library_files("measurements")
    return [row for name in sorted(files) for row in read_measurements(files[name])]


def read_measurements(path: Path) -> list[Measurement]:
    """Read the measurements of a YAML file.

    Raises DeviceError with file and line for a row without a source, with an unknown device or unit, or that lacks a
    field.
    """
    written = read_written(path, _FILE)
    for key in written.data:
        if key not in _KEYS:
            raise written.error(f"{key} is not a field of a file of measurements{suggestion(key, _KEYS)}", key)
    licence = written.text("licence") if "licence" in written.data else None
    rows = written.data.get("measurements")
    if not isinstance(rows, list) or not rows:
        raise written.error(f"measurements: must be a list of measurements, not {rows!r}; {_FILE}", "measurements")
    return [_measurement(written, i, licence) for i in range(len(rows))]


def _measurement(written: ProfileFile, i: int, licence: str | None) -> Measurement:
    where = ("measurements", i)
    data = cast(list[object], written.data["measurements"])[i]
    if isinstance(data, dict) and "source" not in data:
        raise written.error(f"measurements[{i}]: has no source; {SOURCE_SHAPE}", *where)
    try:
        row = _Row.model_validate(data)
    except ValidationError as error:
        raise written.invalid(error, where, _SHAPE) from None

    def refuse(field: str, message: str) -> Exception:
        return written.error(f"measurements[{i}].{field}: {message}", *where, field)

    names = [*device_names(), *library_files("hardware")]
    if row.device not in names:
        raise refuse("device", f"unknown device {row.device!r}{suggestion(row.device, names)}")
    if not row.source.read and row.source.url is None:
        raise refuse("source", "a measurement from a source that wasn't read requires its url")
    if not _SOFTWARE.match(row.framework):
        raise refuse("framework", f"must begin with a name, such as PyTorch 2.4, not {row.framework!r}")
    if row.library == "other" and row.architecture is None:
        raise refuse("library", f"{row.model!r} is of no library, so its architecture must be described")
    if row.half is not None and row.precision not in ("float16", "bfloat16"):
        raise refuse("half", f"{row.half} is of a half precision, float16 or bfloat16, not of {row.precision}")
    if row.measured == "seconds_per_epoch" and row.samples is None:
        raise refuse("measured", "seconds per epoch require samples, the number of samples in an epoch")

    def parse_positive(field: str, quantity: units.Quantity, text: float | str) -> float:
        try:
            number = quantity.parse(text)
        except UnitError as error:
            raise refuse(field, str(error)) from None
        if number == 0:
            raise refuse(field, f"must be positive, not {text}")
        return number

    value = parse_positive("value", QUANTITIES[row.measured], row.value)
    watts = None if row.watts is None else parse_positive("watts", units.WATTS, row.watts)
    fields = dict(row) | {"input": tuple(row.input), "includes": tuple(row.includes)}
    fields["half_model"] = fields.pop("half") == "model"
    return Measurement(**{**fields, "value": value, "watts": watts, "licence": licence})
