"""The pages of docs/reference that follow from the code are what the code says now."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import edgefl
from edgefl.console.app import GROUPS
from edgefl.runs import Run
from tools.pages.errors import EXIT_CODES, error_classes
from tools.pages.folder import with_links
from tools.pages.markdown import anchor

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"


def _program() -> ModuleType:
    """tools/pages.py, whose name its package has too."""
    spec = importlib.util.spec_from_file_location("program", ROOT / "tools" / "pages.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["program"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


program = _program()
QUICK = [page.file for page in program.PAGES if not page.slow and page.file.startswith("docs/")]
"""All but the JSON Schema, which has the toys of the tests in this process (tests/console/test_everyday.py)."""


@pytest.mark.parametrize("file", QUICK)
def test_what_is_made_from_the_code_is_up_to_date(file: str) -> None:
    assert not program.outdated([file]), f"run `python tools/pages.py {file}`"


def test_a_page_of_a_section_or_command_that_is_gone_is_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert program.left_over() == []
    lacking = tuple(page for page in program.PAGES if page.file != "docs/reference/json/fit.md")
    monkeypatch.setattr(program, "PAGES", lacking)
    assert program.left_over() == ["docs/reference/json/fit.md"]


def test_links_of_a_folders_pages_lead_to_the_page_that_has_the_heading() -> None:
    texts = {
        "a": "# A\n\n## Own\n\n[1](#own) [2](#other) [3](#b) [4](../x/y.md#z) [5](records.md) [6](https://a.b/c.md)",
        "b": "# Pages\n\n## Other\n",
    }
    assert with_links(texts)["a"].endswith(
        "[1](#own) [2](b.md#other) [3](b.md) [4](../../x/y.md#z) [5](../records.md) [6](https://a.b/c.md)"
    )
    for wrong, why in (
        ({"c": "[1](#twice)", "d": "# Twice", "e": "# Twice"}, r"\['d', 'e'\]"),
        ({"c": "[1](#no)"}, "no page"),
    ):
        with pytest.raises(ValueError, match=f"c: the link to #.* leads to {why}"):
            with_links({**texts, **wrong})


def test_blocks_stand_between_their_markers_and_nothing_else_changes() -> None:
    text = "a\n\n<!-- made: x -->\n\nold\n\n<!-- /made -->\n\nb\n<!-- made: y -->\n\n\n\n<!-- /made -->\nc"
    filled = program.filled(text, {"x": "new\n", "y": "1\n2"}, "page.md")
    assert filled == text.replace("old", "new").replace("y -->\n\n", "y -->\n\n1\n2")
    for blocks in ({"x": ""}, {"x": "", "y": "", "z": ""}):
        with pytest.raises(ValueError, match=r"page.md: its markers.*differ: \['[yz]'\]"):
            program.filled(text, blocks, "page.md")


def test_every_link_within_the_pages_leads_somewhere() -> None:
    @cache
    def anchors(path: Path) -> set[str]:
        titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        return {anchor(title) for title in titles}

    for page in [*FOLDER.parent.rglob("*.md"), *ROOT.glob("*.md")]:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if target.startswith("http"):
                continue
            file, _, heading = target.partition("#")
            path = (page.parent / file).resolve() if file else page
            assert path.exists(), f"{page.name}: {target}"
            if heading and path.suffix == ".md":
                assert heading in anchors(path), f"{page.name}: {target}"


def test_every_error_that_the_code_defines_is_on_the_page() -> None:
    classes = re.compile(r"^class (\w+)\((?:.*Error|UnknownName)\):", re.MULTILINE)
    defined = {
        name for path in (ROOT / "edgefl").rglob("*.py") for name in classes.findall(path.read_text(encoding="utf-8"))
    }
    assert {"EdgeflError", *defined} == {error.__name__ for error in error_classes()}


def test_every_command_has_its_exit_codes() -> None:
    assert list(EXIT_CODES) == [word for words in GROUPS.values() for word in words]


def test_every_public_function_says_what_it_takes_returns_and_raises() -> None:
    for name in edgefl.__all__:
        function = getattr(edgefl, name)
        if function is Run:
            continue
        text = function.__doc__
        told = set(re.findall(r"^ +\**(\w+): ", text.partition("Args:")[2].partition("Returns:")[0], re.MULTILINE))
        taken = set(inspect.signature(function).parameters)
        assert told == taken, name
        assert "Returns:" in text and "Raises:" in text, name
    for name, member in vars(Run).items():
        if not name.startswith("_"):
            found = getattr(member, "fget", None) or getattr(member, "func", None) or member
            assert found.__doc__, name


def test_the_page_of_commands_names_every_environment_variable_that_is_read() -> None:
    read = {
        name
        for path in (ROOT / "edgefl").rglob("*.py")
        for name in re.findall(r"environ(?:\.get\(|\[)\"(EDGEFL_\w+)\"", path.read_text(encoding="utf-8"))
    }
    page = (FOLDER / "commands.md").read_text(encoding="utf-8")
    assert read and all(f"`{name}`" in page for name in read)
