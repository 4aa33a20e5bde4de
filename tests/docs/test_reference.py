"""The pages of docs/reference that follow from the code are what the code says now."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import edgefl
from edgefl.cli import app
from edgefl.runs import Run

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return tool("reference")


@pytest.fixture(scope="module")
def made(reference: ModuleType) -> dict[str, str]:
    pages: dict[str, str] = reference.pages()
    return pages


@pytest.mark.parametrize("name", ["scenario.md", "command-line.md", "errors.md", "python.md"])
def test_a_generated_page_is_up_to_date(made: dict[str, str], name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == made[name], (
        f"docs/reference/{name} is out of date: run `python tools/reference.py`"
    )


def test_every_generated_page_is_tested(made: dict[str, str]) -> None:
    assert set(made) == {"scenario.md", "command-line.md", "errors.md", "python.md"}


def test_every_link_within_the_pages_leads_somewhere() -> None:
    def anchors(path: Path) -> set[str]:
        titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}

    for page in FOLDER.glob("*.md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if target.startswith("http"):
                continue
            file, _, anchor = target.partition("#")
            path = (page.parent / file).resolve() if file else page
            assert path.is_file(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(path), f"{page.name}: {target}"


def test_every_error_that_the_code_defines_is_on_the_page(reference: ModuleType) -> None:
    defined = {
        node.name
        for path in (ROOT / "edgefl").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Error") for base in node.bases)
    }
    assert {"EdgeflError", *defined} == {error.__name__ for error in reference.error_classes()}


def test_every_command_has_its_exit_codes(reference: ModuleType) -> None:
    import typer

    commands: dict[str, object] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert list(reference.EXIT_CODES) == list(commands)


def test_every_public_function_says_what_it_takes_returns_and_raises() -> None:
    for name in edgefl.__all__:
        function = getattr(edgefl, name)
        if function is Run:
            continue
        text = function.__doc__
        told = set(re.findall(r"^ +\**(\w+): ", text.partition("Args:")[2].partition("Returns:")[0], re.MULTILINE))
        taken = set(function.__annotations__) - {"return"}
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
    page = (FOLDER / "command-line.md").read_text(encoding="utf-8")
    assert read and all(f"`{name}`" in page for name in read)


def test_the_site_has_no_links_out_of_its_folder() -> None:
    docs = ROOT / "docs"
    text = (
        "[a](../README.md) [b](data.md#partitions) [c](../nowhere.md) [d](https://a.b/c) [e\nf](../scenarios/tour.yaml)"
    )
    found = tool("site_links").without_outer_links(text, docs, docs / "page.md")
    assert found == "a [b](data.md#partitions) [c](../nowhere.md) [d](https://a.b/c) e\nf"
