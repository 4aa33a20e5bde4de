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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from edgefl.errors import EdgeflError, PluginError

if TYPE_CHECKING:
    from edgefl.records.devices import BrokenPart

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def examples(*commands: str) -> str:
    """The end of a command's help: examples as they are typed, a line each."""
    return "\n\n".join(["Examples:", *commands])


app = typer.Typer(
    name="edgefl",
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


ScenarioFile = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO",
        help="A scenario file, or the name of a shipped one: quickstart.",
        autocompletion=shipped_and_files,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change a field: training.lr=1e-3. May be repeated."),
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
        from edgefl import __version__

        typer.echo(f"edgefl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    show_traceback: Annotated[bool, typer.Option("--traceback", help="Print the traceback of an error too.")] = False,
) -> None:
    _state["traceback"] = show_traceback


_state = {"traceback": False}
"""Whether ``--traceback`` was given."""


def print_json(value: Any) -> None:
    """Print a command's answer as JSON on stdout."""
    json.dump(value.as_json() if hasattr(value, "as_json") else value, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def say(text: str) -> None:
    """Print a message on stderr, with ``edgefl:`` before it."""
    sys.stderr.write(f"edgefl: {text}\n")


def say_interrupted(error: KeyboardInterrupt, what: str = "") -> None:
    """Print that the command was interrupted, in which plug-in if one was running, and ``what`` to do now."""
    from edgefl import registry

    place = registry.plug_ins().place(error)
    where = f"interrupted in {place[0]}" if place else "interrupted"
    if _state["traceback"]:
        traceback.print_exception(error)
    say(f"{where}; {what}" if what else where)


def say_broken(broken: Iterable[BrokenPart]) -> None:
    """Print a line on stderr for each part that a list leaves out because it is broken."""
    for each in broken:
        say(f"left out: {each.message}")


@contextmanager
def interruptible(what: str = "") -> Iterator[None]:
    """On Ctrl-C print where a plug-in was interrupted and ``what`` to do now, and exit with code 130."""
    try:
        yield
    except KeyboardInterrupt as error:
        say_interrupted(error, what)
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def observing(what: str = "") -> Iterator[Any]:
    """Yield the progress display of a command.  On Ctrl-C print ``what`` to do now, and exit with code 130."""
    from edgefl.report import make_progress

    with interruptible(what), make_progress() as progress:
        yield progress


# --- the entry point -------------------------------------------------------------------------------------------------


def one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int,
    file: TextIO | None = None, line: str | None = None,
) -> None:  # fmt: skip
    """Print a warning as one line on stderr; a replacement for ``warnings.showwarning``."""
    say("warning: " + " ".join(str(message).split()))


def _most_files() -> str:
    """How many files the system lets this process open."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return "reached"
    return str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


_HINT = "; for the traceback: edgefl --traceback COMMAND"


@contextmanager
def _named_faults() -> Iterator[None]:
    """Name the plug-in that an exception comes from, also outside the functions of ``edgefl.commands``."""
    try:
        yield
    except (Exception, SystemExit) as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if isinstance(error, SystemExit) and frame.f_globals["__name__"].partition(".")[0] in ("typer", "click"):
            raise  # the ordinary end of a command
        from edgefl import registry

        with registry.named_faults():
            raise


def main(arguments: Sequence[str] | None = None) -> None:
    """The console command.  Exit codes: 0 success, 1 failure, 2 an error that the user can correct, 130 interrupted."""
    with warnings.catch_warnings():
        warnings.showwarning = one_line
        _state["traceback"] = False
        try:
            with _named_faults():
                app(list(arguments) if arguments is not None else None, prog_name="edgefl")
        except EdgeflError as error:
            if _state["traceback"]:
                traceback.print_exception(error)
            shows = isinstance(error, PluginError) and error.__cause__ is not None and not _state["traceback"]
            say(f"error: {error}{_HINT if shows else ''}")
            sys.exit(error.exit_code)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and not _state["traceback"]:
                say(f"error: {error.strerror}: the limit of this process is {_most_files()} (ulimit -n); raise it")
                sys.exit(EdgeflError.exit_code)
            if not isinstance(error, BrokenPipeError):
                raise
            # The reader of stdout (such as ``head``) closed the pipe.  Python flushes stdout at exit, which would
            # raise again, so stdout is redirected to the null device.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        finally:
            if (registry := sys.modules.get("edgefl.registry")) is not None:
                registry.unload_plug_ins()  # a file is loaded for the command that asks for it
