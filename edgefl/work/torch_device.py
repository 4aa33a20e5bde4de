"""The torch device that a scenario names."""

from __future__ import annotations

import torch

from edgefl.errors import TrainingError


def device_of(name: str) -> torch.device:
    """``auto`` takes CUDA where there is one.  Raises TrainingError if CUDA is asked for and absent."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        error = TrainingError("executor.device is cuda, but this machine or this build of torch has no CUDA device")
        error.exit_code = 2
        raise error
    return torch.device(name)


def warm(device: torch.device) -> None:
    """Let a GPU allocate what belongs to no work: the workspaces of its first matrix product, forward and backward.

    The backward pass runs in a thread of its own, which gets a workspace of its own.
    """
    if device.type == "cuda":
        matrix = torch.zeros(8, 8, device=device, requires_grad=True)
        (matrix @ matrix).sum().backward()
