"""Rounds in which edgefl trains several clients at once (``training.stack``), beside a bare loop's.

    python tools/bench.py stack [--job small] [--stacks off,4,8,16] [--workers 1] [--rounds 20] [--json FILE]

The bare loop trains one client after the other in one process (``bench.bare``).  docs/explanation/performance.md has
what is measured.  Needs Linux.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from measuring import parser_of

from bench.contestants import ENTRIES, Entry
from bench.jobs import JOBS
from bench.peers import machine, measured

WARM_UP = 1
"""Turns that aren't compared after the first round: works are measured in the one, stacked steps made in the other."""


def entries(stacks: list[str], workers: int) -> dict[str, Entry]:
    """The bare loop, and edgefl with each size of a stack."""
    found = {"bare-1": ENTRIES["bare-1"]}
    for stack in stacks:
        more = ("--processes", str(workers), *(("--stack", stack) if stack != "off" else ()))
        found[stack] = Entry(f"edgefl, stack: {stack}", "bench.edgefl_run", more)
    return found


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = parser_of(__doc__, "bench.py stack")
    parser.add_argument("--job", choices=JOBS, default="small")
    parser.add_argument("--stacks", type=lambda text: text.split(","), default=["off", "4", "8", "16"])
    parser.add_argument("--workers", type=int, default=1, help="1: in one process (default)")
    parser.add_argument("--rounds", type=int, default=20, help="paired rounds (default 20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    chosen = parser.parse_args(arguments)
    players = entries(chosen.stacks, chosen.workers)
    with tempfile.TemporaryDirectory() as made:
        pythons = dict.fromkeys(players, sys.executable)
        found = measured(JOBS[chosen.job], players, pythons, chosen.rounds, 1, {}, Path(made) / "stack", WARM_UP)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps({"machine": machine(), **found}, indent=1) + "\n", encoding="utf-8")
