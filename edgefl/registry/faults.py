"""Faults of plug-ins in one line: which plug-in, which of its files, and what happened there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import Distribution, EntryPoint
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb
from typing import NamedTuple

from edgefl.errors import PluginError, text_of
from edgefl.registry.registered import Registered

Point = EntryPoint | Registered

MOST_CHARACTERS = 300
"""Length of an exception's text in a message.  A choice: a few lines of a terminal.  Texts of torch have thousands."""


PASSED = (KeyboardInterrupt, GeneratorExit)
"""Exceptions that are no fault: what a user typed, and the end of a generator.  Plug-ins may raise any other."""


class FaultLocation(NamedTuple):
    """Where a plug-in was: ``plug_in`` with its version, file, line and the function's qualified name."""

    plug_in: str
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"the plug-in {self.plug_in} ({self.file}:{self.line}, in {self.function})"


class PlugIns:
    """The plug-ins: what registered parts, and all packages but edgefl with an entry point in edgefl's groups."""

    def __init__(self, points: Iterable[Point]):
        self._roots: dict[str, str] = {}
        for point in points:
            if isinstance(point, Registered):
                self._roots[os.path.abspath(point.file)] = point.title
            package = top_package(point)
            if package not in ("", "edgefl", "torch"):  # an optimizer of torch's may be registered
                self._roots.update(dict.fromkeys(_roots(package), plug_in_title(point)))

    def owner(self, file: str) -> str | None:
        """The plug-in, with its version, that this source file belongs to; None for any other file."""
        path = os.path.abspath(file)
        for root, title in self._roots.items():
            if path == root or path.startswith(root + os.sep):
                return title
        return None

    def locate_fault(self, error: BaseException) -> tuple[FaultLocation, BaseException] | None:
        """The plug-in's frame that was nearest to the error, and the exception that was raised there.

        None if no plug-in was running.  Causes are searched too: SimPy raises copies of exceptions.
        """
        # a chain of causes may be a circle; its exceptions are held by ``error``, so that ids stay theirs
        found, link, known = None, error, set[int]()
        while link is not None and id(link) not in known:
            known.add(id(link))
            for frame, line in walk_tb(link.__traceback__):
                if title := self.owner(frame.f_code.co_filename):
                    found = FaultLocation(title, frame.f_code.co_filename, line, frame.f_code.co_qualname), link
            link = link.__cause__  # type: ignore[assignment]
        return found

    def fault(self, error: BaseException) -> PluginError | None:
        """The error in one line that names the plug-in in whose code it was raised; None if it wasn't in any."""
        found = self.locate_fault(error)
        return None if found is None else PluginError(f"{found[0]} failed: {error_text(found[1])}")


def error_text(error: BaseException) -> str:
    """The type and the text of an exception in one line; what a SystemExit tried to do in words."""
    if isinstance(error, SystemExit):
        return f"it tried to end the program (SystemExit: {text_of(error)})"
    text = " ".join((error.msg if isinstance(error, SyntaxError) else text_of(error)).split())
    text = text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def safe_repr(part: object) -> str:
    """The beginning of a part's ``repr``, which may fail as any code of a plug-in; then its class."""
    try:
        return f"{part!r:.60}"
    except PASSED:
        raise
    except BaseException:
        return f"an object of {type(part).__name__}"


def top_package(point: Point) -> str:
    """The top-level package that an entry point names; "" if it names none."""
    return point.value.partition(":")[0].partition("[")[0].strip().partition(".")[0]


def plug_in_title(point: Point) -> str:
    """The distribution of an entry point with its version; its package if it has none; the file of a plug-in file."""
    if isinstance(point, Registered):
        return point.title
    return " ".join(_distribution(point.dist)) if point.dist else top_package(point)


def version_of(point: Point) -> str | None:
    """The version of the distribution of an entry point; None if it has none."""
    return _distribution(point.dist)[1] if point.dist else None


@cache
def _distribution(distribution: Distribution) -> tuple[str, str]:
    """The name and the version of a distribution, for which its whole description is read."""
    metadata = distribution.metadata
    return metadata["Name"], metadata["Version"]


def file_of(point: Point) -> str:
    """The source file of an entry point's module; if it isn't imported, the file that holds the entry point."""
    if isinstance(point, Registered):
        return point.file
    module = sys.modules.get(point.value.partition(":")[0].strip())
    if (file := getattr(module, "__file__", None)) is not None:
        return str(file)
    folder = getattr(point.dist, "_path", None)
    return str(Path(folder) / "entry_points.txt") if folder is not None else top_package(point)


def _roots(package: str) -> list[str]:
    """The folders of a top-level package, or the file of a module; none if it isn't found."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    places = list(spec.submodule_search_locations or ()) or ([spec.origin] if spec.origin else [])
    return [os.path.abspath(place) for place in places]
