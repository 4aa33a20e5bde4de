"""Registered parts (methods, schedules, towers, ...) by name, found through entry points.

edgefl registers its own parts the same way as a plug-in does.  Listing names imports nothing; an object is imported
when it is looked up.  What fails in a plug-in is raised as PluginError, which names the plug-in and its file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from edgefl.errors import EdgeflError, PluginError, UnknownName
from edgefl.registry import faults
from edgefl.registry.faults import said

__all__ = [
    "GROUPS",
    "Origin",
    "broken",
    "described",
    "fingerprint",
    "forget",
    "get",
    "named_faults",
    "names",
    "origin",
    "package_digest",
    "plug_ins",
    "said",
]

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
    return {point.name: point for point in _all_points().select(group=GROUPS[noun])}


@cache
def _all_points() -> Any:
    return entry_points()


def names(noun: str) -> list[str]:
    """All names registered for this noun ("method", "step", ...), sorted; imports nothing."""
    return sorted(_points(noun))


def get(noun: str, name: str) -> Any:
    """The object registered as ``name`` for this noun.

    Raises UnknownName with the nearest name (also for a ``name`` that isn't text), and PluginError if the object can't
    be imported or isn't a part of this kind.
    """
    if not isinstance(name, str):
        raise UnknownName(noun, name, names(noun))
    return _get(noun, name)


@cache
def _get(noun: str, name: str) -> Any:
    points = _points(noun)
    if name not in points:
        raise UnknownName(noun, name, points)
    point = points[name]
    where = f"the {noun} {name!r} of the plug-in {faults.titled(point)}"
    try:
        part = point.load()
    except (Exception, SystemExit) as error:
        file = faults.file_of(point)
        if isinstance(error, SyntaxError) and error.filename:
            file = f"{error.filename}:{error.lineno}"
        elif (place := plug_ins().place(error)) is not None:
            file = f"{place[0].file}:{place[0].line}"
        raise PluginError(f"{where} can't be imported: {faults.said(error)} ({file}; {point.value})") from error
    if fault := _misfit(noun, part):
        raise PluginError(f"{where} is broken: {point.value} {fault} ({faults.file_of(point)})")
    return part


_CALLED = ("method", "schedule", "model", "partition", "step", "selection", "round policy")
_ATTRIBUTES = {
    "method": ("initial", "work", "aggregate", "evaluate"),
    "tower": ("Options", "build"),
    "edit": ("apply", "fold", "restrict", "names"),
    "selection": ("Options", "blind"),
    "round policy": ("at_once", "overlapping"),
}


def _misfit(noun: str, part: Any) -> str:
    """Why an object can't be a part of this kind, as the end of a message; "" if it can."""
    if part is None:
        return "is None"
    if noun in _CALLED and not callable(part):
        return f"is {part!r:.60}, which can't be called"
    if noun == "data set" and not (callable(part) or hasattr(part, "build")):
        return f"is {part!r:.60}, not a DataSet, a FolderSet or a function"
    if noun == "profile library" and not isinstance(part, str | PathLike):
        return f"is {part!r:.60}, not the path of a folder"
    if lacking := [name for name in _ATTRIBUTES.get(noun, ()) if not hasattr(part, name)]:
        return f"has no {', '.join(lacking)}"
    options = getattr(part, "Options", None)
    if options is not None and not hasattr(options, "model_fields"):
        return f"has Options that aren't a pydantic model: {options!r:.60}"
    return ""


def described(noun: str, name: str) -> str:
    """A part as messages name it: ``the step 'align' of the plug-in edgefl-prototypes 1.0 (FILE)``."""
    point = _points(noun).get(name)
    if point is None or faults.top_package(point) == "edgefl":
        return f"the {noun} {name!r}"
    return f"the {noun} {name!r} of the plug-in {faults.titled(point)} ({faults.file_of(point)})"


@cache
def plug_ins() -> faults.PlugIns:
    """All installed plug-ins, to name the one in which something failed."""
    return faults.PlugIns(point for noun in GROUPS for point in _points(noun).values())


@contextmanager
def named_faults() -> Iterator[None]:
    """Raise what a plug-in raises as PluginError, its attempts to end the program too.

    Errors of edgefl and interruptions pass, and so does every exception that no plug-in's code was part of.
    """
    try:
        yield
    except (EdgeflError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if (fault := plug_ins().fault(error)) is None:
            raise
        raise fault from error


def broken(nouns: Iterable[str] = GROUPS) -> Iterator[tuple[str, str, str]]:
    """``(noun, name, message)`` of each part of a plug-in that can't be imported or isn't what it should be."""
    for noun in nouns:
        for name, point in sorted(_points(noun).items()):
            if faults.top_package(point) != "edgefl":
                try:
                    get(noun, name)
                except PluginError as error:
                    yield noun, name, str(error)


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
    return Origin(faults.top_package(point), point.dist.version if point.dist else None)


def fingerprint(noun: str, name: str) -> str:
    """A hash of all Python sources of the package that registered ``name``.

    Raises UnknownName with the nearest name.
    """
    points = _points(noun)
    if name not in points:
        raise UnknownName(noun, name, points)
    return package_digest(faults.top_package(points[name]))


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
    _all_points.cache_clear()
    _points.cache_clear()
    _get.cache_clear()
    plug_ins.cache_clear()
    package_digest.cache_clear()
