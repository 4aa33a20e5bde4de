"""What programs share that answer as the command line does: the form of the answer, progress, errors in one line."""

from __future__ import annotations

import json
import sys
import warnings
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from edgefl import terminal
from edgefl.console.display import make_progress
from edgefl.console.stopping import exit_code, stoppable
from edgefl.errors import EdgeflError, text_of
from edgefl.files import full_disk_named
from edgefl.records.record import Record
from edgefl.runs.progress import OnProgress

Answer = TypeVar("Answer", bound=Record)


def add_form(parser: ArgumentParser) -> None:
    """Add the option ``--as``: how the answer is printed."""
    parser.add_argument("--as", dest="form", choices=("table", "json"), default="table", help="how it is printed")


def print_answer(answer: Answer, form: str, print_table: Callable[[Answer], None]) -> None:
    """Print an answer in the form of ``--as``."""
    if form == "json":
        print(json.dumps(answer.to_data(), indent=2, allow_nan=False))
    else:
        print_table(answer)


@contextmanager
def program(then: str = "") -> Iterator[OnProgress]:
    """Yield what shows progress on stderr, and end the process by an error that a user can mend, or by a signal.

    The error is one line, with edgefl's exit code.  After a signal a line says ``then``, what is left or goes on.
    """
    with stoppable(), terminal.escaped_streams(), warnings.catch_warnings():
        warnings.showwarning = terminal.warn
        try:
            with full_disk_named(), make_progress() as progress:
                yield progress
        except EdgeflError as error:
            terminal.say(f"error: {text_of(error)}")
            sys.exit(error.exit_code)
        except KeyboardInterrupt as error:
            terminal.say("; ".join(filter(None, ["interrupted", then])))
            sys.exit(exit_code(error))
