"""What ``import edgefl`` offers: these names and no others, and nothing heavy before one is used."""

from __future__ import annotations

import subprocess
import sys

import edgefl

NAMES = ["analyse", "calibrate", "check_method", "fit", "profile", "read_run", "run", "sweep", "validate"]


def test_the_public_names_are_these() -> None:
    assert edgefl.__all__ == NAMES
    assert all(callable(getattr(edgefl, name)) for name in NAMES)
    assert set(NAMES) <= set(dir(edgefl))


def test_the_api_and_the_command_module_agree() -> None:
    from edgefl import commands

    assert sorted(commands.__all__) == NAMES


def test_importing_edgefl_imports_nothing_heavy() -> None:
    heavy = "torch numpy pandas pydantic matplotlib simpy".split()
    code = f"import sys, edgefl; print([name for name in {heavy} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"
