"""Pages that name tests: they are there, and every promise of edgefl's says what it doesn't cover."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "project" / "promises.md").read_text(encoding="utf-8")
PROMISES = re.findall(r"^- \*\*([^*]+)\*\*\n((?:    .*\n)+)", PAGE, re.MULTILINE)
CLOCK = (ROOT / "docs" / "concepts" / "how-the-clock-works.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`([^`\s]+)::(\w+)`( \(slow\))?", PAGE + CLOCK)


@cache
def functions_of(path: str) -> dict[str, str]:
    """The test functions of a file and their decorators."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {
        node.name: " ".join(ast.unparse(each).partition("(")[0] for each in node.decorator_list)
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }


def test_every_promise_says_what_it_leaves_out_and_who_holds_it() -> None:
    assert len(PROMISES) == len(re.findall(r"\*\*", PAGE)) // 2 > 20
    for promise, rest in PROMISES:
        assert promise.endswith("."), promise
        form = r"    - Not covered: .+\.\n    - Held by: (`[^`]+`( \(slow\))?,?\s+)+"
        assert re.fullmatch(form, rest, re.DOTALL), promise
    assert sum(len(re.findall("::", rest)) for _, rest in PROMISES) == len(NAMED) - len(re.findall("::", CLOCK))


@pytest.mark.parametrize(("path", "name", "slow"), NAMED, ids=[name for _, name, _ in NAMED])
def test_a_named_test_is_there_and_runs(path: str, name: str, slow: str) -> None:
    assert name in functions_of(path), f"{path} has no test {name}"
    decorators = functions_of(path)[name]
    assert "skip" not in decorators and "xfail" not in decorators
    assert bool(slow) == ("mark.slow" in decorators)
