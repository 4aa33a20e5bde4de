"""Try hostile inputs, and show the smallest one for each failure.

    python tools/fuzz.py --seconds 60 [--seed 1] [--only scenarios]

makes scenarios, profiles, availability traces, data tables and run directories that are wrong in some way, and gives
them to edgefl.  A failure is anything but success or an ``EdgeflError`` in short lines, more than 5 s of processor
time, or more than 1 GiB.  Each failure is printed once, with the folder of a small case.  The same seed gives the same
cases, so ``--seed`` shows a failure again.  Exit codes: 0 no failure, 1 failures.  It runs on Linux.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
sys.path[:0] = [str(TOOLS), str(TOOLS.parent)]

from fuzzing.case import KINDS, commands  # noqa: E402
from fuzzing.judging import Judge  # noqa: E402
from fuzzing.search import Found, search  # noqa: E402
from measuring import parser_of  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """Search; the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to search (default: 60)")
    parser.add_argument("--seed", type=int, default=None, help="number of the search; by default the time")
    parser.add_argument("--only", choices=KINDS, action="append", help="kinds of input; may be repeated")
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"), help="folder for cases that fail")
    given = parser.parse_args(arguments)
    number = int(time.time()) if given.seed is None else given.seed
    kinds, shown = given.only or list(KINDS), 0
    print(f"seed {number}, {given.seconds:g} s for {', '.join(kinds)}")
    with Judge() as judge:
        started = time.monotonic()
        for index, kind in enumerate(kinds):

            def show(found: Found) -> None:
                nonlocal shown
                shown += 1
                _show(found, given.out / f"{shown:03d}-{found.case.kind}", number)

            until = started + given.seconds * (index + 1) / len(kinds)
            search(judge, kind, number, until=until, on_found=show)
        for kind, tally in judge.tallies.items():
            print(f"{kind}: {tally}")
    print(f"{shown} failures" if shown else "no failure")
    return 1 if shown else 0


def _show(found: Found, folder: Path, number: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    found.case.write(folder)
    print(f"\n{found.finding.signature}\n  {found.finding.message}")
    for name in found.case.hostile:
        content = found.case.files.get(name)
        shown = repr(content[:300]) if isinstance(content, bytes) else content
        print(f"  {folder / name}: {shown}")
    print(f"  cd {folder} && {' ; '.join(commands(found.case))}")
    print(f"  python tools/fuzz.py --seed {number} --only {found.case.kind}\n{found.finding.traceback}")


if __name__ == "__main__":
    sys.exit(main())
