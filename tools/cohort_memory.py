"""Peak memory of the process of a run by the size of its cohort, with a model of 21 million parameters (85 MB).

    python tools/cohort_memory.py --clients 20 200 [--workers 0 2] [--rule mean] [--updates-memory "1 GiB"]

A run of one round, in which each client trains one step on one picture, is a process of its own.  This one looks at its
memory four times a second: the resident set, and the part of it that is no page of a file or of memory which processes
share.  Updates on disk are read through a memory map: their pages count to the resident set as long as the system has
room for them, and aren't private.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

VIT = {"tower": "vit", "blocks": 12, "width": 384, "heads": 6, "patch": 8}
SECONDS = 0.25
"""Wall time between two looks."""
CHILD = """
import json, sys
import edgefl

if __name__ == "__main__":
    edgefl.run(json.loads(sys.argv[1]), out=sys.argv[2])
"""


@dataclass
class Peak:
    """Largest bytes seen: the run's own process, resident and without files, and the PSS of it and its workers."""

    rss: int = 0
    private: int = 0
    pss: int = 0

    def look(self, process: psutil.Process) -> None:
        """Look at a process and at those that it started."""
        try:
            own = process.memory_full_info()
            together = own.pss
            for child in process.children(recursive=True):
                together += child.memory_full_info().pss
        except psutil.Error:  # one of them has just ended
            return
        self.rss, self.private = max(self.rss, own.rss), max(self.private, own.rss - own.shared)
        self.pss = max(self.pss, together)


def scenario(clients: int, workers: int, rule: str, updates_memory: str | None) -> dict[str, Any]:
    """One round of all the clients, each with one step on one picture of 32 x 32."""
    executor: dict[str, Any] = {"name": "inline"}
    if workers:
        executor = {"name": "processes", "workers": workers}
    return {
        "edgefl": 1,
        "name": f"cohort-{clients}",
        "data": {"source": "glyphs", "size": 32, "clients": {"image": clients}, "partition": "iid", "samples": 1,
                 "validation": 10, "test": 10},
        "model": {"image": VIT},
        "method": "fedavg",
        "schedule": {"name": "end-to-end", "rounds": 1},
        "training": {"optimizer": "sgd", "lr": 0.01, "batch": 1, "epochs": 1},
        "round": {"cohort": clients},
        "aggregation": {"rule": rule},
        "executor": {**executor, "device": "cpu", "updates_memory": updates_memory},
    }  # fmt: skip


def measure(clients: int, workers: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Play the run in a new process.  Raises CalledProcessError if it fails."""
    script, output = folder / "play.py", folder / f"run-{clients}-{workers}"
    script.write_text(CHILD)
    made = json.dumps(scenario(clients, workers, options.rule, options.updates_memory))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    peak, began = Peak(), time.monotonic()
    run = subprocess.Popen([sys.executable, str(script), made, str(output)], env=environment)
    watched = psutil.Process(run.pid)
    while run.poll() is None:
        peak.look(watched)
        time.sleep(SECONDS)
    if run.returncode:
        raise subprocess.CalledProcessError(run.returncode, "edgefl run")
    (record,) = (json.loads(line) for line in (output / "rounds.jsonl").read_text().splitlines())
    if record["finished"] != clients:
        sys.exit(f"{record['finished']} of {clients} clients finished")
    seconds = time.monotonic() - began
    return {"clients": clients, "workers": workers, "rule": options.rule, "seconds": seconds, **vars(peak)}


def main() -> None:
    """Measure and print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 200])
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2], help="0: in the run's own process")
    parser.add_argument("--rule", default="mean")
    parser.add_argument("--updates-memory", help="executor.updates_memory")
    parser.add_argument("--out", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    rows = []
    print(f"{'clients':>8} {'workers':>8} {'seconds':>8} {'resident MB':>12} {'private MB':>11} {'PSS of all MB':>14}")
    with tempfile.TemporaryDirectory() as folder:
        for workers in options.workers:
            for clients in options.clients:
                row = measure(clients, workers, options, Path(folder))
                rows.append(row)
                sizes = [row[name] / 1e6 for name in ("rss", "private", "pss")]
                print(
                    f"{clients:8} {workers:8} {row['seconds']:8.1f} {sizes[0]:12.0f} {sizes[1]:11.0f} {sizes[2]:14.0f}"
                )
                sys.stdout.flush()
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
