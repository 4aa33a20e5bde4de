"""The time of an edgefl round by part: training, copies, aggregation, checkpoint, records, clock and planning.

    python tools/bench.py rounds [--jobs vit,cnn,big] [--workers 1,2] [--rounds 20] [--big-rounds 5] [--json FILE]

Medians over rounds.  Two runs of the same scenario take turns: one whose stack is looked at every two milliseconds,
which gives the parts, and one without, which gives the whole round.  docs/explanation/performance.md explains the
parts.  Needs Linux.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from measuring import parser_of, ratios, several, spread, table

from bench.contestants import ENTRIES
from bench.jobs import JOBS, Job
from bench.pairing import Failed, play
from bench.parts import PARTS

HEAD = ("part", "ms", "share", "in the workers, ms")


def shares(parts: dict[str, float], whole: float) -> dict[str, float]:
    """The parts and ``the rest`` of a whole, in the unit of both; the rest is below 0 if the parts are more than it."""
    return {**parts, "the rest": whole - sum(parts.values())}


def measure(job: Job, workers: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Seconds of each round: ``whole`` and ``clocked`` as lists, ``own`` and ``workers`` as lists of seconds by part.

    Raises Failed if a run fails.
    """
    entry = replace(ENTRIES["edgefl-1"], arguments=("--processes", str(workers)))
    plain = entry.started(sys.executable, job.name, rounds + 2, folder)
    watched = replace(plain, environment={**plain.environment, "EDGEFL_BENCH_PARTS": str(folder / "parts")})
    (folder / "parts").mkdir()
    pairing = play(job, {"whole": plain, "clocked": watched}, rounds, 1, folder)
    for name, reason in pairing.reasons.items():
        raise Failed(f"{name}: {reason}")
    whole, clocked = pairing.outcomes["whole"].rounds, pairing.outcomes["clocked"].rounds
    said = [facts["parts"] for facts in pairing.outcomes["clocked"].said]
    own = [{part: parts["own"].get(part, 0.0) for part in PARTS} for parts in said]
    return {
        "whole": whole,
        "clocked": clocked,
        "own": [shares(parts, seconds) for parts, seconds in zip(own, clocked, strict=True)],
        "workers": [parts["workers"] for parts in said],
    }


def rows(found: dict[str, Any]) -> list[list[str]]:
    """The table's rows: medians over rounds; a part's share is of the watched round."""
    clocked = median(found["clocked"])
    lines = []
    for part in (*PARTS, "the rest"):
        own = median(each[part] for each in found["own"])
        far = median(each.get(part, 0.0) for each in found["workers"])
        lines.append([part, f"{own * 1e3:.1f}", f"{own / clocked:.1%}", f"{far * 1e3:.1f}" if far else "–"])
    lines.append(["the round, with clocks", f"{clocked * 1e3:.1f}", "100.0%", "–"])
    lines.append(["the round, without", f"{median(found['whole']) * 1e3:.1f}", "", "–"])
    return lines


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = parser_of(__doc__, "bench.py rounds")

    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser.add_argument("--jobs", type=several(JOBS), default=["vit", "cnn", "big"], help=f"of {', '.join(JOBS)}")
    parser.add_argument("--workers", type=numbers, default=[1, 2], help="1: in one process; default 1,2")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each run (default 20)")
    parser.add_argument("--big-rounds", type=int, default=5, help="the same for the job big (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rounds there too, in seconds")
    chosen = parser.parse_args(arguments)
    report: dict[str, dict[str, Any]] = {}
    for job in (JOBS[name] for name in chosen.jobs):
        rounds = chosen.big_rounds if job.name == "big" else chosen.rounds
        for workers in chosen.workers:
            print(f"{job.name}: {rounds} rounds, workers: {workers}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory() as made:
                found = measure(job, workers, rounds, Path(made))
            report.setdefault(job.name, {})[str(workers)] = found
            where = "inline" if workers == 1 else f"{workers} workers"
            print(f"\n**{job.title}, {where}**: medians of {rounds} rounds\n\n{table(HEAD, rows(found))}")
            cost = spread(ratios(found["clocked"], found["whole"]))
            print(f"\nA round with clocks takes {cost} times as long as one without.", flush=True)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
