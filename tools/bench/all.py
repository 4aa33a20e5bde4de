"""Everything that people wait for: each figure as paired ratios with their spread, beside its aim.

    python tools/bench.py all [--only rounds,steps,start,prices,data,fleet] [--jobs vit,cnn,big]
                              [--against CHECKOUT [--python PYTHON]] [--out FILE]

Nine minutes on two idle cores; 10 GB of memory for the job big.  What is compared takes turns.  ``--against`` also
times the commands and data sets of another checkout in the same turns, such as the version before.
docs/evidence/speed.md has what is measured.  Needs Linux.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import median

from measuring import Spread, in_turn, parser_of, ratios, seconds_of, several, spread, table

from bench.contestants import ENTRIES, Version, add_versions, versions_in
from bench.jobs import JOBS
from bench.pairing import Failed, Pairing, Started, play
from bench.peers import machine, played

TURNS = {"vit": (10, 3), "cnn": (10, 3), "big": (3, 1), "small": (5, 3), "tiny": (3, 1)}
"""By job: compared turns, and rounds in a row."""
PAIRS = (
    ("edgefl-1", "bare-1", {"vit": 1.05, "cnn": 1.05}),
    ("edgefl-2", "bare-1", {"vit": 0.55, "cnn": 0.62, "big": 0.60}),
    ("edgefl-2", "bare-2", {}),
    ("edgefl-4", "bare-1", {}),
    ("edgefl-4", "bare-2", {}),
    ("edgefl-4", "edgefl-2", {"vit": 1.0, "cnn": 1.0, "big": 1.0}),
)
"""Whose rounds are held against whose, and by job the largest ratio that is aimed at."""
OPENED = 0.3
"""Seconds in which a data set is to open from the cache."""
RATE = 50_000
"""Client-rounds a second that a million clients are to reach, with and without relays."""
HEAD = ("what", "against", "ratio", "it takes", "aim", "reached")


@dataclass(frozen=True)
class Row:
    """A figure: the ratios of its turns, what it takes in its own unit, and the aim if there is one."""

    what: str
    against: str
    ratio: Spread
    takes: str
    aim: str = ""
    reached: bool | None = None

    def cells(self) -> list[str]:
        """A row of the table."""
        reached = {True: "yes", False: "no", None: ""}[self.reached]
        return [self.what, self.against, str(self.ratio), self.takes, self.aim, reached]


Found = Iterator[Row | str]
"""Rows, and lines on what is left out or was in the way."""


# --- rounds and steps ------------------------------------------------------------------------------------------------


def rows_of(job: str, pairing: Pairing) -> Found:
    """The rows of contestants that took turns."""
    outcomes = pairing.outcomes
    for name, reference, aims in PAIRS:
        if name in outcomes and reference in outcomes:
            ours, theirs = outcomes[name].rounds, outcomes[reference].rounds
            found, aim = spread(ratios(ours, theirs)), aims.get(job)
            told = {} if aim is None else {"aim": f"at most {aim:g}", "reached": found.median <= aim}
            title = f"{job}, a round: {ENTRIES[name].title}"
            yield Row(title, ENTRIES[reference].title, found, f"{median(ours):.3f} s", **told)
    if job == "big" and {"edgefl-1", "edgefl-2"} <= outcomes.keys():
        ours, theirs = (outcomes[name].whole for name in ("edgefl-2", "edgefl-1"))
        found = spread([ours / theirs])
        title = f"{job}, the whole process: {ENTRIES['edgefl-2'].title}"
        yield Row(title, ENTRIES["edgefl-1"].title, found, f"{ours:.1f} s", "below 1", ours < theirs)
    yield from (f"{job}, {ENTRIES[name].title}: left out, {reason}" for name, reason in pairing.reasons.items())
    yield f"{job}: other programs used {spread(pairing.others or [0.0])} cores"


def rounds(jobs: Sequence[str], folder: Path) -> Found:
    """Rounds with training, of edgefl and of bare loops."""
    names = list(dict.fromkeys(name for name, reference, _ in PAIRS for name in (reference, name)))
    for job in jobs:
        turns, row = TURNS[job]
        reasons = dict[str, str]()
        together = replace(JOBS[job], alone=False)
        pythons = dict.fromkeys(names, sys.executable)
        for pairing in played(together, ENTRIES, pythons, turns, row, reasons, folder / job):
            yield from rows_of(job, replace(pairing, reasons=reasons))


def steps() -> Found:
    """A client's steps and what surrounds them, in processor time."""
    from bench.overhead import measured

    what, found = measured(60, 5)
    bare = found.pop("bare")
    for name, each in found.items():
        ratio = spread(ratios(each, bare))
        aim = {"aim": "at most 1.05", "reached": ratio.median <= 1.05} if name == "interpreter" else {}
        yield Row(f"{what} of a client: {name}", "bare loop", ratio, f"{median(each):.2f} s of CPU", **aim)


