"""What clients keep between rounds, in files of the run's folder that are read through memory maps.

``kept/round-000012-<hash>.bin`` holds the values of all clients that left some since the checkpoint before that of
round 12, one client after the other.  A file is written once, synced and renamed, and never changed: its name has the
hash of its bytes.  A checkpoint says for each client in which file its values lie, so that it needs no copy of them.
A file goes when no checkpoint refers to it.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import RawIOBase
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypedDict, cast

from edgefl.errors import RunError
from edgefl.files import open_regular, sync
from edgefl.plain_data import from_data, to_data
from edgefl.runs.contents import KEPT
from edgefl.runs.digests import FileDigest, file_digest
from edgefl.runs.durable import writing

if TYPE_CHECKING:  # a finished run is shown without torch
    import torch
    from torch import Tensor

ALIGNMENT = 64
"""Tensors begin at multiples of so many bytes, as those that torch allocates on a CPU do.  It is in the files of runs:
with another one their kept values would be read from other bytes."""
PARTIAL = ".partial-kept"
"""The file that is being written."""
ROWS: Final = "array:kept"
FACTS: Final = "kept"
"""The tensor and the part of the state in which a checkpoint says where clients' values lie."""
_NAME = re.compile(r"round-\d{6,}-([0-9a-f]{32})\.bin")
_DTYPE = re.compile(r"(bool|u?int(8|16|32|64)|b?float(16|32|64)|complex(64|128))")


def padded_size(size: int) -> int:
    """``size`` in bytes, rounded up to a multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class TensorLayout:
    """The tensors of a client in their order: name, dtype (``float32``) and shape of each.

    Raises ValueError for a dtype or a shape that no tensor has, such as one that somebody wrote into a checkpoint.
    """

    items: tuple[tuple[str, str, tuple[int, ...]], ...]

    def __post_init__(self) -> None:
        if any(not _DTYPE.fullmatch(dtype) or min(shape, default=0) < 0 for _, dtype, shape in self.items):
            raise ValueError("a kept tensor has no possible dtype or shape")

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> TensorLayout:
        """The layout of these tensors."""
        return cls(tuple((n, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in tensors.items()))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors."""
        return tuple(name for name, _, _ in self.items)

    @cached_property
    def places(self) -> dict[str, tuple[int, torch.dtype, tuple[int, ...]]]:
        """Where each tensor begins, in bytes, with its dtype and shape."""
        import torch

        found, begin = {}, 0
        for name, dtype, shape in self.items:
            type_: torch.dtype = getattr(torch, dtype)
            found[name] = begin, type_, shape
            begin += padded_size(prod(shape) * type_.itemsize)
        return found

    @cached_property
    def size(self) -> int:
        """Bytes of the tensors, each padded."""
        return sum(padded_size(prod(shape) * dtype.itemsize) for _, dtype, shape in self.places.values())


def parts_of(tensor: Tensor) -> tuple[memoryview, bytes]:
    """The bytes of a tensor, and those that follow up to the next multiple of ALIGNMENT."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    content = flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
    return content, bytes(padded_size(content.nbytes) - content.nbytes)


def write_at(file: RawIOBase, begin: int, tensors: Iterable[Tensor]) -> None:
    """Write tensors into a file without a buffer, from byte ``begin`` on.  Raises OSError."""
    file.seek(begin)  # an earlier call may have failed halfway
    for tensor in tensors:
        for part in parts_of(tensor):
            left = memoryview(part)
            while len(left):  # one call may write less
                left = left[file.write(left) or 0 :]


def map_tensors(descriptor: int, offset: int, layout: TensorLayout, names: Iterable[str]) -> dict[str, Tensor]:
    """Tensors of a client, through a memory map of an open file that lasts as long as they do.

    Writing into them doesn't change the file.  Raises OSError or ValueError if the file doesn't hold them.
    """
    import torch

    start = offset - offset % mmap.ALLOCATIONGRANULARITY  # a map may begin at a page alone
    length = offset - start + layout.size
    view = mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY, offset=start) if layout.size else None
    tensors = {}
    for name in names:
        begin, dtype, shape = layout.places[name]
        count = prod(shape)
        if view is None or not count:
            tensors[name] = torch.empty(shape, dtype=dtype)
        else:
            at = offset - start + begin
            tensors[name] = torch.frombuffer(view, dtype=dtype, count=count, offset=at).reshape(shape)
    return tensors


@dataclass(frozen=True)
class StoredTensors:
    """Where the values of a client lie: a file, the byte at which they begin, and those tensors that are asked for."""

    path: str
    offset: int
    layout: TensorLayout
    names: tuple[str, ...]

    def only(self, names: Iterable[str]) -> StoredTensors | None:
        """Those of these names that are there; None if there are none."""
        wanted = set(names)
        found = tuple(name for name in self.names if name in wanted)
        return replace(self, names=found) if found else None

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, read when they are used.  Raises RunError if the file can't be read."""
        try:
            with open_regular(Path(self.path)) as file:
                return map_tensors(file.fileno(), self.offset, self.layout, self.names)
        except (OSError, ValueError) as error:
            raise RunError(f"can't read what a client keeps from {self.path}: {error}") from error


