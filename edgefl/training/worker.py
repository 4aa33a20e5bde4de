"""What a worker process of ``Processes`` does: it opens the data once, and runs assignments."""

from __future__ import annotations

import gc
import json
import signal
import sys
import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgefl import registry, start_method, terminal
from edgefl.data import Cargo, DataOptions, open_federation, unpack_federation
from edgefl.errors import OutOfHostMemory, TrainingError, text_of
from edgefl.plain_data import from_data
from edgefl.runs.kept import StoredTensors, TensorLayout
from edgefl.training.assignment import Assignment, encode
from edgefl.training.node import Node
from edgefl.training.shared import room, write_to_slot
from edgefl.work import Form
from edgefl.work.packed import buffer_bytes
from edgefl.work.torch_device import device_of, keep_freed_memory

MOST_FORMS = 64
"""Forms of works that a worker keeps decoded: clients share them, in all rounds.  A choice, more than
a round's kinds times stages; one that has to go is decoded again."""

Answer = tuple[str, bytes | TensorLayout | None]
"""A report as a worker sends it: JSON text, and its tensors as safetensors bytes or their layout in a slot.

Without either its payloads lie in the slot, as its work says.
"""

_node: Node | None = None
_why_not: str = ""
"""Why this worker couldn't load plug-ins or open its data; its assignments say so."""


def start(
    data: str,
    seed: int,
    tokens: int,
    cache: str | None,
    path: list[str],
    held_out: float,
    registered: registry.ForWorkers,
    device: str,
    fraction: float | None = None,
) -> None:
    """Begin a worker: load plug-ins and open the data.  What fails is said by its assignments.

    ``fraction`` is the share of a GPU's memory that this worker may reserve, beside others.
    """
    global _node, _why_not
    start_method.end_with_parent()
    terminal.guard()
    warnings.showwarning = terminal.warn
    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent process ends the workers
    sys.path[:] = path
    try:
        _node = open_node(data, seed, tokens, cache, held_out, registered, device, fraction)
    except BaseException as error:  # an error here would end the worker without a word
        _why_not = text_of(error) or type(error).__name__


def open_node(
    data: str,
    seed: int,
    tokens: int,
    cache: str | None,
    held_out: float,
    registered: registry.ForWorkers,
    device: str,
    fraction: float | None = None,
    cargo: Cargo | None = None,
) -> Node:
    """Load plug-ins and open the data, unless ``cargo`` has them.  Raises EdgeflError, and what a plug-in raises.

    ``fraction`` is the share of a GPU's memory that this worker may reserve, beside others.
    """
    registry.adopt(registered)
    options, folder = DataOptions.model_validate_json(data), Path(cache) if cache else None
    if cargo is None:
        federation = open_federation(options, seed=seed, tokens=tokens, cache=folder)
    else:
        federation = unpack_federation(cargo, options)
    chosen = device_of(device)
    if chosen.type == "cuda" and fraction is not None:
        torch.cuda.set_device(chosen)  # what names no GPU takes memory on this one
        torch.cuda.set_per_process_memory_fraction(fraction, chosen)
    node = Node(federation.with_held_out(held_out, seed), chosen, one_module=fraction is not None)
    gc.freeze()  # what was imported stays, and collecting over it takes long
    return node


def do_nothing() -> None:
    """Start the worker that gets this, if it isn't there yet."""
    return None


def run_assignment(
    form: str | tuple[str, str],
    body: Any,
    inputs: tuple[int, str] | None = None,
    slot: tuple[int | None, str] = (0, ""),
) -> Answer:
    """Run an assignment: encoded, or the key of its form and the path of the slot that describes it, its facts, the
    slot that says where its inputs lie, and the slot for its report."""
    if _node is None:
        raise TrainingError(f"a worker process couldn't open the data or load plug-ins: {_why_not}")
    if inputs is None:
        assert isinstance(form, str)
        return encode(_node.run_assignment(Assignment.decode(form, body)))
    assert not isinstance(form, str)
    assignment = Assignment.from_data(body, _form(*form), _inputs(*inputs))
    size = in_one_piece(assignment)
    try:
        buffer = None if size is None else room(*slot, size)
    except OSError as error:
        raise _no_room(assignment) from error
    report = _node.run_assignment(assignment, buffer)
    try:
        layout = None if buffer is not None else write_to_slot(slot[1], report.tensors())
    except OSError as error:
        raise _no_room(assignment) from error
    return json.dumps(report.to_data()), layout


def in_one_piece(assignment: Assignment) -> int | None:
    """Bytes of the slot for an update if nothing but its payloads lies there, as its work says; else None."""
    return None if assignment.form.keep or assignment.attack or assignment.others else buffer_bytes(assignment.form.up)


def _no_room(assignment: Assignment) -> OutOfHostMemory:
    return OutOfHostMemory(f"the memory of this machine doesn't hold the report of client {assignment.client}")


@lru_cache(MOST_FORMS)
def _form(key: str, path: str) -> Form:
    return Form.decode(Path(path).read_text(encoding="utf-8"))


@lru_cache(1)
def _inputs(number: int, path: str) -> Mapping[str, Tensor]:
    """Inputs that many assignments of a round share.  Works read them, and never write into them."""
    return from_data(StoredTensors, json.loads(Path(path).read_text(encoding="utf-8"))).tensors()
