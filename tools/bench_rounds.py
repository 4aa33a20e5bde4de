"""The time of an edgefl round by part: training, copies, aggregation, checkpoint, records, clock and planning.

    python tools/bench_rounds.py [--jobs vit,cnn,big] [--workers 1,2] [--rounds 20] [--big-rounds 5] [--json FILE]

Medians over rounds.  Two runs of the same scenario take turns: one with clocks around edgefl's public functions, which
gives the parts, and one without, which gives the whole round.  docs/explanation/performance.md explains the parts.
Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from peers.contestants import ENTRIES, variables
from peers.figures import in_turn, shares, spread, table
from peers.jobs import JOBS, Job
from peers.pairing import Contestant
from peers.parts import PARTS

HEAD = ("part", "ms", "share", "in the workers, ms")


def measure(job: Job, workers: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Seconds of each round: ``whole`` and ``clocked`` as lists, ``own`` and ``workers`` as lists of seconds by part.

    Raises Failed if a run fails.
    """
    entry = ENTRIES["edgefl-1"]
    command = [*entry.command(sys.executable, job.name, rounds + 2), "--processes", str(workers)]
    times = folder / f"parts-{workers}"
    times.mkdir()
    environment = variables(folder, None)
    found: dict[str, Any] = {"whole": [], "clocked": [], "own": [], "workers": []}
    children: dict[str, Contestant] = {}
    try:
        children["whole"] = Contestant(command, environment, folder, f"plain-{workers}")
        children["whole"].start()
        clocked = {**environment, "EDGEFL_BENCH_PARTS": str(times)}
        children["clocked"] = Contestant(command, clocked, folder, f"clocked-{workers}")
        children["clocked"].start()
        for turn in range(rounds):
            for name in in_turn(list(children), turn):
                found[name].append(children[name].turn())
            parts = children["clocked"].facts["parts"]
            found["own"].append(shares({part: parts["own"].get(part, 0.0) for part in PARTS}, found["clocked"][-1]))
            found["workers"].append(parts["workers"])
        for child in children.values():
            child.turn(compared=False)
            child.end()
    finally:
        for child in children.values():
            child.kill()
    return found


def rows(found: dict[str, Any]) -> list[list[str]]:
    """The table's rows: medians over rounds; a part's share is of the clocked round."""
    clocked = median(found["clocked"])
    lines = []
    for part in (*PARTS, "the rest"):
        own = median(each[part] for each in found["own"])
        far = median(each.get(part, 0.0) for each in found["workers"])
        lines.append([part, f"{own * 1e3:.1f}", f"{own / clocked:.1%}", f"{far * 1e3:.1f}" if far else "–"])
    lines.append(["the round, with clocks", f"{clocked * 1e3:.1f}", "100.0%", "–"])
    lines.append(["the round, without", f"{median(found['whole']) * 1e3:.1f}", "", "–"])
    return lines


def _chosen() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)

    def jobs(text: str) -> list[str]:
        names = text.split(",")
        if wrong := [name for name in names if name not in JOBS]:
            raise argparse.ArgumentTypeError(f"{wrong[0]!r} isn't one of {', '.join(JOBS)}")
        return names

    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser.add_argument("--jobs", type=jobs, default=["vit", "cnn", "big"], help=f"of {', '.join(JOBS)}")
    parser.add_argument("--workers", type=numbers, default=[1, 2], help="1: in one process; default 1,2")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each run (default 20)")
    parser.add_argument("--big-rounds", type=int, default=5, help="the same for the job big (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rounds there too, in seconds")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    chosen = _chosen()
    report: dict[str, dict[str, Any]] = {}
    for job in (JOBS[name] for name in chosen.jobs):
        rounds = chosen.big_rounds if job.name == "big" else chosen.rounds
        for workers in chosen.workers:
            with tempfile.TemporaryDirectory() as made:
                print(f"{job.name}: {rounds} rounds, workers: {workers}", file=sys.stderr, flush=True)
                found = measure(job, workers, rounds, Path(made))
            report.setdefault(job.name, {})[str(workers)] = found
            _show(job, workers, found)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _show(job: Job, workers: int, found: dict[str, Any]) -> None:
    where = "inline" if workers == 1 else f"{workers} workers"
    cost: Sequence[float] = [ours / bare for ours, bare in zip(found["clocked"], found["whole"], strict=True)]
    print(f"\n**{job.title}, {where}**: medians of {len(cost)} rounds\n")
    print(table(HEAD, rows(found)))
    print(f"\nA round with clocks takes {spread(cost)} times as long as one without.", flush=True)


if __name__ == "__main__":
    main()