# --- commands --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timed:
    """What is timed in seconds, from the start of its process on; ``above`` counts those above ``import torch``."""

    what: str
    seconds: Callable[[Version], float]
    most: float
    above: bool = False
    warmed: bool = True
    """Whether a first, uncounted turn fills the cache."""


def command(*arguments: str, cold: bool = False) -> Callable[[Version], float]:
    """Seconds of a command of edgefl; ``cold``: with an empty cache."""

    def seconds(version: Version) -> float:
        whole = ("-m", "edgefl", *arguments)
        if not cold:
            return version.run(whole)[0]
        with tempfile.TemporaryDirectory(dir=version.folder) as empty:
            return version.run(whole, Path(empty))[0]

    return seconds


def first_round(name: str) -> Callable[[Version], float]:
    """Seconds from the start of a contestant's process to the end of its first round of the job vit."""

    def seconds(version: Version) -> float:
        command = ENTRIES[name].started(version.python, "vit", 2, version.folder).command
        pairing = play(JOBS["vit"], {name: Started(command, version.environment())}, 0, 1, version.folder)
        if name in pairing.reasons:
            raise Failed(pairing.reasons[name])
        return pairing.outcomes[name].first

    return seconds


START = (
    Timed("edgefl validate quickstart", command("validate", "quickstart"), 1.0, above=True),
    Timed("the first round's end, inline", first_round("edgefl-1"), 3.0),
    Timed("the first round's end, two workers", first_round("edgefl-2"), 4.0),
    Timed("the first round's end, two Ray workers", first_round("edgefl-ray"), 6.0),
)
QWEN = "finetune/qwen2.5-0.5b"
CHECK = Timed(
    f"edgefl sweep {QWEN} --devices all, cold",
    command("sweep", QWEN, "--set", "compare=null", "--devices", "all", cold=True), 8.0, warmed=False,
)  # fmt: skip
FIT = Timed(
    f"edgefl fit {QWEN}, cold",
    command("fit", QWEN, "--device", "raspberry-pi-4-4gb", cold=True), 120.0, warmed=False,
)  # fmt: skip
TORCH = Timed("import torch", lambda version: version.run(["-c", "import torch"])[0], 0.0)


