"""A version that nobody could look up is never called free of known vulnerabilities."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "audit.py"
FREE = {"name": "simpy", "version": "4.1.2", "vulns": []}
LEFT_OUT = {"name": "torch", "skip_reason": "Dependency not found on PyPI and could not be audited: torch (2.13.0+cpu)"}
FOUND = {
    "name": "pillow",
    "version": "10.3.0",
    "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["10.4.0"]}],
}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("dependencies", "explained", "lines", "checked", "findings"),
    [
        ([FREE], {}, [], 1, 0),
        ([LEFT_OUT], {}, [], 0, 0),
        ([FREE, LEFT_OUT], {}, ["no advisories could be looked up for: torch"], 1, 0),
        ([FOUND], {}, ["pillow 10.3.0: PYSEC-1, mended in 10.4.0"], 1, 1),
        ([FOUND], {"CVE-1": "only of GIMP brushes"}, ["pillow 10.3.0: PYSEC-1, only of GIMP brushes"], 1, 0),
        ([FOUND], {"CVE-2": "something else"}, ["pillow 10.3.0: PYSEC-1, mended in 10.4.0"], 1, 1),
    ],
)
def test_each_version_is_checked_or_said_not_to_be(
    tool: ModuleType, dependencies: Any, explained: Any, lines: Any, checked: int, findings: int
) -> None:
    assert tool.told({"dependencies": dependencies}, explained) == (lines, checked, findings)


def test_without_advisories_nothing_is_passed_off_as_checked(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # this environment has no pip-audit: nothing can be looked up
    assert importlib.util.find_spec("pip_audit") is None, "pip-audit belongs in an environment of its own"
    file = tmp_path / "pins.txt"
    file.write_text("simpy==4.1.2\n")
    assert tool.main([str(file)]) == 0
    assert capsys.readouterr().out == (f"{file}: NOT CHECKED: no advisories could be reached for any of its versions\n")


def test_a_file_that_is_not_there(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["nowhere.txt"]) == 2 and tool.main([]) == 2
    assert "can't read nowhere.txt: No such file" in capsys.readouterr().err