class KeptFacts(TypedDict):
    """The files of clients' values by name, with their sizes in bytes, and the layouts that rows refer to."""

    files: dict[str, int]
    layouts: list[Any]


@dataclass
class Index:
    """Where the values of every client lie at a checkpoint."""

    folder: Path
    clients: dict[int, StoredTensors] = field(default_factory=dict)

    @classmethod
    def from_data(cls, folder: Path, rows: Tensor, facts: KeptFacts) -> Index:
        """From a checkpoint's ``rows`` ``[clients, 4]`` and ``facts``.  Raises RunError if they don't fit together."""
        try:
            names, layouts = (
                list(map(_check_name, facts["files"])),
                from_data(list[TensorLayout], facts["layouts"], strict=True),
            )
            clients = {}
            for client, file, offset, layout in rows.tolist():
                if min(client, file, offset, layout) < 0:
                    raise ValueError(f"client {client} has no possible place")
                of = layouts[layout]
                clients[client] = StoredTensors(str(folder / names[file]), offset, of, of.names)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"a checkpoint doesn't say where clients' kept values lie in {folder}: {error}") from error
        return cls(folder, clients)

    def to_data(self) -> tuple[Tensor, KeptFacts]:
        """``rows`` and ``facts`` for a checkpoint.

        A row has the client, its file, the byte at which its values begin, and its layout; the facts have the files
        with their sizes in bytes, and the layouts.
        """
        import torch

        used = sorted({stored.path for stored in self.clients.values()})
        file_of = {path: number for number, path in enumerate(used)}
        layouts: dict[TensorLayout, int] = {}
        # by identity: most clients share the object, which they hold, and its hash takes long
        number_of: dict[int, int] = {}
        rows = []
        for client, stored in sorted(self.clients.items()):
            layout = number_of.get(id(stored.layout))
            if layout is None:
                layout = number_of[id(stored.layout)] = layouts.setdefault(stored.layout, len(layouts))
            rows.append((client, file_of[stored.path], stored.offset, layout))
        with writing(self.folder):
            sizes = {Path(path).name: Path(path).stat().st_size for path in used}
        return torch.tensor(rows, dtype=torch.int64), {"files": sizes, "layouts": to_data(list(layouts))}


class Values(Mapping[int, dict[str, "Tensor"]]):
    """What clients keep at a checkpoint, ``{client: {name: tensor}}``, read from the disk when it is asked for."""

    def __init__(self, index: Index):
        self._index = index

    @classmethod
    def from_checkpoint(cls, folder: Path, tensors: Mapping[str, Tensor], state: Mapping[str, object]) -> Values:
        """Those of a checkpoint, whose tensors and state ``checkpoints.latest`` returned; ``folder`` is the run's.

        Raises RunError if the checkpoint doesn't say where they lie.
        """
        folder = folder / KEPT
        facts = cast(KeptFacts | None, state.get(FACTS))
        return cls(Index.from_data(folder, tensors[ROWS], facts) if facts is not None else Index(folder))

    def __getitem__(self, client: int) -> dict[str, Tensor]:
        # copies: every memory map holds a file open, and the run may go on and remove the file
        return {name: tensor.clone() for name, tensor in self._index.clients[client].tensors().items()}

    def __iter__(self) -> Iterator[int]:
        return iter(self._index.clients)

    def __len__(self) -> int:
        return len(self._index.clients)


