"""Build the wheel and the sdist into dist/, look at what is in them, install them away from the checkout and use them.

    python tools/package.py         the wheel, beside the packages of this environment: half a minute
    python tools/package.py --all   wheel and sdist with all that they need, and every extra, in new environments of the
                                    Pythons that the classifiers name and this machine has (on the path, or pyenv's)
    python tools/package.py --pythons   nothing of this: print the programs of these Pythons, oldest first

Needs ``build`` (in the extra ``dev``).  Ends with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).resolve().parents[1]
LARGEST_WHEEL, LARGEST_SDIST = 3_000_000, 5_000_000
"""Bytes."""

TWO_ROUNDS = ["compare=null", "schedule={name: end-to-end, rounds: 2}", "data.samples={image: 100, image-text: 100}"]
QUICK = [["doctor"], ["run", "quickstart", *(word for change in TWO_ROUNDS for word in ("--set", change))]]
LONG = [*QUICK, ["profile", "finetune/qwen2.5-0.5b"]]


class Wrong(Exception):
    """What is wrong with the package."""


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and from it the wheel; returns wheel and sdist."""
    shutil.rmtree(folder, ignore_errors=True)
    called([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], folder.parent)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def called(command: Sequence[str], folder: Path) -> str:
    """What a command prints, run in ``folder`` without Python's own variables.  Raises Wrong if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment["EDGEFL_CACHE"] = str(folder / "cache")
    started = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise Wrong(f"exit {done.returncode}: {' '.join(command)}\n{done.stdout}\n{done.stderr}")
    print(f"{time.monotonic() - started:6.1f} s  {' '.join(Path(word).name or word for word in command)}", flush=True)
    return done.stdout


# what is in them -----------------------------------------------------------------------------------------------------


def faults(wheel: Path, sdist: Path) -> Iterator[str]:
    """What is wrong with the contents of the two files."""
    with zipfile.ZipFile(wheel) as archive:
        files = archive.namelist()
    with tarfile.open(sdist) as archive:
        sources = [member.name.split("/", 1)[1] for member in archive if member.isfile()]
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]
    moved = {"edgefl": "edgefl", **hatch["build"]["targets"]["wheel"]["force-include"]}
    expected = {
        target + name.removeprefix(source)
        for source, target in moved.items()
        for name in sources
        if name.startswith(source + "/")
    }
    inside = {name for name in files if not re.match(r"[^/]+\.dist-info/", name)}
    yield from (f"{wheel.name}: {name} isn't part of the package" for name in sorted(inside - expected))
    yield from (f"{wheel.name} lacks {name}" for name in sorted(expected - inside))
    for name in sorted(inside):
        if re.search(r"(^|/)(tests?|tools)/|(^|/)(test_[^/]*|conftest)\.py$", name):
            yield f"{wheel.name}: {name} is a test or a tool"
    for name in sorted({*inside, *sources}):
        if re.search(r"(^|/)(__pycache__|\.[^/]*(_cache|venv))/", name):
            yield f"{name} is a cache or an environment"
    for file, most in ((wheel, LARGEST_WHEEL), (sdist, LARGEST_SDIST)):
        print(f"{file.name}: {file.stat().st_size:,} bytes")
        if file.stat().st_size > most:
            yield f"{file.name} has more than {most:,} bytes"
    yield from untrue(_metadata(wheel))


def untrue(about: bytes) -> Iterator[str]:
    """What is wrong with METADATA: fields that an index refuses, links and pictures that lead nowhere on its page."""
    try:
        metadata = Metadata.from_email(about, validate=True)
    except ExceptionGroup as error:
        yield from (f"METADATA: {each}" for each in error.exceptions)
        return
    for link in re.findall(r"\]\((?!https?://)[^)]*\)|<img[^>]*>", metadata.description or ""):
        yield f"METADATA: {link} leads nowhere on an index (pyproject.toml, fancy-pypi-readme)"


# whether they work ---------------------------------------------------------------------------------------------------


def used(python: Path, commands: Sequence[Sequence[str]], folder: Path) -> None:
    """Type commands of the edgefl that is installed beside ``python``, which isn't the checkout's."""
    place = called([str(python), "-c", "import edgefl; print(edgefl.__file__)"], folder).strip()
    if not place.startswith(str(python.parents[1])):
        raise Wrong(f"{place} is used, not the installed package")
    edgefl = str(python.with_name("edgefl"))
    for command in (["--version"], *commands):
        called([edgefl, *command], folder)
    shutil.rmtree(folder / "runs")


def beside_these_packages(wheel: Path, folder: Path) -> None:
    """Install the wheel alone into an environment that sees the packages of this one, but not its edgefl."""
    place = folder / "environment"
    venv.create(place, symlinks=True)
    python = place / "bin" / "python"
    called(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)], folder
    )
    (packages,) = place.glob("lib/python*/site-packages")
    these = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]  # not the checkout
    (packages / "tools.pth").write_text("\n".join(these), encoding="utf-8")
    used(python, QUICK, folder)


def with_all_they_need(python: str, wheel: Path, sdist: Path, folder: Path) -> None:
    """Install wheel and sdist, each with what it asks for, into an environment of its own; resolve every extra."""
    own = folder / "environment" / "bin" / "python"
    called([python, "-m", "venv", str(own.parents[1])], folder)
    pip = [str(own), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    called([*pip, "install", str(wheel)], folder)
    used(own, LONG, folder)
    extras = Metadata.from_email(_metadata(wheel), validate=False).provides_extra or []
    for extra in (*extras, ",".join(extras)):
        called([*pip, "install", "--dry-run", f"{wheel}[{extra}]"], folder)
    called([*pip, "uninstall", "--yes", "edgefl-sim"], folder)
    called([*pip, "install", str(sdist)], folder)
    used(own, LONG, folder)


def pythons() -> Iterator[tuple[str, str | None]]:
    """The versions of Python in the classifiers, oldest first, each with its program, None where there is none."""
    for classifier in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]:
        if match := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", classifier):
            name = f"python{match[1]}"
            pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
            programs = [shutil.which(name), *map(str, sorted(pyenv.glob(f"versions/{match[1]}.*/bin/{name}")))]
            yield match[1], next(filter(_works, filter(None, programs)), None)


def _works(python: str) -> bool:
    """Whether it can make environments: pyenv has a program for each version, which fails for those not chosen."""
    return subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True).returncode == 0


def _metadata(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        return archive.read(name)


def main() -> int:
    """Check the package; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every Python, the sdist, every extra")
    parser.add_argument("--pythons", action="store_true", help="print the promised Pythons that are here")
    options = parser.parse_args()
    if options.pythons:
        print(*[python for _, python in pythons() if python] or [sys.executable], sep="\n")
        return 0
    try:
        wheel, sdist = build(ROOT / "dist")
        if found := list(faults(wheel, sdist)):
            raise Wrong("\n".join(found))
        for version, python in pythons() if options.all else [("", "")]:
            if python is None:
                print(f"Python {version}: SKIPPED, there is no python{version} here that can make environments")
                continue
            with tempfile.TemporaryDirectory(prefix="edgefl-package-") as folder:
                if options.all:
                    print(f"Python {version}: {python}")
                    with_all_they_need(python, wheel, sdist, Path(folder))
                else:
                    beside_these_packages(wheel, Path(folder))
    except Wrong as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
