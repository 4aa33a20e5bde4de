"""The time of an edgefl round by part: training, copies, aggregation, checkpoint, records, clock and planning.

    python tools/bench.py rounds [--jobs vit,cnn,big] [--workers 1,2] [--rounds 20] [--big-rounds 5] [--out FILE]

Medians over rounds.  Two runs of the same scenario take turns: one whose stack is looked at every two milliseconds,
which gives the parts, and one without, which gives the whole round.  With worker processes it also says how many
processes train at a time, and draws a line for each process through a round.  docs/evidence/speed.md explains
the parts.  Needs Linux.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from measuring import parser_of, ratios, several, spread, table

from bench.contestants import ENTRIES
from bench.jobs import JOBS, Job
from bench.pairing import Failed, play
from bench.parts import OUTSIDE, OWN, PARTS, ROUND, TRAIN, Span, read_spans

HEAD = ("part", "ms", "share", "in the workers, ms")
TRAINING_HEAD = ("processes that train", "ms", "share")
COLUMNS = 100
"""Characters of a process's line through a round."""
LETTERS = {
    "train": "T", "batches": "b", "copy": "c", "metering": "m", "aggregate": "a", "checkpoint": "k", "records": "r",
    "clock and planning": "p", "waiting for workers": ".",
}  # fmt: skip
"""The character of each part in a line; a space is of no part."""
Spans = dict[str, list[Span]]
"""The spans of each process, by its number; ``OWN`` is the run's."""


def shares(parts: dict[str, float], whole: float) -> dict[str, float]:
    """The parts and ``the rest`` of a whole, in the unit of both; the rest is below 0 if the parts are more than it."""
    return {**parts, "the rest": whole - sum(parts.values())}


def rounds_in(spans: Spans) -> list[Spans]:
    """The spans of each round that another one began, without the time in which the run waits for its turn."""
    own = spans.get(OWN, [])
    ends = [span.end for span in own if span.part == ROUND]
    turns = [span for span in own if span.part == OUTSIDE]
    found = []
    for before, end in pairwise(ends):
        begin = max([before, *(turn.end for turn in turns if before <= turn.end < end)])
        inside = {
            name: [s._replace(begin=max(s.begin, begin), end=min(s.end, end)) for s in its if begin < s.end]
            for name, its in spans.items()
        }
        found.append(
            {n: [s for s in its if s.begin < s.end] for n, its in inside.items()} | {ROUND: [Span(ROUND, begin, end)]}
        )
    return found


def training(round: Spans) -> list[float]:
    """Seconds of a round in which 0, 1, 2 ... of its processes train."""
    (whole,) = round[ROUND]
    moments = [
        (at, change)
        for its in round.values()
        for s in its
        if s.part == TRAIN
        for at, change in ((s.begin, 1), (s.end, -1))
    ]
    seconds, now, last = [0.0] * len(round), 0, whole.begin
    for at, change in [*sorted(moments), (whole.end, 0)]:
        seconds[now] += at - last
        now, last = now + change, at
    return seconds


def line(spans: list[Span], whole: Span) -> str:
    """A process's line through a round: the part in which it was longest, at each of ``COLUMNS`` times."""
    width = (whole.end - whole.begin) / COLUMNS
    letters = ""
    for column in range(COLUMNS):
        begin, seconds = whole.begin + column * width, Counter[str]()
        for span in spans:
            seconds[span.part] += max(0.0, min(span.end, begin + width) - max(span.begin, begin))
        part, most = max(seconds.items(), key=lambda item: item[1], default=("", 0.0))
        letters += LETTERS.get(part, " ") if most else " "
    return letters


def timeline(rounds: list[Spans]) -> str:
    """How many processes train at a time, medians over rounds, and the lines of the round of median length."""
    wholes = [round[ROUND][0] for round in rounds]
    lengths = [whole.end - whole.begin for whole in wholes]
    seconds = [training(round) for round in rounds]
    rows = [
        [str(count), f"{median(each[count] for each in seconds) * 1e3:.1f}",
         f"{median(each[count] / length for each, length in zip(seconds, lengths, strict=True)):.1%}"]
        for count in range(max(map(len, seconds)) - 1)
    ]  # fmt: skip
    chosen = sorted(range(len(rounds)), key=lambda number: lengths[number])[len(rounds) // 2]
    names = [OWN, *sorted(name for name in rounds[chosen] if name not in (OWN, ROUND) and rounds[chosen][name])]
    titles = ["the run", *(f"worker {number}" for number in range(1, len(names)))]
    lines = [
        f"{title:9}{line(rounds[chosen][name], wholes[chosen])}" for title, name in zip(titles, names, strict=True)
    ]
    key = ", ".join(f"{letter} {part}" for part, letter in LETTERS.items())
    return f"{table(TRAINING_HEAD, rows)}\n\nA round of {lengths[chosen] * 1e3:.0f} ms ({key}):\n\n" + "\n".join(lines)


def measure(job: Job, workers: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Seconds of each round: ``whole`` and ``clocked`` as lists, ``own`` and ``workers`` as lists of seconds by part.

    ``spans`` are those of each round by process.  Raises Failed if a run fails.
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
        "spans": rounds_in(read_spans(folder / "parts"))[1:-1],  # without the first and the last, as of the others
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
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all rounds there too, in seconds")
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
            if workers > 1:
                print(f"\n{timeline(found['spans'])}", flush=True)
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
