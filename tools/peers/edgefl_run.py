"""edgefl as a contestant: ``edgefl.run`` with a callback that waits after each round's record.

    python -m peers.edgefl_run JOB --rounds N [--processes 1 | 2] [--ray] [--stack K]

With ``EDGEFL_BENCH_PARTS``, a folder, it also tells each round's time by part (``peers.parts``).

A round's time is from one record to the next: the checkpoint that follows a record counts to the next round.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import edgefl
from peers import edgefl_parts, parts
from peers.jobs import JOBS, Job
from peers.turns import Turns


def play(job: Job, rounds: int, workers: int, stack: int, executor: str) -> None:
    """Play the rounds, and tell the end of each."""
    turns = Turns()
    folder_of_parts = os.environ.get("EDGEFL_BENCH_PARTS")
    reading = parts.Reading(folder_of_parts) if folder_of_parts else None

    def on_progress(event: str, facts: Mapping[str, Any]) -> None:
        if event == "record":
            if facts["samples"] != {"image": job.clients * job.samples}:
                sys.exit(f"the clients have {facts['samples']} samples")
            finished = max(1, facts["finished"])
            by_part = reading.next() if reading else None
            with parts.outside():
                turns.played(facts["upload_bytes"] // finished // 4, facts["finished"], by_part)

    with tempfile.TemporaryDirectory() as folder:
        scenario = edgefl_parts.scenario(job, rounds, workers, stack, executor)
        edgefl.run(scenario, output=Path(folder) / "run", on_progress=on_progress)


def main() -> None:
    """Play a job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--stack", type=int, default=0)
    chosen = parser.parse_args()
    play(JOBS[chosen.job], chosen.rounds, chosen.processes, chosen.stack, "ray" if chosen.ray else "processes")


if __name__ == "__main__":
    main()
