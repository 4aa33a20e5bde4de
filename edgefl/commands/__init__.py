"""The Python API, equal to the command line."""

from edgefl.commands.running import run
from edgefl.runs import read_run

__all__ = ["read_run", "run"]
