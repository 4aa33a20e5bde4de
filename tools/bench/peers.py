"""Rounds of edgefl beside those of a bare loop, pfl-research and Flower, as ratios of paired rounds.

    python tools/bench.py peers [--jobs vit,cnn,big] [--contestants bare-1,bare-2,edgefl-1,...] [--rounds 20]
                                [--in-a-row 5] [--big-rounds 5] [--out FILE] [--keep-environments DIR]

Contestants take turns: each plays some rounds in a row while the others wait.  docs/evidence/speed.md has
what is measured.  A contestant that can't be installed or fails is listed with its reason.  Needs Linux.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from measuring import parser_of, ratios, several, spread, table

from bench.contestants import ENTRIES, Entry, python_of
from bench.jobs import JOBS, Job
from bench.pairing import Failed, Pairing, play

REFERENCES = ("bare-1", "bare-2")
HEAD = (
    "contestant", "round, s", "/ bare, one process", "/ bare, two processes", "processor time / bare, one process",
    "to the first round's end, s", "whole process, s", "PSS, MB",
)  # fmt: skip


def row(name: str, pairings: Sequence[Pairing]) -> dict[str, Any] | None:
    """The figures of a contestant over all pairings in which it took part to the end; None if there is none."""
    taken = [pairing for pairing in pairings if name in pairing.outcomes]
    if not taken:
        return None
    own = [pairing.outcomes[name] for pairing in taken]
    figures: dict[str, Any] = {
        "round_seconds": asdict(spread([s for outcome in own for s in outcome.rounds])),
        "first_seconds": asdict(spread([outcome.first for outcome in own])),
        "whole_seconds": asdict(spread([outcome.whole for outcome in own])),
        "pss_bytes": max(outcome.pss for outcome in own),
    }
    for reference in REFERENCES:
        paired = [p for p in taken if reference in p.outcomes]
        for kind, of in (("", lambda outcome: outcome.rounds), ("processor_", lambda outcome: outcome.processor)):
            found = [r for p in paired for r in ratios(of(p.outcomes[name]), of(p.outcomes[reference]))]
            figures[f"{kind}to_{reference}"] = asdict(spread(found)) if found else None
    return figures


def cells(name: str, title: str, figures: dict[str, Any]) -> list[str]:
    """A row of the table."""

    def ratio(kind: str, reference: str) -> str:
        given = figures[f"{kind}to_{reference}"]
        if reference == name:
            return "1"
        return "–" if given is None else f"{given['median']:.2f} ({given['low']:.2f} to {given['high']:.2f})"

    return [
        title,
        f"{figures['round_seconds']['median']:.3f}",
        *(ratio("", reference) for reference in REFERENCES),
        ratio("processor_", "bare-1"),
        f"{figures['first_seconds']['median']:.1f}",
        f"{figures['whole_seconds']['median']:.1f}",
        f"{figures['pss_bytes'] / 1e6:,.0f}",
    ]


def groups(names: Sequence[str], job: Job) -> list[list[str]]:
    """Who takes turns with whom: all together, or one at a time with the bare loops that were asked for."""
    references = [name for name in names if name in REFERENCES]
    others = [name for name in names if name not in REFERENCES]
    if not job.alone or not others:
        return [list(names)]
    return [[*references, name] for name in others]


def played(
    job: Job, entries: Mapping[str, Entry], pythons: Mapping[str, str], turns: int, in_a_row: int,
    reasons: dict[str, str], folder: Path, unseen: int = 0,
) -> list[Pairing]:  # fmt: skip
    """Let contestants play a job, after a warm-up of each; ``reasons`` gets those that are left out."""

    def pairing(names: Sequence[str], turns: int, unseen: int) -> Pairing:
        rounds = (turns + unseen) * in_a_row + 2
        started = {name: entries[name].started(pythons[name], job.name, rounds, folder) for name in names}
        return play(job, started, turns, in_a_row, folder, unseen)

    folder.mkdir()
    for name in pythons:  # alone and unmeasured, so that data are prepared
        print(f"{job.name}: warming up {name}", file=sys.stderr, flush=True)
        reasons |= pairing([name], 0, 0).reasons
    pairings = []
    for group in groups([name for name in pythons if name not in reasons], job):
        print(f"{job.name}: {turns} turns of {in_a_row} rounds: {', '.join(group)}", file=sys.stderr, flush=True)
        pairings.append(pairing(group, turns, unseen))
        reasons |= pairings[-1].reasons
    return pairings


def measured(
    job: Job, entries: Mapping[str, Entry], pythons: Mapping[str, str], turns: int, in_a_row: int,
    reasons: dict[str, str], folder: Path, unseen: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Measure a job, print its table, and return its figures; ``reasons`` has those that are left out already."""
    pairings = played(job, entries, pythons, turns, in_a_row, reasons, folder, unseen)
    figures = {name: found for name in pythons if (found := row(name, pairings)) is not None}
    others = spread([cores for pairing in pairings for cores in pairing.others] or [0.0])
    print(f"\n**{job.title}**: {job.cohort} of {job.clients} clients a round, {job.steps} steps of batch {job.batch}\n")
    print(table(HEAD, [cells(name, entries[name].title, found) for name, found in figures.items()]))
    print(f"\n{turns} turns of {in_a_row} rounds in a row; other programs used {others} of the cores meanwhile.")
    for name, reason in reasons.items():
        print(f"{entries[name].title}: left out, {reason}")
    sys.stdout.flush()
    more = {"turns": turns, "in_a_row": in_a_row, "others_cores": asdict(others)}
    return {"figures": figures, "left_out": reasons, **more}


