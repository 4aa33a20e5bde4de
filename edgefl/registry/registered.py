"""Parts that ``edgefl.register`` made known in this process: where each comes from, and how workers find it."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from edgefl.errors import PluginError
from edgefl.registry.code import code_digest, is_main

WORKER_MAIN = "__mp_main__"
"""Name that multiprocessing gives to the main script where a worker process imports it."""

PARTS: dict[tuple[str, str], Registered] = {}
"""The registered parts by noun and name."""


@dataclass(frozen=True)
class Registered:
    """A part that was registered; it answers what an entry point answers.

    ``module`` is the module that called ``register``, ``file`` its source file, or the name of a notebook's cell.
    ``sha256`` is the hash of that file if the module is a single file, "" for a package, a script and a notebook.
    """

    noun: str
    name: str
    part: Any
    module: str
    file: str
    sha256: str = ""
    dist: None = None

    def load(self) -> Any:
        """The part.  Raises PluginError in a worker process that can't import it."""
        if isinstance(self.part, MissingPart):
            raise PluginError(self.part.why)
        return self.part

    @property
    def home(self) -> str:
        """The module that defines the part; of an object without a name the one that registered it."""
        module = getattr(self.part, "__module__", None) if isinstance(self.part, type | FunctionType) else None
        return module if isinstance(module, str) and module.partition(".")[0] != "edgefl" else self.module

    @property
    def value(self) -> str:
        """``module:name`` of the part, as an entry point has it."""
        return f"{self.home}:{self._inner or self.name}"

    @property
    def title(self) -> str:
        """What messages call its origin: the file, or the package."""
        if is_main(self.home):
            script = getattr(sys.modules.get(self.home), "__file__", None)
            return Path(script).name if script else self.home
        return Path(self.file).name if self.sha256 else self.home.partition(".")[0]

    @property
    def address(self) -> str | None:
        """``module:name`` from which another process can import the part; None if there is none."""
        module = sys.modules.get(self.home)
        if module is None or not self._inner or not _importable(module):
            return None
        found: Any = module
        for word in self._inner.split("."):
            found = getattr(found, word, None)
        return self.value if found is self.part else None

    def digest(self) -> str | None:
        """A hash of the part's code; None if its package is what is to be hashed."""
        return self.sha256[:24] or (code_digest(self.part) if is_main(self.home) else None)

    def replaces(self, other: EntryPoint | Registered) -> bool:
        """Whether it is the other part, or a later definition of it: a cell that ran again, a module reloaded."""
        if not isinstance(other, Registered):  # an entry point, of one of two libraries that have such a class
            return other.value.replace(" ", "") == self.value
        if other.part is self.part:
            return True
        named = isinstance(self.part, type | FunctionType)
        return (self.home, self._inner) == (other.home, other._inner) if named else self.module == other.module

    @property
    def _inner(self) -> str:
        """The part's name within its module; "" if it has none."""
        if isinstance(self.part, type | FunctionType):
            return self.part.__qualname__
        found = (name for name, value in _names(self.module) if value is self.part)
        return next(found, "")


def hash_of_module(module: str, file: str) -> str:
    """The SHA-256 of a module's file; "" for a package, a script and a notebook, which have other hashes."""
    if "." in module or is_main(module) or Path(file).name == "__init__.py" or not Path(file).is_file():
        return ""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


@dataclass(frozen=True)
class MissingPart:
    """Stands in a worker process for a part that it can't import, and says ``why``."""

    why: str


def _names(module: str) -> Iterator[tuple[str, Any]]:
    yield from vars(sys.modules.get(module) or ModuleType("")).items()


def _importable(module: ModuleType) -> bool:
    """Whether worker processes can import a module; of main modules only scripts, not notebooks."""
    if not is_main(module.__name__):
        return True
    return getattr(module, "__spec__", None) is not None or Path(getattr(module, "__file__", "") or "").is_file()


def import_object(address: str) -> Any:
    """The object at ``module:name``.  Raises ImportError or AttributeError."""
    module, _, inner = address.partition(":")
    found: Any = import_module(WORKER_MAIN if is_main(module) and WORKER_MAIN in sys.modules else module)
    for word in inner.split("."):
        found = getattr(found, word)
    return found
