"""Workers on a Ray cluster, one actor each for the whole run.  Results don't depend on where assignments run.

Inputs that assignments share go to Ray's object store once, and from there once to each node.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from edgefl import registry
from edgefl.data import Cargo, DataOptions
from edgefl.errors import OutOfHostMemory, TrainingError
from edgefl.training.assignment import Assignment
from edgefl.training.executors import Closing
from edgefl.training.on_ray.cluster import (
    START_SECONDS,
    Greeting,
    Services,
    check_reachable,
    check_versions,
    connect,
    disconnect,
    disconnect_ended,
    first_line,
    greetings,
    import_ray,
    user_error,
)
from edgefl.training.on_ray.worker import RayWorker, from_ray, to_ray
from edgefl.training.options import ExecutorOptions
from edgefl.work import Form
from edgefl.work.update import Update

AT_HAND = 2
"""Assignments that a worker has at a time: one that runs, and the next, whose tensors travel meanwhile.  With more, a
worker that is lost loses more."""
TRIES = 3
"""How often an assignment begins whose worker is lost or out of memory; alone on its worker after the first time.

A choice: the second time shows whether it was the others' memory, the third whether it was a node's end."""
LOOKS_PER_TIMEOUT = 20
"""How often per ``executor.timeout``, or per ``START_SECONDS``, the watch looks whether assignments still end: it is
late by at most a twentieth."""
CLOSES_SECONDS = 0.1
"""How often the watch looks whether the executor was closed: its thread outlives the executor by so much."""
GO_ON = "Finished rounds are saved: continue with edgefl run --resume"
ENDED = f"Ray's {{names}} {{verb}} ended, and no work can go on. {GO_ON}"


@dataclass(eq=False)
class _RayAssignment:
    """An assignment that hasn't ended, its future, and how often it was begun in vain."""

    assignment: Assignment
    future: Future[Update]
    failures: int = 0


@dataclass(eq=False)
class _Slot:
    """A place for a worker: the actor, the assignments that it has, and whether it has begun."""

    actor: Any
    entries: list[_RayAssignment] = field(default_factory=list)
    ready: bool = False


