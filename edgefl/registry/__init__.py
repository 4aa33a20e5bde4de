"""Registered parts (methods, schedules, towers, ...) by name, found through entry points or made known by ``register``.

edgefl registers its own parts the same way as a plug-in does.  Listing names imports nothing; an object is imported
when it is looked up.  What fails in a plug-in is raised as PluginError, which names the plug-in and its file.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from edgefl.errors import EdgeflError, PluginError, UnknownName
from edgefl.registry import faults
from edgefl.registry import loaded_files as files
from edgefl.registry.faults import PASSED, error_text, safe_repr
from edgefl.registry.registered import PARTS, MissingPart, Registered, hash_of_module, import_object
from edgefl.registry.signatures import unfit

Part = TypeVar("Part")

__all__ = [
    "GROUPS", "PASSED", "ForWorkers", "Origin", "adopt", "broken_parts", "changes", "describe_part", "fingerprint",
    "for_workers",
    "forget", "get", "load_plug_in", "named_faults", "names", "origin", "package_digest", "plug_in_files", "plug_ins",
    "register", "error_text", "unimportable", "unload_plug_ins",
]  # fmt: skip

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
    "budget": "edgefl.budgets",
    "aggregation": "edgefl.aggregations",
    "server optimizer": "edgefl.server_optimizers",
    "codec": "edgefl.codecs",
    "profile library": "edgefl.profiles",
    "metric": "edgefl.metrics",
    "optimizer": "edgefl.optimizers",
    "rate schedule": "edgefl.rate_schedules",
    "availability": "edgefl.availability",
    "attack": "edgefl.attacks",
    "task": "edgefl.tasks",
    "adapter": "edgefl.adapters",
}


@cache
def _points(noun: str) -> dict[str, faults.Point]:
    registered = {name: part for (of, name), part in PARTS.items() if of == noun}
    return {point.name: point for point in _all_points().select(group=GROUPS[noun])} | registered


@cache
def _all_points() -> Any:
    return entry_points()


def names(noun: str) -> list[str]:
    """All names registered for this noun ("method", "step", ...), sorted; imports nothing."""
    return sorted(_points(noun))


def get(noun: str, name: str) -> Any:
    """The object registered as ``name`` for this noun.

    Raises UnknownName with the nearest name (also for a ``name`` that isn't text), and PluginError if the object can't
    be imported or isn't a part of this sort.
    """
    if not isinstance(name, str):
        raise UnknownName(noun, name, names(noun))
    return _get(noun, name)


def _unknown_name_error(noun: str, name: str) -> UnknownName:
    """The error for a name that isn't registered for this noun, which says where it is."""
    optimizer = {"fedavgm": "momentum"}.get(name.lower(), name.lower().removeprefix("fed"))
    hint = ""
    if noun == "method" and name.lower().startswith("fed") and optimizer in names("server optimizer"):
        hint = f"it is a server optimizer: write aggregation.optimizer: {optimizer}, beside a method such as fedavg"
    elif other := next((each for each in GROUPS if each != noun and name in names(each)), None):
        hint = f"{name} is {'an' if other[0] in 'aeio' else 'a'} {other}; allowed: {', '.join(names(noun))}"
    return UnknownName(noun, name, names(noun), hint)


@cache
def _get(noun: str, name: str) -> Any:
    points = _points(noun)
    if name not in points:
        raise _unknown_name_error(noun, name)
    point = points[name]
    try:
        part = point.load()
    except PluginError:  # a worker can't import it
        raise
    except PASSED:
        raise
    except BaseException as error:
        file = faults.file_of(point)
        if isinstance(error, SyntaxError) and error.filename:
            file = f"{error.filename}:{error.lineno}"
        elif (place := plug_ins().locate_fault(error)) is not None:
            file = f"{place[0].file}:{place[0].line}"
        raise PluginError(
            f"{_where(noun, name)} can't be imported: {faults.error_text(error)} ({file}; {point.value})"
        ) from error
    part, fault = _convert(noun, name, part)
    if fault := fault or _misfit(noun, part):
        raise PluginError(f"{_where(noun, name)} is broken: {point.value} {fault} ({faults.file_of(point)})")
    return part


def _where(noun: str, name: str) -> str:
    return f"the {noun} {name!r} of the plug-in {faults.plug_in_title(_points(noun)[name])}"


_CONVERTERS = {
    "tower": "edgefl.models.plain:tower_of",
    "aggregation": "edgefl.methods.aggregation.rules:rule_of",
    "metric": "edgefl.work.metrics:metric_of",
    "optimizer": "edgefl.work.optimizer.optimizers:optimizer_of",
}
"""Functions of a name and the registered object that return the part, by noun.  They raise TypeError for a misfit."""


def _convert(noun: str, name: str, part: Any) -> tuple[Any, str]:
    """What a registered object becomes, and why it can't be a part, as the end of a message; "" if it can."""
    if noun not in _CONVERTERS or any(hasattr(part, attribute) for attribute in _ATTRIBUTES.get(noun, ())):
        return part, ""
    module, _, function = _CONVERTERS[noun].partition(":")
    if callable(part) and not isinstance(part, type) and (fault := unfit(noun, part)):
        return part, fault
    try:
        return getattr(import_module(module), function)(name, part), ""
    except TypeError as error:
        return part, str(error)


_CALLED = (
    "method", "schedule", "model", "partition", "step", "selection", "round policy", "budget", "server optimizer",
    "codec", "availability", "attack", "task", "adapter",
)  # fmt: skip
_ATTRIBUTES = {
    "method": ("initial", "work", "aggregate", "evaluate"),
    "tower": ("Options", "build"),
    "edit": ("apply", "fold", "restrict", "names"),
    "selection": ("Options", "is_blind"),
    "server optimizer": ("Options", "step", "along", "keeps"),
    "codec": ("Options", "needs_base", "applies", "wire", "encode", "decode"),
    "round policy": (
        "Options",
        "at_once",
        "holds",
        "over",
        "overlapping",
        "play",
        "size",
        "updates_needed",
        "weighted",
    ),
    "budget": ("noun", "quantity", "summary", "round_amounts", "grows", "colour"),
    "metric": ("Options", "task", "value"),
    "optimizer": ("Options", "build", "reads"),
    "rate schedule": ("Options", "shape", "factor_of"),
    "availability": ("Options", "available", "leaves", "returns", "state"),
    "attack": ("Options", "labels", "source", "attacked_upload"),
    "task": ("like", "step", "score", "outputs"),
    "adapter": ("Options", "description_fields", "attach", "trains", "check", "merge"),
}


def _misfit(noun: str, part: Any) -> str:
    """Why an object can't be a part of this sort, as the end of a message; "" if it can."""
    if part is None:
        return "is None"
    if noun in _CALLED and not callable(part):
        return f"is {safe_repr(part)}, which can't be called"
    if noun == "data set" and not (callable(part) or hasattr(part, "build")):
        return f"is {safe_repr(part)}, not a DataSet, a FolderSet or a function"
    if noun == "profile library" and not isinstance(part, str | PathLike):
        return f"is {safe_repr(part)}, not the path of a folder"
    if lacking := [name for name in _ATTRIBUTES.get(noun, ()) if not hasattr(part, name)]:
        return f"has no {', '.join(lacking)}"
    if undefined := sorted(getattr(part, "__abstractmethods__", ())):
        return f"doesn't define {', '.join(f'{name}()' for name in undefined)}"
    options = getattr(part, "Options", None)
    if options is not None and not hasattr(options, "model_fields"):
        return f"has Options that aren't a pydantic model: {safe_repr(options)}"
    return unfit(noun, part)


def describe_part(noun: str, name: str) -> str:
    """A part as messages name it: ``the step 'align' of the plug-in edgefl-prototypes 1.0 (FILE)``."""
    point = _points(noun).get(name)
    if point is None or faults.top_package(point) == "edgefl":
        return f"the {noun} {name!r}"
    return f"the {noun} {name!r} of the plug-in {faults.plug_in_title(point)} ({faults.file_of(point)})"


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
    except (EdgeflError, *PASSED):
        raise
    except BaseException as error:
        if (fault := plug_ins().fault(error)) is None:
            raise
        raise fault from error


def broken_parts(nouns: Iterable[str] = GROUPS) -> Iterator[tuple[str, str, str]]:
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
        raise _unknown_name_error(noun, name)
    point = points[name]
    if isinstance(point, Registered):
        return Origin(point.title, None)
    return Origin(faults.top_package(point), faults.version_of(point))


def fingerprint(noun: str, name: str, rooms: tuple[str, ...] = ()) -> str:
    """A hash of all Python sources of the package, the plug-in file or the notebook's code that ``name`` comes from.

    Of a part of edgefl itself it is that of these ``rooms``.  Raises UnknownName with the nearest name.
    """
    points = _points(noun)
    if name not in points:
        raise _unknown_name_error(noun, name)
    point = points[name]
    own = point.digest() if isinstance(point, Registered) else None
    package = faults.top_package(point)
    return own or package_digest(package, rooms if package == "edgefl" else ())


@cache
def package_digest(package: str, rooms: tuple[str, ...] = ()) -> str:
    """A hash of the Python sources of a package or module; of its name alone if it has no sources.

    With ``rooms``, subpackages and modules of a package, it is that of these alone.
    """
    spec = find_spec(package)
    roots = list(spec.submodule_search_locations or ()) if spec else []
    places = [Path(root, room) for root in roots for room in rooms or ("",)]
    modules = [path for place in places if rooms and (path := place.with_suffix(".py")).is_file()]
    files = sorted([*modules, *(path for place in places for path in place.rglob("*.py"))])
    if spec and spec.origin and not files and Path(spec.origin).is_file():
        files = [Path(spec.origin)]
    hashed = hashlib.blake2b(package.encode(), digest_size=12)
    for path in files:
        hashed.update(path.read_bytes())
    return hashed.hexdigest()


def forget() -> None:
    """Clear the cached look-ups, so that packages installed since then are found (tests use it)."""
    _all_points.cache_clear()
    _forget_parts()


# --- parts that a program, a notebook or a plug-in file registers ----------------------------------------------------

_changes = 0
"""Counts registrations and what is forgotten, so that caches see that they are old."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def changes() -> int:
    """How often parts were registered or forgotten: what is computed from parts is kept no longer than this number."""
    return _changes


def _forget_parts() -> None:
    global _changes
    _changes += 1
    _points.cache_clear()
    _get.cache_clear()
    plug_ins.cache_clear()
    package_digest.cache_clear()


def register(noun: str, name: str) -> Callable[[Part], Part]:
    """Make a part known by name, as a decorator: ``@edgefl.register("method", "mine")`` before its class.

    Scenarios, the command line's lists and the Python functions then find it in this process.  A notebook's cell may
    run again: the new definition replaces the old one.  Worker processes import the part by the name of its module.

    Args:
        noun: ``method``, ``schedule``, ``model``, ``tower``, ``data set``, ``partition``, ``step``, ``edit``,
            ``selection``, ``round policy``, ``budget``, ``aggregation``, ``server optimizer``, ``codec``, ``metric``,
            ``optimizer``, ``rate schedule``, ``availability``, ``attack``, ``task``, ``adapter`` or
            ``profile library`` (the path of a folder).
        name: How a scenario names it: letters, digits, ``-``, ``_`` and ``.``.

    Returns:
        A function that registers what it is given, and returns it unchanged.

    Raises:
        PluginError: There is no such sort of part, the name is wrong or taken by another part, or what is given isn't a
            part of this sort.

    Examples:
        >>> import edgefl, numpy
        >>> @edgefl.register("partition", "halves")
        ... def halves(labels, clients, argument, rng):
        ...     '''Equal shares of the samples, in a random order.'''
        ...     return numpy.array_split(rng.permutation(len(labels)), clients)
        >>> edgefl.parts("partition", "halves").sections["partition"][0].summary
        'Equal shares of the samples, in a random order'
    """
    noun = noun.replace("_", " ") if isinstance(noun, str) else noun
    if not isinstance(noun, str) or noun not in GROUPS:
        raise PluginError(f"there is no sort of part {noun!r:.60}; allowed: {', '.join(GROUPS)}")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PluginError(
            f"{name!r:.60} can't name a part, here a {noun}: a name takes letters, digits, '-', '_' and '.'"
        )
    caller = sys._getframe(1)
    module, file = str(caller.f_globals.get("__name__", "__main__")), caller.f_code.co_filename

    def register_part(part: Part) -> Part:
        loaded = files.LOADED.get(file)
        sha256 = loaded.sha256 if loaded is not None else hash_of_module(module, file)
        _register(Registered(noun, name, part, module, file, sha256))
        return part

    return register_part


def _register(point: Registered) -> None:
    """Add a part.  Raises PluginError if it isn't one of its sort, or if another has its name."""
    noun, name = point.noun, point.name
    part, fault = (None, "") if isinstance(point.part, MissingPart) else _convert(noun, name, point.part)
    if not isinstance(point.part, MissingPart) and (fault := fault or _misfit(noun, part)):
        raise PluginError(f"the {noun} {name!r} can't be registered: {point.value} {fault} ({point.file})")
    taken = _points(noun).get(name)
    if taken is not None and not point.replaces(taken):
        of = (
            "edgefl"
            if faults.top_package(taken) == "edgefl"
            else f"{faults.plug_in_title(taken)} ({faults.file_of(taken)})"
        )
        raise PluginError(f"the name {name!r} is taken by the {noun} of {of}: choose another name")
    if taken is None or isinstance(taken, Registered):
        PARTS[noun, name] = point
        _forget_parts()


def load_plug_in(path: str | PathLike[str], source: bytes | None = None) -> None:
    """Run a plug-in file, whose parts are known from then on; once, however often it is asked for.

    Raises PluginError for a file that can't be read, isn't Python, fails, or registers nothing.
    """
    try:
        files.load(path, source)
    finally:
        _forget_parts()


def unload_plug_ins() -> None:
    """Forget all plug-in files and their parts, at the end of the command that asked for them."""
    if files.LOADED:
        for file in list(files.LOADED.values()):
            files.unload(file)
        _forget_parts()


def plug_in_files() -> dict[str, str]:
    """SHA-256 by name of the plug-in files, and of the modules of a single file that registered parts."""
    loaded = {file.name: file.sha256 for file in files.LOADED.values()}
    return loaded | {Path(part.file).name: part.sha256 for part in PARTS.values() if part.sha256}


# --- the same in worker processes ------------------------------------------------------------------------------------


class ForWorkers(NamedTuple):
    """What worker processes need to know the same parts: plug-in files with their sources, and addresses of parts."""

    files: list[tuple[str, bytes]]
    parts: list[tuple[str, str, str | None]]


def for_workers() -> ForWorkers:
    """The plug-in files of this process, and ``(noun, name, module:name)`` of the other parts registered in it."""
    modules = {file.module for file in files.LOADED.values()}
    others = [part for part in PARTS.values() if part.module not in modules]
    loaded = [(file.path, file.source) for file in files.LOADED.values()]
    return ForWorkers(loaded, [(part.noun, part.name, part.address) for part in others])


def adopt(given: ForWorkers) -> None:
    """Load in a worker process what its parent knows.  A part that can't be imported raises where it is looked up."""
    for path, source in given.files:
        load_plug_in(path, source)
    for noun, name, address in given.parts:
        part: Any = MissingPart(_absent(noun, name))
        if address is not None:
            try:
                part = import_object(address)
            except PASSED:
                raise
            except BaseException as error:  # a module may raise anything
                part = MissingPart(f"{_absent(noun, name)} ({error_text(error)})")
        if name not in _points(noun):
            module = address.partition(":")[0] if address else "__main__"
            file = str(getattr(sys.modules.get(module), "__file__", None) or module)
            _register(Registered(noun, name, part, module, file, hash_of_module(module, file)))


def _absent(noun: str, name: str) -> str:
    return (
        f"worker processes can't import the {noun} {name!r}, which a notebook or a program's own lines define: move it "
        "to a module (a .py file) and import that, load that file with --plugin, or train in this process (executor: "
        "inline)"
    )


def unimportable(noun: str, name: str) -> str:
    """Why worker processes can't import a part, with the remedy; "" if they can."""
    point = PARTS.get((noun, name))
    if point is None or any(file.module == point.module for file in files.LOADED.values()):
        return ""
    return "" if point.address is not None else _absent(noun, name)
