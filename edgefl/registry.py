"""Registered parts (methods, schedules, towers, ...) by name, found through entry points.

edgefl registers its own parts the same way as a plug-in does.  Listing names imports nothing; an object is imported
when it is looked up.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

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


def get(noun: str, name: str) -> Any:
    """The object registered as ``name`` for this noun.

    Raises UnknownName with the nearest name (also for a ``name`` that isn't text), and EdgeflError if the object can't
    be imported.
    """
    if not isinstance(name, str):
        raise UnknownName(noun, name, names(noun))
    return _get(noun, name)


@cache
def _get(noun: str, name: str) -> Any:
    points = _points(noun)
    if name not in points:
        raise UnknownName(noun, name, points)
    try:
        return points[name].load()
    except (ImportError, AttributeError) as error:
        raise EdgeflError(f"the {noun} {name!r} ({points[name].value}) can't be imported: {error}") from error


class Origin(NamedTuple):
    """Where a registered object comes from: its top-level package, and the version of its distribution."""

    package: str
    version: str | None


def origin(noun: str, name: str) -> Origin:
    """The package that registered ``name``.  Raises UnknownName with the nearest name; imports nothing."""
    points = _points(noun)
    if name not in points:
        raise UnknownName(noun, name, points)
    point = points[name]
    return Origin(point.module.partition(".")[0], point.dist.version if point.dist else None)


def fingerprint(noun: str, name: str) -> str:
    """A hash of all Python sources of the package that registered ``name``.

    Raises UnknownName with the nearest name.
    """
    points = _points(noun)
    if name not in points:
        raise UnknownName(noun, name, points)
    return package_digest(points[name].module.partition(".")[0])


@cache
def package_digest(package: str) -> str:
    """A hash of the Python sources of a package or module; of its name alone if it has no sources."""
    spec = find_spec(package)
    roots = list(spec.submodule_search_locations or ()) if spec else []
    files = sorted(path for root in roots for path in Path(root).rglob("*.py"))
    if spec and spec.origin and not files and Path(spec.origin).is_file():
        files = [Path(spec.origin)]
    hashed = hashlib.blake2b(package.encode(), digest_size=12)
    for path in files:
        hashed.update(path.read_bytes())
    return hashed.hexdigest()


def forget() -> None:
    """Clear the cached look-ups, so that packages installed since then are found (tests use it)."""
    _points.cache_clear()
    _get.cache_clear()
    package_digest.cache_clear()
