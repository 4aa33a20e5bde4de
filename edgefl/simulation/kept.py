"""What clients keep between rounds, during a run: on disk from the end of a training on, read when it is needed again.

A training's values go to a temporary file without a name at once, so that they wait nowhere in memory.  When the client
lands they become its values, and at a checkpoint they are written to a file of the run's folder (edgefl.runs.kept).
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
import weakref
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

from torch import Tensor

from edgefl.errors import RunError
from edgefl.runs.durable import writing
from edgefl.runs.kept import Index, KeptFacts, Layout, Stored, made, mapped, new_file, write_at
from edgefl.training import Kept
from edgefl.work.update import Update

TRIM_BYTES = 64 << 20
"""Bytes that trainings leave between two times that free memory is given back to the system."""


def _trim() -> None:
    """Give free memory back to the system, as far as the C library can (glibc).

    Small objects that last lie between large tensors that were freed.  The library keeps such holes, and they add up to
    about what all clients left.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


class _Spill:
    """A temporary file of values that no checkpoint has yet.  Its space is free again when nothing refers to it."""

    def __init__(self, folder: Path):
        with writing(folder):
            self._file = tempfile.TemporaryFile(dir=made(folder), buffering=0)  # noqa: SIM115 - open as long as it lives
        self._folder, self._end, self._lock = folder, 0, Lock()
        weakref.finalize(self, self._file.close)

    def add(self, tensors: Mapping[str, Tensor]) -> Left:
        """Append tensors; threads may do so at once.  Raises RunError, such as on a full disk."""
        layout = Layout.of(tensors)
        with self._lock, writing(self._folder):
            begin = self._end
            write_at(self._file, begin, tensors.values())
            self._end += layout.size
        return Left(self, begin, layout)

    def read(self, offset: int, layout: Layout, names: Sequence[str]) -> dict[str, Tensor]:
        """Some of the tensors of a client.  Raises RunError."""
        try:
            return mapped(self._file.fileno(), offset, layout, names)
        except (OSError, ValueError) as error:
            raise RunError(f"can't read what a client keeps from {self._folder}: {error}") from error


