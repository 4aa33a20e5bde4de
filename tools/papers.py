"""Make the tables of docs/evidence/papers again and compare them with the committed ones, or train a published table.

    python tools/papers.py                              the pages, and how long each takes
    python tools/papers.py fedcola-colayer --out tables
    python tools/papers.py --all --out tables
    python tools/papers.py train                        the published tables
    python tools/papers.py train fedcola-t1 --data DIR --dry
    python tools/papers.py train fedcola-t1 --data DIR --out runs/tables [--rows ROW ROW]

A repeated command goes on where an interrupted one was.  Exit codes: 1 if a table differs or could not be made or
trained, 2 for an error in the call.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.program import add_form, print_answer, program


def main(arguments: list[str] | None = None) -> int:
    """List the pages, make those that are named, or train a table; the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    return train(arguments[1:]) if arguments[:1] == ["train"] else make(arguments)


def make(arguments: list[str]) -> int:
    """List the pages, or make those that are named; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a page of docs/evidence/papers; none: list the pages")
    parser.add_argument("--all", action="store_true", help="all pages")
    parser.add_argument("-o", "--out", default="runs/papers", metavar="DIR", help="folder for the tables and figures")
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
        result = papers(given.names, out=given.out, on_progress=on_progress)
        print_answer(result, given.form, print_papers)
        return 0 if result.equal else 1


def train(arguments: list[str]) -> int:
    """List the published tables, or train one; the exit code."""
    parser = argparse.ArgumentParser(prog="papers.py train", description="Train the rows of a published table.")
    parser.add_argument("table", nargs="?", metavar="TABLE", help="a published table; none: list the tables")
    parser.add_argument("--rows", nargs="+", default=(), metavar="ROW", help="its rows; default: all that can be run")
    parser.add_argument("--data", metavar="DIR", help="folder with a folder for each data set; default: $EDGEFL_DATA")
    parser.add_argument("-o", "--out", default="runs/tables", metavar="DIR", help="folder for the runs of all tables")
    parser.add_argument(
        "--set", action="append", default=[], metavar="PATH=VALUE", dest="overrides", help="a change of every row"
    )
    parser.add_argument(
        "--dry", action="store_true", help="train nothing: tell missing files, costs, and hours by a few measured steps"
    )
    parser.add_argument("--hours", metavar="FILE", help="write the hours of each table that FILE lacks, measured here")
    add_form(parser)
    given = parser.parse_args(arguments)
    if given.hours and given.table:
        parser.error("--hours is of all tables: leave out TABLE")
    with program("repeat the command to continue") as on_progress:
        from tools.paper_tables.printed import print_dry_run, print_hours, print_scores, print_table_list
        from tools.paper_tables.published_tables import list_tables

        if given.hours:
            from tools.paper_tables.dry_runs import measure_hours

            print_answer(measure_hours(given.hours, on_progress=on_progress), given.form, print_hours)
            return 0
        if given.table is None:
            print_answer(list_tables(), given.form, print_table_list)
            return 0
        if given.dry:
            from tools.paper_tables.dry_runs import Speeds, dry_table

            dry = dry_table(
                given.table, given.rows, data=given.data, overrides=given.overrides, speeds=Speeds(),
                on_progress=on_progress,
            )  # fmt: skip
            print_answer(dry, given.form, print_dry_run)
            return 0
        from tools.paper_tables.training_tables import train_table

        result = train_table(
            given.table, given.rows, data=given.data, out=given.out, overrides=given.overrides, on_progress=on_progress
        )
        print_answer(result, given.form, print_scores)
        return result.exit_code


if __name__ == "__main__":
    sys.exit(main())
