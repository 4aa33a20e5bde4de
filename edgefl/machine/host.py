"""Properties of this machine: usable cores, memory, storage speed, power sensors, and its model name and type."""

from __future__ import annotations

import ctypes
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

BLOCK = 2**20
"""Bytes that are written and read at a time; each block has a number of its own, so that storage can't share them."""
SYS = Path("/sys")
UNLIMITED = 2**60
"""Limits above this count as no limit; control groups report about 2^63 for "unlimited"."""


def physical_cores() -> int:
    """Number of physical cores that this process may use, by CPU affinity and control group; 1 or more."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _words(SYS / "fs/cgroup/cpu.max")
    if len(quota) == 2 and quota[0].isdigit():
        allowed = min(allowed, max(1, int(quota[0]) // int(quota[1])))
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def ram_bytes() -> int:
    """Bytes of memory of the machine, or the limit of the control group (container) if that is less."""
    return min(psutil.virtual_memory().total, _limit("memory.max", "memory/memory.limit_in_bytes"))


def usable_bytes() -> int:
    """Bytes that this process could use in total: available memory and its own resident set, within the limits."""
    limit = _limit("memory.max", "memory/memory.limit_in_bytes")
    memory = psutil.virtual_memory()
    return min(memory.available + psutil.Process().memory_info().rss, memory.total, limit)


def release_memory() -> None:
    """Give memory that was freed back to the system, where the C library can (glibc)."""
    with suppress(AttributeError, OSError, TypeError):  # no such function; no handle of the program on Windows
        ctypes.CDLL(None).malloc_trim(0)


def free_bytes() -> int:
    """Bytes that this process may still allocate."""
    return max(0, usable_bytes() - psutil.Process().memory_info().rss)


def overhead_bytes() -> tuple[int, int]:
    """(anonymous memory, resident set) of this process in bytes.

    Anonymous memory can't be dropped by the system.  The resident set includes pages of libraries, which can.
    """
    resident = psutil.Process().memory_info().rss
    words = _words(Path("/proc/self/smaps_rollup"))
    anonymous = int(words[words.index("Anonymous:") + 1]) * 1024 if "Anonymous:" in words else resident
    return min(anonymous, resident), resident


def _limit(*names: str) -> int:
    """The limit in the first of these control group files that exists, otherwise ``UNLIMITED``."""
    for name in names:
        words = _words(SYS / "fs/cgroup" / name)
        if words and words[0].isdigit():
            return int(words[0]) if int(words[0]) < UNLIMITED else UNLIMITED
    return UNLIMITED


def _words(path: Path) -> list[str]:
    """The words of a file; empty if it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").replace("\0", " ").split()
    except OSError:
        return []


@dataclass
class Company:
    """Load by other processes during a measurement: ``others`` is their share (0 to 1) of the time of all cores."""

    others: float = 0.0


@contextmanager
def company() -> Iterator[Company]:
    """Measure the load by other processes while the body runs; the yielded object is filled in at the end."""
    load = Company()
    began, own_began, before = time.perf_counter(), time.process_time(), psutil.cpu_times()
    yield load
    elapsed, after = time.perf_counter() - began, psutil.cpu_times()
    busy = sum(after) - sum(before) - (after.idle - before.idle)
    busy -= getattr(after, "iowait", 0.0) - getattr(before, "iowait", 0.0)
    # guest time is counted in user time, too
    busy -= sum(getattr(after, name, 0.0) - getattr(before, name, 0.0) for name in ("guest", "guest_nice"))
    load.others = max(0.0, (busy - (time.process_time() - own_began)) / (elapsed * (os.cpu_count() or 1)))


# storage -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """Result of ``read_storage``.

    ``rates`` are bytes per second of each pass over the file, ``bytes`` is the file's size.  ``dropped`` is true if the
    page cache was dropped before every pass.
    """

    rates: list[float]
    bytes: int
    dropped: bool


def read_storage(folder: Path, size: int, times: int) -> Reading:
    """Write a temporary file of ``size`` bytes, which can't be compressed, and read it ``times`` times.

    The file is smaller if less than ten times ``size`` is free.  Raises OSError if it can't be written.
    """
    size = max(BLOCK, min(size, psutil.disk_usage(str(folder)).free // 10) // BLOCK * BLOCK)
    noise = os.urandom(BLOCK)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for index in range(size // BLOCK):
            file.write(index.to_bytes(8, "little") + noise[8:])
        os.fsync(file.fileno())
        rates, block = [], bytearray(BLOCK)
        dropped = True
        for _ in range(times):
            dropped = _forget(file.fileno()) and dropped
            file.seek(0)
            began = time.perf_counter()
            while file.readinto(block):
                pass
            rates.append(size / (time.perf_counter() - began))
    return Reading(rates, size, dropped)


def _forget(descriptor: int) -> bool:
    """Ask the system to drop the file's pages from the page cache; False if it has no such request."""
    if not hasattr(os, "posix_fadvise"):
        return False
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return True


# power ---------------------------------------------------------------------------------------------------------------


@dataclass
class Watts:
    """Mean watts of a measurement: None until it has ended, and if the sensor failed."""

    value: float | None = None


