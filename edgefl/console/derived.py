"""Commands that follow from functions: what a parameter is stands once, in its annotation.

From ``device: Annotated[str | None, option("Device for time and energy.", "NAME")] = None`` follow the option
``--device NAME`` with its help, a line of ``Args`` in the docstring of ``edgefl.profile``, and a row of the reference
page.  A module with a command imports nothing slow at its head, so that ``edgefl --help`` is quick: the body of the
function begins with its imports.
"""

from __future__ import annotations

import collections.abc
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from textwrap import fill
from types import NoneType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from edgefl import garbage
from edgefl.console.app import GROUPS, app, examples, interruptible, load_commands, print_json
from edgefl.console.options import PLUGIN, argument, option
from edgefl.errors import UnknownName
from edgefl.runs.progress import OnProgress, silent
from edgefl.terminal import say

__all__ = ["COMMANDS", "Command", "OnProgress", "argument", "command", "option", "silent"]

Arguments = ParamSpec("Arguments")
Answered = TypeVar("Answered")

PYTHON_ONLY = {
    "on_progress": "Called with the name of an event and its facts.",
    "on_round": "Called with each round's record; the run ends after that round if it returns `stop`. Not with jobs.",
    "progress": "Whether to show a bar, by tqdm or rich, whichever is installed.",
}
"""Parameters of functions that the command line doesn't have: it shows a display of its own."""
PYTHON_TOO = {"scenario": " In Python also a dictionary, or a scenario that was loaded."}
"""What is added to the help of parameters that take more from Python than words."""


@dataclass
class Command:
    """A command: its function, and how its answers are printed.

    ``answer`` names the class of the answer, ``module:Class``, for its JSON Schema.  ``forms`` names the function,
    ``module:name``, that prints an answer or returns its text in each form of ``--as`` but ``json``, the default
    first.  ``full`` is the help of ``--full``, for the forms whose functions take it.
    ``interrupted`` says what to do after Ctrl-C, given the folder that is being written, if there is one; in a text
    ``{folder}`` stands for it.
    ``of_answer`` names the function that makes the answer that is printed of what the function returns.
    ``plain``: progress is plain lines, since what a display needs may be broken.
    """

    function: Callable[..., Any]
    public: Callable[..., Any]
    typed: tuple[str, ...]
    answer: str
    forms: Mapping[str, str]
    full: str
    interrupted: Callable[[str | None], str]
    of_answer: str
    plain: bool

    @property
    def name(self) -> str:
        """As it is typed."""
        return self.function.__name__.rstrip("_").replace("_", "-")

    @property
    def summary(self) -> str:
        """The first paragraph of the docstring, without its marks of code."""
        return " ".join(inspect.cleandoc(self.function.__doc__ or "").partition("\n\n")[0].split()).replace("``", "")

    def run(self, *, as_: str | None = None, full: bool = False, plugins: object = None, **given: Any) -> None:
        """Call it as it is typed, and print its answer; exit with its code."""
        defaults = {name: each.default for name, (each, _, _) in parameters_of(self.function).items()}
        given = {name: defaults[name] if value is None else value for name, value in given.items()}
        form = as_ or next(iter(self.forms))
        folder: Callable[[], str | None] = lambda: None  # noqa: E731
        with interruptible(lambda: self.interrupted(folder())), ExitStack() as stack:
            if "on_progress" in inspect.signature(self.function).parameters:
                if self.plain:
                    given["on_progress"] = lambda event, facts: say(facts["what"])
                else:
                    from edgefl.console.display import make_progress

                    display = stack.enter_context(make_progress())
                    given["on_progress"] = _collecting(display)
                    folder = lambda: display.folder  # noqa: E731
            try:
                answer = self.public(**given)
            except BaseException as error:
                stack.close()
                if (found := getattr(error, "answer", None)) is not None:  # what was found by then
                    self.show(found, form, full)
                raise
        if code := self.show(answer, form, full):
            raise typer.Exit(code)

    def show(self, answer: Any, form: str, full: bool) -> int:
        """Print an answer in this form, and what it has for stderr; return its exit code."""
        if self.of_answer:
            answer = import_named(self.of_answer)(answer)
        if form == "json":
            print_json(answer)
        else:
            printed = import_named(self.forms[form])
            takes = {"full": full} if "full" in inspect.signature(printed).parameters else {}
            sys.stdout.write(printed(answer, **takes) or "")
        code = int(getattr(answer, "exit_code", 0))
        for line in getattr(answer, "notices", ()) if form != "json" or code else ():
            say(line)
        return code

    def add_to(self, group: typer.Typer, panel: str | None) -> None:
        """Add it to an application."""
        own = [
            _keyword(name, Annotated[_type_to_read(kind, each), _with_flags(name, kind, info)], _default(each))
            for name, (each, kind, info) in parameters_of(self.function).items()
        ]
        forms: Any = Literal[(*self.forms, "json")]
        printed = option(f"How to print it: {', '.join(get_args(forms))}.", "FORM", "--as", show_default=False)
        own.append(_keyword("as_", Annotated[str, _with_flags("as", forms, printed)], get_args(forms)[0]))
        if self.full:
            own.append(_keyword("full", Annotated[bool, option(self.full, None, "--full")], False))
        own.append(_keyword("plugins", Annotated[list[str] | None, PLUGIN], None))

        def run(**given: Any) -> None:
            self.run(**given)

        run.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in own}
        group.command(self.name, help=self.summary, epilog=examples(*self.typed), rich_help_panel=panel)(run)


