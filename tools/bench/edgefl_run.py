"""edgefl as a contestant: ``edgefl.run`` with a callback that waits after each round's record.

    python -m bench.edgefl_run JOB --rounds N [--processes 1 | 2] [--ray]

With ``EDGEFL_BENCH_PARTS``, a folder, it also tells each round's time by part (``bench.parts``).

A round's time is from one record to the next: the checkpoint that follows a record counts to the next round.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import edgefl
from bench import edgefl_parts, parts
from bench.jobs import Job, Turns, asked


def play(job: Job, rounds: int, workers: int, executor: str) -> None:
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
            turns.played(facts["upload_bytes"] // finished // 4, facts["finished"], by_part)

    with tempfile.TemporaryDirectory() as folder:
        scenario = edgefl_parts.scenario(job, rounds, workers, executor)
        edgefl.run(scenario, out=Path(folder) / "run", on_progress=on_progress)


if __name__ == "__main__":
    job, chosen = asked()
    play(job, chosen.rounds, chosen.processes, "ray" if chosen.ray else "processes")
