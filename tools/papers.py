"""Make the tables and figures of docs/evidence/papers again, and say which cells differ from the committed ones.

    python tools/papers.py                              the pages, and how long each takes
    python tools/papers.py fedcola-colayer --out tables
    python tools/papers.py --all --out tables [--train]

A repeated command goes on where an interrupted one was.  Exit codes: 1 if a table differs or could not be made, 2 for
an error in the call.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.program import add_form, print_answer, program


def main(arguments: list[str] | None = None) -> int:
    """List the pages, or make those that are named; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a page of docs/evidence/papers; none: list the pages")
    parser.add_argument("--all", action="store_true", help="all pages")
    parser.add_argument("-o", "--out", default="runs/papers", metavar="DIR", help="folder for the tables and figures")
    parser.add_argument("--train", action="store_true", help="also train what tables need, which takes an hour")
    add_form(parser)
    given = parser.parse_args(arguments)
    if given.all and given.names:
        parser.error("give names or --all, not both")
    with program("repeat the command to continue") as on_progress:
        from tools.paper_tables.making import list_papers, papers
        from tools.paper_tables.printed import print_page_list, print_papers

        if not given.all and not given.names:
            print_answer(list_papers(), given.form, print_page_list)
            return 0
        result = papers(given.names, out=given.out, train=given.train, on_progress=on_progress)
        print_answer(result, given.form, print_papers)
        return 0 if result.equal else 1


if __name__ == "__main__":
    sys.exit(main())
