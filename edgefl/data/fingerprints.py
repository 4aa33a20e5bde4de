"""What data are made of: the files of a folder, and the code that builds a data set."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from edgefl import registry
from edgefl.data.collection import DataSet, FolderSet
from edgefl.data.federation import Federation
from edgefl.data.look import LOOKED
from edgefl.data.options import DataOptions
from edgefl.data.vocabulary import tokenizer_file
from edgefl.errors import DataError
from edgefl.memo import library_version

REVISION = 3
"""Part of every cache key: increased when the layout, the splits or the draws change."""


def fingerprint(folder: Path) -> list[str]:
    """Path of a folder or file, and a hash of names, sizes and modification times (ns) of all files in it.

    Files that were replaced by others of the same size and time aren't noticed.  Raises DataError if the folder can't
    be read.
    """
    looked, path = LOOKED.get(), folder.resolve()
    if looked is not None and path in looked:
        return [str(path), looked[path]]
    hashed = hashlib.blake2b(digest_size=16)
    try:
        for name, status in sorted(_files(path)):
            hashed.update(f"{name}\0{status.st_size} {status.st_mtime_ns}\n".encode(errors="surrogateescape"))
    except OSError as error:
        raise DataError(f"{error.filename or folder} can't be read ({error.strerror})") from error
    if looked is not None:
        looked[path] = hashed.hexdigest()
    return [str(path), hashed.hexdigest()]


def _files(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """``(relative name, status)`` of each regular file in a folder; of the file itself if it is no folder."""
    if not path.is_dir():
        yield "", path.stat()
        return
    waiting = [""]
    while waiting:
        inner = waiting.pop()
        with os.scandir(path / inner) as entries:
            for entry in entries:
                name = f"{inner}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{name}/")
                elif entry.is_file():
                    yield name, entry.stat()


def code_of(build: Callable[..., Any]) -> str:
    """A hash of the sources of the function's module and of the modules of its package that it imports, in turn.

    "" for edgefl's own functions, whose revisions its tests hold, and where there are no sources.
    """
    while isinstance(build, functools.partial):
        build = build.func
    first = getattr(inspect.unwrap(build), "__module__", None) or "edgefl"
    package = first.partition(".")[0]
    if package == "edgefl":
        return ""
    sources: dict[str, bytes] = {}
    waiting = [first]
    while waiting:
        name = waiting.pop()
        file = getattr(sys.modules.get(name), "__file__", None)
        if name not in sources and file is not None and file.endswith(".py"):
            sources[name] = Path(file).read_bytes()
            waiting += [used for used in _imports(name, sources[name]) if used.partition(".")[0] == package]
    hashed = hashlib.blake2b(digest_size=12)
    for name, source in sorted(sources.items()):
        hashed.update(name.encode() + b"\0" + source)
    return hashed.hexdigest() if sources else ""


def _imports(name: str, source: bytes) -> Iterator[str]:
    """Names of modules that a module's source imports, and of what it imports from them."""
    package = getattr(sys.modules[name], "__package__", None) or ""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                outer = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*outer, *filter(None, [base])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def collection_key(name: str, dataset: DataSet | FolderSet, options: DataOptions) -> tuple[dict[str, object], Path]:
    """The cache key of a collection, and the folder that it is read from (empty for a package's)."""
    key: dict[str, object] = {"set": name, "size": options.size, "revision": [REVISION, dataset.revision]}
    if options.channels:  # else not, so that entries of the cache stay valid
        key["channels"] = options.channels
    if isinstance(dataset, DataSet):
        return key | {"versions": dataset.versions() | {"numpy": library_version("numpy")}}, Path()
    given = options.folders.get(name)
    folder = dataset.find(given.expanduser() if given is not None else None)
    return key | {"folder": fingerprint(folder), "columns": options.columns}, folder


def data_fingerprint(options: DataOptions) -> list[object]:
    """What the data are made of now, as plain data: revisions, versions, files of folders, and the tokenizer's file.

    Equal for equal data; only names, sizes and times of files are looked at.  Raises the errors of
    ``open_federation`` for a data set that is unknown or not there.
    """
    parts: list[object] = []
    for name in options.sources:
        dataset = registry.get("data set", name)
        known = isinstance(dataset, DataSet | FolderSet)
        parts.append(collection_key(name, dataset, options)[0] if known else registry.fingerprint("data set", name))
    if options.ready_vocabulary:
        parts.append(fingerprint(tokenizer_file(options.ready_vocabulary)))
    return parts


def revision_warnings(options: DataOptions, federation: Federation) -> list[str]:
    """A line for each data set of a plug-in whose code changed since its data were built, with the same revision."""
    lines = []
    for names, part in zip(options.parts.values(), federation._parts, strict=False):
        for name, before in zip(names, part.collection.meta.get("code", "").split(" "), strict=False):
            dataset = registry.get("data set", name)
            if (now := code_of(dataset.build)) and before and now != before:
                lines.append(
                    f"the code that builds {registry.describe_part('data set', name)} changed, but its revision is "
                    f"still {dataset.revision}: the data built before are used; raise the revision if build returns "
                    f"something else, or delete {part.collection.path.with_name(name)}-*"
                )
    return lines
