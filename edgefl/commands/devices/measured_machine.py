"""What is measured of this machine, as a profile that a fleet can name."""

from __future__ import annotations

import datetime
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import torch

from edgefl import units
from edgefl.commands.devices.answer import CalibratedProfile
from edgefl.devices import Hardware, read_device, read_link
from edgefl.devices.browsing import numbers_of
from edgefl.devices.writing import ProfileNumber
from edgefl.devices.written_facts import Confidence
from edgefl.errors import DeviceError
from edgefl.machine import host
from edgefl.machine.microbenchmarks import small_layers, threads_of
from edgefl.machine.throughput import SLOWED, MeasuredSpread, measure_sustained, sustained_run, throttling
from edgefl.operator_classes import OPERATOR_NAMES
from edgefl.runs.durable import write_output
from edgefl.work import NO_METER

SECONDS, QUICK_SECONDS = 45.0, 4.0
"""About how long the processor is measured; storage and idle power take extra time.

A choice, not measured: in less time each size gets fewer repetitions, so that the spread says less.
"""
READ_BYTES, QUICK_READ_BYTES = 512 * 2**20, 64 * 2**20
"""Bytes of the file that is read. A choice, not measured: at 3 GB/s it takes a sixth of a second, beside which the
call's own time is small; a card of 20 MB/s takes 27 s to read it, and longer to write it."""
READS = 3
"""The fewest of which a middle rate and a range can be told."""
IDLE_SECONDS, QUICK_IDLE_SECONDS = 5.0, 1.0
"""Seconds over which a sensor's idle watts are averaged. A choice: in less, one passing process weighs more."""
BUSY = 0.1
"""Share of all cores that other processes may use without a note on it.

A choice, not measured: so much slows a rate by a tenth at most, which is less than the range of most rates.
"""
USUAL_WATTS = {
    "microcomputer": (3.0, 6.0),
    "accelerator-board": (5.0, 15.0),
    "mini-pc": (8.0, 25.0),
    "laptop": (8.0, 35.0),
    "desktop": (40.0, 120.0),
    "phone": (1.0, 4.0),
    "server": (100.0, 250.0),
}
"""(idle, computing) watts assumed for a type where they are neither measured nor given.

Estimates, written with a range of half to twice.  The library's medians are 3 and 7 W of microcomputers, 0.3 and 4 W
of phones, 13 and 80 W of laptops (28 November 2026).
"""


@dataclass(frozen=True)
class MeasuringOptions:
    """What is asked for: ``watts`` are those that the user states."""

    quick: bool
    threads: int
    device: torch.device
    throttle_seconds: float
    watts: float | None
    idle_watts: float | None
    type: str
    folder: Path


