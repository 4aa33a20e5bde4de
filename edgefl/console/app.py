"""The typer application, its commands by group, and the entry point ``main``.

Results go to stdout, progress and messages to stderr.  Modules that are slow to import are imported inside the
commands.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from importlib import import_module
from io import TextIOWrapper
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from edgefl import garbage, terminal
from edgefl.console.stopping import behind, exit_code, stop_signal, stoppable
from edgefl.errors import EdgeflError, PluginError, RunError, text_of, visible
from edgefl.files import full_disk_named
from edgefl.terminal import say

if TYPE_CHECKING:
    pass


GROUPS = {
    "A scenario": ("new", "validate", "parts", "devices"),
    "What it costs, without training": ("profile", "sweep", "fit"),
    "Training": ("run", "tune", "bench", "analyse"),
    "After a run": ("compare", "explain", "report", "export"),
    "This machine": ("doctor",),
}
"""The commands as the help lists them.  That of ``sweep`` is in ``edgefl.commands.sweep.command``."""


def examples(*commands: str) -> str:
    """The end of a command's help: examples as they are typed, a line each."""
    return "\n\n".join(["Examples:", *commands])


class _Commands(TyperGroup):
    """All commands.  One that is asked to end, and doesn't say so itself, says it here.

    What typer says of wrong arguments shows them with escapes, as its console styles words itself; of one that is
    missing it says what it is.
    """

    def make_context(self, *words: Any, **more: Any) -> Any:
        with interruptible(), _visible_arguments():
            return super().make_context(*words, **more)

    def invoke(self, ctx: Any) -> Any:
        with interruptible(), _visible_arguments():
            return super().invoke(ctx)


@contextmanager
def _visible_arguments() -> Iterator[None]:
    try:
        yield
    except _USAGE as error:
        lacking = isinstance(error, typer.BadParameter) and not error.message  # an option or argument that isn't there
        error.message = visible(getattr(error.param, "help", None) or "" if lacking else error.message)
        raise


_USAGE: Any = typer.BadParameter.__base__
"""The class of typer's errors in what was typed."""

app = typer.Typer(
    name="edgefl",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Which devices can train this federated model, at what cost, and what is lost without the other devices?",
    epilog=examples("edgefl new mine", "edgefl run mine.yaml", "edgefl --install-completion"),
)


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        from edgefl import RUN_FORMAT, SCENARIO_FORMAT, __version__

        typer.echo(f"edgefl {__version__}, torch {version('torch')}")
        typer.echo(f"formats: scenario {SCENARIO_FORMAT}, run {RUN_FORMAT}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print versions, those of the formats too."),
    ] = False,
    show_traceback: Annotated[bool, typer.Option("--traceback", help="Print the traceback of an error too.")] = False,
) -> None:
    _state["traceback"] = show_traceback


_state = {"traceback": False}
"""Whether ``--traceback`` was given."""


def print_json(value: Any) -> None:
    """Print a command's answer as JSON on stdout."""
    pieces = json.JSONEncoder(indent=2, allow_nan=False).iterencode(
        value.to_data() if hasattr(value, "to_data") else value
    )
    while text := "".join(islice(pieces, 4096)):
        sys.stdout.write(text.replace("\x7f", "\\u007f"))  # the one control character that json leaves as it is
    sys.stdout.write("\n")


@contextmanager
def interruptible(what: Callable[[], str] = str) -> Iterator[None]:
    """On Ctrl-C, SIGTERM or SIGHUP print where a plug-in was interrupted and ``what`` to do now, and exit with the code
    of the signal.

    What fails on the way out, such as printing to a terminal that has closed, changes nothing of it.
    """
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        # Python 3.11 makes a RuntimeError of an interruption in a class's body, matplotlib's fonts a ValueError
        interruption = stop_signal() or behind(error)  # a signal says which exit code
        if interruption is None or isinstance(error, typer.Exit):
            raise
        from edgefl import registry

        place = registry.plug_ins().locate_fault(interruption)
        told = [f"interrupted in {place[0]}" if place else "interrupted", *filter(None, [what()])]
        with suppress(OSError):
            if _state["traceback"]:
                traceback.print_exception(interruption)
            say("; ".join(told))
        raise typer.Exit(exit_code(interruption)) from None


# --- the entry point -------------------------------------------------------------------------------------------------


def load_commands(arguments: Sequence[str] = ()) -> typer.Typer:
    """The application with the command that is typed alone, since reading the options of all takes longer than many
    commands; with all of them if the first word names none."""
    known = [word for words in GROUPS.values() for word in words]
    typed = next((word for word in arguments if not word.startswith("-")), "")
    for word in [typed] if typed in known else known:
        import_module(f"edgefl.commands.{word}.command")
    only = copy(app)
    only.registered_commands = [each for each in app.registered_commands if typed not in known or each.name == typed]
    only.registered_commands.sort(key=lambda each: known.index(each.name) if each.name in known else len(known))
    if typed in known:
        only.registered_groups = [each for each in app.registered_groups if each.name == typed]
    return only


