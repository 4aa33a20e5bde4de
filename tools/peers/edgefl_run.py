"""edgefl as a contestant: ``edgefl.run`` with a callback that waits after each round's record.

    python -m peers.edgefl_run JOB --rounds N [--processes 1 | 2]

A round's time is from one record to the next: the checkpoint that follows a record counts to the next round.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import edgefl
from peers import edgefl_parts
from peers.jobs import JOBS, Job
from peers.turns import Turns


def play(job: Job, rounds: int, workers: int) -> None:
    """Play the rounds, and tell the end of each."""
    turns = Turns()

    def on_progress(event: str, facts: Mapping[str, Any]) -> None:
        if event == "record":
            if facts["samples"] != {"image": job.clients * job.samples}:
                sys.exit(f"the clients have {facts['samples']} samples")
            finished = max(1, facts["finished"])
            turns.played(facts["upload_bytes"] // finished // 4, facts["finished"])

    with tempfile.TemporaryDirectory() as folder:
        edgefl.run(edgefl_parts.scenario(job, rounds, workers), output=Path(folder) / "run", on_progress=on_progress)


def main() -> None:
    """Play a job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--processes", type=int, default=1)
    chosen = parser.parse_args()
    play(JOBS[chosen.job], chosen.rounds, chosen.processes)


if __name__ == "__main__":
    main()