class Writer:
    """Writes a file of kept values, client after client; ``path`` is where it is in the end."""

    def __init__(self, file: BinaryIO):
        self._file, self._hash, self.size = file, hashlib.blake2b(digest_size=16), 0
        self.path = Path()

    def add(self, tensors: Iterable[Tensor]) -> int:
        """Append the tensors of a client; returns the byte at which they begin.  Raises OSError."""
        begin = self.size
        for tensor in tensors:
            for part in parts_of(tensor):
                self._file.write(part)
                self._hash.update(part)
                self.size += len(part)
        return begin

    @property
    def digest(self) -> str:
        """The hash of all that was added, as ``file_digest`` gives it."""
        return self._hash.hexdigest()


@contextmanager
def new_file(folder: Path, round: int) -> Iterator[Writer]:
    """A file of the checkpoint of ``round``, which is on the disk when the context ends.

    Raises RunError if it can't be written; nothing else changes.
    """
    partial = folder / PARTIAL
    with writing(folder):
        ensure_folder(folder)
        try:
            with partial.open("wb") as file:
                writer = Writer(file)
                yield writer
                file.flush()
                os.fsync(file.fileno())
            # the file before its name: after a power cut the name must not be that of half a file
            writer.path = folder / f"round-{round:06d}-{writer.digest}.bin"
            os.replace(partial, writer.path)
            sync(folder)
        finally:
            partial.unlink(missing_ok=True)


def ensure_folder(folder: Path) -> Path:
    """The folder, which is made if it isn't there.  Raises OSError."""
    if not folder.is_dir():
        folder.mkdir()
        sync(folder.parent)
    return folder


def _check_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"it refers to the file {name!r:.80}")
    return name


def is_file(name: str) -> bool:
    """Whether ``files.json`` may name this file: ``kept/round-000012-<hash>.bin``."""
    folder, _, rest = name.partition("/")
    return folder == KEPT and _NAME.fullmatch(rest) is not None


def files_of(state: Mapping[str, object]) -> dict[str, int]:
    """The files to which a checkpoint's state refers, with their sizes in bytes.  Raises ValueError for other names."""
    facts = cast(KeptFacts | None, state.get(FACTS))
    return {} if facts is None else {_check_name(name): int(size) for name, size in facts["files"].items()}


def file_digests(folder: Path, names: Iterable[str]) -> dict[str, FileDigest]:
    """The digests of these files for ``files.json``, as their names have them.  Raises OSError."""
    sizes = {name: (folder / name).stat().st_size for name in sorted(names)}
    return {f"{KEPT}/{name}": {"bytes": size, "blake2b": _hash_in(name)} for name, size in sizes.items()}


def _hash_in(name: str) -> str:
    found = _NAME.fullmatch(name)
    assert found is not None
    return found[1]


def check(folder: Path, state: Mapping[str, object], *, hashes: bool = True) -> None:
    """Raise ValueError if a file that a checkpoint refers to is missing, has another size or, with ``hashes``, another
    content."""
    if differences := differing(folder, state, hashes=hashes):
        raise ValueError(differences[0])


def differing(folder: Path, state: Mapping[str, object], *, hashes: bool = True) -> list[str]:
    """A sentence for each file of a checkpoint that isn't as it was written.  Raises OSError, ValueError."""
    found = []
    for name, size in files_of(state).items():
        path = folder / name
        if not path.is_file():
            found.append(f"{KEPT}/{name} is missing")
        elif path.stat().st_size != size or (hashes and file_digest(path)["blake2b"] != _hash_in(name)):
            found.append(f"{KEPT}/{name} has changed since it was written")
    return found


def sweep(folder: Path, needed: Iterable[str]) -> None:
    """Remove all files of kept values but these, and what a killed run left half written.  Raises RunError."""
    if not folder.is_dir():
        return
    keep = set(needed)
    with writing(folder):
        for path in folder.iterdir():
            if path.name == PARTIAL or (_NAME.fullmatch(path.name) and path.name not in keep):
                path.unlink()
        if not any(folder.iterdir()):
            folder.rmdir()
