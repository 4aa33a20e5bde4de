"""A command follows from its function: options, help, docstring, forms, exit codes."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import pytest
from typed_commands import imported

import edgefl
from edgefl.console import derived, load_commands, main
from edgefl.console.app import GROUPS, app
from edgefl.console.derived import COMMANDS, argument, command, import_named, option, parameters_of
from edgefl.errors import RunError
from edgefl.records.answer import Answer
from edgefl.records.record import Record
from edgefl.runs.progress import OnProgress, silent

if TYPE_CHECKING:
    from somewhere import Unknown  # type: ignore[import-not-found]

Call = Callable[..., tuple[Any, str, str]]


class Shouted(Answer):
    """What the command of these tests answers."""

    words: Sequence[str]
    """Its arguments, as text"""

    @property
    def exit_code(self) -> int:
        """3 for one word."""
        return 3 if len(self.words) == 1 else 0

    @property
    def notices(self) -> list[str]:
        """A line for each word."""
        return [f"said {word}" for word in self.words]


def print_shouted(answer: Shouted, full: bool = False) -> str:
    return f"{'FULL ' if full else ''}{' '.join(answer.words)}\n"


def shouted_lines(answer: Shouted) -> str:
    return "".join(f"{word}\n" for word in answer.words)


@pytest.fixture
def shout(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Shouted]]:
    """A command of its own beside the others."""
    before, commands = dict(COMMANDS), list(app.registered_commands)
    here = __name__

    @command(
        "edgefl shout a b",
        answer=f"{here}:Shouted",
        forms={"table": f"{here}:print_shouted", "lines": f"{here}:shouted_lines"},
        full="All of it.",
        interrupted="shout again",
    )
    def shout(
        first: Annotated[str, argument("The first word.", "FIRST")],
        size: Annotated[int | None, option("How large.", "N", min=1)] = None,
        how: Annotated[Literal["loud", "low"], option("How loud it is.", "HOW")] = "low",
        others: Annotated[Sequence[str], option("Another word.", "WORD", "--other")] = (),
        is_last: Annotated[bool, option("Whether it is the last.")] = False,
        *,
        on_progress: OnProgress = silent,
    ) -> Unknown:
        """Shout words.

        They are heard.

        Raises:
            RunError: The first is a stop.
        """
        on_progress("prepare", {"what": f"shouting {first}"})
        if first == "stop":
            error = RunError("it stopped")
            error.answer = Shouted(words=["what", "was", "found"])  # type: ignore[attr-defined]
            raise error
        if first == "interrupt":
            raise KeyboardInterrupt
        told = [] if size is None and how == "low" else [str(size), how]
        return Shouted(words=[first, *told, *others, *(["last"] if is_last else [])])

    monkeypatch.setitem(GROUPS, "Tests", ("shout",))
    monkeypatch.setitem(sys.modules, "edgefl.commands.shout.command", sys.modules[here])
    yield shout
    COMMANDS.clear()
    COMMANDS.update(before)
    app.registered_commands[:] = commands


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def answer(*words: str) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        return (ended.value.code or 0, *capsys.readouterr())

    return answer


def test_what_is_typed_reaches_the_function(shout: Callable[..., Shouted], call: Call) -> None:
    assert call("shout", "a", "--size", "2", "--how", "loud", "--other", "b", "--other", "c", "--is-last")[:2] == (
        0,
        "a 2 loud b c last\n",
    )
    assert call("shout", "a", "--other", "b", "--full")[1] == "FULL a b\n"
    assert call("shout", "a", "--other", "b", "--as", "lines")[1] == "a\nb\n"
    code, out, err = call("shout", "a", "--other", "b", "--as", "json")
    assert (code, out) == (0, '{\n  "words": [\n    "a",\n    "b"\n  ]\n}\n') and "said" not in err


def test_an_answer_has_an_exit_code_and_lines_for_stderr(shout: Callable[..., Shouted], call: Call) -> None:
    code, out, err = call("shout", "alone")
    assert (code, out) == (3, "alone\n") and err.endswith("edgefl: said alone\n") and "shouting alone" in err
    assert call("shout", "alone", "--as", "json")[0] == 3


def test_what_was_found_is_shown_before_an_error(shout: Callable[..., Shouted], call: Call) -> None:
    code, out, err = call("shout", "stop")
    assert (code, out) == (RunError.exit_code, "what was found\n") and err.endswith("edgefl: error: it stopped\n")
    assert call("shout", "interrupt")[2].endswith("edgefl: interrupted; shout again\n")


def test_unknown_words_name_the_nearest(shout: Callable[..., Shouted], call: Call) -> None:
    for words, says in {
        ("--as", "lins"): "unknown --as 'lins'; did you mean 'lines'?",
        ("--how", "lod"): "unknown --how 'lod'; did you mean 'loud'?",
    }.items():
        assert call("shout", "a", *words) == (2, "", f"edgefl: error: {says}\n")
    code, out, err = call("shuot")
    assert (code, out) == (2, "") and "No such command 'shuot'. Did you mean 'shout'" in err
    assert call("shout", "a", "--size", "0")[0] == 2


def test_help_in_python_has_what_is_typed_with_types(shout: Callable[..., Shouted]) -> None:
    assert inspect.getdoc(shout) == (
        "Shout words.\n\nThey are heard.\n\nArgs:\n    first: The first word.\n    size: How large.\n"
        "    how: How loud it is.\n    others: Another word.\n    is_last: Whether it is the last.\n"
        "    on_progress: Called with the name of an event and its facts.\n"
        "    progress: Whether to show a bar, by tqdm or rich, whichever is installed.\n\n"
        "Raises:\n    RunError: The first is a stop."
    )
    signature = inspect.signature(shout)
    assert list(signature.parameters)[-1] == "progress"
    assert signature.parameters["size"].annotation == int | None
    assert str(signature).startswith("(first: str, size: int | None = None, how: Literal['loud', 'low'] = 'low', ")
    assert shout("a", others=["b"]).words == ["a", "b"]


# --- all commands ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    load_commands()


def test_sixteen_words_in_five_groups() -> None:
    words = [word for group in GROUPS.values() for word in group]
    assert len(words) == 16 and len(GROUPS) == 5
    assert {name.split()[0] for name in COMMANDS} == set(words)
    assert set(edgefl.__all__) == {*words} - {"devices"} | {"Run", "calibrate", "read_run", "register"}
    for name in edgefl.__all__:
        assert getattr(edgefl, name).__doc__


def test_an_option_is_said_once() -> None:
    said: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    for each in COMMANDS.values():
        for name, (parameter, _, info) in parameters_of(each.function).items():
            marks = get_args(derived._evaluate(parameter.annotation, each.function))
            said[name, info.help].add(id(next(mark for mark in marks if hasattr(mark, "param_decls"))))
    assert {key for key, places in said.items() if len(places) > 1} == set()


def test_every_command_names_its_answer_and_forms() -> None:
    for name, each in COMMANDS.items():
        answer = import_named(each.answer)
        assert issubclass(answer, Record) != (name == "doctor"), name  # whose package may be what is broken
        assert each.forms and "json" not in each.forms
        assert all(callable(import_named(form)) for form in each.forms.values()), name
        assert all(typed.startswith(f"edgefl {name}") for typed in each.typed), name
        assert 0 < len(each.summary) <= 64, (name, each.summary)


def test_a_line_each_at_80_columns() -> None:
    variables = {name: value for name, value in os.environ.items() if name != "TERMINAL_WIDTH"} | {"COLUMNS": "80"}
    command = [sys.executable, "-m", "edgefl", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=True)
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for group, words in GROUPS.items():
        at = next(number for number, line in enumerate(lines) if group in line)
        rows = [line.strip("│ ") for line in lines[at + 1 : at + 1 + len(words)]]
        assert [row.split()[0] for row in rows] == list(words)
        assert all(row.endswith(".") for row in rows)


HEAVY = {"torch", "numpy", "pandas", "msgspec", "matplotlib", "scipy", "transformers", "ray", "simpy", "rich.live"}


def test_help_imports_nothing_slow(tmp_path: Path) -> None:
    commands = dict.fromkeys((f"{word} --help" for group in GROUPS.values() for word in group), HEAVY)
    commands["--help"] = HEAVY | {"pydantic"}
    assert imported(commands, tmp_path, ["typer.rich_utils"]) == dict.fromkeys(commands, (0, []))
