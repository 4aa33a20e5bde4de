"""Programs that answer as the command line does: a signal ends them with its code, a line and nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
PROGRAMS = {
    "papers": (["pmcmfl", "--out", "tables"], "repeat the command to continue"),
    "published": ([], "interrupted"),
    "emulate": (["quickstart", "--set", "compare=null", "--clients", "2", "--out", "emulated"], "nothing is left"),
}
"""What they are given here, and what they say at the end."""


@pytest.mark.slow(smaller="console/test_stopping.py::test_a_second_signal_ends_at_once")
@pytest.mark.parametrize("seconds", [2.0, 6.0])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_program_ends_by_a_signal(tmp_path: Path, name: str, sent: signal.Signals, seconds: float) -> None:
    words, said = PROGRAMS[name]
    process = subprocess.Popen(
        [sys.executable, str(TOOLS / f"{name}.py"), *words], cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "EDGEFL_CACHE": str(tmp_path / "cache")},
    )  # fmt: skip
    try:
        _, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, sent) if sent is signal.SIGINT else process.send_signal(sent)
        _, err = process.communicate(timeout=120)
    assert process.returncode in (128 + sent, 2), err  # 2 where clients can't be emulated
    assert "Traceback" not in err and "Exception ignored" not in err, err
    if process.returncode != 2:
        assert said in err
    assert not list(Path("/run/edgefl").glob(f"edgefl-{process.pid}*"))
