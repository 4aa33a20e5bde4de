"""The command line.  Each command parses its options, calls a function of ``edgefl.commands`` and prints the result.

Results go to stdout, progress and messages to stderr.  Modules that are slow to import are imported inside the
commands.  ``--help`` lists the commands in the order of the imports below.
"""

from edgefl.console.stopping import at_once

# isort: off
with at_once():
    from edgefl.cli import scenarios, run, compare, one_run, profile, sweep, explore, fit, tune, bench, analyse  # noqa: F401
    from edgefl.cli import devices, parts, machine, papers  # noqa: F401
    from edgefl.console.app import app, main
# isort: on

__all__ = ["app", "main"]
