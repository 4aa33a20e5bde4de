"""The list of what the papers did is whole, and every command of it can be typed."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import ValidationError

from edgefl.commands.analyse.analysed_run import ANALYSES
from edgefl.console import load_commands
from edgefl.errors import RunError
from edgefl.scenario import load, scenario_names
from tools.pages.items import items_page
from tools.paper_tables import items
from tools.paper_tables.items import Item, paper_items
from tools.paper_tables.making import PAGES
from tools.paper_tables.published_tables import paper_names, published_tables, rows_of, table_of
from tools.paper_tables.training_tables import scenarios_of
from tools.papers import main

COMMANDS = {command: None for paper in paper_items() for item in paper.items.values() for command in item.run}


def test_there_are_93_items_of_five_papers() -> None:
    numbers = [number for paper in paper_items() for number in paper.items]
    assert numbers == list(range(1, 94))
    assert sorted(paper.paper for paper in paper_items()) == paper_names()


def test_the_page_counts_what_it_lists() -> None:
    page = items_page()
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in page.splitlines() if re.match(r"\| \d+ \|", line)]
    states = [re.match(r"[ *]*([a-z ]*[a-z])", row[2])[1] for row in cells]  # type: ignore[index]
    found = re.search(r"^\| together \| (\d+) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert found and [int(count) for count in found.groups()] == [
        states.count(state) for state in ("as printed", "partly", "not")
    ]
    assert len(cells) == 93


def test_the_page_has_every_table_that_can_be_trained() -> None:
    page = items_page()
    assert all(f"\n| `{name}` |" in page for name in published_tables())


def test_every_table_that_can_be_trained_is_an_items() -> None:
    named = {words[3] for words in map(shlex.split, COMMANDS) if words[1:3] == ["tools/papers.py", "train"]}
    assert named == {*published_tables()}


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("edgefl ")])
def test_a_command_of_edgefl_is_taken_with_its_scenario_or_run(command: str) -> None:
    root: Any = typer.main.get_command(load_commands())
    _, name, *words = shlex.split(command)
    parsed = root.commands[name].make_context(name, words)
    first = next(each.name for each in parsed.command.params if each.param_type_name == "argument")
    targets = parsed.params[first]
    for target in [targets] if isinstance(targets, str) else targets:
        if run := re.fullmatch(r"runs/tables/([\w-]+)/([\w.-]+)", target):
            assert run[2] in rows_of(table_of(run[1])[1], ())
            assert any(words[3] == run[1] for words in map(shlex.split, COMMANDS) if "train" in words)
        else:
            assert target in scenario_names() and load(target, parsed.params["overrides"] or []).name
    assert {*(parsed.params.get("only") or ())} <= {*ANALYSES}


def test_commands_of_tools_name_tables_with_options_that_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    options = capsys.readouterr().out
    for command in COMMANDS:
        _, tool, *words = shlex.split(command)
        if tool == "tools/papers.py" and words[0] == "train":
            assert named_rows(words[1:]), command
            assert all(f"{word} " in options or f"{word}\n" in options for word in words if word[0] == "-"), command
        elif tool == "tools/papers.py":
            assert len(words) == 1 and words[0] in PAGES, command


def named_rows(words: list[str]) -> tuple[list[str], list[str]]:
    """The rows that a command trains, and what it changes of them.  Raises EdgeflError for a row that can't be run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("table")
    parser.add_argument("--rows", nargs="+", default=[])
    parser.add_argument("--set", action="append", default=[])
    given, _ = parser.parse_known_args(words)
    return rows_of(table_of(given.table)[1], given.rows), given.set


def as_printed() -> list[str]:
    """The commands that train tables for items that are run as printed."""
    items = (item for paper in paper_items() for item in paper.items.values() if item.state == "as printed")
    return sorted({command for item in items for command in item.run if " train " in command})


@pytest.mark.parametrize("command", as_printed())
def test_a_table_of_an_item_as_printed_has_scenarios(command: str) -> None:
    """Those of the first and the last row, because a table's rows differ in few fields; another test has all."""
    words = shlex.split(command)[3:]
    rows, changes = named_rows(words)
    assert len(scenarios_of(table_of(words[0])[1], sorted({rows[0], rows[-1]}), changes)) in (1, 2)


def test_what_differs_has_a_reason_and_what_does_not_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="it: why is for what isn't as printed"):
        Item(what="it", state="partly", run=["edgefl run quickstart"])
    with pytest.raises(ValidationError, match="why is for"):
        Item(what="it", why="no", run=["edgefl run quickstart"])
    text = items.FILE.read_text(encoding="utf-8")
    for wrong, said in (
        (text.replace("    92:\n", "    91:\n"), "91"),
        (text.replace("    32:\n", "    33:\n"), "a number stands twice: 33"),
        (text.replace("state: not\n", "state: perhaps\n"), "state"),
    ):
        (tmp_path / "items.yaml").write_text(wrong, encoding="utf-8")
        monkeypatch.setattr(items, "FILE", tmp_path / "items.yaml")
        with pytest.raises(RunError, match=said):
            paper_items.__wrapped__()
