"""Devices and links, read from the profile libraries: every number has a source and a confidence."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import inf
from os.path import isfile
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast, get_args

import numpy as np
from pydantic import ValidationError

from edgefl import registry, units
from edgefl.arrays import Floats
from edgefl.devices.link_trace import LinkTrace, LinkTraceOptions, read_link_trace
from edgefl.devices.processors import (
    OWN_SHAPE,
    PYTORCH_NAME,
    ROOFLINE,
    OwnProcessor,
    Processor,
    Reduced,
    classes,
    efficiency_of,
    interval_of,
    processor_of,
    processor_type,
    source_of,
)
from edgefl.devices.written_facts import Fact, Faults, ProfileFile, library_folder, read_written
from edgefl.errors import DeviceError, UnknownName, suggestion

DeviceType = Literal["microcomputer", "accelerator-board", "mini-pc", "laptop", "desktop", "phone", "server"]
DEVICE_TYPES: tuple[DeviceType, ...] = get_args(DeviceType)
MODES = "modes"
"""The key of power modes in a device's file."""
_REDUCED: tuple[Reduced, ...] = get_args(Reduced)
PRECISIONS = ("float64", "float32", "float16", "bfloat16")
Profile = TypeVar("Profile")


def _no_facts() -> Mapping[str, Fact]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Hardware:
    """What makes the seconds and joules of a step: a processor with its rates, its memory and its power, in base units.

    Published measurements are held against hardware that is no device of the library, too (``profiles/hardware``).
    """

    name: str
    """That of its file, without the ending."""
    title: str
    """What the device is."""
    flops_per_second: float
    """float32 rate of products of matrices, which training sustains; other operators reach a share of it, by the
    processor.  Peak and sustained rate differ by a factor of two to ten."""
    peak_flops_per_second: float
    """float32 rate of the data sheet, without matrix units."""
    memory_bytes_per_second: float
    """Sustained memory bandwidth; by the processor each class of operators reaches a share of it."""
    seconds_per_operator: float
    """Fixed time of each operator; on a GPU, in which the core beside it launches a kernel."""
    compute_watts: float
    """Power of the whole device while it computes."""
    idle_watts: float
    """Power of the whole device while it does nothing."""
    processor: Processor = field(default=ROOFLINE, kw_only=True)
    """What share of the rates each class of operators reaches; in a file the name of a class of processors, or the
    shares themselves."""
    processor_class: str | None = field(default=None, kw_only=True)
    """The class of processors whose efficiencies it has; None if it names none."""
    peak_tf32_flops_per_second: float | None = field(default=None, kw_only=True)
    """Rate of the data sheet for products whose float32 operands are rounded to 10 bits."""
    peak_float16_flops_per_second: float | None = field(default=None, kw_only=True)
    """Rate of the data sheet in float16 with sums in float32."""
    peak_bfloat16_flops_per_second: float | None = field(default=None, kw_only=True)
    """Rate of the data sheet in bfloat16."""
    tf32_flops_per_second: float | None = field(default=None, kw_only=True)
    """Sustained rate in tf32; if absent, the float32 rate."""
    float16_flops_per_second: float | None = field(default=None, kw_only=True)
    """Sustained training rate under autocast to float16; if absent, the float32 rate."""
    bfloat16_flops_per_second: float | None = field(default=None, kw_only=True)
    """Sustained training rate under autocast to bfloat16; if absent, the float32 rate."""
    facts: Mapping[str, Fact] = field(default_factory=_no_facts, repr=False, compare=False, kw_only=True)
    """Range, confidence and source of each number."""

    def rate(self, precision: str) -> float:
        """Sustained training FLOP/s of products in a precision; the float32 rate if the profile has none for it.

        No profile has one for float64: seconds of products in it are at least those.  Raises UnknownName for a
        precision other than "float64", "float32", "tf32", "float16" and "bfloat16".
        """
        if precision not in (*PRECISIONS, "tf32"):
            raise UnknownName("precision", precision, PRECISIONS)
        reduced = getattr(self, f"{precision}_flops_per_second", None)
        return self.flops_per_second if reduced is None else float(reduced)


