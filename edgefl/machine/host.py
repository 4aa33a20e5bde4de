"""The machine around the processor: cores, memory, storage, power sensors, and what it calls itself."""

from __future__ import annotations

import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

BLOCK = 2**20
SYS = Path("/sys")
UNLIMITED = 2**60
"""What control groups say for no limit is some 2^63."""


def physical_cores() -> int:
    """Cores that this process may use; threads of one core count once."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _words(SYS / "fs/cgroup/cpu.max")
    if len(quota) == 2 and quota[0].isdigit():
        allowed = min(allowed, max(1, int(quota[0]) // int(quota[1])))
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def ram_bytes() -> int:
    """The machine's memory, or what a control group (a container) leaves of it."""
    return min(psutil.virtual_memory().total, _limit("memory.max", "memory/memory.limit_in_bytes"))


def usable_bytes() -> int:
    """What processes may have now: what is free, and what this one has."""
    limit = _limit("memory.max", "memory/memory.limit_in_bytes")
    memory = psutil.virtual_memory()
    return min(memory.available + psutil.Process().memory_info().rss, memory.total, limit)


def free_bytes() -> int:
    """What this process may take yet."""
    return max(0, usable_bytes() - psutil.Process().memory_info().rss)


def overhead_bytes() -> tuple[int, int]:
    """(what this process alone holds and can't be dropped, its resident set with the libraries' pages)."""
    resident = psutil.Process().memory_info().rss
    words = _words(Path("/proc/self/smaps_rollup"))
    anonymous = int(words[words.index("Anonymous:") + 1]) * 1024 if "Anonymous:" in words else resident
    return min(anonymous, resident), resident


def _limit(*names: str) -> int:
    for name in names:
        words = _words(SYS / "fs/cgroup" / name)
        if words and words[0].isdigit():
            return int(words[0]) if int(words[0]) < UNLIMITED else UNLIMITED
    return UNLIMITED


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").replace("\0", " ").split()
    except OSError:
        return []


@dataclass
class Company:
    """The share of all cores that other processes had while something ran."""

    others: float = 0.0


@contextmanager
def company() -> Iterator[Company]:
    """Sees what else computes on the machine during the block."""
    found = Company()
    began, own, before = time.perf_counter(), time.process_time(), psutil.cpu_times()
    yield found
    passed, after = time.perf_counter() - began, psutil.cpu_times()
    busy = sum(after) - sum(before) - (after.idle - before.idle)
    busy -= getattr(after, "iowait", 0.0) - getattr(before, "iowait", 0.0)
    # a guest's time is in the user's too
    busy -= sum(getattr(after, name, 0.0) - getattr(before, name, 0.0) for name in ("guest", "guest_nice"))
    found.others = max(0.0, (busy - (time.process_time() - own)) / (passed * (os.cpu_count() or 1)))


# storage -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """Rates of reading a file from its start to its end, bytes per second, and whether the page cache was dropped."""

    rates: list[float]
    bytes: int
    dropped: bool


def read_storage(folder: Path, size: int, times: int) -> Reading:
    """Write a file of ``size`` bytes that don't compress, and read it back.  It has no name, so that nothing stays.

    Raises OSError where it can't be written.
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
    """Ask that the file's pages be dropped from memory; whether such a request exists here."""
    if not hasattr(os, "posix_fadvise"):
        return False
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return True


# power ---------------------------------------------------------------------------------------------------------------


@dataclass
class Watts:
    """Watts while something ran: None until it has ended, or where a sensor failed."""

    value: float | None = None


@dataclass(frozen=True)
class Sensor:
    """A power sensor: what it measures, and either watts now, or counters of joules that start
    again at ``wraps``."""

    what: str
    joules: Callable[[], list[float]] | None = None
    wraps: tuple[float, ...] = ()
    watts: Callable[[], float] | None = None

    @contextmanager
    def measuring(self) -> Iterator[Watts]:
        """Mean watts of the block."""
        found, samples, stop = Watts(), [], threading.Event()

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
            yield found
        finally:
            stop.set()
            thread.join()
            if self.joules:
                spent = [now - then for now, then in zip(self.joules(), before, strict=True)]
                whole = sum(s + wrap if s < 0 else s for s, wrap in zip(spent, self.wraps, strict=True))
                found.value = whole / (time.perf_counter() - began)
            elif samples:
                found.value = sum(samples) / len(samples)