@dataclass(frozen=True)
class Left:
    """What one training left: its place in a temporary file."""

    spill: _Spill
    offset: int
    layout: Layout

    def tensors(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The tensors of these names.  Raises RunError if they can't be read."""
        return self.spill.read(self.offset, self.layout, names)


@dataclass(frozen=True)
class _Since:
    """What a client keeps that left values since the last checkpoint: these, and the others as tensors."""

    lefts: Mapping[str, Left]
    others: Mapping[str, Tensor]

    @property
    def names(self) -> tuple[str, ...]:
        return *self.others, *self.lefts

    def tensors(self) -> dict[str, Tensor]:
        return {**self.others, **_read(self.lefts)}


def _read(lefts: Mapping[str, Left]) -> dict[str, Tensor]:
    """The tensors of these names, each from where it was left."""
    by_place: dict[int, tuple[Left, list[str]]] = {}
    for name, left in lefts.items():
        by_place.setdefault(id(left), (left, []))[1].append(name)
    return {name: tensor for left, names in by_place.values() for name, tensor in left.tensors(names).items()}


class KeptValues:
    """The values that clients keep: those of the last checkpoint in ``folder``, and those that were left since.

    ``folder`` is made when a client leaves something.
    """

    def __init__(self, folder: Path):
        self._saved = Index(folder.absolute())
        self._since: dict[int, dict[str, Left]] = {}
        self._layouts: dict[Layout, Layout] = {}
        self._spill: _Spill | None = None
        self._untrimmed = 0
        self._lock = Lock()

    def put(self, tensors: Mapping[str, Tensor]) -> Left:
        """Write what a training left to the disk; threads may do so at once.  Raises RunError if that fails."""
        with self._lock:
            self._spill = self._spill or _Spill(self._saved.folder)
            spill = self._spill
        left = spill.add(tensors)
        with self._lock:
            self._untrimmed += left.layout.size
            trims = self._untrimmed >= TRIM_BYTES
            self._untrimmed *= not trims
        if trims:
            _trim()
        return left

    def settle(self, client: int, left: Left) -> None:
        """The client keeps these values from now on.  Others that it keeps stay: a shallower stage has fewer blocks."""
        self._since.setdefault(client, {}).update(dict.fromkeys(left.layout.names, left))

    def of(self, client: int, names: Collection[str]) -> Kept | None:
        """What the client keeps under these names, to be read when its training begins; None if it keeps none of them.

        It stays readable at least until the client, which is then busy, leaves other values.
        """
        saved, since = self._saved.clients.get(client), self._since.get(client)
        if since is None:
            return saved and saved.only(names)
        # the next checkpoint moves the saved values too, and their file may be gone before the training begins
        saved = saved and saved.only(name for name in names if name not in since)
        others = {name: tensor.clone() for name, tensor in saved.tensors().items()} if saved else {}
        lefts = {name: left for name, left in since.items() if name in names}
        return _Since(lefts, others) if lefts or others else None

    def commit(self, round: int, busy: Collection[int]) -> tuple[Tensor, KeptFacts] | None:
        """Write all that was left since the last checkpoint to a file, and return where everything lies, as rows and
        facts for the checkpoint of ``round``; None if no client keeps anything.

        Values in a file of which less than half is still needed move to the new file; not those of ``busy`` clients,
        whose training may be reading them.  Raises RunError if the file can't be written.
        """
        clients = self._saved.clients
        if writes := sorted(self._since.keys() | self._scattered(busy)):
            new: dict[int, Stored] = {}
            with new_file(self._saved.folder, round) as writer:
                for client in writes:
                    held = clients[client].tensors() if client in clients else {}
                    held |= _read(self._since.get(client, {}))
                    held = dict(sorted(held.items()))  # a worker's report has them in another order
                    layout = Layout.of(held)
                    layout = self._layouts.setdefault(layout, layout)
                    new[client] = Stored("", writer.add(held.values()), layout, layout.names)
            clients.update((client, replace(stored, path=str(writer.path))) for client, stored in new.items())
            self._since, self._spill = {}, None
        return self._saved.written() if clients else None

    def add_to(self, index: Index, lefts: Mapping[int, Left], round: int) -> None:
        """Write what these clients left to a file of ``index``; the clients' own values stay as they are.

        Raises RunError if it can't be written.
        """
        if not lefts:
            return
        new = {}
        with new_file(index.folder, round) as writer:
            for client, left in sorted(lefts.items()):
                names, tensors = left.layout.names, left.tensors(left.layout.names)
                new[client] = Stored("", writer.add(tensors.values()), left.layout, names)
        index.clients.update((client, replace(stored, path=str(writer.path))) for client, stored in new.items())

    def index(self) -> Index:
        """An index of no clients' values, in the same folder."""
        return Index(self._saved.folder)

    def _scattered(self, busy: Collection[int]) -> set[int]:
        """Clients whose values should move, because most of their file belongs to no client any more."""
        needed: dict[str, int] = {}
        for client, stored in self._saved.clients.items():
            needed[stored.path] = needed.get(stored.path, 0) + stored.layout.size * (client not in self._since)
        with writing(self._saved.folder):
            old = {path for path, size in needed.items() if 2 * size < Path(path).stat().st_size}
        return {client for client, stored in self._saved.clients.items() if stored.path in old} - set(busy)

    def restore(self, rows: Tensor, facts: KeptFacts) -> None:
        """Go on with the values of a checkpoint.  Raises RunError if it doesn't say where they lie."""
        self._saved = Index.read(self._saved.folder, rows, facts)


class Deposited(Future[Update]):
    """The report of a training, whose kept tensors go to the store when it ends: ``left`` says where they are."""

    def __init__(self, training: Future[Update], store: KeptValues):
        super().__init__()
        self.left: Left | None = None
        self._training: Future[Update] | None = training
        self._store = store
        training.add_done_callback(self._deposit)

    def cancel(self) -> bool:
        """Cancel the training, if it hasn't begun."""
        training = self._training
        return training is not None and training.cancel()

    def _deposit(self, training: Future[Update]) -> None:
        self._training = None  # it holds the tensors
        if training.cancelled():
            super().cancel()
            return
        try:
            report = training.result()
            if report.kept:
                self.left = self._store.put(report.kept)
                report = replace(report, kept={})
        except Exception as error:
            self.set_exception(error)
        else:
            self.set_result(report)
