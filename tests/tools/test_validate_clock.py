"""tools/validate_clock.py: what it prints is the median and the worst of the client-rounds that it wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from tools.emulation.kernel import missing

TOOL = Path(__file__).resolve().parents[2] / "tools" / "validate_clock.py"


@pytest.mark.slow(smaller="test_the_path_adds_up_to_the_round_and_has_no_gap")
def test_what_is_printed_are_the_errors_of_the_client_rounds_written(tmp_path: Path) -> None:
    if lacks := missing(line=True):
        pytest.skip("; ".join(lacks))
    file = tmp_path / "clock.json"
    words = [sys.executable, str(TOOL), "--only", "shared line", "-o", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1200)
    if "cores at the same time" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    [scenario] = json.loads(file.read_text())["answers"]
    rows = scenario["answer"]["client_rounds"]
    assert len(rows) == 10 and scenario["part"] == "shared line"
    off = [100 * abs(row["simulated_round_seconds"] / row["emulated_round_seconds"] - 1) for row in rows]
    whole = next(line for line in done.stdout.splitlines() if line.startswith("all "))
    assert f"{median(off):6.2f} {max(off):6.2f} %" in whole

    words = [sys.executable, str(TOOL), "--from", str(file)]
    again = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert again.stdout == done.stdout, again.stderr