def power_sensor(sys: Path = SYS) -> Sensor | None:
    """The sensor that sees most of the machine: a battery that is being used, a board's monitor, the processor's
    counters (RAPL); None where none can be read."""
    for find in (_battery, _board, _packages):
        sensor = find(sys)
        if sensor is not None:
            return sensor
    return None


def _number(path: Path, of: float = 1.0) -> float:
    return float(path.read_text(encoding="ascii").strip()) / of


def _readable(read: Callable[[], float]) -> bool:
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
            if _readable(read):
                return Sensor("the whole machine, from its battery", watts=read)
    return None


def _board(sys: Path) -> Sensor | None:
    for monitor in sorted((sys / "class/hwmon").glob("hwmon*")):
        name = " ".join(_words(monitor / "name"))
        if name == "power_meter" and _readable(partial(_number, monitor / "power1_average")):
            watts = partial(_number, monitor / "power1_average", 1e6)
            return Sensor("the whole machine, by its power meter", watts=watts)
        for label in sorted(monitor.glob("in*_label")):
            if name.startswith("ina") and _words(label) in (["VDD_IN"], ["POM_5V_IN"], ["VIN_SYS_5V0"]):
                index = label.name.removeprefix("in").removesuffix("_label")

                def read(monitor: Path = monitor, index: str = index) -> float:
                    return _number(monitor / f"in{index}_input") * _number(monitor / f"curr{index}_input") / 1e6

                if _readable(read):
                    return Sensor("the whole board, at its input", watts=read)
    return None


def _packages(sys: Path) -> Sensor | None:
    zones = [
        zone for zone in sorted((sys / "class/powercap").glob("*-rapl:*"))
        if zone.name.count(":") == 1 and _readable(partial(_number, zone / "energy_uj"))
    ]  # fmt: skip
    if not zones:
        return None
    return Sensor(
        "the processor's package alone (RAPL): memory, board and power supply aren't in it",
        joules=lambda: [_number(zone / "energy_uj", 1e6) for zone in zones],
        wraps=tuple(_number(zone / "max_energy_range_uj", 1e6) for zone in zones),
    )


# what it is ----------------------------------------------------------------------------------------------------------

_CHASSIS = {3: "desktop", 4: "desktop", 6: "desktop", 7: "desktop", 13: "desktop", 15: "desktop", 8: "laptop",
            9: "laptop", 10: "laptop", 14: "laptop", 31: "laptop", 32: "laptop", 17: "server", 23: "server",
            28: "server", 35: "mini-pc", 36: "mini-pc"}  # fmt: skip


def model_name(proc: Path = Path("/proc")) -> str:
    """What the machine calls itself: its board where it has such a name, else its processor."""
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
    """System and processor, as a source is named: ``Linux aarch64, Raspberry Pi 4 Model B Rev 1.4``."""
    return f"{platform.system()} {platform.machine()}, {model_name()}"


def kind_here(sys: Path = SYS, proc: Path = Path("/proc")) -> str:
    """The kind of device that this seems to be."""
    model = model_name(proc).lower()
    if "jetson" in model or "coral" in model or "tegra" in model:
        return "accelerator-board"
    if (proc / "device-tree/model").exists():
        return "microcomputer"
    if "ANDROID_ROOT" in os.environ:
        return "phone"
    words = _words(sys / "class/dmi/id/chassis_type")
    found = _CHASSIS.get(int(words[0])) if words and words[0].isdigit() else None
    return found or ("laptop" if list((sys / "class/power_supply").glob("BAT*")) else "server")
