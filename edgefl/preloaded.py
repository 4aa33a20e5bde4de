"""What the server of worker processes imports before it forks them: the modules that ``start_method`` names.

A worker is a copy of the server, and keeps sharing the memory of what no collection of garbage touches.
"""

from __future__ import annotations

import os
from importlib import import_module

from edgefl import garbage

NAMED = "EDGEFL_PRELOADED"
"""The environment variable with the modules' names."""

if NAMED in os.environ:  # in the server alone
    with garbage.pausing_collection():
        for name in os.environ.pop(NAMED).split():
            import_module(name)
        garbage.resume_collection()
