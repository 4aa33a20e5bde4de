"""edgefl: which devices can train a federated model, at what cost, and how accuracy suffers without the other devices.

The public functions and classes of ``__all__`` are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefl import first_use

if TYPE_CHECKING:
    from edgefl.commands.analyse.analyse import analyse
    from edgefl.commands.bench.bench import bench
    from edgefl.commands.calibrate import calibrate
    from edgefl.commands.check.check import check
    from edgefl.commands.compare.compare import compare
    from edgefl.commands.devices.check_devices import check_devices
    from edgefl.commands.emulate.emulate import emulate
    from edgefl.commands.explain import explain
    from edgefl.commands.explore.explore import explore
    from edgefl.commands.explore.explore_devices import explore_devices
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
SCENARIO_FORMAT = 1
"""Version of the format of scenarios that this package reads and writes, ``edgefl`` in a file."""
RUN_FORMAT = 7
"""Version of a run's folder, ``run_format`` in environment.json.

It rises when a file, a field's meaning or a scenario's default changes, so that no run is continued as another.
"""
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
    "explore",
    "explore_devices",
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
    "Run": "runs",
    "analyse": "commands.analyse.analyse",
    "bench": "commands.bench.bench",
    "calibrate": "commands.calibrate",
    "check": "commands.check.check",
    "check_devices": "commands.devices.check_devices",
    "compare": "commands.compare.compare",
    "emulate": "commands.emulate.emulate",
    "explain": "commands.explain",
    "explore": "commands.explore.explore",
    "explore_devices": "commands.explore.explore_devices",
    "export": "commands.export",
    "fit": "commands.fit.fit",
    "papers": "paper_tables.papers",
    "profile": "commands.profile.profile",
    "profile_clients": "commands.profile.profile_clients",
    "read_run": "runs",
    "register": "registry",
    "run": "commands.run.run",
    "sweep": "commands.sweep.sweep",
    "trace": "commands.trace",
    "tune": "commands.tune.tune",
    "validate": "commands.validate",
    "write_figures": "commands.report",
    "write_report": "commands.report",
}
"""Module of each public name.  It is imported on first use, so that ``edgefl --help`` doesn't import torch."""


__getattr__ = first_use.imports(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
