"""Rounds of edgefl beside those of a bare loop, pfl-research and Flower, as ratios of paired rounds.

    python tools/bench_peers.py [--jobs vit,cnn,big] [--contestants bare-1,bare-2,edgefl-1,...] [--rounds 20]
                                [--in-a-row 5] [--big-rounds 5] [--json FILE] [--keep-environments DIR]

Contestants take turns: each plays some rounds in a row while the others wait.  docs/explanation/performance.md has
what is measured.  A contestant that can't be installed or fails is listed with its reason.  Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import psutil
from peers.contestants import ENTRIES, python_of, variables
from peers.figures import in_turn, ratios, spread, table
from peers.jobs import JOBS, Job
from peers.pairing import Contestant, Failed, Outcome

REFERENCES = ("bare-1", "bare-2")
HEAD = (
    "contestant", "round, s", "/ bare, one process", "/ bare, two processes", "processor time / bare, one process",
    "to the first round's end, s", "whole process, s", "PSS, MB",
)  # fmt: skip


@dataclass
class Pairing:
    """Contestants that took turns: the outcome of each, or the reason why there is none."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    others: list[float] = field(default_factory=list)
    """Processor cores that other programs used in each turn."""


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


def cells(name: str, figures: dict[str, Any]) -> list[str]:
    """A row of the table."""

    def ratio(kind: str, reference: str) -> str:
        given = figures[f"{kind}to_{reference}"]
        if reference == name:
            return "1"
        return "–" if given is None else f"{given['median']:.2f} ({given['low']:.2f} to {given['high']:.2f})"

    return [
        ENTRIES[name].title,
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


@contextmanager
def _playing(pairing: Pairing, name: str, children: dict[str, Contestant]) -> Iterator[None]:
    """Take a contestant that fails out of the pairing, with its reason."""
    try:
        yield
    except Failed as failure:
        pairing.reasons[name] = str(failure)
        pairing.outcomes.pop(name, None)
        if name in children:
            children.pop(name).kill()


def play(job: Job, names: Sequence[str], pythons: dict[str, str], turns: int, row: int, folder: Path) -> Pairing:
    """Let these contestants take turns: a first round each, ``turns`` of ``row`` compared rounds, and a last round."""
    pairing, children = Pairing(), {}
    try:
        for name in names:
            with _playing(pairing, name, children):
                command = ENTRIES[name].command(pythons[name], job.name, turns * row + 2)
                children[name] = Contestant(command, variables(folder, ENTRIES[name].environment), folder, name)
                said = children[name].start()
                if (said["parameters"], said["clients"]) != (job.parameters, job.cohort):
                    raise Failed(f"it trained {said['clients']} clients with {said['parameters']} parameters")
        for turn in range(turns):
            before, busy = psutil.cpu_times(), _own_seconds(children)
            for name in in_turn(list(children), turn):
                with _playing(pairing, name, children):
                    children[name].turn(rounds=row)
            pairing.others.append(_others(before, busy, children))
        for name in list(children):
            with _playing(pairing, name, children):
                children[name].turn(compared=False)
                pairing.outcomes[name] = children[name].end()
    finally:
        for child in children.values():
            child.kill()
    return pairing


def _own_seconds(children: dict[str, Contestant]) -> float:
    """Processor seconds of the contestants so far."""
    return sum(child.processor_seconds() for child in children.values())


def _others(before: Any, busy: float, children: dict[str, Contestant]) -> float:
    """Processor cores that programs other than the contestants used since ``before``."""
    now = psutil.cpu_times()
    idle = (now.idle - before.idle) + (now.iowait - before.iowait)
    whole = sum(now[:8]) - sum(before[:8])
    cores = psutil.cpu_count() or 1
    own = _own_seconds(children) - busy
    return max(0.0, (whole - idle - own) / whole * cores) if whole else 0.0


def warm_up(job: Job, names: Sequence[str], pythons: dict[str, str], folder: Path) -> dict[str, str]:
    """Play two rounds of each, alone and unmeasured, so that data are prepared; the reasons of those that fail."""
    reasons = {}
    for name in names:
        print(f"{job.name}: warming up {name}", file=sys.stderr, flush=True)
        reasons |= play(job, [name], pythons, 0, 1, folder).reasons
    return reasons


def machine() -> dict[str, Any]:
    """What the figures depend on: cores, memory, and versions."""
    import platform
    from importlib.metadata import version

    return {
        "cores": psutil.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "threads_per_process": 1,
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def _chosen() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)

    def several(known: Sequence[str]) -> Any:
        def read(text: str) -> list[str]:
            names = text.split(",")
            if wrong := [name for name in names if name not in known]:
                raise argparse.ArgumentTypeError(f"{wrong[0]!r} isn't one of {', '.join(known)}")
            return names

        return read

    parser.add_argument("--jobs", type=several(list(JOBS)), default=["vit", "cnn", "big"], help=f"of {', '.join(JOBS)}")
    parser.add_argument("--contestants", type=several(list(ENTRIES)), default=list(ENTRIES), help=", ".join(ENTRIES))
    parser.add_argument("--rounds", type=int, default=20, help="compared turns of each contestant (default 20)")
    parser.add_argument(
        "--in-a-row",
        type=int,
        default=5,
        metavar="N",
        help="rounds that each plays in a turn (default 5; big: 1)",
    )
    parser.add_argument("--big-rounds", type=int, default=5, help="the same for the job big (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument(
        "--keep-environments", type=Path, metavar="DIR", help="where pfl's and Flower's environments are made and kept"
    )
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    chosen, facts = _chosen(), machine()
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
            report["jobs"][job.name] = _measured(job, turns, in_a_row, pythons, dict(absent), Path(made))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _measured(
    job: Job, turns: int, in_a_row: int, pythons: dict[str, str], reasons: dict[str, str], made: Path
) -> dict[str, Any]:
    """Measure a job, print its table, and return its figures."""
    folder = made / job.name
    folder.mkdir()
    reasons |= warm_up(job, list(pythons), pythons, folder)
    pairings = []
    for group in groups([name for name in pythons if name not in reasons], job):
        print(f"{job.name}: {turns} turns of {in_a_row} rounds: {', '.join(group)}", file=sys.stderr, flush=True)
        pairings.append(play(job, group, pythons, turns, in_a_row, folder))
        reasons |= pairings[-1].reasons
    figures = {name: found for name in pythons if (found := row(name, pairings)) is not None}
    others = spread([cores for pairing in pairings for cores in pairing.others] or [0.0])
    print(f"\n**{job.title}**: {job.cohort} of {job.clients} clients a round, {job.steps} steps of batch {job.batch}\n")
    print(table(HEAD, [cells(name, found) for name, found in figures.items()]))
    print(f"\n{turns} turns of {in_a_row} rounds in a row; other programs used {others} of the cores meanwhile.")
    for name, reason in reasons.items():
        print(f"{ENTRIES[name].title}: left out, {reason}")
    sys.stdout.flush()
    return {
        "figures": figures,
        "left_out": reasons,
        "turns": turns,
        "in_a_row": in_a_row,
        "others_cores": asdict(others),
    }


if __name__ == "__main__":
    main()
