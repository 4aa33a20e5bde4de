"""Measure edgefl's speed beside bare loops, rivals, formulas and its own predictions.

    python tools/bench.py all | clock | fleet | network | overhead | peers | rounds | steps  [--help]

What is compared takes turns in one run, and the ratios of the same turn are told.
docs/evidence/speed.md has the figures.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
sys.path[:0] = [str(TOOLS), str(TOOLS.parent)]

from measuring import parser_of  # noqa: E402

MEASURES = {
    "all": "everything that people wait for, beside its aims, in nine minutes",
    "clock": "client-rounds a second by policy and line, beside another checkout",
    "fleet": "client-rounds a second of a million clients that train nothing, beside SimPy and NumPy",
    "network": "events a second of the shared server link",
    "overhead": "a client's steps, the meter and a prediction, beside a training loop written by hand",
    "peers": "rounds with training, beside a bare loop, pfl-research and Flower",
    "rounds": "a round's time by part",
    "steps": "predicted against measured seconds of a step on this machine",
}


def main(arguments: list[str] | None = None) -> None:
    """Hand the arguments to what is measured."""
    parser = parser_of(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join(f"  {name:10}{what}" for name, what in MEASURES.items())
    parser.add_argument("what", choices=MEASURES, help="what is measured")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="its arguments; --help tells them")
    given = parser.parse_args(arguments)
    import_module(f"bench.{given.what}").main(given.rest)


if __name__ == "__main__":
    main()