def timed(items: Sequence[Timed], turns: int, versions: Sequence[Version]) -> Found:
    """Let ``import torch`` and these take turns; the first of the versions is this one, a second the one before."""
    calls = {(item.what, place): (item, version) for item in items for place, version in enumerate(versions)}
    calls = {(TORCH.what, 0): (TORCH, versions[0]), **calls}
    taken: dict[tuple[str, int], list[float]] = {key: [] for key in calls}
    reasons: dict[tuple[str, int], str] = {}
    for turn in range(-1, turns):
        for key in in_turn(list(calls), turn):
            item, version = calls[key]
            if key in reasons or (turn < 0 and not item.warmed):
                continue
            moment = f"turn {turn + 1} of {turns}" if turn >= 0 else "warming up"
            print(f"{item.what}{', the version before' * key[1]}: {moment}", file=sys.stderr, flush=True)
            try:
                seconds = item.seconds(version)
            except Failed as failure:
                reasons[key] = str(failure)
                continue
            if turn >= 0:
                taken[key].append(seconds)
    torch = taken[TORCH.what, 0]
    for item in items:
        if (item.what, 0) in reasons:
            yield f"{item.what}: left out, {reasons[item.what, 0]}"
            continue
        ours = taken[item.what, 0]
        seconds = median(our - its * item.above for our, its in zip(ours, torch, strict=True))
        aim = f"at most {item.most:g} s" + " more" * item.above
        takes = f"{median(ours):.1f} s" + f", {seconds:.1f} s more" * item.above
        yield Row(item.what, TORCH.what, spread(ratios(ours, torch)), takes, aim, seconds <= item.most)
        if len(versions) > 1 and (item.what, 1) not in reasons:
            theirs = taken[item.what, 1]
            yield Row(item.what, "the version before", spread(ratios(ours, theirs)), f"{median(theirs):.1f} s before")
        elif len(versions) > 1:
            yield f"{item.what}: the version before, {reasons[item.what, 1]}"


# --- data and fleets -------------------------------------------------------------------------------------------------

SETS = {
    "glyphs": ["quickstart"],
    "emoji": ["quickstart", "data.source=emoji"],
    "icons": ["papers/orderings-creamfl"],
    "names": ["finetune/names-lora"],
    "spoken-digits": ["spoken-digits"],
    "mnist-5k, names and glyphs": ["papers/orderings-pretrained"],
}
"""By data set: a shipped scenario that uses it, with a change."""
OPEN = """
import json, sys, time
import torch
from edgefl.data import open_federation
from edgefl.errors import EdgeflError
from edgefl.scenario import load

found = {}
for name, (scenario, *changes) in json.loads(sys.argv[1]).items():
    try:
        data = load(scenario, changes).data
        began = time.perf_counter()
        open_federation(data, seed=1, tokens=16)
    except EdgeflError as error:
        found[name] = str(error).splitlines()[0]
    else:
        found[name] = time.perf_counter() - began
print(json.dumps(found))
"""


def opened(version: Version, sets: Mapping[str, list[str]], cache: Path) -> dict[str, float | str]:
    """Seconds to open each data set in a new process, or the reason why it can't be.  Raises Failed."""
    told: dict[str, float | str] = json.loads(version.run(["-c", OPEN, json.dumps(sets)], cache)[1])
    return told


def data(versions: Sequence[Version], sets: Mapping[str, list[str]] = SETS, turns: int = 3) -> Found:
    """Data sets from an empty cache, and from a full one; imports of torch and edgefl aren't counted."""
    first: list[dict[str, list[float]]] = [{name: [] for name in sets} for _ in versions]
    again: list[dict[str, list[float]]] = [{name: [] for name in sets} for _ in versions]
    reasons: dict[str, str] = {}
    for turn in range(turns):
        for place in (range(len(versions)), reversed(range(len(versions))))[turn % 2]:
            print(f"data sets: turn {turn + 1} of {turns}", file=sys.stderr, flush=True)
            version = versions[place]
            with tempfile.TemporaryDirectory(dir=version.folder) as cache:
                for taken in (first[place], again[place]):
                    for name, seconds in opened(version, sets, Path(cache)).items():
                        if isinstance(seconds, str):
                            reasons[name] = seconds
                        else:
                            taken[name].append(seconds)
    for name in sets:
        if name in reasons:
            yield f"open {name}: left out, {reasons[name]}"
            continue
        for what, taken in (("from an empty cache", first), ("from the cache", again)):
            ours = taken[0][name]
            if taken is again:
                aim = f"at most {OPENED:g} s", median(ours) <= OPENED
                takes = f"{median(ours):.2f} s"
                yield Row(f"open {name}, {what}", "an empty cache", spread(ratios(ours, first[0][name])), takes, *aim)
            if len(versions) > 1:
                takes = f"{median(ours):.2f} s, {median(taken[1][name]):.2f} s before"
                yield Row(f"open {name}, {what}", "the version before", spread(ratios(ours, taken[1][name])), takes)


