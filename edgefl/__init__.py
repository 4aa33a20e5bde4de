"""edgefl: which devices can train a federated model, at what cost, and how accuracy suffers without the other devices.

The public functions and classes of ``__all__`` are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefl import first_use

if TYPE_CHECKING:
    from edgefl.commands.analyse.command import analyse
    from edgefl.commands.bench.command import bench
    from edgefl.commands.compare.command import compare
    from edgefl.commands.devices.command import calibrate
    from edgefl.commands.doctor.command import doctor
    from edgefl.commands.explain.command import explain
    from edgefl.commands.export.command import export
    from edgefl.commands.fit.command import fit
    from edgefl.commands.new.command import new
    from edgefl.commands.parts.command import parts
    from edgefl.commands.profile.command import profile
    from edgefl.commands.report.command import report
    from edgefl.commands.run.command import run
    from edgefl.commands.sweep.command import sweep
    from edgefl.commands.tune.command import tune
    from edgefl.commands.validate.command import validate
    from edgefl.registry import register
    from edgefl.runs import Run, read_run

__version__ = "0.2.0"
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
    "compare",
    "doctor",
    "explain",
    "export",
    "fit",
    "new",
    "parts",
    "profile",
    "read_run",
    "register",
    "report",
    "run",
    "sweep",
    "tune",
    "validate",
]

_MODULES = {
    **{name: f"commands.{name}.command" for name in __all__},
    **dict.fromkeys(("Run", "read_run"), "runs"),
    "calibrate": "commands.devices.command",
    "register": "registry",
}
"""Module of each public name.  It is imported on first use, so that ``edgefl --help`` doesn't import torch."""


__getattr__ = first_use.imports(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