@dataclass(frozen=True, kw_only=True)
class Device(Hardware):
    """A class of device that trains, in base units."""

    ram_bytes: int
    """Memory that tensors live in; of a graphics card, its own."""
    usable_memory_bytes: int
    """What an idle system leaves of it to processes.  A trainer never has all of the RAM."""
    runtime_overhead_bytes: int
    """What Python with torch takes of the usable memory before any tensor exists."""
    jitter: float
    """Sigma of a lognormal factor with median 1 on the duration of computing."""
    storage_bytes_per_second: float = inf
    """Sequential read rate of the storage that holds models and data."""
    throttle_after_seconds: float = inf
    """After so many seconds under load, ``throttled_share`` of the rate is left; both or neither."""
    throttled_share: float = 1.0
    """What is left of the rate of a device without extra cooling."""
    battery_joules: float | None = None
    """Energy of a full battery (``19.4 Wh``); if absent, the device is on mains power."""
    type: DeviceType = "microcomputer"
    """microcomputer, accelerator-board, mini-pc, laptop, desktop, phone or server."""
    twin: str | None = None
    """A published list or data sheet that prints the same numbers."""
    modes: tuple[str, ...] = ()
    """Power modes, each a device ``NAME@MODE``, with the numbers that differ; one in a mode has none."""

    def with_throttling(self, seconds: Floats) -> Floats:
        """Seconds of uninterrupted computing with throttling, from the seconds that it takes without: `[n]`."""
        if self.throttle_after_seconds == inf:
            return seconds
        return throttled_seconds(seconds, self.throttle_after_seconds, self.throttled_share)


def throttled_seconds(seconds: Floats, after: float | Floats, share: float | Floats) -> Floats:
    """Duration of computing on devices that keep only ``share`` of their rate ``after`` so many seconds: `[n]`.

    ``seconds`` are the durations without throttling, `[n]`.
    """
    return np.asarray(np.minimum(seconds, after) + np.maximum(seconds - after, 0.0) / share)


@dataclass(frozen=True)
class Link:
    """A class of network link, as the client sees it: it downloads from and uploads to the server."""

    name: str
    """That of its file, without the ending."""
    title: str
    """What the link is."""
    download_bits_per_second: float
    """Rate to the client."""
    upload_bits_per_second: float
    """Rate from the client."""
    latency_seconds: float
    """Charged once for each transfer."""
    download_watts: float
    """Power of the client's radio or port during a download, in addition to the device's idle power."""
    upload_watts: float
    """The same during an upload."""
    jitter: float
    """Sigma of a lognormal factor with median 1 on the duration of a transfer."""
    loss: float = 0.0
    """Share of the rate that goes to headers and retransmissions; the rest is the goodput.  It is small for the rate of
    a speed test, which has lost its headers already; for a rate of the physical layer (LoRa) it holds all that lies
    between."""
    facts: Mapping[str, Fact] = field(default_factory=_no_facts, repr=False, compare=False)
    """Range, confidence and source of each number."""
    trace: LinkTrace | None = None
    """Rates that change with time, in a file beside the link's; verdicts take the two rates above."""
    capped: bool = False
    """Whether its bytes are paid for, so that ``bytes_per_day`` and ``bytes_total`` of a fleet count them."""

    @property
    def download_goodput(self) -> float:
        """Payload bits per second to the client."""
        return self.download_bits_per_second * (1 - self.loss)

    @property
    def upload_goodput(self) -> float:
        """Payload bits per second from the client."""
        return self.upload_bits_per_second * (1 - self.loss)


_SIGMA = units.Quantity("sigma", "0.1", {"": units.SECONDS.factors[""]})

