"""Whether a client's upload is accepted.

It is input from outside: before anything is aggregated, its names, shapes, dtypes and values are compared with what its
work was to send.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from edgefl.models.model import DTYPES
from edgefl.work import Description, TensorSpec
from edgefl.work.packed import Packed, is_finite
from edgefl.work.update import Update

REPLAYED, TRUNCATED, OVERSIZED = "replayed", "truncated", "oversized"
WRONG_SHAPE, WRONG_DTYPE, NOT_FINITE = "wrong shape", "wrong dtype", "not finite"


def why_refused(work: Description, report: Update, seed: int, *, keep_non_finite: bool) -> str | None:
    """The reason for which the server refuses a report of ``work``; None if it accepts it.

    ``seed`` is that of the client's assignment: a report with another one answers another assignment (``replayed``).
    Missing tensors are ``truncated``, tensors that the work doesn't send ``oversized``.
    """
    if report.seed != seed:
        return REPLAYED
    payloads = report.payloads
    if payloads.keys() - {payload.name for payload in work.up}:
        return OVERSIZED
    for payload in work.up:
        tensors = payloads.get(payload.name, {})
        if isinstance(tensors, Packed) and tensors.places is payload.places:
            continue  # made for this payload
        if (reason := _payload_problem(tensors, payload.specs)) is not None:
            return reason
    return None if keep_non_finite or is_finite(payloads) else NOT_FINITE


def _payload_problem(tensors: Mapping[str, Tensor], specs: Mapping[str, TensorSpec]) -> str | None:
    if specs.keys() - tensors.keys():
        return TRUNCATED
    if tensors.keys() - specs.keys():
        return OVERSIZED
    for name, spec in specs.items():
        if tuple(tensors[name].shape) != spec.shape:
            return WRONG_SHAPE
        if tensors[name].dtype != DTYPES[spec.dtype]:
            return WRONG_DTYPE
    return None
