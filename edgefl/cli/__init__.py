"""The command line: thin; each command parses, calls ``edgefl.commands`` and prints.

Results go to stdout, progress and messages to stderr.  What takes long to import is imported by the commands.  The
commands are listed by ``--help`` in the order in which they are imported here.
"""

# isort: off
from edgefl.cli import run, profile, sweep, fit, analyse, devices, calibrate, methods  # noqa: F401
from edgefl.cli.app import app, main, one_line
# isort: on

__all__ = ["app", "main", "one_line"]