_HARDWARE_NUMBERS = {
    "flops_per_second": units.RATE,
    "peak_flops_per_second": units.RATE,
    "peak_tf32_flops_per_second": units.RATE,
    "peak_float16_flops_per_second": units.RATE,
    "peak_bfloat16_flops_per_second": units.RATE,
    "float16_flops_per_second": units.RATE,
    "bfloat16_flops_per_second": units.RATE,
    "memory_bytes_per_second": units.BYTES_PER_SECOND,
    "seconds_per_operator": units.SECONDS,
    "compute_watts": units.WATTS,
    "idle_watts": units.WATTS,
}
DEVICE_NUMBERS = {
    "ram_bytes": units.BYTES,
    "usable_memory_bytes": units.BYTES,
    **_HARDWARE_NUMBERS,
    "storage_bytes_per_second": units.BYTES_PER_SECOND,
    "runtime_overhead_bytes": units.BYTES,
    "battery_joules": units.JOULES,
    "throttle_after_seconds": units.SECONDS,
    "throttled_share": units.SHARE,
    "jitter": _SIGMA,
}
LINK_NUMBERS = {
    "download_bits_per_second": units.BITS_PER_SECOND,
    "upload_bits_per_second": units.BITS_PER_SECOND,
    "latency_seconds": units.SECONDS,
    "loss": units.SHARE,
    "download_watts": units.WATTS,
    "upload_watts": units.WATTS,
    "jitter": _SIGMA,
}
_OF_PROCESSOR = "flops_per_second"
"""The number that the class of a processor has for a profile without it."""
_OPTIONAL = (
    "peak_tf32_flops_per_second",
    "peak_float16_flops_per_second",
    "peak_bfloat16_flops_per_second",
    "float16_flops_per_second",
    "bfloat16_flops_per_second",
    "battery_joules",
    "throttle_after_seconds",
    "throttled_share",
)
_MAY_BE_ZERO = {
    "jitter",
    "idle_watts",
    "latency_seconds",
    "loss",
    "download_watts",
    "upload_watts",
    "runtime_overhead_bytes",
}
_MOST_JITTER = 3.0
"""Above this sigma, factors of a thousand would be common, so the number is surely a mistake."""
_MOST_GAIN = 64
"""Half precision on matrix units reaches about 16 times the float32 peak of its chip; above 64 times is a mistake."""


def library_folders() -> list[Path]:
    """``library_folder()`` and the folders of plug-ins (entry point group ``edgefl.profiles``)."""
    broken = broken_libraries()
    for message in broken.values():
        warnings.warn(f"{message}; its devices, links and fleets are left out", BrokenLibrary, stacklevel=2)
    sound = [name for name in registry.names("profile library") if name not in broken]
    return [library_folder(), *(Path(registry.get("profile library", name)) for name in sound)]


class BrokenLibrary(UserWarning):
    """A plug-in's profile library that can't be read."""


def broken_libraries() -> dict[str, str]:
    """The plug-ins' profile libraries that can't be imported or are no folders, each with the reason."""
    broken = {name: message for _, name, message in registry.broken_parts(("profile library",))}
    for name in registry.names("profile library"):
        if name not in broken and not (folder := Path(registry.get("profile library", name))).is_dir():
            broken[name] = f"{registry.describe_part('profile library', name)} is broken: {folder} is no folder"
    return broken


def library_files(folder: str) -> dict[str, Path]:
    """Paths of the profiles in this folder of all libraries, by name; edgefl's replace a plug-in's of the same name."""
    return {p.stem: p for library in reversed(library_folders()) for p in sorted((library / folder).glob("*.yaml"))}


def device_names() -> list[str]:
    """Names of all devices in the profile libraries, sorted."""
    return sorted(library_files("devices"))


def link_names() -> list[str]:
    """Names of all links in the profile libraries, sorted."""
    return sorted(library_files("networks"))


def is_file_name(name: str) -> bool:
    """Whether a name in a scenario is the path of a file: it has a slash or backslash, or ends with .yaml or .yml."""
    name = split_mode(name)[0]
    return "/" in name or "\\" in name or name.endswith((".yaml", ".yml"))


def split_mode(name: str) -> tuple[str, str | None]:
    """The device's own name or file, and its power mode: ``jetson-orin-nano-8gb@7W`` -> jetson-orin-nano-8gb, 7W."""
    device, _, mode = name.rpartition("@")
    if not device or "/" in mode or "\\" in mode or mode.endswith((".yaml", ".yml")):
        return name, None
    return device, mode


def load_device(name: str) -> Device:
    """The library's device of this name, or the device in this file; ``NAME@MODE`` for one in a power mode.

    Raises UnknownName if there is none, and DeviceError if its file is invalid.
    """
    own, mode = split_mode(name)
    if mode is None:
        return read_device(Path(name)) if is_file_name(name) else _library_device(name)
    return _in_mode(own, mode)


def load_link(name: str) -> Link:
    """The library's link of this name, or the link in this file.

    Raises UnknownName if there is none, and DeviceError if its file is invalid.
    """
    return read_link(Path(name)) if is_file_name(name) else _library_link(name)


@cache
def _library_device(name: str) -> Device:
    return look_up("device", "devices", name, read_device)


def _in_mode(name: str, mode: str) -> Device:
    if is_file_name(name):
        return read_device(Path(name), mode)
    device = _library_device(name)  # an unknown name is told before an unknown mode
    return _library_device_in_mode(device.name, mode)


@cache
def _library_device_in_mode(name: str, mode: str) -> Device:
    return look_up("device", "devices", name, lambda path: read_device(path, mode))


