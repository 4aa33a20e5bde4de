"""Limits of processes: the processor's time that they get, and the memory beyond which the kernel kills them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools.emulation.journal import MachineJournal
from tools.emulation.kernel import control_groups_here
from tools.emulation.limits import Limits

SPIN = """
import sys, time
sys.stdin.read(1)
wall, cpu = time.monotonic(), time.process_time()
while time.monotonic() - wall < 2.0:
    pass
print((time.process_time() - cpu) / (time.monotonic() - wall))
"""
FILL = """
import sys
sys.stdin.read(1)
held = bytearray(int(sys.argv[1]))
for place in range(0, len(held), 4096):
    held[place] = 1
print("filled")
"""


def limited(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that waits for a character before it begins."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.slow(smaller="test_the_kernel_kills_what_takes_more_memory_than_allowed")
@pytest.mark.parametrize("share", [0.05, 0.3])
def test_a_process_gets_its_share_of_the_processor(journal: MachineJournal, share: float) -> None:
    limits = Limits(control_groups_here(), journal, "0")
    process = limited(SPIN)
    limits.adopt(process.pid)
    limits.processor(share)
    told, _ = process.communicate("x", timeout=300)
    assert float(told) == pytest.approx(share, rel=0.1)


def test_the_kernel_kills_what_takes_more_memory_than_allowed(journal: MachineJournal) -> None:
    ended = {}
    for number, (name, size) in enumerate((("fits", 40 << 20), ("too large", 90 << 20))):
        limits = Limits(control_groups_here(), journal, str(number))
        process = limited(FILL, str(size))
        limits.adopt(process.pid)
        limits.memory(64 << 20)
        told, _ = process.communicate("x", timeout=300)
        ended[name] = told.strip(), limits.oom_kills
    assert ended == {"fits": ("filled", 0), "too large": ("", 1)}
