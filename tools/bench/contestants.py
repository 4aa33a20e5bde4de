"""Who takes part: each contestant's command and environment, and versions of edgefl that take turns."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version as version_of
from pathlib import Path

from bench.pairing import Failed, Started

TOOLS = Path(__file__).resolve().parents[1]
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
INSTALL_SECONDS = 1800.0
PATIENCE = 300.0
"""Seconds after which a command of edgefl is ended, so that ``bench.py all`` keeps its 20 minutes."""


@dataclass(frozen=True)
class Entry:
    """A contestant: its title, its module, further arguments, its environment (None: the tool's own), its launcher."""

    title: str
    module: str
    arguments: tuple[str, ...] = ()
    environment: str | None = None
    launcher: tuple[str, ...] = ()

    def started(self, python: str, job: str, rounds: int, folder: Path) -> Started:
        """The command that plays a job, with its files in ``folder``."""
        command = [python, *self.launcher, "-m", self.module, job, "--rounds", str(rounds), *self.arguments]
        return Started(command, variables(folder, self.environment))


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
ENTRIES = {
    "bare-1": Entry("bare loop, one process", "bench.bare"),
    "bare-2": Entry("bare loop, two processes", "bench.bare", ("--processes", "2")),
    "edgefl-1": Entry("edgefl, inline", "bench.edgefl_run"),
    "edgefl-2": Entry("edgefl, two workers", "bench.edgefl_run", ("--processes", "2")),
    "edgefl-4": Entry("edgefl, four workers", "bench.edgefl_run", ("--processes", "4")),
    "edgefl-ray": Entry("edgefl, two Ray workers", "bench.edgefl_run", ("--processes", "2", "--ray")),
    "pfl-1": Entry("pfl-research, one process", "bench.pfl_run", environment="pfl"),
    "pfl-2": Entry("pfl-research, two torchrun processes", "bench.pfl_run", environment="pfl", launcher=TORCHRUN),
    "flower-2": Entry("Flower, two Ray workers", "bench.flower_run", environment="flower"),
    "appfl-1": Entry("APPFL, virtual time, one process", "bench.appfl_run", environment="appfl"),
}
"""The contestants."""
PACKAGES = {"pfl": ("pfl[pytorch]",), "flower": ("flwr[simulation]",), "appfl": ("appfl",)}
"""What each environment has beside torch, which is of the tool's own version in all of them."""
SHOWN = {"pfl": ("pfl",), "flower": ("flwr", "ray"), "appfl": ("appfl",)}
SHOW = (
    "import json, sys; from importlib.metadata import version; print(json.dumps({n: version(n) for n in sys.argv[1:]}))"
)


def variables(folder: Path, environment: str | None) -> dict[str, str]:
    """The environment variables of a contestant: one thread per process, and its files in ``folder``.

    In the tool's own environment the checkout's edgefl is found first.
    """
    path = [str(TOOLS)] if environment else [str(TOOLS), str(TOOLS.parent)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EDGEFL_", "PYTHON"))}
    return {
        **kept,
        **dict.fromkeys(THREADS, "1"),
        "PYTHONPATH": os.pathsep.join(path),
        "EDGEFL_CACHE": str(folder / "cache"),
        "RAY_TMPDIR": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "CUDA_VISIBLE_DEVICES": "",
    }


def python_of(environment: str | None, folder: Path) -> tuple[str, str]:
    """The Python of an environment, made in ``folder`` if it isn't there, and the versions of what it is for.

    Raises Failed with pip's reason if it can't be installed.
    """
    if environment is None:
        return sys.executable, ""
    home = folder / environment
    python, done = home / "bin" / "python", home / "installed.json"
    wanted = [f"torch=={version_of('torch').partition('+')[0]}", *PACKAGES[environment]]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if not (done.exists() and json.loads(done.read_text(encoding="utf-8"))["wanted"] == wanted):
        print(f"installing {', '.join(wanted)}", file=sys.stderr, flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(home)], clean)
        _run([str(python), "-m", "pip", "install", "--quiet", *wanted], clean)
        versions = json.loads(_run([str(python), "-c", SHOW, *SHOWN[environment]], clean))
        done.write_text(json.dumps({"wanted": wanted, "versions": versions}), encoding="utf-8")
    versions = json.loads(done.read_text(encoding="utf-8"))["versions"]
    return str(python), ", ".join(f"{name} {number}" for name, number in versions.items())


def _run(command: list[str], environment: Mapping[str, str]) -> str:
    """The output of a command.  Raises Failed with its last line of errors."""
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"it can't be installed: {error}") from None
    if done.returncode:
        said = [line.strip() for line in done.stderr.split("\n") if line.strip()]
        errors = [line for line in said if line.startswith("ERROR")] or said or ["no message"]
        raise Failed(f"it can't be installed: {errors[0][:200]}")
    return done.stdout


@dataclass(frozen=True)
class Version:
    """A checkout, its Python, and the folder of its caches."""

    checkout: Path
    python: str
    folder: Path

    def environment(self, cache: Path | None = None) -> dict[str, str]:
        """The environment of its processes: one thread each, its own edgefl and cache."""
        path = os.pathsep.join([str(TOOLS), str(self.checkout)])
        return {**variables(self.folder, None), "PYTHONPATH": path, **({"EDGEFL_CACHE": str(cache)} if cache else {})}

    def run(self, arguments: Sequence[str], cache: Path | None = None) -> tuple[float, str]:
        """Seconds and output of its Python with these arguments.

        Raises Failed with the last line of a failure, or after ``PATIENCE``.
        """
        began = time.perf_counter()
        try:
            done = subprocess.run(
                [self.python, *arguments], env=self.environment(cache), cwd=self.folder, capture_output=True, text=True,
                timeout=PATIENCE,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Failed(f"it isn't done after {PATIENCE:g} s") from None
        seconds = time.perf_counter() - began
        if done.returncode:
            lines = [line.strip("│ ") for line in done.stderr.splitlines() if any(map(str.isalnum, line))]
            raise Failed(f"exit status {done.returncode}: {(lines or ['no message'])[-1][:200]}")
        return seconds, done.stdout


def add_versions(parser: argparse.ArgumentParser) -> None:
    """Add the options that name another version of edgefl."""

    def checkout(text: str) -> Path:
        path = Path(text).resolve()
        if not (path / "edgefl" / "__init__.py").is_file():
            raise argparse.ArgumentTypeError(f"{text} isn't a checkout: it has no edgefl/__init__.py")
        return path

    against = "also time this checkout, the version before"
    parser.add_argument("--against", type=checkout, metavar="CHECKOUT", help=against)
    parser.add_argument("--python", help="its Python; by default that of its .venv, or this one if it has none")


def versions_in(folder: Path, against: Path | None, python: str | None) -> list[Version]:
    """This checkout, and ``against`` if there is one, each with its own folder of caches in ``folder``."""
    found = [(TOOLS.parent, sys.executable)]
    if against is not None:
        own = against / ".venv" / "bin" / "python"
        found.append((against, python or (str(own) if own.is_file() else sys.executable)))
    versions = [Version(checkout, each, folder / str(place)) for place, (checkout, each) in enumerate(found)]
    for version in versions:
        version.folder.mkdir()
    return versions
