"""Names to objects, through entry points: edgefl's own parts are registered the same way as a plug-in's.

An entry point group is ``edgefl.<noun>s``; an object is imported when it is asked for, never when names are listed.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgefl.errors import EdgeflError, UnknownName

GROUPS = {
    "method": "edgefl.methods",
    "schedule": "edgefl.schedules",
    "model": "edgefl.models",
    "tower": "edgefl.towers",
    "data set": "edgefl.datasets",
    "partition": "edgefl.partitions",
    "step": "edgefl.steps",
    "edit": "edgefl.edits",
    "selection": "edgefl.selections",
    "round policy": "edgefl.policies",
    "profile library": "edgefl.profiles",
}


@cache
def _points(noun: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUPS[noun])}


def names(noun: str) -> list[str]:
    """All names registered for this noun ("method", "step", ...), sorted; imports nothing."""
    return sorted(_points(noun))


@cache
def get(noun: str, name: str) -> Any:
    """The object registered as ``name``.

    Raises UnknownName with the nearest name, and EdgeflError if a plug-in fails to import.
    """
    points = _points(noun)
    if name not in points:
        raise UnknownName(noun, name, points)
    try:
        return points[name].load()
    except (ImportError, AttributeError) as error:
        raise EdgeflError(f"the {noun} {name!r} ({points[name].value}) can't be imported: {error}") from error


def fingerprint(noun: str, name: str) -> str:
    """A hash of the code behind a name: of all sources of the package that it comes from.

    Raises UnknownName with the nearest name.
    """
    points = _points(noun)
    if name not in points:
        raise UnknownName(noun, name, points)
    return package_digest(points[name].module.partition(".")[0])


@cache
def package_digest(package: str) -> str:
    """A hash of the sources of an importable package or module; its name where it has none."""
    spec = find_spec(package)
    roots = list(spec.submodule_search_locations or ()) if spec else []
    files = sorted(path for root in roots for path in Path(root).rglob("*.py"))
    if spec and spec.origin and not files and Path(spec.origin).is_file():
        files = [Path(spec.origin)]
    found = hashlib.blake2b(package.encode(), digest_size=12)
    for path in files:
        found.update(path.read_bytes())
    return found.hexdigest()


def forget() -> None:
    """Forget what was looked up, so that packages installed since are seen (tests use it)."""
    _points.cache_clear()
    get.cache_clear()
    package_digest.cache_clear()