class OnRay(Closing):
    """Runs assignments in actors of Ray; a context manager that closes itself.

    Without ``address`` Ray is started on this machine, and ended by ``close``.  A worker that is lost, with its node or
    alone, is replaced, and its assignments run again.  With ``cargo`` workers get their data from Ray's object store.
    Raises TrainingError, with exit code 2, if Ray isn't installed or can't be reached, has fewer processors or GPUs
    than are asked for, or if a node has other versions or lacks data.
    """

    def __init__(
        self,
        options: ExecutorOptions,
        data: DataOptions,
        seed: int,
        tokens: int,
        cache: Path | None,
        held_out: float,
        cargo: Cargo | None = None,
    ):
        self._ray = import_ray("executor.name: ray")
        self._options, self._folder = options, ""
        self._arguments = (
            data.model_dump_json(), seed, tokens, str(cache) if cache else None, held_out, registry.for_workers(),
            "cuda" if options.gpus_per_worker else "cpu",
        )  # fmt: skip
        self.window = (AT_HAND + 1) * options.workers
        self._lock = threading.RLock()
        self._waiting: deque[_RayAssignment] = deque()
        self._slots: list[_Slot] = []
        self._inputs: dict[int, tuple[Mapping[str, Tensor], int, Any]] = {}
        self._forms: WeakKeyDictionary[Form, Any] = WeakKeyDictionary()
        self._number = 0
        self._closing, self._ours = False, False
        self._ended = time.monotonic()
        self._over = threading.Event()
        self._services: Services | None = None
        self._gone = ""
        try:
            self._connect()
            self._check_room()
            self._cargo = None if cargo is None else self._ray.put(cargo)
            self._start()
            self._services = Services(self._ray, ENDED, self._folder)
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._watch, args=(options.timeout or math.inf,), daemon=True).start()

    def submit(self, assignment: Assignment) -> Future[Update]:
        """Queue the assignment for a worker and return the future of its report.

        The future raises TrainingError if the assignment fails, or if its worker is lost ``TRIES`` times.
        """
        entry = _RayAssignment(assignment, Future())
        with self._lock:
            if self._has_lost_ray():
                entry.future.set_exception(TrainingError(self._gone))
                return entry.future
            if not self._waiting and not any(slot.entries for slot in self._slots):
                self._ended = time.monotonic()
            self._waiting.append(entry)
            self._feed()
        return entry.future

    def close(self) -> None:
        """Cancel queued assignments and end the workers, and Ray, if it was started here."""
        with self._lock:
            self._closing = True
            self._over.set()
            for entry in self._waiting:
                entry.future.cancel()
            self._waiting.clear()
            slots, self._slots = self._slots, []
            gone = self._has_lost_ray()
            if not gone:  # else Ray's library would end this process
                self._inputs = {}
                self._forms.clear()
        for slot in slots if not gone else ():
            self._kill(slot)
        if self._ours and gone and self._services is not None:
            self._ours = False
            disconnect_ended(self._ray, self._services, ours=self._options.address is None)
        elif self._ours:
            self._ours = False
            disconnect(self._ray)
        if self._services is not None:
            self._services.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    # the cluster ----------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Start Ray, or connect to the cluster at the address."""
        if self._ray.is_initialized():  # by the caller, whose it stays
            return
        address, here = self._options.address, {}
        if address is not None:
            check_reachable(address, "executor.address")
        else:
            self._folder = tempfile.mkdtemp(prefix="edgefl-")
            processors = max(self._options.workers, os.cpu_count() or 1)
            here = {"include_dashboard": False, "_temp_dir": self._folder, "num_cpus": processors}
        connect(self._ray, address, **here)
        self._ours = True

    def _check_room(self) -> None:
        """Raise TrainingError if the cluster has fewer processors or GPUs than the workers need."""
        has, options = self._ray.cluster_resources(), self._options
        wanted = {"CPU": float(options.workers), "GPU": options.workers * (options.gpus_per_worker or 0.0)}
        for what, number in wanted.items():
            if number > has.get(what, 0.0):
                raise user_error(
                    f"executor.workers: {options.workers} workers need {number:g} {what}s, and the Ray cluster has "
                    f"{has.get(what, 0.0):g}"
                )

    def _start(self) -> None:
        """Start the workers and wait until all have opened the data."""
        self._slots = [_Slot(self._new_actor()) for _ in range(self._options.workers)]
        hellos = [slot.actor.hello.remote() for slot in self._slots]
        for hello in greetings(self._ray, hellos):
            self._check_data(hello)
        for slot in self._slots:
            slot.ready = True

    def _new_actor(self) -> Any:
        remote = self._ray.remote(num_cpus=1, num_gpus=self._options.gpus_per_worker or 0, max_restarts=0)(RayWorker)
        return remote.remote(self._arguments, sys.path, self._cargo)

    def _check_data(self, hello: Greeting) -> None:
        if hello["why_not"]:
            advice = "" if self._cargo is not None else "; executor.ship_data: true sends it the data"
            raise user_error(f"node {hello['host']} can't open the data or load plug-ins: {hello['why_not']}{advice}")

    def _kill(self, slot: _Slot) -> None:
        with suppress(Exception):  # its process has ended, or Ray has
            self._ray.kill(slot.actor)

    # assignments ----------------------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Give waiting assignments to workers; called under the lock."""
        while self._waiting and not self._closing and not self._has_lost_ray():
            entry = self._waiting[0]
            slot = min((s for s in self._slots if s.ready), key=lambda s: len(s.entries), default=None)
            if slot is None or len(slot.entries) >= AT_HAND or any(e.failures for e in slot.entries):
                return
            if entry.failures and slot.entries:  # it runs alone
                return
            self._waiting.popleft()
            if entry.failures or entry.future.set_running_or_notify_cancel():
                self._give(slot, entry)

    def _give(self, slot: _Slot, entry: _RayAssignment) -> None:
        """Give an assignment to a worker; called under the lock."""
        assignment = entry.assignment
        form, (number, inputs) = self._put_form(assignment.form), self._put_inputs(assignment.inputs)
        kept = to_ray(assignment.kept.tensors()) if assignment.kept is not None else None
        facts = json.dumps(replace(assignment, kept=None).to_data())
        slot.entries.append(entry)
        ref = slot.actor.run_assignment.remote(assignment.form.key, form, number, inputs, facts, kept)
        ref.future().add_done_callback(lambda done: self._handle_end(slot, entry, done))

    def _put_inputs(self, inputs: Mapping[str, Tensor]) -> tuple[int, Any]:
        if id(inputs) not in self._inputs:  # the entry holds the inputs, so that their id stays theirs
            used = {id(entry.assignment.inputs) for slot in self._slots for entry in slot.entries}
            self._inputs = {key: known for key, known in self._inputs.items() if key in used}
            self._number += 1
            self._inputs[id(inputs)] = inputs, self._number, self._ray.put(to_ray(inputs))
        return self._inputs[id(inputs)][1:]

    def _put_form(self, form: Form) -> Any:
        if form not in self._forms:
            self._forms[form] = self._ray.put(form.encode())
        return self._forms[form]

    def _handle_end(self, slot: _Slot, entry: _RayAssignment, done: Future[Any]) -> None:
        """Pass an assignment's report on, or its error; run it again if its worker was lost."""
        error = None if done.cancelled() else done.exception()
        error = getattr(error, "cause", None) or error  # what was raised there, without Ray's account of where
        lost = isinstance(error, self._ray.exceptions.RayError)
        with self._lock:
            self._ended = time.monotonic()
            if self._has_lost_ray():  # the entry's future has its error
                return
            if self._closing:
                lost = False
            if entry in slot.entries:
                slot.entries.remove(entry)
            if lost or isinstance(error, OutOfHostMemory):
                entry.failures += 1
            again = (lost or isinstance(error, OutOfHostMemory)) and entry.failures < TRIES and not self._closing
            if again:
                self._waiting.appendleft(entry)
            if lost:
                self._replace(slot, first_line(error))
        if not again:
            self._tell(entry, error, lost, done)
        with self._lock:
            self._feed()

    def _tell(self, entry: _RayAssignment, error: BaseException | None, lost: bool, done: Future[Any]) -> None:
        with suppress(InvalidStateError):
            if lost:
                error = TrainingError(
                    f"{entry.assignment.title} was begun {TRIES} times, and its worker on Ray was lost each time: "
                    f"{first_line(error)}. {GO_ON}"
                )
            if error is not None:
                entry.future.set_exception(error)
                return
            facts, rows = done.result()
            assignment = entry.assignment
            entry.future.set_result(
                Update.from_data(json.loads(facts), assignment.work, assignment.client, from_ray(rows))
            )

    def _replace(self, slot: _Slot, reason: str) -> None:
        """Put a new worker in the place of one that is lost; called under the lock."""
        if slot not in self._slots or self._closing:
            return
        with suppress(Warning):  # a filter may turn warnings into errors, which must not reach Ray's thread
            warnings.warn(f"a worker on Ray was lost, and its works run again: {reason}", RuntimeWarning, stacklevel=2)
        self._slots.remove(slot)
        new = _Slot(self._new_actor())
        self._slots.append(new)
        new.actor.hello.remote().future().add_done_callback(lambda hello: self._began(new, hello))

    def _began(self, slot: _Slot, hello: Future[Any]) -> None:
        """Use a new worker, unless it can't work."""
        with self._lock:
            if slot not in self._slots or self._has_lost_ray():
                return
            try:
                check_versions(hello.result())
                self._check_data(hello.result())
                slot.ready = True
            except Exception as error:
                self._slots.remove(slot)
                if not self._slots:
                    self._strand(error)
            self._feed()

    def _watch(self, timeout: float) -> None:
        """End workers if no assignment ended for ``timeout`` seconds, and assignments if no worker can start again."""
        since = time.monotonic()
        while not self._wait_until_closed(min(timeout, START_SECONDS) / LOOKS_PER_TIMEOUT):
            with self._lock:
                if self._has_lost_ray():
                    return
                now = time.monotonic()
                busy = [slot for slot in self._slots if slot.entries]
                if busy and now - self._ended > timeout:
                    self._ended = now
                    for slot in busy:
                        self._kill(slot)
                if not self._waiting or any(slot.ready for slot in self._slots):
                    since = now
                elif now - since > START_SECONDS:
                    self._strand(f"none could be started again within {START_SECONDS:g} s")

    def _wait_until_closed(self, seconds: float) -> bool:
        """Wait so long, less if one of Ray's own processes ends; whether this is closed."""
        assert self._services is not None
        until = time.monotonic() + seconds
        while not self._over.is_set() and (left := until - time.monotonic()) > 0:
            if self._services.ended_services(min(left, CLOSES_SECONDS)):
                break
        return self._over.is_set()

    def _strand(self, reason: object) -> None:
        """Tell all waiting assignments that no worker is left; called under the lock."""
        for entry in self._waiting:
            with suppress(InvalidStateError):
                entry.future.set_exception(TrainingError(f"no worker on Ray is left: {first_line(reason)}. {GO_ON}"))
        self._waiting.clear()

    def _has_lost_ray(self) -> bool:
        """Whether one of Ray's own processes has ended, so that nothing may be asked of Ray; called under the lock.

        At the first time all assignments are told.
        """
        if self._gone or self._services is None or not (ended := self._services.ended_services()):
            return bool(self._gone)
        self._gone = ENDED.format(names=" and ".join(ended), verb="has" if len(ended) == 1 else "have")
        if self._folder:  # a GCS server that is left would tell Ray's library, which would end this process
            self._services.kill()
        entries = [*self._waiting, *(entry for slot in self._slots for entry in slot.entries)]
        self._waiting.clear()
        for entry in entries:
            with suppress(InvalidStateError):
                entry.future.set_exception(TrainingError(self._gone))
        return True
