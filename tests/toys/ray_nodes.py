"""Clusters of Ray on this machine, and what Ray warns of by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

QUIET = [
    # Ray's own: it leaves sockets and processes to the collector, and tells of a change to come
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*accelerator visible devices:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@contextmanager
def nodes_of(*processors: int) -> Iterator[Any]:
    """A cluster whose nodes have these processors, the head first; ``others`` are the nodes beside the head."""
    import ray
    from ray.cluster_utils import Cluster

    head, *more = processors
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": head, "include_dashboard": False})
    try:
        nodes.others = [nodes.add_node(num_cpus=number) for number in more]
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


@contextmanager
def node_with_mounts(address: str, mounts: Sequence[Sequence[str]]) -> Iterator[None]:
    """One more node, with two processors, that sees other files: ``mounts`` are the arguments of ``mount``.

    Skips the test where a process may not have mounts of its own.
    """
    import ray

    if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode:
        pytest.skip("mounts of a process's own need rights that this user doesn't have")
    lines = [" ".join(["mount", *mount]) for mount in mounts]
    ray_command = Path(sys.executable).with_name("ray")
    lines.append(f"exec {ray_command} start --address {address} --num-cpus 2 --block")
    ray.init(address, log_to_driver=False, logging_level="ERROR")
    known = len(ray.nodes())
    with subprocess.Popen(
        ["unshare", "-m", "sh", "-ec", "\n".join(lines)],
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as node:
        try:
            until = time.monotonic() + 300
            while len(ray.nodes()) == known:
                assert time.monotonic() < until and node.poll() is None
                time.sleep(0.2)
            ray.shutdown()
            yield
        finally:
            ray.shutdown()
            node.terminate()
