"""tools/test.py: what a change touches is what runs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "test.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """The tool as a module; its name alone is that of a package of Python's."""
    spec = importlib.util.spec_from_file_location("edgefl_tools_test", TOOL)
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_module_has_the_test_that_mirrors_it_and_those_that_use_it(tool: ModuleType) -> None:
    reasons = tool.choose(["edgefl/yaml_lines.py"]).reasons
    assert next(iter(reasons)) == "tests/test_yaml_lines.py"
    assert 1 < len(reasons) <= 1 + tool.MOST
    assert all((ROOT / path).exists() for path in reasons)


def test_a_name_that_a_package_hands_on_is_used_where_it_is_defined(tool: ModuleType) -> None:
    uses = tool.uses_of_checkout()
    assert "from edgefl.work import" in (ROOT / "tests/work/test_codecs.py").read_text(encoding="utf-8")
    assert "tests/work/test_codecs.py" in uses.tests("edgefl.work.description")
    assert "edgefl.methods.protocol" in uses.modules("edgefl.work.description")


def test_of_many_users_the_nearest_run_and_the_others_are_counted(tool: ModuleType) -> None:
    chosen = tool.choose(["edgefl/work/description.py"])
    users = [path for path, reason in chosen.reasons.items() if reason.startswith("use")]
    assert len(users) == tool.MOST and all(path.startswith("tests/work/") for path in users)
    assert list(chosen.lines())[-1] == f"left to the whole suite: {chosen.left} more files that use what changed"


def test_a_commands_file_has_its_folder_and_the_command_line(tool: ModuleType) -> None:
    reasons = tool.choose(["edgefl/commands/sweep/command.py"]).reasons
    assert "tests/commands/sweep" in reasons and tool.COMMAND_LINE in reasons
    assert not any(path.startswith("tests/commands/sweep/") for path in reasons)


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("tests/test_seeds.py", ["tests/test_seeds.py"]),
        ("tests/data/conftest.py", ["tests/data"]),
        ("tools/memory.py", ["tests/tools/test_memory.py"]),
        ("docs/guides/fit.md", ["tests/docs"]),
        ("profiles/links/lte.yaml", ["tests/devices"]),
        ("LICENSE", []),
        ("tests/conftest.py", []),
    ],
)
def test_other_files_have_what_reads_them(tool: ModuleType, path: str, tests: list[str]) -> None:
    chosen = tool.choose([path])
    assert list(chosen.reasons) == tests
    assert chosen.untested == ([] if tests else [path])


def test_other_words_are_pytests(tmp_path: Path) -> None:
    words = [sys.executable, str(TOOL), "tests/test_seeds.py", "--collect-only", "-k", "nothing_has_this_name"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.stdout.startswith("asked for, or changed: tests/test_seeds.py\n")
    assert "deselected" in done.stdout and done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
