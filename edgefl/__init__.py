"""edgefl: which devices can train a federated model, at what cost, and what is lost by leaving the others out."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgefl.commands import analyse, calibrate, check_method, fit, profile, read_run, run, sweep, validate

__version__ = "0.1.0"
__all__ = ["analyse", "calibrate", "check_method", "fit", "profile", "read_run", "run", "sweep", "validate"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("edgefl.commands"), name)
    raise AttributeError(f"module 'edgefl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
