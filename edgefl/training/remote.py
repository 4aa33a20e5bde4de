"""Assignments of clients that are elsewhere, on a clock of their own: what a node is told, and what it says.

The orders and the answers are those of an emulated client, and of a real device; what carries them isn't known here.
Payloads travel as safetensors bytes, the rest as plain data beside them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from torch import Tensor

from edgefl.training.assignment import Assignment, deserialise, serialise
from edgefl.work import Form, Payload
from edgefl.work.update import Update


class NodeOrder(TypedDict):
    """An assignment as a node is told of it, without its tensors."""

    form: str
    facts: dict[str, Any]


@dataclass(frozen=True)
class RealFlight:
    """A client's flight on a wall clock: seconds of each phase, and bytes of the payloads that were carried.

    ``start_up_seconds`` are those of its process, and ``metering_seconds`` those of a work that is done twice.

    ``ended_in`` is the phase in which it failed, None if its update arrived.  ``late`` says that the server gave it up
    at the deadline, ``killed`` that its system ended it for lack of memory.
    """

    client: int
    download_seconds: float
    compute_seconds: float
    upload_seconds: float
    download_bytes: int
    upload_bytes: int
    ended_in: Literal["start", "download", "compute", "upload"] | None = None
    killed: bool = False
    late: bool = False
    start_up_seconds: float = 0.0
    metering_seconds: float = 0.0


# the server's side ----------------------------------------------------------------------------------------------------


def order_of(assignment: Assignment) -> NodeOrder:
    """The order to run an assignment unmetered; what its client kept travels with the tensors, or stays with it."""
    return {"form": assignment.form.encode(), "facts": {**assignment.to_data(), "metered": False, "kept": None}}


def split_inputs(assignment: Assignment, down: Sequence[Payload]) -> tuple[list[bytes], dict[str, Tensor]]:
    """The payloads that go ``down`` to a node, and the inputs that none of them has: it holds copies of these.

    Raises RunError if what the client kept can't be read.
    """
    inputs = assignment.tensors()
    sent = {item.name for payload in down for item in payload.items}
    bodies = [serialise({name: inputs[name] for name in payload.names}) for payload in down if payload.items]
    return bodies, {name: tensor for name, tensor in inputs.items() if name not in sent}


def update_of(
    facts: Mapping[str, Any], assignment: Assignment, arrived: Sequence[bytes | bytearray], kept: bytes
) -> Update:
    """The update of a node from its facts, the payloads that ``arrived`` in their order, and what it keeps."""
    tensors: dict[str, Tensor] = {f"kept/{name}": tensor for name, tensor in deserialise(kept).items()}
    names = [payload.name for payload in assignment.form.up if payload.items]
    for name, body in zip(names, arrived, strict=True):
        index = facts["payloads"].index(name)
        tensors |= {f"{index}/{item}": tensor for item, tensor in deserialise(bytes(body)).items()}
    return Update.from_data(facts, assignment.work, assignment.client, tensors)


# the node's side ------------------------------------------------------------------------------------------------------


def checksum(tensor: Tensor) -> int:
    """A sum of a tensor's bytes, by which two copies are compared."""
    return zlib.crc32(serialise({"": tensor}))


def missing_copies(held: Mapping[str, Tensor], sums: Mapping[str, int]) -> list[str]:
    """The items of these checksums of which a node holds no copy, or another one."""
    return [name for name, sum_ in sums.items() if name not in held or checksum(held[name]) != sum_]


def inputs_of(form: Form, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inputs of a form among the copies that a node holds."""
    names = {name for payload in form.down for item in payload.items for name in payload.wire(item)} | set(form.keep)
    return {name: tensor for name, tensor in held.items() if name in names}


def upload_bodies(payloads: Iterable[Mapping[str, Tensor]]) -> list[bytes]:
    """The payloads of an update as they are sent, without empty ones."""
    return [serialise(tensors) for tensors in payloads if tensors]
