"""Records, profiles, sweeps and a fit equal those that edgefl gave before its source was reorganised.

Costs and virtual times agree to a relative 1e-12, since ``exp`` rounds differently on other processors.  Losses and
metrics agree to 0.02, since training adds in another order there.  Measured memory agrees to 0.02, since kernels take
other scratch there.  On a processor with other instruction sets than the one on which answers were recorded, what a
kernel's scratch decides isn't compared.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).resolve().parent
EXPECTED = HERE / "expected"
TRAINED = ("loss", "losses", "metrics", "measured_peak_memory_bytes", "memory_error")
"""Fields whose values come from training."""

OF_SCRATCH = (
    "memory",
    "memory_bytes",
    "peak_memory_bytes",
    "process_memory_bytes",
    "measured_peak_memory_bytes",
    "reason",
)
"""Fields that the scratch of kernels decides; a reason names the peak."""

recorded_with = json.loads((EXPECTED / "versions.json").read_text(encoding="utf-8"))
other = pytest.mark.skipif(
    torch.__version__.partition("+")[0] != recorded_with["torch"],
    reason=f"recorded with torch {recorded_with['torch']}",
)


KERNELS = torch.backends.cpu.get_cpu_capability()
SAME_KERNELS = recorded_with["kernels"] == KERNELS
"""Whether kernels of this processor take the scratch of those with which answers were recorded."""

NAMES = sorted(str(path.relative_to(EXPECTED)) for path in EXPECTED.rglob("*.json*") if path.name != "versions.json")
QUICK = ("exits", "priced", "profile-depthfl")
"""What is recorded anew by the quick tests: a scenario that trains, one that doesn't, and an answer."""


def part_of(name: str) -> str:
    """The scenario or answer that a recorded file belongs to."""
    return Path(name).parts[0].removesuffix(".json")


REST = tuple(sorted({part_of(name) for name in NAMES} - set(QUICK)))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], Path]:
    """The folder with some recordings, made when they are first asked for."""

    @cache
    def made(parts: tuple[str, ...]) -> Path:
        folder = tmp_path_factory.mktemp("recorded") / "now"
        command = [sys.executable, HERE / "record.py", folder, "--only", *parts]
        subprocess.run(command, check=True, capture_output=True)
        return folder

    return made


def content(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    values = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
    return json.loads(json.dumps(values, sort_keys=True))  # the order of fields isn't promised


def differences(
    before: Any, after: Any, path: str = "", trained: bool = False, *, same_kernels: bool = True
) -> list[str]:
    """Where two answers differ; the order of keys counts.  Fields ``OF_SCRATCH`` are compared with ``same_kernels``."""
    if type(before) is not type(after):
        return [f"{path}: {before!r}, now {after!r}"]
    if isinstance(before, dict):
        if list(before) != list(after):
            return [f"{path}: fields {list(before)}, now {list(after)}"]
        return [
            line
            for key in before
            if same_kernels or key not in OF_SCRATCH
            for line in differences(
                before[key], after[key], f"{path}.{key}", trained or key in TRAINED, same_kernels=same_kernels
            )
        ]
    if isinstance(before, list):
        if len(before) != len(after):
            return [f"{path}: {len(before)} entries, now {len(after)}"]
        return [
            line
            for i, pair in enumerate(zip(before, after, strict=True))
            for line in differences(*pair, f"{path}[{i}]", trained, same_kernels=same_kernels)
        ]
    if isinstance(before, float) or (trained and isinstance(before, int)):
        same = isclose(before, after, rel_tol=0.02, abs_tol=0.02) if trained else isclose(before, after, rel_tol=1e-12)
    else:
        same = before == after
    return [] if same else [f"{path}: {before!r}, now {after!r}"]


@other
@pytest.mark.parametrize(
    "name", [name if part_of(name) in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_answers_are_as_recorded(name: str, recorded: Callable[[tuple[str, ...]], Path]) -> None:
    folder = recorded(QUICK if part_of(name) in QUICK else REST)
    assert differences(content(EXPECTED / name), content(folder / name), same_kernels=SAME_KERNELS) == []


@other
@pytest.mark.parametrize("parts", [QUICK, pytest.param(REST, marks=pytest.mark.slow)], ids=["quick", "rest"])
def test_nothing_else_is_recorded(parts: tuple[str, ...], recorded: Callable[[tuple[str, ...]], Path]) -> None:
    folder = recorded(parts)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {name for name in NAMES if part_of(name) in parts}


def test_a_difference_is_seen() -> None:
    before = {"a": [1, 2.0], "metrics": {"image": 0.5}}
    assert differences(before, before) == []
    assert differences(before, {"a": [1, 2.0000001], "metrics": {"image": 0.5}}) == [".a[1]: 2.0, now 2.0000001"]
    assert differences(before, {"a": [2, 2.0], "metrics": {"image": 0.51}}) == [".a[0]: 1, now 2"]
    assert differences(before, {"metrics": {"image": 0.5}, "a": [1, 2.0]}) != []
    peaks = [{"peak_memory_bytes": peak, "flops": 7} for peak in (1, 2)]
    assert differences(*peaks) == [".peak_memory_bytes: 1, now 2"] and differences(*peaks, same_kernels=False) == []
    assert differences(peaks[0], {**peaks[1], "flops": 8}, same_kernels=False) == [".flops: 7, now 8"]
