"""The page ``commands.md``: every command with its arguments and options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from edgefl.console import load_commands
from edgefl.console.app import GROUPS
from tools.pages.markdown import code, listed, page, sentence, table


def commands_page() -> str:
    """The page of every command with its arguments and options, by group."""
    root: Any = typer.main.get_command(load_commands())
    parts = [
        "This page lists every command with its arguments and options. Results go to stdout, progress and messages to "
        "stderr. `--as` chooses the form of the answer, and `--as json` prints plain data "
        "([JSON output](json/index.md)). `--to` chooses the kind of file that is written, and `--out` its place. "
        "[Exit codes](errors.md#exit-codes) stand with the errors. `python -m edgefl` is the same program.",
        "`edgefl --version` prints the versions of edgefl, torch and the formats. "
        "`edgefl --traceback COMMAND` prints the traceback of an error, "
        "too. `edgefl --help` and `edgefl COMMAND --help` (`-h`) print these texts. `edgefl --install-completion` "
        "installs completion for the shell, `edgefl --show-completion` prints its script.",
    ]
    for group, words in GROUPS.items():
        commands = {word: root.commands[word] for word in words}
        rows = [(f"[`edgefl {word}`](#edgefl-{word})", sentence(each.help)) for word, each in commands.items()]
        parts += [f"## {group}", table(("Command", "What it does"), rows)]
        for word, each in commands.items():
            parts += _command(f"edgefl {word}", each)
    parts += ["## Environment variables", table(("Variable", "Meaning"), ENVIRONMENT)]
    return page("Commands", parts)


ENVIRONMENT = [
    ("`EDGEFL_CACHE`", "Folder for data sets as read, predicted costs and pre-trained towers; by default `edgefl` in "
     "`$XDG_CACHE_HOME` or `~/.cache`"),
    ("`COLUMNS`", "Width of tables in a pipe or a file; 100 if unset"),
    ("`EDGEFL_DATA`", "Folder in which data sets are looked for by name, before `data/` in the working directory"),
]  # fmt: skip


def _command(words: str, command: Any) -> Iterator[str]:
    yield f"##{'#' * words.count(' ')} {words}"
    yield sentence(command.help) + "."
    if subcommands := getattr(command, "commands", None):
        yield (
            f"`{words}` without a word is `{words} list`, and `{words} NAME` is `{words} show NAME`."
            if {"list", "show"} <= set(subcommands)
            else f"Subcommands: {listed(list(subcommands))}."
        )
        for name, subcommand in subcommands.items():
            yield from _command(f"{words} {name}", subcommand)
        return
    arguments = [p for p in command.params if not p.opts[0].startswith("-")]
    usage = [words, *(p.metavar if p.required else f"[{p.metavar}]" for p in arguments)]
    usage += [f"{p.opts[0]} {p.metavar}" for p in command.params if p.required and p not in arguments]
    yield f"```text\n{' '.join([*usage, '[OPTIONS]'])}\n```"
    yield table(("Argument or option", "Default", "Meaning"), map(_parameter, command.params))
    if command.epilog:
        yield "\n".join(["```sh", *command.epilog.split("\n\n")[1:], "```"])


def _parameter(parameter: Any) -> tuple[str, str, str]:
    if parameter.opts[0].startswith("-"):
        value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
        words = ", ".join(f"`{name}{value}`" for name in parameter.opts)
    else:
        words = f"`{parameter.metavar}`"
    if parameter.required:
        default = "required"
    elif parameter.default is None or parameter.default is False:
        default = "off" if parameter.default is False else "–"
    else:
        default = code(parameter.default)
    bounds = [f"at least {parameter.min}"] if parameter.min is not None else []
    return words, default, "; ".join([sentence(parameter.help), *bounds])
