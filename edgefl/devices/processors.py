"""Processors: what share of its peak and bandwidth each class of operator reaches, fitted to published seconds.

``profiles/processors/classes.yaml`` names the classes of processors, ``fitted.json`` has their efficiencies, which
``tools/fit_rates.py`` fits.  A device with published rows has its own, another one those of its class, and a class
without rows those of all CPUs or all GPUs.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from math import inf
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field, PositiveFloat, TypeAdapter, ValidationError

from edgefl import units
from edgefl.arrays import Floats
from edgefl.devices.written_facts import FactSource, library_folder, read_written
from edgefl.errors import DeviceError, UnknownName, suggestion
from edgefl.operator_classes import OPERATOR_CLASSES, OPERATOR_NAMES, OperatorName
from edgefl.registry.part_fields import Fields

ProcessorType = Literal["cpu", "gpu"]
Reduced = Literal["tf32", "float16", "bfloat16"]
PYTORCH_NAME = "pytorch"


class ProcessorClass(Fields):
    """Devices whose processors reach like shares of their peaks; a GPU computes beside the core that launches.

    ``year`` is that of the first of them.  ``lists`` tells whether PyTorch has kernels on lists of tensors for it;
    without, an optimizer's foreach operators run once for each tensor.
    """

    about: str
    year: int
    type: ProcessorType
    lists: bool = True


def _with_products(shares: Mapping[OperatorName, float]) -> Mapping[OperatorName, float]:
    if "product" not in shares:
        raise ValueError("the share of products is missing")
    return shares


class Efficiency(Fields):
    """Shares of a processor's peak and bandwidth by class of operator, and its fixed times.

    ``arithmetic`` are shares of the float32 peak; operators of a class that it lacks take no time for their FLOPs.
    ``memory`` are shares of the memory bandwidth; classes that it lacks take none for their bytes.  ``reduced`` are
    shares of the peaks in reduced precision, of those in float32.  ``kernel`` are seconds of each kernel of a GPU,
    ``launch`` multiplies the profile's seconds per operator.  ``loading`` are seconds of each value of a sample that
    is read and prepared, and ``sample`` those of each sample beside; simulations charge neither.
    """

    arithmetic: Annotated[Mapping[OperatorName, PositiveFloat], AfterValidator(_with_products)]
    memory: Mapping[OperatorName, PositiveFloat]
    reduced: Mapping[Reduced, PositiveFloat] = {}
    kernel: float = Field(default=0.0, ge=0)
    launch: PositiveFloat = 1.0
    loading: float = Field(default=0.0, ge=0)
    sample: float = Field(default=0.0, ge=0)


class OwnProcessor(Efficiency):
    """The efficiencies that a profile writes itself, under ``processor``; its rate of products is written, too.

    ``lists`` is that of ``ProcessorClass``.
    """

    type: ProcessorType
    lists: bool = True


OWN_SHAPE = "a processor is the name of a class, or {type: cpu or gpu, arithmetic, memory, kernel, launch}"


class FittedEfficiency(Fields):
    """The efficiency of a device, a class or a type of processor, and what it rests on.

    ``of`` names it; ``runtime`` is that of the rows (``pytorch 1.13``), None for the mean over all runtimes; ``rows``
    are the published seconds of it, ``devices`` how many devices have them.
    """

    of: str
    runtime: str | None
    rows: int = Field(ge=0)
    devices: int = Field(ge=0)
    efficiency: Efficiency


class SecondsInterval(Fields):
    """The ``factor`` within which, either way, 80 % of published seconds lie of what fits without them predict.

    ``of`` is the type of the processors and ``loading`` whether the rows include the loading of samples (None: some
    do).  A fit lacks the row's device but has others of its source (``seen``), or lacks the source.  Each of the
    ``pairs`` of device and source counts once, however many of the ``rows`` it has.
    """

    of: ProcessorType
    loading: bool | None
    seen: bool
    factor: float = Field(gt=1)
    rows: int = Field(gt=0)
    pairs: int = Field(gt=0)


class Fitted(Fields):
    """The content of ``fitted.json``."""

    title: str
    loss: str
    date: datetime.date
    intervals: tuple[SecondsInterval, ...]
    entries: tuple[FittedEfficiency, ...]


@dataclass(frozen=True)
class Processor:
    """How a device's operators use its rate and its bandwidth: the numbers of ``edgefl.cost.step_seconds``.

    ``arithmetic`` is by class of operator the rate of its FLOPs, as a share of the rate of products (inf: they take no
    time); ``memory`` the same of its bytes and the memory bandwidth.  ``kernel_seconds`` are those of each kernel of a
    GPU, ``launch`` multiplies the device's seconds per operator, and ``loading_seconds`` are those of each value that a
    loader prepares, beside ``sample_seconds`` of each sample.  ``lists`` is that of its class.
    80 % of published seconds lie ``within`` this factor, either way; None for rates that were fitted to none.
    ``pace`` multiplies all seconds.
    """

    type: ProcessorType | Literal["roofline"]
    arithmetic: tuple[float, ...]
    memory: tuple[float, ...]
    kernel_seconds: float = 0.0
    launch: float = 1.0
    loading_seconds: float = 0.0
    sample_seconds: float = 0.0
    lists: bool = True
    within: float | None = None
    pace: float = 1.0

    @cached_property
    def shares(self) -> Floats:
        """``arithmetic`` and ``memory`` as an array `[2, operator classes]`."""
        return np.array([self.arithmetic, self.memory])


ROOFLINE = Processor("roofline", (1.0,) * len(OPERATOR_CLASSES), (1.0,) * len(OPERATOR_CLASSES))
"""The processor of a profile that names none: operators of all classes reach its rates."""


def processor_of(
    type: ProcessorType, efficiency: Efficiency, *, lists: bool = True, within: float | None = None
) -> Processor:
    """The processor with these efficiencies."""
    product = efficiency.arithmetic["product"]
    return Processor(
        type,
        tuple(efficiency.arithmetic.get(name, inf) / product for name in OPERATOR_NAMES),
        tuple(efficiency.memory.get(name, inf) for name in OPERATOR_NAMES),
        efficiency.kernel,
        efficiency.launch,
        efficiency.loading,
        efficiency.sample,
        lists,
        within,
    )


@cache
def classes() -> Mapping[str, ProcessorClass]:
    """The classes of processors by name.  Raises DeviceError for an invalid file."""
    written = read_written(
        library_folder() / "processors" / "classes.yaml", "a file of classes is a mapping with a title"
    )
    try:
        return TypeAdapter(dict[str, ProcessorClass]).validate_python(written.data.get("classes"))
    except ValidationError as error:
        raise written.invalid(error, ("classes",), "a class is {about, year, type}") from None


@cache
def load_fitted_rates() -> Fitted:
    """What was fitted.  Raises DeviceError for an invalid file."""
    path = library_folder() / "processors" / "fitted.json"
    try:
        return Fitted.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DeviceError(f"{path}: {where}: {first['msg']}; tools/fit_rates.py writes it") from None


def processor_type(name: str) -> ProcessorType:
    """Whether processors of this class are CPUs or GPUs.  Raises UnknownName for an unknown class."""
    if name not in classes():
        known = ", ".join(f"{known} ({its.year}, {its.about})" for known, its in classes().items())
        near = suggestion(name, classes()).removeprefix("; ")
        near = f"{near} " if near.startswith("did you mean") else ""
        raise UnknownName("processor", name, classes(), f"{near}known are {known}")
    return classes()[name].type


def efficiency_of(processor: str, device: str | None = None, runtime: str = PYTORCH_NAME) -> FittedEfficiency:
    """What was fitted for this device, or else its class, or else all processors of its type.

    The first counts that has rows of the runtime (``pytorch 1.13``) or of another version of it, and of its versions
    the runtime's own or else the one with most rows; if none has, the class or else the type over all runtimes.
    Raises UnknownName for an unknown class.
    """
    type = processor_type(processor)
    for of in (device, processor, type):
        known = [
            entry for entry in load_fitted_rates().entries if entry.of == of and same_runtime(entry.runtime, runtime)
        ]
        if known:
            return max(known, key=lambda entry: (entry.runtime == runtime, entry.rows))
    for of in (processor, type):
        for entry in load_fitted_rates().entries:
            if entry.of == of and entry.runtime is None:
                return entry
    raise AssertionError(f"fitted.json has no entry of {type}")  # tests hold the file to have one


def interval_of(entry: FittedEfficiency, device: str, type: ProcessorType) -> float:
    """The factor within which 80 % of a device's steps are predicted, either way, without the loading of samples.

    A device with published seconds has that of sources which were seen.
    """
    asked = (type, None if type == "cpu" else False, entry.of == device)
    return next(each.factor for each in load_fitted_rates().intervals if (each.of, each.loading, each.seen) == asked)


def same_runtime(one: str | None, other: str) -> bool:
    """Whether two runtimes differ in their version at most: ``pytorch 1.13`` and ``pytorch 2.7``."""
    first, second = ([word for word in (name or "").split() if not word[0].isdigit()] for name in (one, other))
    return first == second


def source_of(entry: FittedEfficiency, share: float, of: str, within: float) -> FactSource:
    """The source of a rate that is ``share`` of a peak (``of``: its name in words), with its interval."""
    rested = "no published seconds of its class" if not entry.rows else (
        f"{entry.rows} published rows of {entry.of}" + (f" with {entry.runtime}" if entry.runtime else "")
    )  # fmt: skip
    return FactSource(
        title="Efficiencies fitted to published seconds of training steps (tools/published.py)",
        date=load_fitted_rates().date,
        quote=f"{share:.2g} of {of}, from {rested}; rows that a fit hasn't seen take its seconds, "
        f"{units.show_interval(within)}.",
    )
