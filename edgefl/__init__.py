"""edgefl: which devices can train a federated model, at what cost, and how accuracy suffers without the other devices.

The public functions and classes of ``__all__`` are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from edgefl import garbage

if TYPE_CHECKING:
    from edgefl.commands.analyse.analyse import analyse
    from edgefl.commands.bench.bench import bench
    from edgefl.commands.calibrate import calibrate
    from edgefl.commands.check.check import check
    from edgefl.commands.compare.compare import compare
    from edgefl.commands.devices.check_devices import check_devices
    from edgefl.commands.emulate.emulate import emulate
    from edgefl.commands.explain import explain
    from edgefl.commands.export import export
    from edgefl.commands.fit.fit import fit
    from edgefl.commands.profile.profile import profile
    from edgefl.commands.profile.profile_clients import profile_clients
    from edgefl.commands.report import write_figures, write_report
    from edgefl.commands.run.run import run
    from edgefl.commands.sweep.sweep import sweep
    from edgefl.commands.trace import trace
    from edgefl.commands.tune.tune import tune
    from edgefl.commands.validate import validate
    from edgefl.paper_tables.papers import papers
    from edgefl.registry import register
    from edgefl.runs import Run, read_run

__version__ = "0.1.0"
__all__ = [
    "Run",
    "analyse",
    "bench",
    "calibrate",
    "check",
    "check_devices",
    "compare",
    "emulate",
    "explain",
    "export",
    "fit",
    "papers",
    "profile",
    "profile_clients",
    "read_run",
    "register",
    "run",
    "sweep",
    "trace",
    "tune",
    "validate",
    "write_figures",
    "write_report",
]

_MODULES = {
    "Run": "edgefl.runs",
    "analyse": "edgefl.commands.analyse.analyse",
    "bench": "edgefl.commands.bench.bench",
    "calibrate": "edgefl.commands.calibrate",
    "check": "edgefl.commands.check.check",
    "check_devices": "edgefl.commands.devices.check_devices",
    "compare": "edgefl.commands.compare.compare",
    "emulate": "edgefl.commands.emulate.emulate",
    "explain": "edgefl.commands.explain",
    "export": "edgefl.commands.export",
    "fit": "edgefl.commands.fit.fit",
    "papers": "edgefl.paper_tables.papers",
    "profile": "edgefl.commands.profile.profile",
    "profile_clients": "edgefl.commands.profile.profile_clients",
    "read_run": "edgefl.runs",
    "register": "edgefl.registry",
    "run": "edgefl.commands.run.run",
    "sweep": "edgefl.commands.sweep.sweep",
    "trace": "edgefl.commands.trace",
    "tune": "edgefl.commands.tune.tune",
    "validate": "edgefl.commands.validate",
    "write_figures": "edgefl.commands.report",
    "write_report": "edgefl.commands.report",
}
"""Module of each public name.  It is imported on first use, so that ``edgefl --help`` doesn't import torch."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        with garbage.left_alone():
            return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'edgefl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
