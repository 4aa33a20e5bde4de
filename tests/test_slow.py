"""What ``slow.txt`` lists is there."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parent


def test_every_slow_test_is_there() -> None:
    lines = (TESTS / "slow.txt").read_text(encoding="utf-8").splitlines()
    listed = [line for line in lines if not line.startswith("#")]
    assert listed == sorted(set(listed))
    defined: dict[str, set[str]] = {}
    for line in listed:
        file, _, name = line.partition("::")
        if file not in defined:
            tree = ast.parse((TESTS.parent / file).read_text(encoding="utf-8"))
            defined[file] = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name.partition("[")[0].split("::")[-1] in defined[file], line
