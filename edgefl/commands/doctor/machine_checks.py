"""Whether this machine and this installation can run edgefl, and what to do where they can't.

Nothing that may be broken is imported at the top: a package that can't be imported is an answer, not a traceback.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

from edgefl import units
from edgefl.commands.doctor.answer import ERROR, OK, WARNING, MachineCheck
from edgefl.errors import EdgeflError
from edgefl.memo import BOUNDS, cache_folder
from edgefl.runs.progress import OnProgress

DISTRIBUTION = "edgefl-sim"
OLDEST_PYTHON = (3, 11)
NEWEST_PYTHON = (3, 13)
"""The least of ``requires-python``, and the newest that the tests run with: torch may have no wheel for a newer one."""

INSTALL = "in edgefl's checkout, run pip install -c constraints.txt ."

LITTLE_DISK, LEAST_DISK = 5 * 2**30, 2**28
LITTLE_MEMORY, LEAST_MEMORY = 2 * 2**30, 2**29
"""Free bytes below which there is a warning, and an error.

A choice, not measured: a process that has imported torch has 220 MiB, so that 512 MiB hold a command and one worker.
"""


def machine_checks(runs: bool, on_progress: OnProgress) -> Iterator[MachineCheck]:
    """Each check; with ``runs`` also determinism and a whole run with its rules."""
    yield python_check(sys.version_info[:3])
    yield from packages()
    yield _guard_check("import", torchvision_check)
    yield _guard_check("GPU", gpu_check)
    yield _guard_check("cache", lambda: cache_check(cache_folder()))
    yield _guard_check("disk", lambda: disk_check({"here": Path.cwd(), "cache": cache_folder()}))
    yield _guard_check("memory", memory_check)
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        advice = "name a folder that can be written in the environment variable TMPDIR"
        yield MachineCheck("temporary", ERROR, f"{error.strerror}, which worker processes and figures need", advice)
        return
    if runs:
        on_progress("prepare", {"what": "running a small scenario three times"})
        with tempfile.TemporaryDirectory(prefix="edgefl-doctor-", ignore_cleanup_errors=True) as folder:
            yield _guard_check("determinism", lambda: determinism_check(Path(folder)))
            yield _guard_check("run", lambda: run_check(Path(folder)))


def _guard_check(name: str, check: Callable[[], MachineCheck]) -> MachineCheck:
    """The check, or an error with the exception that it raised."""
    try:
        return check()
    except EdgeflError as error:
        return MachineCheck(name, ERROR, str(error))
    except Exception as error:
        return MachineCheck(name, ERROR, _one_line(error), "see the other lines for a cause; " + INSTALL)


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


# versions ------------------------------------------------------------------------------------------------------------


def python_check(running: Sequence[int]) -> MachineCheck:
    """Whether this version of Python (major, minor, micro) is supported."""
    text = ".".join(map(str, running))
    if tuple(running[:2]) < OLDEST_PYTHON:
        least = ".".join(map(str, OLDEST_PYTHON))
        return MachineCheck("Python", ERROR, text, f"edgefl needs Python {least} or newer: make an environment with it")
    if tuple(running[:2]) > NEWEST_PYTHON:
        newest = ".".join(map(str, NEWEST_PYTHON))
        return MachineCheck(
            "Python", WARNING, text, f"the tests run with Python up to {newest}: use that if something fails"
        )
    return MachineCheck("Python", OK, f"{text}, {platform.system()} {platform.machine()}")


def packages() -> list[MachineCheck]:
    """A check of edgefl's own installation, and one of each package that it needs."""
    try:
        needed = requires(DISTRIBUTION) or []
        installed = version(DISTRIBUTION)
    except PackageNotFoundError:
        return [MachineCheck("edgefl", ERROR, f"{DISTRIBUTION} isn't installed, so its parts can't be found", INSTALL)]
    checks = [MachineCheck("edgefl", OK, f"{installed}, {Path(__file__).resolve().parents[2]}")]
    for requirement in sorted((Requirement(text) for text in needed), key=lambda each: each.name.lower()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            try:
                there: str | None = version(requirement.name)
            except PackageNotFoundError:
                there = None
            checks.append(package_check(requirement, there))
    return checks


def package_check(requirement: Requirement, there: str | None) -> MachineCheck:
    """Whether a package is installed in a supported version; ``there`` is the version, None without it."""
    name, wanted = requirement.name, str(requirement.specifier)
    advice = f"pip install '{name}{wanted}'; {INSTALL} for the versions that edgefl is tested with"
    if there is None:
        return MachineCheck(name, ERROR, f"it isn't installed; supported: {wanted}", advice)
    if not requirement.specifier.contains(there, prereleases=True):
        return MachineCheck(name, ERROR, f"{there} isn't supported; supported: {wanted}", advice)
    return MachineCheck(name, OK, f"{there} ({wanted})")


def torchvision_check() -> MachineCheck:
    """Whether torch and torchvision can be imported together.

    A torchvision whose compiled part was built for another torch is a warning, since no tower calls that part.
    """
    name, advice = "import", "install the torchvision that belongs to this torch: " + INSTALL
    try:
        import_module("torch")
    except Exception as error:
        return MachineCheck(name, ERROR, f"torch can't be imported: {_one_line(error)}", INSTALL)
    try:
        import_module("torchvision")
    except Exception as error:
        from edgefl.models.towers.vision import import_torchvision

        try:
            import_torchvision()
        except Exception as second:
            return MachineCheck(name, ERROR, f"torchvision can't be imported: {_one_line(second)}", advice)
        return MachineCheck(name, WARNING, f"torchvision's compiled part is left out: {_one_line(error)}", advice)
    return MachineCheck(name, OK, "torch and torchvision can be imported together")


def gpu_check() -> MachineCheck:
    """Which GPU torch sees, and whether it computes what the CPU does; none is no fault."""
    import torch

    if not torch.cuda.is_available():
        if Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi"):
            advice = "install a build of torch with CUDA (pytorch.org says which), and check that nvidia-smi works"
            return MachineCheck(
                "GPU", WARNING, f"torch {torch.__version__} can't use this machine's NVIDIA GPU", advice
            )
        return MachineCheck("GPU", OK, "none; training runs on the CPU")
    name = torch.cuda.get_device_name(0)
    free, total = torch.cuda.mem_get_info(0)
    numbers = torch.arange(4096, dtype=torch.float64).reshape(64, 64)
    if not torch.equal((numbers.cuda() @ numbers.cuda()).cpu(), numbers @ numbers):
        return MachineCheck("GPU", ERROR, f"{name} computes a wrong matrix product", "set executor.device to cpu")
    found = f"{name}, {units.show_bytes(free)} of {units.show_bytes(total)} free, CUDA {torch.version.cuda}"
    if free < LITTLE_MEMORY:
        return MachineCheck(
            "GPU", WARNING, found, "other programs use its memory: end them, or set executor.device to cpu"
        )
    return MachineCheck("GPU", OK, found)


# this machine --------------------------------------------------------------------------------------------------------


def cache_check(folder: Path) -> MachineCheck:
    """Whether the cache folder can be written, and what its folders hold and may hold."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        found = f"{folder} can't be written ({error.strerror or error}): every command makes its data anew"
        return MachineCheck("cache", WARNING, found, "name a folder of yours in the environment variable EDGEFL_CACHE")
    held = ", ".join(
        f"{name} {units.show_bytes(_size_of(folder / name))} of {units.show_bytes(bound)}"
        for name, bound in BOUNDS.items()
    )
    return MachineCheck("cache", OK, f"{folder}, with {held}; it may be removed at any time")


def _size_of(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # another command may be replacing it
            size += path.stat(follow_symlinks=False).st_size if not path.is_dir() else 0
    return size


def disk_check(folders: dict[str, Path]) -> MachineCheck:
    """The free bytes of the file systems on which these folders are, or will be."""
    free = {name: shutil.disk_usage(_existing(folder)).free for name, folder in folders.items()}
    found = ", ".join(f"{name} {units.show_bytes(number)}" for name, number in free.items()) + " free"
    advice = "free some space, run with --out on another disk, or name another folder in EDGEFL_CACHE"
    return _grade_free_bytes("disk", min(free.values()), (LITTLE_DISK, LEAST_DISK), found, advice)


def memory_check() -> MachineCheck:
    """The bytes that this process may still allocate, and the cores that it may use."""
    from edgefl.machine import host

    free, total = host.free_bytes(), host.ram_bytes()
    found = f"{units.show_bytes(free)} of {units.show_bytes(total)} free, {host.physical_cores()} cores"
    advice = "end other programs, or set executor.workers to 1 and training.batch to less"
    return _grade_free_bytes("memory", free, (LITTLE_MEMORY, LEAST_MEMORY), found, advice)


def _grade_free_bytes(name: str, free: int, limits: tuple[int, int], found: str, advice: str) -> MachineCheck:
    """A check of free bytes: a warning below the first limit, an error below the second."""
    little, least = limits
    if free >= little:
        return MachineCheck(name, OK, found)
    return MachineCheck(name, ERROR if free < least else WARNING, found, advice)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that exists."""
    folder = folder.absolute()
    return next(each for each in (folder, *folder.parents) if each.exists())


# runs ----------------------------------------------------------------------------------------------------------------

SCENARIO: dict[str, object] = {
    "name": "doctor",
    "seed": 3,
    "data": {"source": "glyphs", "clients": {"image": 2, "text": 2, "image-text": 2}, "samples": 40,
             "validation": 40, "test": 40},
    "model": {"image": {"blocks": 2, "width": 16, "heads": 2},
              "text": {"blocks": 2, "width": 16, "heads": 2, "tokens": 12}},
    "method": "fedcola",
    "schedule": {"name": "layerwise", "stages": 2, "rounds": 4},
    "training": {"batch": 8},
    "round": {"cohort": 1.0},
    "evaluation": {"every": 4},
}  # fmt: skip
"""A scenario with every kind of client, of a second or two."""

COMPARED = ("rounds.jsonl", "clients.jsonl", "eligibility.jsonl", "result.json", "weights.safetensors")
"""Files that are equal, byte for byte, between equal runs on one machine."""


def differing(left: Path, right: Path) -> list[str]:
    """Names of the files of two equal runs that aren't equal, byte for byte."""
    return [name for name in COMPARED if (left / name).read_bytes() != (right / name).read_bytes()]


def determinism_check(folder: Path) -> MachineCheck:
    """Whether two runs of the same scenario, in this process, give the same records and weights to the last bit."""
    import edgefl

    executor = {"name": "inline", "device": "auto"}
    for name in ("first", "second"):
        edgefl.run({**SCENARIO, "executor": executor}, out=folder / name)
    if names := differing(folder / "first", folder / "second"):
        advice = "results of this machine aren't reproducible: set executor.device to cpu and OMP_NUM_THREADS to 1"
        return MachineCheck("determinism", ERROR, f"two equal runs differ in {', '.join(names)}", advice)
    return MachineCheck("determinism", OK, "two equal runs have the same records and weights, bit for bit")


def run_check(folder: Path) -> MachineCheck:
    """Whether a run in two worker processes ends, keeps the rules of ``--verify``, and equals a run in one process."""
    import edgefl
    from edgefl.results.verify import verify

    began = time.perf_counter()
    edgefl.run({**SCENARIO, "executor": {"name": "processes", "workers": 2, "device": "auto"}}, out=folder / "run")
    report = verify(folder / "run")
    seconds = time.perf_counter() - began
    (run,) = report.runs.values()
    if not report.valid:
        broken = ", ".join(check.name for check in run.checks if check.broken)
        return MachineCheck("run", ERROR, f"a run breaks the rules {broken}", "please report it with this output")
    if (folder / "first" / "result.json").exists() and (names := differing(folder / "first", folder / "run")):
        advice = "set executor to inline, and OMP_NUM_THREADS to 1 for all processes"
        return MachineCheck("run", ERROR, f"worker processes give another result in {', '.join(names)}", advice)
    threads = os.environ.get("OMP_NUM_THREADS")
    found = f"{run.rounds} rounds in 2 worker processes in {seconds:.1f} s, every rule of --verify holds"
    return MachineCheck("run", OK, found + (f"; OMP_NUM_THREADS is {threads}" if threads else ""))
