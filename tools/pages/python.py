"""The page ``python.md``: the public names, from their docstrings."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator

import edgefl
from edgefl.console.derived import all_commands
from tools.pages.classes import members
from tools.pages.markdown import anchor, first_paragraph, oneline, page, prose, table

PROGRESS = [
    ("`prepare`", "`what`", "Something that takes a while is being prepared; `what` says it for people"),
    (
        "`combination`",
        "`label`, `index`, `of`, `folder`",
        "The next combination begins, from 0; `folder` for a run only",
    ),
    ("`start`", "`rounds`, `round`, `clients`", "The rounds begin: how many, how many are done, clients by kind"),
    ("`round`", "`round`, `stage`, `selected`, `now`", "A cohort is sent off; `now` is the virtual time in seconds"),
    (
        "`trained`",
        "`round`, `done`, `of`",
        "More of the clients under way have trained on this machine: `done` of `of` sent so far",
    ),
    ("`client`", "`round`, `client`, `loss`", "A client's training has ended; `loss` is its mean"),
    ("`record`", "the round's record", "A round has ended: its line of [`rounds.jsonl`](records.md#roundsjsonl)"),
    ("`done`", "`folder`", "The command has ended; `folder` is where it wrote, or `None`"),
]
"""Events of ``on_progress``: name, facts and meaning."""


SECTION = re.compile(r"\n\n(Args|Returns|Raises|Examples):\n")
ENTRY = re.compile(r"^ {4}(\S+): ((?:.*\n?)(?:^ {5,}.*\n?)*)", re.MULTILINE)


def python_page() -> str:
    """The page of the public names: a table of all, then each with its parameters and its example."""
    commands = [name for name in all_commands() if name in edgefl.__all__]
    names = [*commands, *(name for name in edgefl.__all__ if name not in commands)]
    rows = [(f"[`edgefl.{name}`](#{anchor(_title(name))})", _summary(name)) for name in names]
    return page(
        "Python",
        [
            "Each command is a function of the package. It prints nothing and returns a record or a `Run`. It raises "
            "[edgefl's errors](errors.md). [JSON output](json/index.md) describes the fields of the records, and "
            "[records](records.md) the folder behind a `Run`.",
            "The examples run in one folder, the one of [`edgefl.run`](#edgeflrun) first.",
            table(("Name", "What it does"), rows),
            *(part for name in names for part in _name(name)),
            "## Progress",
            "A command calls `on_progress(event, facts)` while it works; `facts` is a dictionary. `progress=True` "
            "shows a bar, by tqdm or rich, whichever is installed.",
            table(("Event", "Facts", "When"), PROGRESS),
            "`edgefl.run(..., on_round=...)` calls a function with each round's record. The run ends early when the "
            'function returns `"stop"` ([an example](../guides/understand-a-run.md#end-a-run-from-python)).',
        ],
    )


def _title(name: str) -> str:
    """The heading of a name; sites write their anchors in small letters, so that ``run`` and ``Run`` must differ."""
    return f"The class edgefl.{name}" if isinstance(getattr(edgefl, name), type) else f"edgefl.{name}"


def _summary(name: str) -> str:
    return first_paragraph(getattr(edgefl, name).__doc__).removesuffix(".")


def _name(name: str) -> Iterator[str]:
    """The section of a public name."""
    of = getattr(edgefl, name)
    head, *rest = SECTION.split(inspect.getdoc(of) or "")
    parts = dict(zip(rest[::2], rest[1::2], strict=True))
    yield f"## {_title(name)}"
    yield prose(head, ())
    if isinstance(of, type):
        rows = [(f"`{each.name}{each.arguments}`", oneline(each.text).removesuffix(".")) for each in members(of)]
        yield table(("Member", "Meaning"), rows)
    else:
        yield f"```python\n{_call(name, of)}\n```"
        texts = dict(ENTRY.findall(parts["Args"]))
        rows = [
            (f"`{each.name}`", _default(each), oneline(texts[each.name]).removesuffix("."))
            for each in inspect.signature(of).parameters.values()
        ]
        yield table(("Parameter", "Default", "Meaning"), rows)
        yield f"**Returns:** {oneline(textwrap.dedent(parts['Returns']))}"
        yield table(
            ("Raises", "When"), ((f"`{error}`", oneline(text)) for error, text in ENTRY.findall(parts["Raises"]))
        )
    yield from _example(textwrap.dedent(parts["Examples"]))


def _call(name: str, of: Callable[..., object]) -> str:
    """How the function is called: its parameters without types."""
    words, by_name = [], False
    for each in inspect.signature(of).parameters.values():
        if each.kind is each.KEYWORD_ONLY and not by_name:
            words.append("*")
            by_name = True
        words.append(each.name)
    return "\n".join(textwrap.wrap(f"edgefl.{name}({', '.join(words)})", 100, subsequent_indent=" " * (len(name) + 8)))


def _default(each: inspect.Parameter) -> str:
    if each.default is each.empty:
        return "required"
    return "–" if callable(each.default) else f"`{each.default!r}`"


def _example(text: str) -> Iterator[str]:
    """The example: its words as text, its lines of Python as blocks."""
    for paragraph in text.replace("'''", '"""').split("\n\n"):  # as a formatter of the page writes them
        yield f"```pycon\n{paragraph.rstrip()}\n```" if ">>>" in paragraph else prose(paragraph, ())