class MachineMeasurement:
    """Measurements of this machine, as entries of a profile with their quotes."""

    def __init__(self, options: MeasuringOptions, on_message: Callable[[str], None]):
        self.options, self.on_message = options, on_message
        self.today = datetime.date.today()
        self.entries: dict[str, ProfileNumber] = {}
        self.notes: list[str] = []
        gpu = torch.cuda.get_device_name(options.device) if options.device.type == "cuda" else None
        self.threads = f"{options.threads} thread{'' if options.threads == 1 else 's'}"
        self.title = f"{gpu or host.model_name()}, {self.threads if gpu is None else 'GPU'}, calibrated"
        self.source = f"edgefl devices calibrate on {host.platform_name()}, torch {torch.__version__}"
        self._measure()

    def _measure(self) -> None:
        options = self.options
        idle = self._idle()
        overhead = self._overhead()
        memory = self._memory()
        sensor = host.power_sensor()
        with sensor.measuring() if sensor else nullcontext(host.Watts()) as busy, host.company() as company:
            rates = measure_sustained(
                QUICK_SECONDS if options.quick else SECONDS,
                options.threads,
                options.device,
                self._free(),
                self.on_message,
            )
        if company.others > BUSY:
            self.notes.append(
                f"other processes used {units.show_share(company.others)} of the processor during the measurement: "
                "calibrate again when nothing else runs"
            )
        repeats = f"median of {rates.flops_per_second.times} repetitions, wall time"
        self.entries |= memory
        self._add("flops_per_second", rates.flops_per_second, units.show_rate,
                  "FLOPs of dense layers, forward and backward, without the time of their bytes: fitted to training "
                  f"steps of single layers, {repeats}")  # fmt: skip
        self._add("peak_flops_per_second", rates.peak_flops_per_second, units.show_rate,
                  "the fastest square product, which ran five times, or the rate of dense layers")  # fmt: skip
        for name, rate in rates.halves.items():
            if rate is None:
                self.notes.append(f"{name}: autocast can't train in it on this machine; the field is left out")
            else:
                self._add(f"{name}_flops_per_second", rate, units.show_rate,
                          f"the dense layers under autocast to {name}: median of {rate.times} repetitions")  # fmt: skip
        self._add("memory_bytes_per_second", rates.memory_bytes_per_second, units.show_bytes_per_second,
                  "bytes of pointwise operators over their seconds, fitted to training steps of single layers, "
                  f"{repeats}")  # fmt: skip
        self.processor = written_processor(rates.rates, rates.peak_flops_per_second.value)
        self._storage()
        self._add("seconds_per_operator", rates.seconds_per_operator, units.show_seconds,
                  "a training step of a model of width 8, divided by its operators: median of "
                  f"{rates.seconds_per_operator.times} steps")  # fmt: skip
        self.entries |= overhead
        self._power(sensor.what if sensor else "", idle, busy.value)
        if options.throttle_seconds:
            self._throttling()
        self._add("jitter", rates.jitter, lambda sigma: f"{sigma:.3g}",
                  f"sigma of the log seconds of {rates.jitter.times} repetitions of all these steps")  # fmt: skip

    @property
    def _gpu(self) -> bool:
        return self.options.device.type == "cuda"

    def _free(self) -> float:
        return float(torch.cuda.mem_get_info(self.options.device)[0]) if self._gpu else float(host.free_bytes())

    def _entry(
        self, show: Callable[[float], str], value: float, low: float, high: float, confidence: Confidence, quote: str
    ) -> ProfileNumber:
        return ProfileNumber(show(value), show(low), show(high), confidence, self.source, self.today, quote)

    def _add(self, name: str, seen: MeasuredSpread, show: Callable[[float], str], quote: str) -> None:
        threads = "" if self._gpu else f", {self.threads}"
        quote = f"{show(seen.value)} ({show(seen.low)} to {show(seen.high)}): {quote}{threads}."
        self.entries[name] = self._entry(show, seen.value, seen.low, seen.high, "measured", quote)

    def _idle(self) -> float | None:
        sensor = host.power_sensor()
        if sensor is None:
            return None
        self.on_message("power of the idle machine")
        with sensor.measuring() as power:
            time.sleep(QUICK_IDLE_SECONDS if self.options.quick else IDLE_SECONDS)
        return power.value

    def _overhead(self) -> dict[str, ProfileNumber]:
        with threads_of(self.options.threads), torch.enable_grad():
            small_layers(self.options.device)(NO_METER)
        if self._gpu:
            free, total = torch.cuda.mem_get_info(self.options.device)
            taken = total - free - torch.cuda.memory_reserved(self.options.device)
            quote = (
                f"{units.show_bytes(taken)}: what the driver has neither free nor given to this process's tensors, "
                "after a few training steps: its own, the CUDA context and kernels, and other programs on the card."
            )
            return {"runtime_overhead_bytes": self._entry(units.show_bytes, taken, taken, taken, "measured", quote)}
        alone, resident = host.overhead_bytes()
        quote = (
            f"Resident set of this process after importing torch and edgefl and a few training steps of a tiny model; "
            f"{units.show_bytes(alone)} of it can't be dropped."
        )
        return {"runtime_overhead_bytes": self._entry(units.show_bytes, resident, alone, resident, "measured", quote)}

    def _memory(self) -> dict[str, ProfileNumber]:
        if self._gpu:
            free = total = torch.cuda.mem_get_info(self.options.device)[1]
            quotes = (
                "the driver's total memory of the GPU",
                "all of it: the runtime's overhead is what tensors can't have",
            )
        else:
            total, free = host.ram_bytes(), host.usable_bytes()
            quotes = (
                "the system's total memory, or its control group's limit",
                "what the system can give to processes now, including what this process has",
            )
        values = {"ram_bytes": total, "usable_memory_bytes": free}
        return {
            name: self._entry(units.show_bytes, value, value, value, "measured", f"{units.show_bytes(value)}: {quote}.")
            for (name, value), quote in zip(values.items(), quotes, strict=True)
        }

    def _storage(self) -> None:
        self.on_message("storage: reading a file")
        size = QUICK_READ_BYTES if self.options.quick else READ_BYTES
        # read from the profile's folder, as models and data would be; keep half of a small machine's memory free
        size = max(host.BLOCK, min(size, host.free_bytes() // 2))
        try:
            seen = host.read_storage(self.options.folder, size, READS)
        except OSError as error:
            raise DeviceError(f"can't measure the storage: {error.strerror or error}") from None
        cache = (
            "after the system was asked to drop its pages from memory"
            if seen.dropped
            else "through the page cache, which this system can't be asked to drop: the rate is too high"
        )
        rates = sorted(seen.rates)
        quote = f"a file of {units.show_bytes(seen.bytes)} read from its start to its end {READS} times, {cache}"
        middle = rates[len(rates) // 2]
        show = units.show_bytes_per_second
        self.entries["storage_bytes_per_second"] = self._entry(
            show, middle, rates[0], rates[-1], "measured" if seen.dropped else "estimated",
            f"{show(middle)} ({show(rates[0])} to {show(rates[-1])}): {quote}.",
        )  # fmt: skip

    def _power(self, what: str, idle: float | None, busy: float | None) -> None:
        usual_idle, usual_busy = USUAL_WATTS[self.options.type]
        given = {"compute_watts": self.options.watts, "idle_watts": self.options.idle_watts}
        known: dict[str, float] = {}
        for name, measured, usual, when in (
            ("compute_watts", busy, usual_busy, "while the operators ran"),
            ("idle_watts", idle, usual_idle, "before anything ran"),
        ):
            value, option = given[name], f"--{name.removeprefix('compute_').replace('_', '-')}"
            confidence: Confidence = "datasheet"
            quote = f"Stated by the user, {option}; not measured by edgefl."
            low = high = value
            if value is None and measured is not None:
                value = low = high = measured
                confidence, quote = "measured", f"{units.show_watts(value)}: mean {when}, of {what}."
            elif value is None:
                value, confidence = usual, "estimated"
                low, high = usual / 2, usual * 2
                quote = f"No power sensor can be read: assumed as usual for a {self.options.type}; {option} sets it."
                self.notes.append(f"{name}: not measured, {units.show_watts(usual)} assumed; set it with {option}")
            known[name] = value
            self.entries[name] = self._entry(units.show_watts, value, low or 0.0, high or 0.0, confidence, quote)
        if known["idle_watts"] > known["compute_watts"]:
            self._cap_idle(known["compute_watts"])

    def _cap_idle(self, most: float) -> None:
        """Cap idle power at ``most``, the compute power.  Raises DeviceError if the user stated both."""
        if self.options.idle_watts is not None and self.options.watts is not None:
            stated = units.show_watts(self.options.idle_watts)
            raise DeviceError(f"--idle-watts: {stated} is above the {units.show_watts(most)} of --watts")
        entry = self.entries["idle_watts"]
        quote = f"{entry.quote} Lowered to compute_watts, which is smaller."
        self.entries["idle_watts"] = self._entry(units.show_watts, most, most, most, "estimated", quote)
        self.notes.append("idle_watts was above compute_watts and is lowered to it; give both, or neither")

    def _throttling(self) -> None:
        seconds = self.options.throttle_seconds
        self.on_message(f"full load for {units.show_seconds(seconds)}")
        times, rates = sustained_run(seconds, self.options.threads, self.options.device, self._free())
        seen = throttling(times, rates)
        summary = f"{units.show_rate(seen.early)} at first, {units.show_rate(seen.late)} at the end"
        if seen.after_seconds is None:
            self.notes.append(
                f"no throttling in {units.show_seconds(seconds)} of full load: {summary} "
                f"({units.show_share(seen.share)}; less than {units.show_share(SLOWED)} would be throttling)"
            )
            return
        quote = f"{units.show_seconds(times[-1])} of continuous float32 products: {summary}, {len(rates)} repetitions."
        after, share = units.show_seconds(seen.after_seconds), f"{100 * seen.share:.3g} %"
        for name, text in (("throttle_after_seconds", after), ("throttled_share", share)):
            self.entries[name] = ProfileNumber(text, text, text, "measured", self.source, self.today, quote)


def written_processor(rates: Hardware, peak: float) -> Mapping[str, object]:
    """The efficiencies of a profile with these rates and this peak, as its file has them (``OwnProcessor``)."""
    processor, product = rates.processor, rates.flops_per_second / peak
    arithmetic = {name: share * product for name, share in zip(OPERATOR_NAMES, processor.arithmetic, strict=True)}
    own: dict[str, object] = {
        "type": processor.type,
        "arithmetic": {name: float(f"{share:.3g}") for name, share in arithmetic.items() if isfinite(share)},
        "memory": {n: float(f"{share:.3g}") for n, share in zip(OPERATOR_NAMES, processor.memory, strict=True)},
    }
    kernel = {"kernel": float(f"{processor.kernel_seconds:.3g}")} if processor.kernel_seconds else {}
    return own | kernel | ({} if processor.lists else {"lists": False})


def profile_path(out: str | os.PathLike[str] | None, force: bool) -> Path | None:
    """The path of the file to write, None for no file.  Raises DeviceError if the file can't be written."""
    if out is None:
        return None
    path = Path(out)
    if path.suffix not in (".yaml", ".yml"):
        raise DeviceError(f"{path}: a profile is a .yaml file, as in -o mydevice.yaml")
    if not path.parent.is_dir():
        raise DeviceError(f"{path}: the folder {path.parent} doesn't exist; create it first")
    if path.is_dir() or (path.exists() and not force):
        raise DeviceError(f"{path} exists; --force replaces it" if path.is_file() else f"{path} is a folder")
    if not os.access(path.parent, os.W_OK):
        raise DeviceError(f"{path}: the folder {path.parent} can't be written")
    return path


def profile_folder(out: str | os.PathLike[str] | None) -> Path | None:
    """The folder for several profiles, made if it isn't there, None for none.  Raises DeviceError for anything else."""
    if out is None:
        return None
    folder = Path(out)
    if folder.suffix in (".yaml", ".yml") or (folder.exists() and not folder.is_dir()):
        raise DeviceError(f"{folder}: --from writes a profile for each device, into a folder, as in -o boards")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeviceError(f"{folder}: can't be made: {error.strerror or error}") from None
    return folder


def write_profile(text: str, path: Path | None, noun: str) -> CalibratedProfile:
    """Write a profile to ``path``, unless that is None, and return what the loader reads from it."""
    read = read_device if noun == "device" else read_link
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder, path.name if path else f"this-{noun}.yaml")
        draft.write_text(text, encoding="utf-8")
        profile = read(draft)
    if path is not None:
        write_output(path, text.encode())
    return CalibratedProfile(name=profile.name, title=profile.title, values=numbers_of(profile))
