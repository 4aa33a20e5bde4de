"""tools/kept_values.py: what clients kept is what they did, also after the run went on in a new process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "kept_values.py"


@pytest.mark.slow(smaller="test_a_run_goes_on_from_any_checkpoint_to_the_byte")
def test_values_are_what_the_clients_did(tmp_path: Path) -> None:
    """Four rounds of half of 20 clients, of which two are played by the process that goes on."""
    sizes = ["--clients", "20", "--kilobytes", "10", "--rounds", "4", "--cohort", "0.5"]
    done = subprocess.run(
        [sys.executable, str(TOOL), str(tmp_path / "kept"), *sizes], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sum(line.startswith('{"round"') for line in lines) == 4
    assert any(line.startswith("resumed after round 2") for line in lines)
    assert lines[-1].endswith("clients keep values, 0 of them wrong ones")