@dataclass(frozen=True)
class Sensor:
    """A power sensor.

    ``what`` describes the part of the machine that it measures.  It has either ``watts``, the current power, or
    ``joules``, energy counters that restart from 0 at ``wraps``.
    """

    what: str
    joules: Callable[[], list[float]] | None = None
    wraps: tuple[float, ...] = ()
    watts: Callable[[], float] | None = None

    @contextmanager
    def measuring(self) -> Iterator[Watts]:
        """Measure the mean watts while the body runs; the yielded object is filled in at the end."""
        mean, samples, stop = Watts(), [], threading.Event()

        def sample() -> None:
            while self.watts is not None and not stop.wait(0.2):
                try:
                    samples.append(self.watts())
                except (OSError, ValueError):
                    return

        thread = threading.Thread(target=sample, daemon=True)
        began, before = time.perf_counter(), self.joules() if self.joules else []
        thread.start()
        try:
            yield mean
        finally:
            stop.set()
            thread.join()
            if self.joules:
                spent = [after - start for after, start in zip(self.joules(), before, strict=True)]
                total = sum(s + wrap if s < 0 else s for s, wrap in zip(spent, self.wraps, strict=True))
                mean.value = total / (time.perf_counter() - began)
            elif samples:
                mean.value = sum(samples) / len(samples)


def power_sensor(sys: Path = SYS) -> Sensor | None:
    """The sensor that covers the largest part of the machine, or None if there is none that can be read.

    In this order: a discharging battery, a board's power monitor, the processor's energy counters (RAPL).
    """
    for find in (_battery, _board, _processor):
        sensor = find(sys)
        if sensor is not None:
            return sensor
    return None


def _number(path: Path, divisor: float = 1.0) -> float:
    return float(path.read_text(encoding="ascii").strip()) / divisor


def _is_readable(read: Callable[[], float]) -> bool:
    try:
        return read() >= 0
    except (OSError, ValueError):
        return False


def _battery(sys: Path) -> Sensor | None:
    for supply in sorted((sys / "class/power_supply").glob("BAT*")):
        if _words(supply / "status") != ["Discharging"]:
            continue

        def power(supply: Path = supply) -> float:
            return _number(supply / "power_now") / 1e6

        def product(supply: Path = supply) -> float:
            return _number(supply / "current_now") * _number(supply / "voltage_now") / 1e12

        for read in (power, product):
            if _is_readable(read):
                return Sensor("the whole machine, from its battery", watts=read)
    return None


def _board(sys: Path) -> Sensor | None:
    for monitor in sorted((sys / "class/hwmon").glob("hwmon*")):
        name = " ".join(_words(monitor / "name"))
        if name == "power_meter" and _is_readable(partial(_number, monitor / "power1_average")):
            watts = partial(_number, monitor / "power1_average", 1e6)
            return Sensor("the whole machine, by its power meter", watts=watts)
        for label in sorted(monitor.glob("in*_label")):
            if name.startswith("ina") and _words(label) in (["VDD_IN"], ["POM_5V_IN"], ["VIN_SYS_5V0"]):
                index = label.name.removeprefix("in").removesuffix("_label")

                def read(monitor: Path = monitor, index: str = index) -> float:
                    return _number(monitor / f"in{index}_input") * _number(monitor / f"curr{index}_input") / 1e6

                if _is_readable(read):
                    return Sensor("the whole board, at its input", watts=read)
    return None


def _processor(sys: Path) -> Sensor | None:
    zones = [
        zone for zone in sorted((sys / "class/powercap").glob("*-rapl:*"))
        if zone.name.count(":") == 1 and _is_readable(partial(_number, zone / "energy_uj"))
    ]  # fmt: skip
    if not zones:
        return None
    return Sensor(
        "the processor's package alone (RAPL), without memory, board and power supply",
        joules=lambda: [_number(zone / "energy_uj", 1e6) for zone in zones],
        wraps=tuple(_number(zone / "max_energy_range_uj", 1e6) for zone in zones),
    )


# what it is ----------------------------------------------------------------------------------------------------------

_CHASSIS = {3: "desktop", 4: "desktop", 6: "desktop", 7: "desktop", 13: "desktop", 15: "desktop", 8: "laptop",
            9: "laptop", 10: "laptop", 14: "laptop", 31: "laptop", 32: "laptop", 17: "server", 23: "server",
            28: "server", 35: "mini-pc", 36: "mini-pc"}  # fmt: skip


def model_name(proc: Path = Path("/proc")) -> str:
    """The model name of the board if it has one, otherwise of the processor."""
    board = " ".join(_words(proc / "device-tree/model"))
    if board:
        return board
    try:
        lines = (proc / "cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model", "Hardware")))
    return next(filter(None, named), platform.machine() or "unknown")


def platform_name() -> str:
    """System, architecture and model as the title of a source: ``Linux aarch64, Raspberry Pi 4 Model B Rev 1.4``."""
    return f"{platform.system()} {platform.machine()}, {model_name()}"


def device_type_here(sys: Path = SYS, proc: Path = Path("/proc")) -> str:
    """The type of device (one of ``DEVICE_TYPES``) that this machine probably is."""
    model = model_name(proc).lower()
    if "jetson" in model or "coral" in model or "tegra" in model:
        return "accelerator-board"
    if (proc / "device-tree/model").exists():
        return "microcomputer"
    if "ANDROID_ROOT" in os.environ:
        return "phone"
    words = _words(sys / "class/dmi/id/chassis_type")
    type = _CHASSIS.get(int(words[0])) if words and words[0].isdigit() else None
    return type or ("laptop" if list((sys / "class/power_supply").glob("BAT*")) else "server")
