"""The torch device that a scenario names."""

from __future__ import annotations

import torch

from edgefl.errors import TrainingError


def device_of(name: str) -> torch.device:
    """The torch device; ``auto`` is CUDA if available, else CPU.  Raises TrainingError for cuda without CUDA."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        error = TrainingError("executor.device is cuda, but this machine or this build of torch has no CUDA device")
        error.exit_code = 2
        raise error
    return torch.device(name)


def warm(device: torch.device) -> None:
    """Allocate a GPU's workspaces for matrix products, forward and backward, so that no work is charged for them.

    The backward pass runs in a separate thread, which gets a separate workspace.
    """
    if device.type == "cuda":
        matrix = torch.zeros(8, 8, device=device, requires_grad=True)
        (matrix @ matrix).sum().backward()
