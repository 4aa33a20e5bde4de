"""The command line: the application, commands that follow from functions, signals, and the display of progress.

Results go to stdout, progress and messages to stderr.
"""

from edgefl.console.stopping import at_once

with at_once():
    from edgefl.console.app import app, load_commands, main

__all__ = ["app", "load_commands", "main"]
