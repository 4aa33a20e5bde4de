"""Worker processes that run assignments, and what happens when the host fails them.

Results don't depend on the host: an assignment that a worker couldn't finish, because the memory of this machine ran
out or because it hung, runs again in new workers, of which there are fewer each time, and in the end alone.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from edgefl import registry, start_method
from edgefl.data import DataOptions
from edgefl.errors import OutOfHostMemory, TrainingError
from edgefl.plain_data import to_data
from edgefl.runs.kept import StoredTensors, TensorLayout
from edgefl.training.assignment import Assignment, deserialise
from edgefl.training.packing import DeviceMemory, DeviceShare
from edgefl.training.pools import PATIENCE, Packing, Pools, end, how_ended, processes_of, stop, warn
from edgefl.training.shared import MOST_LENT, Slot, Slots, has_shared_memory
from edgefl.training.worker import Answer, do_nothing, in_one_piece, run_assignment, start
from edgefl.work import Form
from edgefl.work.packed import buffer_bytes
from edgefl.work.torch_device import device_of
from edgefl.work.update import Update

QUEUED_PER_WORKER = 3
"""Assignments for each worker that are handed to the pool, those that run included; the others wait as they are.  One
runs, and two are ready while this process is busy; more would hold more copies of tensors."""
LARGE, LARGE_PER_WORKER = 16 << 20, 2
"""Bytes of an update beyond which only so many are handed on, as each has memory for its report.  The
bytes are a choice, not measured: one with a large update takes long, and so fewer need to be ready."""
LOOKS_PER_TIMEOUT = 20
"""How often per timeout the watch looks whether assignments end: it is late by a twentieth of the timeout at most."""


class _Cancellable(Future[Update]):
    """Future of an assignment, which can be cancelled while the assignment is queued."""

    entry: _PoolAssignment | None = None

    def cancel(self) -> bool:
        inner = self.entry.inner if self.entry is not None else None
        return inner.cancel() if inner is not None else super().cancel()

    def follow(self) -> None:
        """Become cancelled, as the assignment in the pool was."""
        super().cancel()


@dataclass(eq=False)
class _PoolAssignment:
    """An unfinished assignment, the future of its report, its future in the pool, and whether its memory ran out.

    ``shared`` are the slots of its inputs, of its report, and of what describes inputs and form, if they don't travel
    through a pipe.
    """

    assignment: Assignment
    future: _Cancellable
    inner: Future[Answer] | None = None
    out_of_memory: bool = False
    shared: tuple[Slot, Slot, Slot, Slot] | None = None


class ProcessExecutor:
    """Runs assignments in worker processes, which open the data themselves; a context manager that closes itself.

    Works and tensors are sent as JSON and safetensors.  A script that uses this executor needs
    ``if __name__ == "__main__"`` (``start_method``).  Raises TrainingError if ``device`` isn't available.

    If a worker dies, runs out of memory, or no assignment ends within ``timeout`` seconds while some run, the
    unfinished assignments run again with half as many workers, then one after the other.  An assignment that fails
    alone too gets a TrainingError, which names it.

    On GPUs workers are packed by predicted peak memory (``packing``), and an assignment goes to a worker whose place
    holds it. ``memories`` are these devices' bytes, asked for if they aren't given; given for a CPU they only route
    assignments.
    """

    def __init__(
        self,
        options: DataOptions,
        seed: int,
        tokens: int,
        cache: Path | None,
        workers: int,
        device: str | Sequence[str],
        timeout: float | None = None,
        held_out: float = 0.0,
        memories: Sequence[DeviceMemory] | None = None,
    ):
        names = (device,) if isinstance(device, str) else device
        devices = [device_of(name) for name in names]  # raises here, not in a worker, if one isn't available
        self._arguments = (
            options.model_dump_json(), seed, tokens, str(cache) if cache else None, sys.path, held_out,
            registry.for_workers(),
        )  # fmt: skip
        self._device = str(devices[0])
        packed = memories is not None or devices[0].type == "cuda"
        self._packing = Packing([str(each) for each in devices], memories) if packed else None
        self._workers, self._timeout = workers, timeout
        self._lock = threading.RLock()
        self._inputs: dict[int, tuple[Mapping[str, Tensor], Slot, Slot]] = {}
        self._forms: WeakKeyDictionary[Form, Slot] = WeakKeyDictionary()
        self.window = QUEUED_PER_WORKER * workers
        self._slots = Slots(max(MOST_LENT, self.window + workers))
        self._entries: list[_PoolAssignment] = []
        self._waiting: deque[_PoolAssignment] = deque()
        self._closing, self._tried_alone = False, False
        self._ended = time.monotonic()
        self._pool = Pools((), self._begin) if packed else self._new_pool()
        self._over = threading.Event()
        if timeout is not None:
            threading.Thread(target=self._watch, args=(timeout,), daemon=True).start()

    def warm(self) -> None:
        """Start the workers in the background, so that their imports overlap with other work of this process."""
        if self._packing is None:  # how many there are depends on their works
            for _ in range(self._workers):
                self._pool.submit(do_nothing)

    @property
    def packs(self) -> bool:
        """Whether workers are packed by predicted memory, as on GPUs: then ``expect`` tells them what will come."""
        return self._packing is not None

    def expect(self, peaks: Mapping[str, int]) -> None:
        """Pack workers for works of these predicted peaks, named for an error, and start them; nothing on CPUs.

        Called while no assignment is under way.  Later works with larger peaks make the workers be packed anew.  Raises
        TrainingError, with exit code 2, if a work fits no device.
        """
        with self._lock:
            if self._packing is not None and peaks:
                if not self._pack(peaks.values()):
                    error = TrainingError(self._packing.refusal(*max(peaks.items(), key=lambda item: item[1])))
                    error.exit_code = 2
                    raise error
                assert isinstance(self._pool, Pools)
                self._pool.warm(do_nothing)

    def submit(self, assignment: Assignment) -> Future[Update]:
        """Queue the assignment for a worker and return the future of its report.

        The future raises TrainingError if the assignment fails, or if this machine can't run it even alone.
        """
        future = _Cancellable()
        entry = future.entry = _PoolAssignment(assignment, future)
        with self._lock:
            if not self._entries:
                self._ended = time.monotonic()
            self._entries.append(entry)
            self._waiting.append(entry)
            self._feed()
        return future

    def close(self, patience: float = PATIENCE) -> None:
        """Cancel queued assignments and end the workers; those still busy after so many seconds are killed."""
        with self._lock:
            self._closing = True
            self._over.set()
        processes = processes_of(self._pool)
        self._pool.shutdown(wait=False, cancel_futures=True)
        until = time.monotonic() + patience
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
        end(processes)
        self._pool.shutdown(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        self.close(0.0 if error_type is not None and issubclass(error_type, KeyboardInterrupt) else PATIENCE)

    # assignments and workers ----------------------------------------------------------------------------------

    def _new_pool(self) -> ProcessPoolExecutor | Pools:
        return Pools(self._packing.places(self._workers), self._begin) if self._packing else self._begin()

    def _begin(self, place: DeviceShare | None = None) -> ProcessPoolExecutor:
        """The pool of all workers, or of the one at a place."""
        started = start_method.context(start.__module__, gpu=torch.device(self._device).type == "cuda")
        count, where = (1, (place.device, place.fraction)) if place else (self._workers, (self._device,))
        with start_method.start_faults(count):
            return ProcessPoolExecutor(count, started, initializer=start, initargs=(*self._arguments, *where))

    def _pack(self, peaks: Iterable[int]) -> bool:
        """Pack workers for these works too, while all are idle; False if one fits nowhere.  Under the lock."""
        places = self._packing.places(self._workers, peaks) if self._packing else ()
        if places and isinstance(self._pool, Pools) and places != self._pool.places:
            stop(self._pool)  # what they have of the GPU is needed
            self._pool = Pools(places, self._begin)
        return bool(places)

    def _feed(self) -> None:
        """Hand waiting assignments to the pool, as many as keep the workers busy: an assignment for the pool is a copy
        of its tensors.  Called under the lock."""
        while self._waiting:
            assignment = self._waiting[0].assignment
            large = (buffer_bytes(assignment.form.up) or 0) > LARGE
            most = (LARGE_PER_WORKER if large else QUEUED_PER_WORKER) * self._workers
            if len(self._entries) - len(self._waiting) >= most:
                return
            fits = not isinstance(self._pool, Pools) or self._pool.holds(assignment.peak)
            if not fits and len(self._entries) > len(self._waiting):
                return  # workers are packed anew once those under way have ended
            fits = fits or self._pack([assignment.peak or 0])
            entry = self._waiting.popleft()
            if entry.future.cancelled():
                self._remove(entry)
            elif fits:
                self._queue(entry)
            else:
                self._remove(entry)
                assert self._packing is not None
                refusal = self._packing.refusal(assignment.title, assignment.peak or 0)
                with suppress(InvalidStateError):
                    entry.future.set_exception(TrainingError(refusal))

    def _queue(self, entry: _PoolAssignment) -> None:
        """Hand an assignment to the pool; called under the lock."""
        pool = self._pool
        try:
            submit = partial(pool.submit, peak=entry.assignment.peak) if isinstance(pool, Pools) else pool.submit
            arguments = self._call_arguments(entry)
            whole = len(pool.places) if isinstance(pool, Pools) else self._workers
            # a pool starts its workers as calls come; asking for room at each call took 5 ms of each
            with nullcontext() if len(processes_of(pool)) == whole else start_method.start_faults():
                entry.inner = submit(run_assignment, *arguments)
        except BrokenProcessPool:
            self._recover(pool, how_ended(pool))
            return
        except RuntimeError as error:
            self._recover(pool, str(error))
            return
        entry.inner.add_done_callback(lambda inner: self._handle_end(entry, inner, pool))

    def _call_arguments(self, entry: _PoolAssignment) -> tuple[Any, ...]:
        """What a worker gets of an assignment: inputs lie in a slot, which assignments with the same inputs share."""
        assignment = entry.assignment
        if not has_shared_memory():
            return assignment.encode()
        # what a client kept lies in a file, or else travels with the inputs
        given = (
            assignment.inputs
            if assignment.kept is None or isinstance(assignment.kept, StoredTensors)
            else assignment.tensors()
        )
        try:
            if id(given) not in self._inputs:  # the entry holds ``given``, so that its id stays its own
                used = {other.shared[0] for other in self._entries if other.shared}
                unused = [slot for _, slot, _ in self._inputs.values() if slot not in used]
                self._inputs = {key: known for key, known in self._inputs.items() if known[1] in used}
                slot = unused[-1] if unused else Slot()  # one that has memory already is written faster
                self._inputs[id(given)] = given, slot, _text_slot(json.dumps(to_data(slot.write(given))))
            form = self._forms.get(assignment.form)
            if form is None:
                form = self._forms[assignment.form] = _text_slot(assignment.form.encode())
        except OSError as error:
            text = f"the memory of this machine doesn't hold the inputs of {assignment.title}"
            raise OutOfHostMemory(text) from error
        _, inputs, where = self._inputs[id(given)]
        slot = self._slots.take(reused=in_one_piece(assignment) is not None)
        entry.shared = inputs, slot, where, form
        return (
            (assignment.form.key, form.path),
            assignment.to_data(),
            (where.number, where.path),
            (slot.number if slot.reused else None, slot.path),
        )

    def _handle_end(self, entry: _PoolAssignment, inner: Future[Answer], pool: ProcessPoolExecutor | Pools) -> None:
        """Pass an assignment's report on, or its error; recover where the host failed it."""
        if inner.cancelled():
            if inner is entry.inner:
                self._remove(entry)
                self._give_back(entry)
                entry.future.follow()
                self._next()
            return
        if isinstance(inner.exception(), BrokenProcessPool):
            # from Python 3.12 on the pool's lock is held here, which submitting to it and shutting it down take too
            threading.Thread(target=self._pass_on, args=(entry, inner, pool, how_ended(pool)), daemon=True).start()
        else:
            self._pass_on(entry, inner, pool)

    def _pass_on(
        self, entry: _PoolAssignment, inner: Future[Answer], pool: ProcessPoolExecutor | Pools, reason: str = ""
    ) -> None:
        """The same for an assignment that wasn't cancelled; ``reason`` says how the workers of a broken pool ended."""
        error = inner.exception()
        if isinstance(error, BrokenProcessPool | OutOfHostMemory) and not self._closing:
            with self._lock:
                if pool is not self._pool:
                    return  # another assignment's failure came first, and this one is queued again
                if isinstance(error, OutOfHostMemory):
                    entry.out_of_memory, reason = True, str(error)
                    end(processes_of(pool))
                self._recover(pool, reason)
            return
        self._remove(entry)
        with suppress(InvalidStateError):
            if error is not None:
                self._give_back(entry)
                entry.future.set_exception(error)
            else:
                (head, body), assignment = inner.result(), entry.assignment
                tensors = _tensors(entry, self._slots, body)
                entry.future.set_result(Update.from_data(json.loads(head), assignment.work, assignment.client, tensors))
        entry.future.entry = entry.inner = entry.shared = (
            None  # tensors of the assignment and of its report, which refer to each other
        )
        self._next()

    def _give_back(self, entry: _PoolAssignment) -> None:
        """Free the slot of an assignment that no worker runs and that has no report."""
        if entry.shared is not None:
            self._slots.back(entry.shared[1])

    def _next(self) -> None:
        with self._lock:
            if not self._closing:
                self._feed()

    def _remove(self, entry: _PoolAssignment) -> None:
        with self._lock:
            self._ended = time.monotonic()
            if entry in self._entries:
                self._entries.remove(entry)

    def _recover(self, pool: ProcessPoolExecutor | Pools, reason: str) -> None:
        """Run all unfinished assignments again in a new pool with fewer workers; called under the lock."""
        if self._pool is not pool or self._closing:
            return  # another assignment's failure has done it
        unfinished = list(self._entries)
        if self._workers == 1 and self._tried_alone:  # alone: no other assignment took the memory
            self._give_up(reason)
            return
        self._tried_alone = self._workers == 1
        self._workers = max(1, self._workers // 2)
        how = "one after the other" if self._workers == 1 else f"with {self._workers} workers"
        for entry in unfinished:
            entry.inner = None
        if self._packing:
            stop(pool)  # one worker has ended, and the others share the GPUs with those to come
        self._pool = self._new_pool()
        self._ended = time.monotonic()
        pool.shutdown(wait=False, cancel_futures=True)
        warn(f"{reason}; {len(unfinished)} unfinished works run again {how}")
        self._waiting = deque(unfinished)
        self._feed()

    def _give_up(self, reason: str) -> None:
        """Fail all unfinished assignments; a single worker runs them in order, so that the first has failed."""
        unfinished, self._entries, self._waiting = self._entries, [], deque()
        for entry in unfinished:
            failed = next((other for other in unfinished if other.out_of_memory), unfinished[0]).assignment
            with suppress(InvalidStateError):
                entry.future.set_exception(
                    TrainingError(
                        f"{failed.title} fails on this machine even alone: {reason}. Finished rounds are saved: "
                        "continue with edgefl run --resume, here when more memory is free, or on another machine"
                    )
                )

    # workers that hang ----------------------------------------------------------------------------------------------

    def _watch(self, timeout: float) -> None:
        """End the workers if no assignment has ended for ``timeout`` seconds."""
        while not self._over.wait(timeout / LOOKS_PER_TIMEOUT):
            with self._lock:
                hangs = bool(self._entries) and time.monotonic() - self._ended > timeout
                if hangs:
                    pool = self._pool
                    end(processes_of(pool))
                    self._recover(pool, f"no assignment ended within {timeout:g} s (executor.timeout)")


def _tensors(entry: _PoolAssignment, slots: Slots, body: bytes | TensorLayout | None) -> Mapping[str, Tensor] | Tensor:
    """The tensors of a worker's answer, whose slot is one of ``slots``."""
    if isinstance(body, bytes):
        return deserialise(body)
    assert entry.shared is not None
    if body is None:
        return slots.bytes(entry.shared[1], buffer_bytes(entry.assignment.form.up) or 0)
    return entry.shared[1].read_tensors(body)


def _text_slot(text: str) -> Slot:
    slot = Slot()
    slot.write_text(text)
    return slot
