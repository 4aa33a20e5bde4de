"""tests/ mirrors edgefl/: a stranger who changes a file finds its tests under the same path."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "edgefl"
OTHERWISE = {
    "broken": "a plug-in",
    "broken_profiles": "a plug-in",
    "docs": "of what docs/ shows",
    "faults": "of whole commands on machines that fail",
    "fuzz": "of hostile inputs",
    "gpu": "of what needs a CUDA device",
    "papers": "of published numbers",
    "plugin": "a plug-in",
    "properties": "of what every run keeps",
    "recorded": "of answers of earlier versions",
    "tools": "of tools/",
    "toys": "what tests share",
}
"""Folders with another order, and of what their tests are.  Tests of the whole and of edgefl's top lie at the top."""
FILES = sorted(
    path for path in (ROOT / "tests").glob("*/**/test_*.py") if path.relative_to(ROOT).parts[1] not in OTHERWISE
)
PASSED = {"edgefl.commands.run.command": ("edgefl.simulation.simulation", "edgefl.training.node")}
"""What a test uses that plays a run."""


@cache
def modules_of_parts() -> dict[str, str]:
    """The module of each registered part, by the name that a scenario gives it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {
        name: value.partition(":")[0] for points in project["entry-points"].values() for name, value in points.items()
    }


@cache
def imported() -> dict[str, frozenset[str]]:
    """The modules of edgefl of which each test file imports or says a name, as tools/test.py finds them."""
    spec = importlib.util.spec_from_file_location("edgefl_tools_test", ROOT / "tools" / "test.py")
    assert spec and spec.loader
    tool = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    found: dict[str, frozenset[str]] = tool.uses_of_checkout().of_tests
    return found


def used(path: Path) -> Iterator[str]:
    """Modules that a test file imports, says, plays in a run, names as parts of a scenario or types as commands."""
    for module in imported()[path.relative_to(ROOT).as_posix()]:
        yield from (module, *PASSED.get(module, ()))
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield f"edgefl.commands.{node.value}"
            yield from re.findall(r"edgefl(?:\.\w+)+", node.value)
            yield from (modules_of_parts()[w] for w in re.findall(r"[\w-]+", node.value) if w in modules_of_parts())


def test_every_folder_of_tests_is_one_of_edgefl() -> None:
    folders = {path.parent.relative_to(ROOT / "tests") for path in FILES}
    assert [str(folder) for folder in sorted(folders) if not (PACKAGE / folder).is_dir()] == []


def test_every_test_is_of_its_folder() -> None:
    astray = []
    for path in FILES:
        folder, name = path.parent.relative_to(ROOT / "tests"), path.stem.removeprefix("test_")
        place = PACKAGE / folder / name
        room = ".".join(("edgefl", *folder.parts, ""))
        is_named = place.is_dir() or place.with_suffix(".py").exists()
        if not (is_named or any(f"{module}.".startswith(room) for module in used(path))):
            astray.append(path.relative_to(ROOT).as_posix())
    assert astray == [], "these have neither the name of a file of their folder of edgefl/ nor use one"


def test_what_is_otherwise_is_there() -> None:
    assert [name for name in OTHERWISE if not (ROOT / "tests" / name).is_dir()] == []
