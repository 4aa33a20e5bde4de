"""What an emulation asks of a machine, and what it says where that isn't there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.emulation.kernel import control_groups

V1 = """cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
"""


def test_controllers_of_v1_are_found_where_they_are_mounted() -> None:
    found = control_groups(V1)
    assert found is not None and not found.unified
    assert [str(folder) for folder in found.roots("edgefl-7/2")] == [
        "/sys/fs/cgroup/cpu,cpuacct/edgefl-7/2",
        "/sys/fs/cgroup/memory/edgefl-7/2",
    ]


def test_v2_needs_the_controllers_given_to_the_groups_below_the_root(tmp_path: Path) -> None:
    mounts = f"cgroup2 {tmp_path} cgroup2 rw 0 0\n"
    given = tmp_path / "cgroup.subtree_control"
    given.write_text("cpuset memory\n", encoding="ascii")
    assert control_groups(mounts) is None
    given.write_text("cpuset cpu memory\n", encoding="ascii")
    found = control_groups(mounts)
    assert found is not None and found.unified
    assert found.roots("edgefl-7") == [tmp_path / "edgefl-7"]


def test_one_controller_of_v1_is_not_enough() -> None:
    assert control_groups(V1.splitlines()[1]) is None


@pytest.mark.slow(smaller="test_one_controller_of_v1_is_not_enough")
def test_without_root_the_command_says_so_and_ends_with_code_2() -> None:
    code = """
import os
from tools.emulate import main
# not seteuid, as another user may not read this environment's packages
os.geteuid = lambda: 65534
main(["quickstart"])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "can't emulate:" in ended.stderr and "Traceback" not in ended.stderr
    if sys.platform == "linux":
        assert "run the command as root" in ended.stderr
