"""What ``import edgefl`` offers: these names and no others, and nothing heavy before one is used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import edgefl

NAMES = [
    "Run",
    "analyse",
    "bench",
    "calibrate",
    "compare",
    "doctor",
    "explain",
    "export",
    "fit",
    "new",
    "parts",
    "profile",
    "read_run",
    "register",
    "report",
    "run",
    "sweep",
    "tune",
    "validate",
]


def test_the_public_names_are_these() -> None:
    assert edgefl.__all__ == NAMES
    assert all(callable(getattr(edgefl, name)) for name in NAMES)
    assert set(NAMES) <= set(dir(edgefl))


def test_a_function_and_its_room_have_one_name() -> None:
    elsewhere = {
        "Run": "edgefl.runs.reading", "read_run": "edgefl.runs.reading", "register": "edgefl.registry",
        "calibrate": "edgefl.commands.devices.command",
    }  # fmt: skip
    for name in NAMES:
        assert getattr(edgefl, name).__module__ == elsewhere.get(name, f"edgefl.commands.{name}.command")


def test_the_names_of_the_page_are_there_after_import_edgefl() -> None:
    page = Path(__file__).parents[1] / "docs" / "reference" / "python.md"
    names = re.findall(r"^## (?:The class )?(edgefl\.[\w.]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(names) >= len(NAMES)
    for first in ("import edgefl", "import edgefl; edgefl.Run"):
        subprocess.run([sys.executable, "-c", f"{first}\n" + "\n".join(names)], check=True)


def test_no_function_hides_a_module_of_the_commands() -> None:
    import edgefl.commands.run.command
    from edgefl.commands.run import command as run

    assert run is edgefl.commands.run.command and callable(run.run) and callable(edgefl.run)


def test_importing_edgefl_imports_nothing_heavy() -> None:
    heavy = "torch numpy scipy pandas pydantic matplotlib simpy".split()
    code = f"import sys, edgefl; print([name for name in {heavy} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"