def fleets(turns: int = 3) -> Found:
    """Client-rounds a second of processor time of a million clients over 100 rounds, with and without relays."""
    from bench.fleet import COHORT, bare, measured
    from edgefl.errors import EdgeflError
    from edgefl.scenario import load

    relayed = "a million clients behind 1,000 relays"
    variants: dict[str, dict[str, int]] = {"a million clients": {}, relayed: {"fleet.relays": 1000}}
    try:
        load("million", ["fleet.relays=1000"])
    except EdgeflError:
        del variants[relayed]
        yield f"{relayed}: not in this version"
    rates: dict[str, list[float]] = {name: [] for name in ("bare", *variants)}
    for turn in range(turns):
        print(f"a million clients: turn {turn + 1} of {turns}", file=sys.stderr, flush=True)
        for name in in_turn(list(rates), turn):
            if name == "bare":
                rates[name].append(COHORT * 20 / seconds_of(lambda: bare(20, False)))
            else:
                run = measured("million", variants[name], None)
                rates[name].append(run["client_rounds_per_second"])
    for name in variants:
        rate = median(rates[name])
        takes, aim = f"{rate:,.0f} client-rounds/s", f"at least {RATE:,}"
        yield Row(
            name, "bare SimPy, three timeouts", spread(ratios(rates[name], rates["bare"])), takes, aim, rate >= RATE
        )


# --- what is printed -------------------------------------------------------------------------------------------------

SECTIONS = ("rounds", "steps", "start", "prices", "data", "fleet")


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = parser_of(__doc__, "bench.py all")
    parser.add_argument("--only", type=several(SECTIONS), default=list(SECTIONS), help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--jobs", type=several(JOBS), default=["vit", "cnn", "big"], help=f"of {', '.join(JOBS)}")
    add_versions(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the rows there too")
    chosen = parser.parse_args(arguments)
    began, rows, notes = time.monotonic(), list[Row](), list[str]()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        versions = versions_in(folder, chosen.against, chosen.python)
        sections: dict[str, Callable[[], Found]] = {
            "rounds": lambda: rounds(chosen.jobs, folder),
            "steps": steps,
            "start": lambda: timed(START, 3, versions),
            "prices": lambda: chain(timed([CHECK], 3, versions), timed([FIT], 1, versions)),
            "data": lambda: data(versions),
            "fleet": fleets,
        }
        for section in chosen.only:
            told: list[Row | str] = []
            for each in sections[section]():  # told at once, too: what was found isn't lost if the tool is stopped
                told.append(each)
                said = each if isinstance(each, str) else " | ".join(each.cells())
                print(said, file=sys.stderr, flush=True)
            rows += (own := [each for each in told if isinstance(each, Row)])
            notes += (lines := [each for each in told if isinstance(each, str)])
            print(f"\n**{section}**\n\n{table(HEAD, [row.cells() for row in own], numbers=False)}\n")
            print("\n".join(lines), flush=True)
    aimed = [row for row in rows if row.reached is not None]
    reached = f"{sum(row.reached is True for row in aimed)} of {len(aimed)} aims are reached"
    print(f"\n{reached}.  Ratios: medians and quartiles of turns; {(time.monotonic() - began) / 60:.0f} minutes.")
    if chosen.out is not None:
        report = {"machine": machine(), "rows": [asdict(row) for row in rows], "notes": notes}
        chosen.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
