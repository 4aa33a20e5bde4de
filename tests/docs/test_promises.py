"""Pages that name tests: they are there, and every promise of edgefl's says what it doesn't cover."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "project" / "promises.md").read_text(encoding="utf-8")
PROMISES = re.findall(r"^\| (.+?) \| (.+?) \|$", PAGE.partition("\n## How ")[0], re.MULTILINE)
HELD: dict[str, list[str]] = yaml.safe_load((ROOT / "tests" / "promises.yaml").read_text(encoding="utf-8"))
CLOCK = (ROOT / "docs" / "concepts" / "how-the-clock-works.md").read_text(encoding="utf-8")
NAME = re.compile(r"([^`\s]+)::(\w+)`?( \(slow\))?")
TESTS = [test for tests in HELD.values() for test in tests]
NAMED = [match.groups(default="") for match in NAME.finditer("\n".join([*TESTS, CLOCK]))]


@cache
def functions_of(path: str) -> dict[str, str]:
    """The test functions of a file and their decorators."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {
        node.name: " ".join(ast.unparse(each).partition("(")[0] for each in node.decorator_list)
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }


def test_every_promise_says_what_it_leaves_out_and_has_tests() -> None:
    promises = [row for row in PROMISES if not row[0].startswith(("Promise", "---"))]
    assert [promise for promise, _ in promises] == list(HELD) and len(promises) > 50
    for promise, rest in promises:
        assert promise.endswith(".") and rest and HELD[promise], promise


@pytest.mark.parametrize(("path", "name", "slow"), NAMED, ids=[name for _, name, _ in NAMED])
def test_a_named_test_is_there_and_runs(path: str, name: str, slow: str) -> None:
    assert name in functions_of(path), f"{path} has no test {name}"
    decorators = functions_of(path)[name]
    assert "skip" not in decorators and "xfail" not in decorators
    assert bool(slow) == ("mark.slow" in decorators)
