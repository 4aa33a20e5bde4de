"""Executors run assignments and return futures.  Results don't depend on the executor."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from safetensors import SafetensorError
from torch import Tensor

from edgefl.data import DataOptions, Federation, pack_federation
from edgefl.errors import EdgeflError, OutOfHostMemory
from edgefl.runs.kept import TensorLayout, parts_of
from edgefl.runs.unfinished import UnfinishedWorks
from edgefl.training.assignment import Assignment, deserialise, encode
from edgefl.training.node import Node, free_memory
from edgefl.training.options import ExecutorOptions
from edgefl.training.pools import warn
from edgefl.training.processes import ProcessExecutor
from edgefl.work.torch_device import device_of, keep_freed_memory
from edgefl.work.update import Update


class Executor(Protocol):
    """The protocol of executors; also a context manager that closes the executor."""

    @property
    def window(self) -> int | None:
        """Assignments that it should have at a time: 0 if ``submit`` runs them itself, None if it can't say."""
        ...

    def submit(self, assignment: Assignment) -> Future[Update]:
        """Start or queue an assignment.  The future holds its report, or the error that the assignment raised."""
        ...

    def close(self) -> None:
        """Stop the executor.  Assignments that haven't begun are cancelled."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None: ...


class Closing:
    """A context manager that closes itself, for which there is nothing to do if it holds nothing."""

    def close(self) -> None:
        """Do nothing: this executor has no resources to release."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


class Inline(Closing):
    """Runs each assignment in this process, before ``submit`` returns.

    Raises TrainingError if ``device`` isn't available.
    """

    window = 0

    def __init__(self, federation: Federation, device: str = "auto"):
        keep_freed_memory()
        self._node = Node(federation, device_of(device))

    def submit(self, assignment: Assignment) -> Future[Update]:
        """Run the assignment and return a completed future with its report or its EdgeflError.

        An assignment for which the memory of this machine doesn't suffice runs once more, after everything that can be
        freed is freed.
        """
        future: Future[Update] = Future()
        try:
            try:
                future.set_result(self._node.run_assignment(assignment))
            except OutOfHostMemory as error:
                warnings.warn(f"{error}; it runs once more", RuntimeWarning, stacklevel=2)
                free_memory()
                future.set_result(self._node.run_assignment(assignment))
        except EdgeflError as error:
            future.set_exception(error)
        return future


class RememberingExecutor(Closing):
    """The executor of one run, which remembers ``works`` of a long round: a killed run trains none of them again.

    What was written is found by a key of all that decides it: the assignment's content, its inputs, what its client
    kept, and ``facts`` (of scenario, code and data).  So it doesn't matter from which checkpoint the run goes on.  A
    client's measurements of the host are those of the first time.  ``executor`` stays open when this is closed.
    """

    def __init__(self, executor: Executor, works: UnfinishedWorks, facts: Callable[[], Mapping[str, object]]):
        self._executor, self._works, self._facts = executor, works, facts
        self._inputs: tuple[Mapping[str, Tensor] | None, str] = None, ""
        """Those of the last key, which many clients share, and their digest."""

    @property
    def window(self) -> int | None:
        """As the executor's own."""
        return self._executor.window

    def submit(self, assignment: Assignment) -> Future[Update]:
        """Submit the assignment, unless what it gave is remembered: then return a completed future."""
        if self._works.may_find() and (update := self._find_update(assignment)) is not None:
            known: Future[Update] = Future()
            known.set_result(update)
            return known
        future = self._executor.submit(assignment)
        future.add_done_callback(partial(self._remember, assignment))  # before others, who may give what it keeps away
        return future

    def _find_update(self, assignment: Assignment) -> Update | None:
        path = self._works.find(self._key(assignment))
        if path is None:
            return None
        try:
            head, _, body = self._works.read(path).partition(b"\n")
            return Update.from_data(json.loads(head), assignment.work, assignment.client, deserialise(body))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            warn(f"{path} is damaged, and its client trains again: {error}")
            return None

    def _remember(self, assignment: Assignment, training: Future[Update]) -> None:
        if not self._works.is_due() or training.cancelled() or training.exception() is not None:
            return
        update = training.result()

        def content() -> tuple[str, bytes]:
            head, body = encode(update)
            return self._key(assignment), head.encode() + b"\n" + body

        try:
            self._works.write(assignment.client, sum(tensor.nbytes for tensor in update.tensors().values()), content)
        except OSError as error:
            warn(f"can't write what clients of a long round trained, so a killed run trains them again: {error}")

    def _key(self, assignment: Assignment) -> str:
        """A digest of all that decides what an assignment gives; not of where its tensors lie, nor of how it is run."""
        assignments = (assignment, *assignment.others)
        bare = replace(assignment, kept=None, others=tuple(replace(each, kept=None) for each in assignment.others))
        inputs, digest = self._inputs
        if inputs is not assignment.inputs:
            digest = _digest(assignment.inputs)
            self._inputs = assignment.inputs, digest
        kept = [None if each.kept is None else _digest(each.kept.tensors()) for each in assignments]
        content = json.dumps([self._run, assignment.form.key, bare.to_data(), digest, kept], sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    @cached_property
    def _run(self) -> str:
        return json.dumps(self._facts(), sort_keys=True)


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """A hash of these tensors, with their names, dtypes and shapes."""
    held = dict(sorted(tensors.items()))
    hashed = hashlib.blake2b(json.dumps(TensorLayout.from_tensors(held).items).encode(), digest_size=16)
    for tensor in held.values():
        hashed.update(parts_of(tensor)[0])
    return hashed.hexdigest()


def make_executor(
    options: ExecutorOptions, federation: Federation, data: DataOptions, seed: int, tokens: int, cache: Path | None
) -> Executor:
    """The executor that a scenario's ``executor`` section describes.

    ``tokens`` is the length of texts; ``cache`` is the folder of prepared data.  Raises TrainingError if the device
    isn't available, or the Ray cluster can't do what is asked for.
    """
    if options.name == "inline":
        return Inline(federation, options.devices[0])
    held_out = federation.held_out_share
    if options.name == "ray":
        from edgefl.training.on_ray.executor import OnRay  # the extra takes long to import

        cargo = pack_federation(federation, data) if options.ship_data else None
        return OnRay(options, data, seed, tokens, cache, held_out, cargo)
    return ProcessExecutor(data, seed, tokens, cache, options.workers, options.devices, options.timeout, held_out)
