"""What clients keep between rounds, during a run: on disk from the end of a training on, read when it is needed again.

A training's values go to a temporary file without a name at once, so that they wait nowhere in memory.  When the client
lands they become its values, and at a checkpoint they are written to a file of the run's folder (edgefl.runs.kept).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

from torch import Tensor

from edgefl.runs.durable import writing
from edgefl.runs.kept import Index, KeptFacts, StoredTensors, TensorLayout, new_file
from edgefl.runs.tensor_file import Spilled, TensorFile
from edgefl.training import Kept
from edgefl.work.update import Update

TRIM_BYTES = 64 << 20
"""Bytes that trainings leave between two times that free memory is given back to the system, so the most that its holes
add.  Giving back 64 MB took 5 ms."""


def _trim() -> None:
    """Give free memory back to the system, as far as the C library can (glibc).

    Small objects that last lie between large tensors that were freed.  The library keeps such holes, and they add up to
    about what all clients left.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


@dataclass(frozen=True)
class _Since:
    """What a client keeps that left values since the last checkpoint: these, and the others as tensors."""

    lefts: Mapping[str, Spilled]
    others: Mapping[str, Tensor]

    @property
    def names(self) -> tuple[str, ...]:
        return *self.others, *self.lefts

    def tensors(self) -> dict[str, Tensor]:
        return {**self.others, **_read(self.lefts)}


def _read(lefts: Mapping[str, Spilled]) -> dict[str, Tensor]:
    """The tensors of these names, each from where it was left."""
    # by identity, since names share what was left at once, which ``lefts`` holds
    by_place: dict[int, tuple[Spilled, list[str]]] = {}
    for name, left in lefts.items():
        by_place.setdefault(id(left), (left, []))[1].append(name)
    return {name: tensor for left, names in by_place.values() for name, tensor in left.read(names).items()}


class KeptValues:
    """The values that clients keep: those of the last checkpoint in ``folder``, and those that were left since.

    ``folder`` is made when a client leaves something.
    """

    def __init__(self, folder: Path):
        self._saved = Index(folder.absolute())
        self._since: dict[int, dict[str, Spilled]] = {}
        self._layouts: dict[TensorLayout, TensorLayout] = {}
        self._spill: TensorFile | None = None
        self._untrimmed = 0
        self._lock = Lock()

    def write(self, tensors: Mapping[str, Tensor]) -> Spilled:
        """Write what a training left to the disk; threads may do so at once.  Raises RunError if that fails."""
        with self._lock:
            self._spill = self._spill or TensorFile(self._saved.folder)
            spill = self._spill
        left = spill.add(tensors)
        with self._lock:
            self._untrimmed += left.layout.size
            trims = self._untrimmed >= TRIM_BYTES
            self._untrimmed *= not trims
        if trims:
            _trim()
        return left

    def settle(self, client: int, left: Spilled) -> None:
        """The client keeps these values from now on.  Others that it keeps stay: a shallower stage has fewer blocks."""
        self._since.setdefault(client, {}).update(dict.fromkeys(left.layout.names, left))

    def client_values(self, client: int, names: Collection[str]) -> Kept | None:
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
        if writes := sorted(self._since.keys() | self._scattered_clients(busy)):
            new: dict[int, StoredTensors] = {}
            with new_file(self._saved.folder, round) as writer:
                for client in writes:
                    held = clients[client].tensors() if client in clients else {}
                    held |= _read(self._since.get(client, {}))
                    held = dict(sorted(held.items()))  # a worker's report has them in another order
                    layout = TensorLayout.from_tensors(held)
                    layout = self._layouts.setdefault(layout, layout)
                    new[client] = StoredTensors("", writer.add(held.values()), layout, layout.names)
            clients.update((client, replace(stored, path=str(writer.path))) for client, stored in new.items())
            self._since, self._spill = {}, None
        return self._saved.to_data() if clients else None

    def _scattered_clients(self, busy: Collection[int]) -> set[int]:
        """Clients whose values should move, because most of their file belongs to no client any more."""
        needed: dict[str, int] = {}
        for client, stored in self._saved.clients.items():
            needed[stored.path] = needed.get(stored.path, 0) + stored.layout.size * (client not in self._since)
        with writing(self._saved.folder):
            # at half, so that the disk holds at most twice what is needed; earlier, values would be written more often
            old = {path for path, size in needed.items() if 2 * size < Path(path).stat().st_size}
        return {client for client, stored in self._saved.clients.items() if stored.path in old} - set(busy)

    def load_data(self, rows: Tensor, facts: KeptFacts) -> None:
        """Go on with the values of a checkpoint.  Raises RunError if it doesn't say where they lie."""
        self._saved = Index.from_data(self._saved.folder, rows, facts)


class Deposited(Future[Update]):
    """The update of a training, whose kept tensors go to the store when it ends: its ``kept`` are ``Spilled`` then."""

    def __init__(self, training: Future[Update], store: KeptValues):
        super().__init__()
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
            update = training.result()
            if update.kept:
                update = replace(update, kept=self._store.write(update.kept))
        except Exception as error:
            self.set_exception(error)
        else:
            self.set_result(update)
