"""The runtime that trains on the clients' devices, and the memory that it takes before any tensor exists.

A runtime replaces the runtime overhead of the devices' memory, and the efficiencies of their processors where some were
fitted to published seconds of it.  FLOPs, operators and live tensors stay those of PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from edgefl import units
from edgefl.devices.processors import efficiency_of, same_runtime
from edgefl.devices.profile import Device, in_runtime, is_file_name, library_files, look_up, split_mode
from edgefl.devices.written_facts import Fact, read_written
from edgefl.errors import DeviceError
from edgefl.records.answer import RuntimeRange
from edgefl.records.record import UNSET, Maybe

PYTORCH = "pytorch"
"""The runtime whose overhead is the one in each device's profile."""
RuntimeChoice = str | int
"""PYTORCH, the name or file of a runtime, or the bytes that it takes."""

_SHAPE = "a runtime is a mapping with a title and overhead_bytes"


@dataclass(frozen=True)
class Runtime:
    """A runtime of the profile library: ``overhead_bytes`` is what it takes on any device; ``fact`` has the source."""

    name: str
    title: str
    overhead_bytes: int
    fact: Fact


def runtime_names() -> list[str]:
    """PYTORCH and the names of all runtimes in the profile libraries."""
    return [PYTORCH, *sorted(library_files("runtimes"))]


def load_runtime(name: str) -> Runtime:
    """The library's runtime of this name, or the runtime in this file; PYTORCH isn't one of them.

    Raises UnknownName if there is none, and DeviceError if its file is invalid.
    """
    return read_runtime(Path(name)) if is_file_name(name) else _library_runtime(name)


@cache
def _library_runtime(name: str) -> Runtime:
    return look_up("runtime", "runtimes", name, read_runtime, also=(PYTORCH,))


def read_runtime(path: Path) -> Runtime:
    """Read a runtime from a YAML file; its name is the file's stem.

    Raises DeviceError with file, line and field.
    """
    written = read_written(path, _SHAPE)
    written.check_keys(["title", "overhead_bytes"], [], "a runtime")
    fact = written.fact("overhead_bytes", units.BYTES, may_be_zero=True)
    return Runtime(path.stem, written.text("title"), int(fact.value), fact)


def check_runtime(runtime: RuntimeChoice, device: Device) -> None:
    """Raise DeviceError if the runtime takes more than the device's RAM."""
    if runtime != PYTORCH and (overhead := _overhead(runtime)) > device.ram_bytes:
        shown = units.show_bytes(overhead)
        named = shown if isinstance(runtime, int) else f"{runtime} takes {shown}, which"
        raise DeviceError(f"{named} is more than the RAM of {device.name}, {units.show_bytes(device.ram_bytes)}")


def with_runtime(device: Device, runtime: RuntimeChoice) -> Device:
    """The device with the overhead of this runtime, and its efficiencies if known; the same object for PYTORCH.

    An overhead in bytes has no source, so the result has no fact for it.  Raises as ``load_runtime`` does.
    """
    if runtime == PYTORCH:
        return device
    facts = {name: fact for name, fact in device.facts.items() if name != "runtime_overhead_bytes"}
    if isinstance(runtime, str):
        facts["runtime_overhead_bytes"] = load_runtime(runtime).fact
    changed = replace(device, runtime_overhead_bytes=_overhead(runtime), facts=MappingProxyType(facts))
    if isinstance(runtime, int) or device.processor_class is None:
        return changed
    name = load_runtime(runtime).name
    known = efficiency_of(device.processor_class, split_mode(device.name)[0], name)
    return in_runtime(changed, name) if same_runtime(known.runtime, name) else changed


def free_memory_bytes(device: Device) -> int:
    """Usable memory less the runtime's overhead; negative, by what is lacking, if the runtime doesn't fit."""
    return device.usable_memory_bytes - device.runtime_overhead_bytes


def available_memory_bytes(device: Device) -> int:
    """The most bytes that a device can give to tensors: ``free_memory_bytes``, at least 0."""
    return max(free_memory_bytes(device), 0)


def free_memory_range(device: Device) -> tuple[int, int]:
    """The least and the most that ``available_memory_bytes`` is believed to be, by the ranges of its two numbers."""
    usable, overhead = (
        (fact.low, fact.high) if (fact := device.facts.get(name)) else (value, value)
        for name, value in (
            ("usable_memory_bytes", device.usable_memory_bytes),
            ("runtime_overhead_bytes", device.runtime_overhead_bytes),
        )
    )
    return max(int(usable[0] - overhead[1]), 0), max(int(usable[1] - overhead[0]), 0)


def show_runtime(runtime: RuntimeChoice) -> str:
    """The runtime in words, for a sentence about its overhead."""
    return "Python and torch" if runtime == PYTORCH else "the runtime" if isinstance(runtime, int) else runtime


def runtime_range(device: Device, runtime: RuntimeChoice) -> RuntimeRange | Maybe:
    """What the overhead of the runtime on this device rests on; UNSET for one without a source."""
    fact = device.facts.get("runtime_overhead_bytes")
    if fact is None:
        return UNSET
    low, high = int(fact.low), int(fact.high)
    return RuntimeRange(
        name=str(runtime), low_bytes=low, high_bytes=high, confidence=fact.confidence, source=fact.source.title
    )


def show_overhead(overhead: int, runtime: RuntimeRange | Maybe) -> str:
    """What a runtime takes, with its range: ``360 MiB of Python and torch (211 MiB to 420 MiB, estimated)``."""
    if runtime is UNSET:
        return f"{units.show_bytes(overhead)} of the runtime"
    ends = " to ".join(map(units.show_bytes, (runtime.low_bytes, runtime.high_bytes)))
    return f"{units.show_bytes(overhead)} of {show_runtime(runtime.name)} ({ends}, {runtime.confidence})"


def _overhead(runtime: RuntimeChoice) -> int:
    return runtime if isinstance(runtime, int) else load_runtime(runtime).overhead_bytes
