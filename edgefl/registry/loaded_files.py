"""Plug-in files: Python files of the user's that ``--plugin`` loads, in this process and in its workers."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import walk_tb

from edgefl.errors import EdgeflError, PluginError, printable, text_of
from edgefl.files import read_regular
from edgefl.registry import registered
from edgefl.registry.faults import PASSED, error_text

MODULE = "edgefl_plug_in_"
"""Beginning of the modules' names, so that a file named ``json.py`` hides no other module."""


@dataclass(frozen=True)
class LoadedPlugIn:
    """A plug-in file that was loaded: its absolute path, the source that ran, and the name of its module."""

    path: str
    source: bytes
    module: str

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return Path(self.path).name

    @property
    def sha256(self) -> str:
        """The hash of the source that ran, whatever the file holds by now."""
        return hashlib.sha256(self.source).hexdigest()


LOADED: dict[str, LoadedPlugIn] = {}
"""The loaded files by path, in the order in which they were loaded."""


def load(given: str | os.PathLike[str], source: bytes | None = None) -> None:
    """Run a plug-in file once; what it registers is known from now on.  ``source`` is its text if it was read before.

    A file that changed since it was loaded replaces what it registered.  Raises PluginError for a file that can't be
    read, isn't Python, fails, or registers nothing.
    """
    path = Path(os.path.abspath(given))
    shown = printable(os.fspath(given))
    if path.suffix != ".py":
        raise PluginError(f"--plugin {shown}: must be a Python file, whose name ends in .py")
    if source is None:
        try:
            source = read_regular(path)
        except FileNotFoundError:
            raise PluginError(f"--plugin {shown}: there is no such file") from None
        except OSError as error:
            raise PluginError(f"--plugin {shown}: this file can't be read: {error.strerror or error}") from error
    before = LOADED.get(str(path))
    if before is not None:
        if before.source == source:
            return
        unload(before)
    file = LoadedPlugIn(str(path), source, _free_name(path))
    known = set(registered.PARTS)
    LOADED[file.path] = file
    try:
        _execute(file, shown)
        if known >= set(registered.PARTS):
            raise PluginError(
                f"--plugin {shown}: it registers nothing; a part of yours needs a line such as "
                '@edgefl.register("method", "mine") before its class'
            )
    except BaseException:
        unload(file)
        raise


def unload(file: LoadedPlugIn) -> None:
    """Forget a file and the parts that it registered."""
    LOADED.pop(file.path, None)
    sys.modules.pop(file.module, None)
    for key in [key for key, part in registered.PARTS.items() if part.module == file.module]:
        del registered.PARTS[key]


def _free_name(path: Path) -> str:
    """A module's name for a file that no other module has."""
    name = first = MODULE + re.sub(r"\W", "_", path.stem)
    number = 2
    while name in sys.modules:
        name, number = f"{first}_{number}", number + 1
    return name


def _execute(file: LoadedPlugIn, shown: str) -> None:
    spec = spec_from_file_location(file.module, file.path)
    assert spec is not None
    module = sys.modules[file.module] = module_from_spec(spec)
    try:
        exec(compile(file.source, file.path, "exec", dont_inherit=True), vars(module))
    except PASSED:
        raise
    except BaseException as error:
        lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == file.path]
        if isinstance(error, SyntaxError) and error.filename:
            where = f" ({error.filename}:{error.lineno})"
        else:
            where = f" ({file.path}:{lines[-1]})" if lines else ""
        reason = text_of(error) if isinstance(error, EdgeflError) else error_text(error)
        raise PluginError(f"--plugin {shown}: it can't be loaded: {reason}{where}") from error
