"""A slow test names a quick one that holds its fact in small: no fact leaves the quick suite by time alone."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from processor_time import LIMIT, WHOLE, dear_cases, read_times, write_times

TESTS = Path(__file__).parent


@cache
def marks_of_tests() -> dict[str, dict[str, list[ast.expr]]]:
    """The slow marks of each test function, by the file's path and the function's name."""
    return {path.relative_to(TESTS).as_posix(): _marks_of(path) for path in sorted(TESTS.rglob("test_*.py"))}


def _marks_of(path: Path) -> dict[str, list[ast.expr]]:
    text = path.read_text(encoding="utf-8")
    if "mark.slow" not in text:  # to parse all takes seconds
        return {name: [] for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}
    return {
        node.name: [each for each in node.decorator_list if ast.unparse(each).startswith("pytest.mark.slow")]
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def holder(file: str, name: str) -> str:
    """The file that defines a named test: the one that names it, the one that stands before ``::``, or any other."""
    place, _, function = name.rpartition("::")
    files = [other for other, tests in marks_of_tests().items() if function in tests and other.endswith(place)]
    if file in files:
        return file
    assert len(files) == 1, f"{function}, which {file} names, stands in {files}: write test_file.py::{function}"
    return files[0]


def test_a_slow_test_names_a_quick_one(request: pytest.FixtureRequest) -> None:
    asked = {item.nodeid.partition("[")[0] for item in request.session.items}
    count = 0
    for file, tests in marks_of_tests().items():
        for test, slow in tests.items():
            for mark in slow:
                place = f"{file}::{test}"
                assert isinstance(mark, ast.Call), f"{place} is slow: name the smaller one, slow(smaller='test_x')"
                smaller = {each.arg: ast.literal_eval(each.value) for each in mark.keywords}["smaller"]
                found, function = holder(file, smaller), smaller.rpartition("::")[2]
                assert not marks_of_tests()[found][function], f"{place}: {smaller} is slow too"
                if len(request.session.items) >= WHOLE and not found.startswith("gpu/"):  # else they weren't asked for
                    assert f"tests/{found}::{function}" in asked, f"{place}: all cases of {smaller} are slow"
                count += 1
    assert count > 200


def test_no_module_is_slow_as_a_whole() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")}
    for path, text in texts.items():
        for node in ast.parse(text).body if "pytestmark" in text else ():
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                assert "mark.slow" not in ast.unparse(node.value), f"{path}: mark each test, with its smaller one"


def test_the_cheapest_case_of_a_dear_test_stays_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = {"b": 9 * LIMIT, "c[1]": LIMIT / 2, "c[2]": LIMIT / 3}
    percents = {"a[1]": 2 * LIMIT, "a[2]": 3 * LIMIT, "a[3]": LIMIT, "a[4]": LIMIT / 2, "d[1]": 3, "d[2]": 3}
    assert dear_cases(percents | alone) == {"a[1]", "a[2]", "d[2]"}
    monkeypatch.setattr("processor_time.TIMES", tmp_path / "times.json")
    write_times(500.2, percents | alone)
    percents.pop("a[3]")
    assert read_times() == (500, pytest.approx(percents))
    assert dear_cases(read_times()[1]) == {"a[1]", "a[2]", "d[2]"}
