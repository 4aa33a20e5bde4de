"""What a process keeps of the memory that it frees, as the kernel counts page faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

FREES = """
import ctypes, json, os, resource, torch
from edgefl.work.torch_device import keep_freed_memory

def faults(steps=5):
    torch.set_num_threads(1)
    for step in range(steps + 2):
        if step == 2:  # the first steps take what they need from the system
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        tensors = [torch.ones(1 << 18) for _ in range(100)]
        tensors = None
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / steps

if "MALLOC_TRIM_THRESHOLD_" not in os.environ:  # what malloc begins with; a large block that was freed raises both
    for threshold in (-1, -3):
        ctypes.CDLL(None).mallopt(threshold, 128 << 10)
usual = faults()
keep_freed_memory()
print(json.dumps([usual, faults()]))
"""
PAGES = 100 * 2**20 / 4096
"""Pages of a step's tensors."""


def faults(**environment: str) -> list[float]:
    """Page faults of a step before and after ``keep_freed_memory``."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("MALLOC_", "GLIBC_"))}
    code = [sys.executable, "-c", FREES]
    told = subprocess.run(code, env={**kept, **environment}, check=True, capture_output=True, text=True).stdout
    answer: list[float] = json.loads(told)
    return answer


@pytest.mark.slow(smaller="test_what_the_environment_says_of_malloc_stays")
@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_a_step_finds_the_memory_that_the_one_before_freed() -> None:
    usual, kept = faults()
    assert usual > 0.9 * PAGES
    assert kept < 0.01 * PAGES


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_what_the_environment_says_of_malloc_stays() -> None:
    assert faults(MALLOC_TRIM_THRESHOLD_="131072")[1] > 0.9 * PAGES