@cache
def _library_link(name: str) -> Link:
    return look_up("link", "networks", name, read_link)


def look_up(noun: str, folder: str, name: str, read: Callable[[Path], Profile], also: Iterable[str] = ()) -> Profile:
    """Read the profile of this name in a folder of the libraries with ``read``.

    ``noun`` is used in messages, which allow the names of ``also`` too.  Raises UnknownName with the nearest name.
    """
    files = library_files(folder)
    if name not in files:
        beside = f"a file is named by its path: ./{name}.yaml" if isfile(f"{name}.yaml") else ""
        raise UnknownName(noun, name, [*also, *files], beside)
    return read(files[name])


def read_device(path: Path, mode: str | None = None) -> Device:
    """Read a device from a YAML file, in one of the power modes that it describes; its name is the file's stem.

    A mode has the numbers that differ in it, each with its source.  Raises DeviceError with file, line and field of
    everything that is wrong, and UnknownName for an unknown mode.
    """
    return described_device(read_written(path, _shape("device", DEVICE_NUMBERS)), mode)


def described_device(written: ProfileFile, mode: str | None = None) -> Device:
    """The device that a file describes, as ``read_device`` reads it."""
    path, faults = written.path, Faults()
    modes: tuple[str, ...] = ()
    with faults.noting():
        modes = tuple(map(str, written.section(MODES)))
    own = replace(written, data={key: value for key, value in written.data.items() if key != MODES})
    with faults.noting():
        device = replace(_device(own, path.stem), modes=modes)
    in_modes = {}
    for name in modes:
        with faults.noting():
            title = {"title": f"{written.data['title']}, {name}"}
            numbers = {**_numbers_of_mode(written, name), **title}
            in_mode = _device(own.over(numbers, (MODES, name)), f"{path.stem}@{name}")
            in_modes[name] = replace(in_mode, twin=None)
    faults.raise_all()
    if mode is None:
        return device
    if not modes:
        raise UnknownName("power mode", mode, [f"none: {path.stem} has one mode only"])
    if mode not in in_modes:
        raise UnknownName(f"power mode of {path.stem}", mode, modes)
    return in_modes[mode]


def _numbers_of_mode(written: ProfileFile, name: str) -> Mapping[str, object]:
    """What a device's file has for a power mode.  Raises DeviceError if it has none, or a field of another sort."""
    numbers = written.section(MODES, name)
    if not numbers:
        raise written.error(f"{MODES}.{name}: has no numbers; write those that differ from the device's", MODES, name)
    faults = Faults()
    for number in numbers:
        if number not in DEVICE_NUMBERS:
            near = suggestion(str(number), DEVICE_NUMBERS)
            faults.note(written.error(f"{number} is no number of a device{near}", MODES, name, number))
    faults.raise_all()
    return numbers


def _device(written: ProfileFile, name: str) -> Device:
    """The device that is written.  Raises DeviceError for everything that is wrong."""
    faults = Faults()
    own, facts = _hardware(written, name, DEVICE_NUMBERS, ["type"], ["twin", MODES], "a device", faults)

    def refuse(field: str, message: str) -> None:
        faults.note(written.error(message, field))

    type = written.data.get("type")
    if "type" in written.data and type not in DEVICE_TYPES:
        refuse("type", f"type: {type!r} is not one of {', '.join(DEVICE_TYPES)}")
    twin = None
    with faults.noting():
        twin = written.text("twin") if "twin" in written.data else None
    for number in ("usable_memory_bytes", "runtime_overhead_bytes"):
        if number in facts and "ram_bytes" in facts and facts[number].value > facts["ram_bytes"].value:
            refuse(number, f"{number} can't be more than ram_bytes")
    throttling = [number for number in ("throttle_after_seconds", "throttled_share") if number in written.data]
    if len(throttling) == 1:
        (given,) = throttling
        refuse(given, f"{given} is given alone: give both throttle_after_seconds and throttled_share, or neither")
    faults.raise_all()
    return Device(**own, type=cast("DeviceType", type), twin=twin)


def read_hardware(path: Path) -> Hardware:
    """Read hardware that was measured from a YAML file; its name is the file's stem.

    Raises DeviceError with file, line and field of everything that is wrong.
    """
    written = read_written(path, _shape("machine", _HARDWARE_NUMBERS))
    faults = Faults()
    own, _ = _hardware(written, path.stem, _HARDWARE_NUMBERS, [], [], "hardware", faults)
    faults.raise_all()
    return Hardware(**own)


