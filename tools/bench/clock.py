"""Client-rounds a second of processor time, by how the clock plays a million clients' rounds.

    python tools/bench.py clock [--only events,fifo] [--turns 5] [--against CHECKOUT [--python PYTHON]] [--out FILE]

Every run has its own process and trains nothing; the seconds are those of the rounds, records included, without the
start.  With ``--against`` each case is run in turns by both checkouts, and ratios are those of the same turn: above 1
this checkout is the faster.  An uncounted round comes first, which fills the cache of predictions.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from measuring import in_turn, parser_of, ratios, several, spread, table

from bench.contestants import Version, add_versions, versions_in
from bench.fleet import MARKOV, ONE_BY_ONE, SHARED, TROUBLE, measured

EVENTS = {"executor.clock": "events"}
BUFFERED = {"round.policy": "buffered", "round.concurrency": 200, "round.buffer": 100}

CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "closed-form": (100, {}),
    "events": (60, EVENTS),
    "events-failures-deadline": (60, {**EVENTS, **TROUBLE}),
    "fifo": (40, {"fleet.server_link": {**SHARED, "sharing": "fifo"}}),
    "fair-share": (20, {"fleet.server_link": SHARED}),
    "fair-share-failures-deadline": (20, {"fleet.server_link": SHARED, **TROUBLE}),
    "relays": (60, {**EVENTS, "fleet.relays": 1000}),
    "semi-synchronous": (60, {"round.policy": "semi-synchronous"}),
    "asynchronous": (60, ONE_BY_ONE),
    "asynchronous-markov": (20, {**ONE_BY_ONE, **MARKOV}),
    "asynchronous-fair-share": (40, {**ONE_BY_ONE, "fleet.server_link": SHARED}),
    "buffered": (100, BUFFERED),
}
"""By case: how many rounds it has, and what it changes in ``million.yaml``.  The rounds take some seconds."""


def rates_of(case: str, versions: Sequence[Version], turns: int) -> list[list[float]]:
    """Client-rounds a second of each version in every turn.  Raises Failed if a run fails."""
    rounds, changes = CASES[case]
    rates: list[list[float]] = [[] for _ in versions]
    for turn in range(-1, turns):
        print(f"{case}: {f'turn {turn + 1} of {turns}' if turn >= 0 else 'warming up'}", file=sys.stderr, flush=True)
        for place in map(int, in_turn([str(place) for place in range(len(versions))], turn)):
            played = {**changes, "schedule.rounds": rounds if turn >= 0 else 1}
            run = measured("million", played, None, version=versions[place])
            if turn >= 0:
                rates[place].append(run["client_rounds_per_second"])
    return rates


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = parser_of(__doc__, "bench.py clock")
    parser.add_argument("--only", type=several(CASES), default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--turns", type=int, default=5, help="counted runs of each case and checkout (default 5)")
    add_versions(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the rates of all turns there too")
    chosen = parser.parse_args(arguments)
    report, lines = dict[str, list[list[float]]](), list[list[str]]()
    with tempfile.TemporaryDirectory() as made:
        versions = versions_in(Path(made), chosen.against, chosen.python)
        for case in chosen.only:
            report[case] = rates = rates_of(case, versions, chosen.turns)
            cells = [f"{median(each):,.0f}" for each in rates]
            lines.append([case, *cells, *([str(spread(ratios(*rates)))] if len(rates) > 1 else [])])
            print(" | ".join(lines[-1]), file=sys.stderr, flush=True)
    head = ["client-rounds/s", "this checkout", *(["the version before", "ratio"] if chosen.against else [])]
    print(table(head, lines))
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
