"""A system that lets edgefl open few files: one line that names the limit, and none where there are enough."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgefl.runs import Run

pytest.importorskip("resource", reason="this system has no such limit")


def limited(files: int, *arguments: object) -> tuple[int, str]:
    """Exit code and stderr of a command that may open so many files."""
    command = " ".join(f"'{each}'" for each in (sys.executable, "-m", "edgefl", *arguments))
    done = subprocess.run(
        ["sh", "-c", f"ulimit -n {files}; exec {command}"], capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stderr


@pytest.mark.slow(smaller="test_a_good_cache_is_left_alone_where_this_process_can_open_no_more_files")
def test_few_open_files_are_told_in_a_line(
    tiny: Callable[..., dict[str, Any]], layerwise_run: Run, tmp_path: Path
) -> None:
    workers = {"name": "processes", "workers": 2, "device": "cpu"}
    (tmp_path / "s.json").write_text(json.dumps({"edgefl": 1, **tiny(executor=workers)}))
    code, said = limited(24, "run", tmp_path / "s.json", "-o", tmp_path / "run")
    assert code == 2 and not (tmp_path / "run").exists()
    assert re.search(
        r"error: .*2 worker processes need about 64 open files, and the limit .* is 24 \(ulimit -n\)", said
    )
    for command in (
        ("run", tmp_path / "s.json", "-o", tmp_path / "inline", "--set", "executor={name: inline, device: cpu}"),
        ("sweep", tmp_path / "s.json"),
        ("compare", layerwise_run.path),
    ):
        for files in (24, 8):
            code, said = limited(files, *command)
            assert code in (0, 2) and "Traceback" not in said, said
            assert code == 0 or len([line for line in said.splitlines() if "error: " in line]) == 1


@pytest.mark.slow(smaller="test_a_good_cache_is_left_alone_where_this_process_can_open_no_more_files")
def test_a_run_with_workers_needs_no_more_files_than_it_says(
    tiny: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    for workers in (1, 2, 4):
        executor = {"name": "processes", "workers": workers, "device": "cpu"}
        (tmp_path / "s.json").write_text(json.dumps({"edgefl": 1, **tiny(executor=executor)}))
        code, said = limited(40 + 12 * workers, "run", tmp_path / "s.json", "-o", tmp_path / f"run-{workers}")
        assert code == 0, said