@cache
def hardware(name: str) -> Hardware:
    """The library's device of this name, or the hardware that was measured beside those.

    Raises UnknownName if there is none, and DeviceError if its file is invalid.
    """
    if name in library_files("hardware"):
        return look_up("hardware", "hardware", name, read_hardware)
    return look_up("device", "devices", name, read_device, also=library_files("hardware"))


def _hardware(
    written: ProfileFile,
    name: str,
    quantities: Mapping[str, units.Quantity],
    needed: list[str],
    optional: list[str],
    noun: str,
    faults: Faults,
) -> tuple[dict[str, Any], dict[str, Fact]]:
    """The keywords of what is written, with the rates of its processor where it has none; faults are noted."""
    numbers = [number for number in _required_names(quantities) if number != _OF_PROCESSOR]
    if _OF_PROCESSOR not in written.data and not isinstance(written.data.get("processor"), str):
        message = f"{_OF_PROCESSOR} is missing from {noun}: give it, or name the class of its processor"
        faults.note(written.error(f"{message} (processor: {', '.join(classes())})"))
    with faults.noting():
        written.check_keys(["title", *needed, *numbers], [*_OPTIONAL, *optional, "processor", _OF_PROCESSOR], noun)
    title, named, processor = "", None, ROOFLINE
    with faults.noting():
        title = written.text("title")
    facts = _facts(written, quantities, faults)
    with faults.noting():
        if isinstance(written.data.get("processor"), Mapping):
            processor = _own_processor(written)
        elif "processor" in written.data:
            named = _processor_class(written)
            if "peak_flops_per_second" in facts:
                processor, facts = _by_class(facts, named, name)
    _check_rates(written, {number: fact.value for number, fact in facts.items()}, faults)
    own = {"name": name, "title": title, "processor": processor, "processor_class": named}
    return {**own, **_values(facts, quantities)}, facts


def _processor_class(written: ProfileFile) -> str:
    named = written.text("processor")
    try:
        processor_type(named)
    except UnknownName as error:
        raise written.error(f"processor: {error}", "processor") from None
    return named


def _own_processor(written: ProfileFile) -> Processor:
    """The processor of a profile that writes its efficiencies itself, as ``edgefl devices calibrate`` does."""
    try:
        own = OwnProcessor.model_validate(written.data["processor"])
    except ValidationError as error:
        raise written.invalid(error, ("processor",), OWN_SHAPE) from None
    return processor_of(own.type, own, lists=own.lists)


FITTED: Literal["fitted"] = "fitted"
"""The confidence of a number that is a fitted share of a peak."""
MachineT = TypeVar("MachineT", bound=Hardware)


def in_runtime(machine: MachineT, runtime: str) -> MachineT:
    """The hardware or device with the efficiencies of this runtime (``pytorch 1.13``), the nearest that were fitted.

    One whose profile names no class of processors stays as it is.
    """
    if machine.processor_class is None:
        return machine
    own = {number: fact for number, fact in machine.facts.items() if fact.confidence != FITTED}
    processor, facts = _by_class(own, machine.processor_class, machine.name, runtime)
    rates: dict[str, Any] = {number: fact.value for number, fact in facts.items() if fact.confidence == FITTED}
    return replace(machine, processor=processor, facts=MappingProxyType(facts), **rates)


def _by_class(
    facts: Mapping[str, Fact], named: str, name: str, runtime: str = PYTORCH_NAME
) -> tuple[Processor, dict[str, Fact]]:
    """The processor of this class, and the facts with its rates where a profile has none of its own."""
    entry = efficiency_of(named, split_mode(name)[0], runtime)
    share = entry.efficiency.arithmetic["product"]
    rates = {"flops_per_second": ("peak_flops_per_second", share)}
    for reduced in _REDUCED:
        peak = f"peak_{reduced}_flops_per_second"
        if peak in facts:
            rates[f"{reduced}_flops_per_second"] = peak, share * entry.efficiency.reduced.get(reduced, 1.0)
    within, derived = interval_of(entry, split_mode(name)[0], processor_type(named)), {}
    for number, (peak, of_peak) in rates.items():
        if number not in facts:
            value = of_peak * facts[peak].value
            said = source_of(entry, of_peak, peak, within)
            derived[number] = Fact(value, value / within, value * within, FITTED, said)
    below = {peak: number for number, (peak, _) in rates.items() if number in derived}
    placed: dict[str, Fact] = {}
    for number, fact in facts.items():
        placed |= {number: fact} | ({below[number]: derived[below[number]]} if number in below else {})
    return processor_of(processor_type(named), entry.efficiency, lists=classes()[named].lists, within=within), placed


