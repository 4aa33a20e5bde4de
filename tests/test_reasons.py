"""Numbers and keys say why: a number of a module where it is from, and ``id()`` as a key who holds the object."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "edgefl"


def is_number(value: ast.expr | None) -> bool:
    """Whether an expression is made of numbers alone: ``16``, ``-1.0``, ``2**20``, ``(1, 4)``."""
    if isinstance(value, ast.UnaryOp):
        return is_number(value.operand)
    if isinstance(value, ast.BinOp):
        return is_number(value.left) and is_number(value.right)
    if isinstance(value, ast.Tuple):
        return bool(value.elts) and all(map(is_number, value.elts))
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def is_text(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def numbers_without_reason(tree: ast.Module, lines: list[str]) -> Iterator[int]:
    """Lines of a module's numbers that have neither a comment nor a docstring; one may stand for a block of them."""
    for at, statement in enumerate(tree.body):
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or not is_number(statement.value):
            continue
        below = at + 1
        while below < len(tree.body) and tree.body[below].lineno == (tree.body[below - 1].end_lineno or 0) + 1:
            if is_text(tree.body[below]):
                break
            below += 1
        has_text = below < len(tree.body) and is_text(tree.body[below])
        above = statement.lineno - 2
        while above > 0 and "=" in lines[above] and not lines[above].startswith("#"):
            above -= 1
        if not (has_text or "#" in lines[statement.lineno - 1] or lines[above].startswith("#")):
            yield statement.lineno


def identities_without_reason(tree: ast.Module, lines: list[str]) -> Iterator[int]:
    """Lines that call ``id`` in a top-level class or function of which no comment or docstring speaks of ids."""
    for part in tree.body:
        calls = [node for node in ast.walk(part) if isinstance(node, ast.Call) and ast.unparse(node.func) == "id"]
        text = "\n".join(lines[part.lineno - 1 : part.end_lineno])
        said = re.findall(r'#.*|"""(?:.|\n)*?"""', text)
        if calls and not any(re.search(r"\b(ids?|identity|identities|held|holds?)\b", each) for each in said):
            yield from (call.lineno for call in calls)


def test_numbers_and_identities_have_their_reason() -> None:
    files = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    trees = {file: (ast.parse(text), text.splitlines()) for file, text in files.items()}
    numbers = sum(is_number(getattr(each, "value", None)) for tree, _ in trees.values() for each in tree.body)
    assert numbers > 250
    for missing in (numbers_without_reason, identities_without_reason):
        assert [f"{file}:{line}" for file, (tree, lines) in trees.items() for line in missing(tree, lines)] == []
