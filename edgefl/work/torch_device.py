"""The torch device that a scenario names."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from edgefl.errors import TrainingError


def device_of(name: str) -> torch.device:
    """The torch device; ``auto`` is CUDA if available, else CPU.  A GPU has its index, without which part of torch's
    functions refuse it.  Raises TrainingError for a GPU that isn't there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        said = ""
        if not count:
            said = "this machine or this build of torch has no CUDA device"
        elif device.index is not None and device.index >= count:
            said = f"this machine has {', '.join(f'cuda:{index}' for index in range(count))}"
        if said:
            error = TrainingError(f"executor.device is {name}, but {said}")
            error.exit_code = 2
            raise error
        if device.index is None:
            return torch.device("cuda", torch.cuda.current_device())
    return device


@contextmanager
def threads(count: int = 1) -> Iterator[None]:
    """So many threads of torch, and afterwards as many as before.

    With several the order of sums, and so rounding, depends on the machine.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory couldn't be allocated."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of glibc's ``mallopt``."""
KEPT_BLOCK, KEPT_FREE = 32 << 20, 1 << 30
"""Bytes of a block that malloc takes from its heap (32 MiB is the most that glibc allows), and bytes that it keeps free
at the heap's end before it gives them back to the system: more than steps of the models here take.

Without them each client of a model of 85 MB costs 20,000 page faults, and rounds of a small convolutional net take a
tenth longer.  What is kept free stays with the process between steps.
"""


def keep_freed_memory() -> None:
    """Let malloc keep what a step frees for the next step, which would else get each page anew from the system.

    What the environment says of malloc stays.  Nothing happens without glibc.
    """
    set_by_user = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None and not set_by_user:
        mallopt(_MMAP_THRESHOLD, KEPT_BLOCK)
        mallopt(_TRIM_THRESHOLD, KEPT_FREE)


def warm(device: torch.device) -> None:
    """Allocate a GPU's workspaces for matrix products, forward and backward, so that no work is charged for them.

    cuBLAS has one for each thread, and the backward pass runs in a thread of its own; products with a bias have another
    one.  A checkpoint makes the backward pass compute both.
    """
    if device.type == "cuda":
        with torch.enable_grad():
            matrix = torch.zeros(8, 8, device=device, requires_grad=True)
            bias = torch.zeros(8, device=device)
            checkpoint(F.linear, matrix, matrix, bias, use_reentrant=False).sum().backward()
