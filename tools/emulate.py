"""Play a scenario with real processes under the kernel's limits, and hold it against the simulation.

    python tools/emulate.py mine.yaml --clients 4
    python tools/emulate.py quickstart --set compare=null --clients 4 --rounds 2 --out runs/emulated

Each client has a network namespace with a shaped link, a share of one processor and a memory limit.  It needs Linux and
root.  Exit code 2: it can't be.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.program import add_form, print_answer, program


def main(arguments: list[str] | None = None) -> None:
    """Emulate, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", metavar="SCENARIO", help="a scenario file, or the name of a shipped one")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", dest="overrides",
                        help="change a field: training.lr=1e-3; may be repeated")  # fmt: skip
    parser.add_argument("--clients", type=int, metavar="N", help="emulate N of the scenario's clients")
    parser.add_argument("--rounds", type=int, metavar="R", help="play the first R rounds only")
    parser.add_argument("-o", "--out", metavar="DIR", help="new folder for the runs; default: runs/NAME-emulated")
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE",
                        help="a Python file whose parts are then known; may be repeated")  # fmt: skip
    add_form(parser)
    given = parser.parse_args(arguments)
    with program("nothing is left of the clients") as on_progress:
        from edgefl import registry, terminal
        from tools.emulation.playing import emulate
        from tools.emulation.printed import print_emulation

        for file in given.plugin:
            registry.load_plug_in(file)
        result = emulate(
            given.scenario, given.overrides, clients=given.clients, rounds=given.rounds, out=given.out,
            on_progress=on_progress,
        )  # fmt: skip
        print_answer(result, given.form, print_emulation)
        if given.form == "table":
            terminal.say(f"runs: {result.folder}")


if __name__ == "__main__":
    main()
