"""The time of a round in which edgefl trains several clients at once (``training.stack``), beside a bare loop's.

    python tools/bench_stack.py [--job small] [--stacks off,4,8,16] [--workers 1] [--rounds 20] [--json FILE]

The bare loop trains one client after the other in one process (``peers.bare``).  All take turns: one plays a round
while the others wait.  Ratios are of rounds of the same turn, edgefl's with clock, records and a checkpoint each.
docs/explanation/performance.md has the table.  Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from peers.contestants import ENTRIES, variables
from peers.figures import in_turn, ratios, spread, table
from peers.jobs import JOBS, Job
from peers.pairing import Contestant

WARM_UP = 2
"""Rounds that aren't compared: works are measured in the first, and the stacked step is made in it."""
HEAD = ("contestant", "round, ms", "/ bare", "processor time / bare", "to the first round's end, s")


def measure(job: Job, stacks: list[str], workers: int, rounds: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Seconds of each compared round, wall and processor, and to the first round's end.  Raises Failed."""
    environment = variables(folder, None)
    commands = {"bare": ENTRIES["bare-1"].command(sys.executable, job.name, rounds + WARM_UP + 1)}
    for stack in stacks:
        more = ["--processes", str(workers), *(["--stack", stack] if stack != "off" else [])]
        commands[stack] = [*ENTRIES["edgefl-1"].command(sys.executable, job.name, rounds + WARM_UP + 1), *more]
    children: dict[str, Contestant] = {}
    found = {}
    try:
        for name, command in commands.items():
            children[name] = Contestant(command, environment, folder, f"stack-{name}")
            children[name].start()
        for turn in range(WARM_UP - 1 + rounds):
            for name in in_turn(list(children), turn):
                children[name].turn()
        for name, child in children.items():
            child.turn(compared=False)
            outcome = child.end()
            found[name] = {
                "rounds": outcome.rounds[WARM_UP - 1 :],
                "processor": outcome.processor[WARM_UP - 1 :],
                "first": outcome.first,
            }
    finally:
        for child in children.values():
            child.kill()
    return found


def rows(found: dict[str, dict[str, Any]]) -> list[list[str]]:
    """The table's rows: median round, and medians and quartiles of the ratios to the bare loop."""
    bare, lines = found["bare"], []
    for name, own in found.items():
        title = "bare loop, one process" if name == "bare" else f"edgefl, stack: {name}"
        against = (
            ("1", "1")
            if name == "bare"
            else tuple(str(spread(ratios(own[part], bare[part]))) for part in ("rounds", "processor"))
        )
        lines.append([title, f"{median(own['rounds']) * 1e3:.0f}", *against, f"{own['first']:.1f}"])
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--job", choices=JOBS, default="small")
    parser.add_argument("--stacks", type=lambda text: text.split(","), default=["off", "4", "8", "16"])
    parser.add_argument("--workers", type=int, default=1, help="1: in one process (default)")
    parser.add_argument("--rounds", type=int, default=20, help="paired rounds (default 20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rounds there too, in seconds")
    chosen = parser.parse_args()
    job = JOBS[chosen.job]
    with tempfile.TemporaryDirectory() as made:
        found = measure(job, chosen.stacks, chosen.workers, chosen.rounds, Path(made))
    where = "inline" if chosen.workers == 1 else f"{chosen.workers} workers"
    print(f"**{job.title}, batch {job.batch}, {job.cohort} clients a round, {where}**: {chosen.rounds} paired rounds\n")
    print(table(HEAD, rows(found)))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
