"""Train the seeds that docs/evidence/papers/orderings.json lacks, and write what they measured into it.

    python tools/orderings.py                         the studies, their seeds, and the minutes that are left
    python tools/orderings.py mcfl --out runs         trains what lacks, 40 minutes at most; repeat it to go on
    python tools/orderings.py --all --out runs --read takes finished runs only

The file is written after each seed, and a seed that was cut off goes on.  ``python tools/pages.py`` makes the tables of
docs/evidence/papers/orderings.md and open-questions.md from it.  Exit codes: 1 if seeds lack at the end.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.program import program


def main(arguments: list[str] | None = None) -> int:
    """List the studies, or train those that are named; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="STUDY", help="a study; none: list them")
    parser.add_argument("--all", action="store_true", help="all studies")
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/orderings"), metavar="DIR", help="folder of runs")
    parser.add_argument("--minutes", type=float, default=40.0, help="after so many no seed begins (default: 40)")
    parser.add_argument("--read", action="store_true", help="train nothing, and take the finished seeds in the folder")
    given = parser.parse_args(arguments)
    if given.all and given.names:
        parser.error("give names or --all, not both")
    with program("repeat the command to continue") as on_progress:
        from tools.paper_tables.orderings import list_studies, studies_of, take, train

        studies = studies_of(given.names)
        if not given.all and not given.names:
            print("\n".join(list_studies()))
            return 0
        if given.read:
            added = take(studies, given.out)
            print(f"{added} seed{'' if added == 1 else 's'} added")
            return 0
        done = train(studies, given.out, on_progress, minutes=given.minutes)
        print("no seed lacks" if done else "seeds lack still; repeat the command to go on")
        return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