def _check_rates(written: ProfileFile, value: Mapping[str, float], faults: Faults) -> None:
    def exceeds(number: str, limit: str, times: float = 1.0) -> bool:
        return number in value and limit in value and value[number] > times * value[limit]

    def refuse(field: str, message: str) -> None:
        faults.note(written.error(message, field))

    if exceeds("flops_per_second", "peak_flops_per_second"):
        refuse("flops_per_second", "flops_per_second is above peak_flops_per_second")
    for number in ("float16_flops_per_second", "bfloat16_flops_per_second"):
        if exceeds(number, "peak_flops_per_second", _MOST_GAIN):
            refuse(number, f"{number} is more than {_MOST_GAIN} times peak_flops_per_second; check the unit of both")
    if exceeds("idle_watts", "compute_watts"):
        refuse("idle_watts", "idle_watts is above compute_watts")


def read_link(path: Path) -> Link:
    """Read a link from a YAML file; its name is the file's stem.

    Raises DeviceError with file, line and field of everything that is wrong.
    """
    return described_link(read_written(path, _shape("link", LINK_NUMBERS)))


def described_link(written: ProfileFile) -> Link:
    """The link that a file describes, as ``read_link`` reads it."""
    path, faults = written.path, Faults()
    with faults.noting():
        written.check_keys(["title", *_required_names(LINK_NUMBERS)], ["trace", "capped"], "a link")
    title = ""
    with faults.noting():
        title = written.text("title")
    facts = _facts(written, LINK_NUMBERS, faults)
    if "loss" in facts and facts["loss"].value >= 1:
        faults.note(written.error("loss: must be below 100 %, because a link with that loss has no goodput", "loss"))
    capped = written.data.get("capped", False)
    if not isinstance(capped, bool):
        faults.note(written.error(f"capped: {capped!r} is neither true nor false", "capped"))
    trace = None
    if "trace" in written.data and facts.keys() >= {"download_bits_per_second", "upload_bits_per_second"}:
        with faults.noting():
            rates = facts["download_bits_per_second"].value, facts["upload_bits_per_second"].value
            trace = _trace(written, rates)
    faults.raise_all()
    return Link(name=path.stem, title=title, trace=trace, capped=bool(capped), **_values(facts, LINK_NUMBERS))


def _trace(written: ProfileFile, rates: tuple[float, float]) -> LinkTrace:
    """The trace of a link with these rates down and up.  Raises DeviceError."""
    try:
        options = LinkTraceOptions.model_validate(written.data["trace"])
    except ValidationError as error:
        shape = "a trace is {file: rates.csv, period: 1 d}, the period only if it repeats"
        raise written.invalid(error, ("trace",), shape) from None
    try:
        return read_link_trace(written.path.parent / options.file, options.period, rates)
    except DeviceError as error:
        raise written.error(f"trace: {error}", "trace") from None


def _required_names(numbers: Mapping[str, units.Quantity]) -> list[str]:
    return [name for name in numbers if name not in _OPTIONAL]


def _shape(noun: str, numbers: Mapping[str, units.Quantity]) -> str:
    return f"a {noun} is a mapping with a title, and {', '.join(_required_names(numbers))}"


def _facts(written: ProfileFile, numbers: Mapping[str, units.Quantity], faults: Faults) -> dict[str, Fact]:
    """The numbers that are written and right; the others are noted."""
    facts = {}
    for name, quantity in numbers.items():
        if name in written.data:
            with faults.noting():
                facts[name] = written.fact(name, quantity, may_be_zero=name in _MAY_BE_ZERO)
    if "jitter" in facts and facts["jitter"].value > _MOST_JITTER:
        message = f"jitter: the sigma of a lognormal factor is at most {_MOST_JITTER:g}"
        faults.note(written.error(message, "jitter"))
    return facts


def _values(facts: Mapping[str, Fact], numbers: Mapping[str, units.Quantity]) -> dict[str, Any]:
    """Keyword arguments for Device or Link: the value of each number, and ``facts``."""
    whole = {name for name, quantity in numbers.items() if quantity.whole}
    values = {name: int(fact.value) if name in whole else fact.value for name, fact in facts.items()}
    return {**values, "facts": MappingProxyType(facts)}