COMMANDS: dict[str, Command] = {}
"""The commands whose modules have been imported, as they are typed: ``sweep``, ``devices list``."""


def all_commands() -> dict[str, Command]:
    """All commands as they are typed, in the order of the help; their modules are imported."""
    load_commands()
    words = [word for group in GROUPS.values() for word in group]
    return dict(sorted(COMMANDS.items(), key=lambda item: words.index(item[0].split()[0])))


def command(
    *typed: str,
    answer: str,
    forms: Mapping[str, str],
    full: str = "",
    interrupted: str | Callable[[str | None], str] = "",
    of_answer: str = "",
    parent: typer.Typer | None = None,
    plain: bool = False,
) -> Callable[[Callable[Arguments, Answered]], Callable[Arguments, Answered]]:
    """Let the command line and ``import edgefl`` have this function; ``typed`` are examples, the rest is ``Command``'s.

    The function that is returned raises what a plug-in raises as PluginError, and sees every folder of data as it is
    now.  A disk that is full where no file of the answer is written, such as that of temporary files, is a RunError.
    It takes ``progress=True`` for a bar if it takes ``on_progress``.
    """

    def derive(function: Callable[Arguments, Answered]) -> Callable[Arguments, Answered]:
        @wraps(function)
        def public(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answered:
            from edgefl import registry
            from edgefl.data import one_look
            from edgefl.files import full_disk_named

            with ExitStack() as stack:
                if kwargs.pop("progress", False):
                    kwargs["on_progress"] = stack.enter_context(_bar(kwargs.get("on_progress", silent)))
                stack.enter_context(full_disk_named())
                stack.enter_context(registry.named_faults())
                stack.enter_context(one_look())
                return function(*args, **kwargs)

        public.__doc__ = docstring_of(function)
        public.__signature__ = _shown_signature(function)  # type: ignore[attr-defined]
        hint = interrupted if callable(interrupted) else _hint_of(interrupted)
        made = Command(function, public, typed, answer, forms, full, hint, of_answer, plain)
        words = made.name if parent is None else f"{parent.info.name} {made.name}"
        COMMANDS[words] = made
        panel = next((title for title, names in GROUPS.items() if words in names), None)
        made.add_to(parent or app, panel)
        return public

    return derive


def _hint_of(text: str) -> Callable[[str | None], str]:
    """What is said after Ctrl-C: the text with the folder, or that there is none yet."""

    def hint(folder: str | None) -> str:
        return text.format(folder=folder) if folder is not None or "{folder}" not in text else "nothing was written"

    return hint


def parameters_of(function: Callable[..., Any]) -> dict[str, tuple[inspect.Parameter, Any, Any]]:
    """Each parameter that can be typed, with its type and what is said of it, an OptionInfo or ArgumentInfo.

    A text beside that, ``Annotated[Overrides, "What varies"]``, is the panel of the help in which it stands.
    """
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in PYTHON_ONLY:
            kind, *said = get_args(_evaluate(parameter.annotation, function))
            info = next(each for each in said if isinstance(each, OptionInfo | ArgumentInfo))
            if panel := next((each for each in said if isinstance(each, str)), None):
                info = copy(info)  # commands share it
                info.rich_help_panel = panel
            found[name] = parameter, kind, info
    return found


def docstring_of(function: Callable[..., Any]) -> str:
    """The function's docstring with ``Args`` from the annotations, before ``Returns`` or ``Raises``."""
    names = {*inspect.signature(function).parameters}
    names |= {"progress"} if "on_progress" in names else set()
    own = {name: text for name, text in PYTHON_ONLY.items() if name in names}
    typed = parameters_of(function).items()
    told = {name: f"{info.help or ''}{PYTHON_TOO.get(name, '')}" for name, (_, _, info) in typed} | own
    lines = [
        fill(f"{name}: {text}", 116, initial_indent=" " * 4, subsequent_indent=" " * 8) for name, text in told.items()
    ]
    written = inspect.cleandoc(function.__doc__ or "")
    places = [written.find(mark) for mark in ("\n\nReturns:", "\n\nRaises:")]
    at = min((place for place in places if place >= 0), default=len(written))
    return "\n".join([written[:at], "", "Args:", *lines]) + written[at:]


def _shown_signature(function: Callable[..., Any]) -> inspect.Signature:
    """The signature with types alone, as ``help`` shows it."""
    kinds = {name: kind for name, (_, kind, _) in parameters_of(function).items()}
    signature = inspect.signature(function)
    kinds["on_progress"] = OnProgress
    parameters = [
        each.replace(annotation=kinds.get(name, each.annotation)) for name, each in signature.parameters.items()
    ]
    if "on_progress" in signature.parameters:
        parameters.append(_keyword("progress", bool, False))
    return signature.replace(parameters=parameters)


def _evaluate(annotation: Any, function: Callable[..., Any]) -> Any:
    """An annotation, which is text in a module with ``from __future__ import annotations``; others may be unknown."""
    alone = type("_", (), {"__annotations__": {"it": annotation}, "__module__": function.__module__})
    return get_type_hints(alone, include_extras=True)["it"]


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _default(parameter: inspect.Parameter) -> Any:
    return None if parameter.default == () else parameter.default


def _type_to_read(kind: Any, parameter: inspect.Parameter) -> Any:
    """The type that is read from the command line: whole numbers, numbers, flags, and words."""
    choices = [each for each in get_args(kind) if each is not NoneType] if NoneType in get_args(kind) else [kind]
    bare = choices[0]
    if parameter.default == () or collections.abc.Sequence in {get_origin(each) for each in choices}:
        return list[str] if parameter.default is parameter.empty else list[str] | None
    read = bare if len(choices) == 1 and bare in (bool, int, float) else str  # a callback sees which words are meant
    return read | None if parameter.default is None else read


def _with_flags(name: str, kind: Any, info: Any) -> Any:
    """What is said of a parameter: a flag has no ``--no-``, and one of few words says which are meant."""
    info = copy(info)  # commands share it
    if kind is bool and not info.param_decls:
        info.param_decls = (f"--{name.replace('_', '-')}",)
    words = [word for each in (kind, *get_args(kind)) if get_origin(each) is Literal for word in get_args(each)]
    if words:
        flag = f"--{name.rstrip('_').replace('_', '-')}"
        info.callback = lambda value: _one_of(flag if isinstance(info, OptionInfo) else name, value, words)
    return info


def _one_of(what: str, value: Any, words: Sequence[str]) -> Any:
    for each in [value] if isinstance(value, str) else value or ():
        if each not in words:
            raise UnknownName(what, each, words)
    return value


def import_named(place: str) -> Any:
    """The function or the class that a command names as ``module:name``."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _collecting(on_progress: OnProgress) -> OnProgress:
    """``on_progress``, at whose first call Python begins to look for garbage: the body has imported what it needs."""

    def on_event(event: str, facts: Mapping[str, object]) -> None:
        garbage.resume_collection()
        on_progress(event, facts)

    return on_event


@contextmanager
def _bar(on_progress: Any) -> Iterator[OnProgress]:
    """An ``OnProgress`` that moves a bar and passes everything on."""
    from edgefl.console.display import make_bar

    with make_bar() as bar:

        def both(event: str, facts: Mapping[str, object]) -> None:
            bar(event, facts)
            on_progress(event, facts)

        yield both
