"""The typer application, options that several commands share, and the entry point ``main``.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from io import TextIOWrapper
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperGroup
from typer.main import get_command_name
from typer.models import CommandInfo

from edgefl import garbage, terminal
from edgefl.console.stopping import behind, exit_code, stop_signal, stoppable
from edgefl.errors import EdgeflError, PluginError, RunError, text_of, visible
from edgefl.files import full_disk_named
from edgefl.terminal import say

if TYPE_CHECKING:
    from edgefl.records.devices import BrokenPart


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


def shipped_and_files(incomplete: str) -> list[str]:
    """Shipped scenarios and YAML files that begin with these characters, for the shell's completion."""
    from glob import escape, glob

    from edgefl.scenario.library import scenario_names

    files = [name for pattern in ("*.yaml", "*.yml", "*/") for name in glob(escape(incomplete) + pattern)]
    return [*(name for name in scenario_names() if name.startswith(incomplete)), *sorted(files)]


def check_scenario_exists(context: typer.Context, given: Any) -> Any:
    """Raise ScenarioError for a scenario that isn't there or isn't YAML, before torch is imported."""
    if given and not context.resilient_parsing:  # the shell asks what may follow
        from edgefl.scenario.library import find_document

        for scenario in [given] if isinstance(given, str) else given:
            find_document(scenario)
    return given


def _name_sections(context: typer.Context, overrides: list[str] | None) -> list[str] | None:
    """Raise ScenarioError for overrides that no scenario can take, before torch is imported."""
    if overrides and not context.resilient_parsing:
        from edgefl.scenario.keys import check_overrides

        check_overrides(overrides)
    return overrides


ScenarioFile = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO",
        help="A scenario file, or the name of a shipped one: quickstart.",
        autocompletion=shipped_and_files,
        callback=check_scenario_exists,
    ),
]
ScenarioFiles = Annotated[
    list[str],
    typer.Argument(
        metavar="SCENARIO...",
        help="A scenario file, or the name of a shipped one: quickstart. May be several.",
        autocompletion=shipped_and_files,
        callback=check_scenario_exists,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        callback=_name_sections,
        help="Change a field: training.lr=1e-3. May be repeated.",
    ),
]


def _load_plug_ins(context: typer.Context, files: list[str] | None) -> list[str] | None:
    """Load plug-in files as soon as they are read from the command line, before any scenario is."""
    if files and not context.resilient_parsing:  # the shell asks what may follow
        from edgefl import registry

        for file in files:
            registry.load_plug_in(file)
    return files


Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        callback=_load_plug_ins,
        help="Run a Python file of yours first, whose parts (edgefl.register) are then known. May be repeated.",
    ),
]
"""Parameter of each command that takes a scenario or a run; its callback does all the work."""

Jobs = Annotated[
    int, typer.Option("--jobs", metavar="N", min=1, help="Run N of several runs side by side, in processes.")
]
PricingJobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", metavar="N", min=1, help="Price more than four works in N processes; default: one for each core."
    ),
]
Address = Annotated[
    str | None,
    typer.Option("--address", metavar="HOST:PORT|auto", help="Run the N jobs on the nodes of this Ray cluster."),
]
Shard = Annotated[
    str | None,
    typer.Option("--shard", metavar="K/M", help="Do the K-th of M shares; the others may write to the folder too."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print plain JSON instead of tables.")]


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


def say_broken(broken: Iterable[BrokenPart]) -> None:
    """Print a line on stderr for each part that a list leaves out because it is broken."""
    for each in broken:
        say(f"left out: {each.message}")


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
        interruption = behind(error) or stop_signal()
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


@contextmanager
def observing(what: str = "") -> Iterator[Any]:
    """Yield the progress display of a command, which ends as one that is ``interruptible``."""
    from edgefl.console.display import make_progress

    with interruptible(lambda: what), make_progress() as progress:
        yield progress


# --- the entry point -------------------------------------------------------------------------------------------------


def single_command_app(arguments: Sequence[str]) -> typer.Typer:
    """The application with nothing but the command that is typed, as reading the options of all takes longer than many
    commands; with all of them if the first word names none."""
    typed = next((word for word in arguments if not word.startswith("-")), "")
    only = copy(app)
    only.registered_commands = [each for each in app.registered_commands if _name(each) == typed]
    only.registered_groups = [each for each in app.registered_groups if each.name == typed]
    return only if only.registered_commands or only.registered_groups else app


def _name(command: CommandInfo) -> str:
    return command.name or get_command_name(getattr(command.callback, "__name__", ""))


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
                single_command_app(sys.argv[1:] if arguments is None else arguments)(arguments, prog_name="edgefl")
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