def _limit(name: str) -> str:
    """How much of something the system lets this process have."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return "reached"
    return str(resource.getrlimit(getattr(resource, name))[0])


def _refused_by_system(error: OSError | RuntimeError) -> str:
    """What the system has refused a command, and how to mend that; "" for any other exception."""
    said = str(getattr(error, "strerror", None) or error)
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{said}: the limit of this process is {_limit('RLIMIT_NOFILE')} (ulimit -n); raise it"
    if said in (os.strerror(errno.EAGAIN), "can't start new thread"):
        return f"no more processes or threads: the limit of this user is {_limit('RLIMIT_NPROC')} (ulimit -u); raise it"
    if said.startswith(("No usable temporary directory", "Matplotlib requires access to")):
        return f"{said}: name a folder that can be written in the environment variable TMPDIR"
    if said.startswith("Could not determine home"):
        return "this user has no home folder: set the environment variable HOME, or write paths without ~"
    return ""


_HINT = "; for the traceback: edgefl --traceback COMMAND"


@contextmanager
def _named_faults() -> Iterator[None]:
    """Name the plug-in that an exception comes from, also outside the functions of ``edgefl.commands``."""
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if isinstance(error, SystemExit) and frame.f_globals["__name__"].partition(".")[0] in ("typer", "click"):
            raise  # the ordinary end of a command
        from edgefl import registry

        with registry.named_faults():
            raise


class _Stdout(TextIOWrapper):
    """Stdout that raises RunError where it can't be written, such as a file on a full disk."""

    def write(self, text: str) -> int:
        with self._naming_errors():
            return super().write(text)

    def flush(self) -> None:
        with self._naming_errors():
            super().flush()

    @contextmanager
    def _naming_errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            raise RunError(f"can't write to stdout: {error.strerror}") from error


@contextmanager
def _answering() -> Iterator[None]:
    """Within it stdout is a ``_Stdout``, which is flushed at the end: Python's flush at exit would show a traceback."""
    shown, given = sys.stdout, sys.__stdout__
    if not (isinstance(shown, terminal.EscapedStream) and shown.stream is given and isinstance(given, TextIOWrapper)):
        yield  # a test reads it
        return
    shown.stream = stdout = _Stdout(given.buffer, given.encoding, given.errors, line_buffering=given.line_buffering)
    try:
        yield
        stdout.flush()
    except SystemExit:
        stdout.flush()
        raise
    finally:
        try:
            stdout.detach()
        except (RunError, BrokenPipeError):  # raised already, or there is another error to tell of
            os.dup2(os.open(os.devnull, os.O_WRONLY), given.fileno())
            stdout.detach()
        shown.stream = given


def _discard_rest(stream: TextIO) -> None:
    """Let nothing be left in a stream of this process that can't be written, since Python would try again at exit."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def main(arguments: Sequence[str] | None = None) -> None:
    """The console command.  Exit codes: 0 success, 1 failure, 2 an error that the user can correct, 130 interrupted
    (``stopping.exit_code``: 143 after SIGTERM, 129 after SIGHUP).

    Without ``arguments`` it is the program itself, and its process ends with it.
    """
    with stoppable(to_the_end=arguments is None), terminal.escaped_streams(), warnings.catch_warnings():
        warnings.showwarning = terminal.warn
        _state["traceback"] = False
        try:
            with garbage.pausing_collection(), full_disk_named(), _answering(), _named_faults():
                load_commands(sys.argv[1:] if arguments is None else arguments)(arguments, prog_name="edgefl")
        except EdgeflError as error:
            if _state["traceback"]:
                traceback.print_exception(error)
            shows = isinstance(error, PluginError) and error.__cause__ is not None and not _state["traceback"]
            say(f"error: {text_of(error)}{_HINT if shows else ''}")
            sys.exit(error.exit_code)
        except KeyboardInterrupt as error:  # before or after the command
            sys.exit(exit_code(error))
        except UnicodeEncodeError as error:
            # a file's name: what is printed never raises this, and files are UTF-8
            utf8 = error.encoding.lower().replace("-", "") == "utf8"
            how = "it isn't UTF-8" if utf8 else "set the environment variable PYTHONUTF8=1"
            say(f"error: {error.object[:100]!a}: the name can't be written in {error.encoding}: {how}")
            sys.exit(EdgeflError.exit_code)
        except BrokenPipeError:
            # The reader of stdout (such as ``head``) closed the pipe.  Python flushes stdout at exit, which would
            # raise again, so stdout is redirected to the null device.
            _discard_rest(sys.stdout)
            sys.exit(1)
        except (OSError, RuntimeError) as error:
            refused = _refused_by_system(error)
            if not refused or _state["traceback"]:
                raise
            say(f"error: {refused}")
            sys.exit(EdgeflError.exit_code)
        finally:
            _discard_rest(sys.stderr)
            if (registry := sys.modules.get("edgefl.registry")) is not None:
                registry.unload_plug_ins()  # a file is loaded for the command that asks for it