def machine() -> dict[str, Any]:
    """What the figures depend on: cores, memory, and versions."""
    return {
        "cores": psutil.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "threads_per_process": 1,
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = parser_of(__doc__, "bench.py peers")
    parser.add_argument("--jobs", type=several(JOBS), default=["vit", "cnn", "big"], help=f"of {', '.join(JOBS)}")
    parser.add_argument("--contestants", type=several(ENTRIES), default=list(ENTRIES), help=", ".join(ENTRIES))
    parser.add_argument("--rounds", type=int, default=20, help="compared turns of each contestant (default 20)")
    parser.add_argument("--in-a-row", type=int, default=5, metavar="N", help="rounds in a turn (default 5; big: 1)")
    parser.add_argument("--big-rounds", type=int, default=5, help="compared turns of the job big (default 5)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument(
        "--keep-environments", type=Path, metavar="DIR", help="where pfl's and Flower's environments are made and kept"
    )
    chosen, facts = parser.parse_args(arguments), machine()
    report: dict[str, Any] = {"machine": facts, "jobs": {}}
    with tempfile.TemporaryDirectory() as made:
        homes = (chosen.keep_environments or Path(made) / "environments").resolve()
        pythons, absent = {}, {}
        for name in chosen.contestants:
            try:
                pythons[name], versions = python_of(ENTRIES[name].environment, homes)
                facts |= {"peers": {**facts.get("peers", {}), name: versions}} if versions else {}
            except Failed as failure:
                absent[name] = str(failure)
        print(
            f"{facts['cores']} cores ({facts['usable_cores']} usable), {facts['memory_bytes'] / 2**30:.0f} GiB, one "
            f"thread per process, Python {facts['python']}, torch {facts['torch']}"
            + "".join(f", {each}" for each in dict.fromkeys(facts.get("peers", {}).values()))
        )
        for job in (JOBS[name] for name in chosen.jobs):
            turns, in_a_row = (chosen.big_rounds, 1) if job.name == "big" else (chosen.rounds, chosen.in_a_row)
            found = measured(job, ENTRIES, pythons, turns, in_a_row, dict(absent), Path(made) / job.name)
            report["jobs"][job.name] = found
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
