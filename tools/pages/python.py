"""The page ``python.md``: the public functions."""

from __future__ import annotations

import edgefl
from edgefl.console.derived import all_commands
from tools.pages.markdown import first_paragraph, page, table

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


def python_page() -> str:
    """The page of the public functions: a table for readers of the file, and directives for the site."""
    commands = [name for name in all_commands() if name in edgefl.__all__]
    names = [*commands, *(name for name in edgefl.__all__ if name not in commands)]
    rows = [(f"`edgefl.{name}`", first_paragraph(getattr(edgefl, name).__doc__)) for name in names]
    return page(
        "Python",
        [
            "The functions behind the commands. They print nothing and return a record or a `Run`, and raise "
            "[edgefl's errors](errors.md). [JSON output](json/index.md) describes the fields of the records, and "
            "[records](records.md) the folder behind a `Run`.",
            table(("Name", "What it does"), rows),
            "## Progress",
            "`on_progress(event, facts)` is called while a command runs; `facts` is a dictionary. `progress=True` "
            "shows a bar instead or besides, by tqdm or rich, whichever is installed.",
            table(("Event", "Facts", "When"), PROGRESS),
            "`edgefl.run(..., on_round=...)` calls a function with each round's record, which may end the run by "
            'returning `"stop"` ([an example](../guides/understand-a-run.md#end-a-run-from-python)).',
            "## Functions",
            "The site shows signatures and full descriptions here; in Python, `help(edgefl.run)` does.",
            *(f"::: edgefl.{name}" for name in names),
        ],
    )
