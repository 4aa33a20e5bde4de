"""Try hostile inputs, and write the smallest one for each failure.

    python tools/fuzz.py --seconds 60 [--seed 1] [--only scenarios]
    python tools/fuzz.py --replay FOLDER

makes scenarios, profiles, availability traces, data tables and run directories that are wrong in some way, and gives
them to edgefl.  A failure is anything but success or an ``EdgeflError`` in short lines, more than 5 s of processor
time, or more than 1 GiB.  Each failure is printed once, with the folder of a small case and the command that shows it.
The same seed gives the same cases.  Exit codes: 0 no failure, 1 failures.  It runs on Linux.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
sys.path[:0] = [str(TOOLS), str(TOOLS.parent)]

from fuzzing.campaign import Found, search  # noqa: E402
from fuzzing.case import KINDS, Case, Content, Odd, commands  # noqa: E402
from fuzzing.judging import Judge  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """Search, or replay a case; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to search (default: 60)")
    parser.add_argument("--seed", type=int, default=None, help="number of the search; by default the time")
    parser.add_argument("--only", choices=KINDS, action="append", help="kinds of input; may be repeated")
    parser.add_argument("--output", type=Path, default=Path("fuzz-findings"), help="folder for cases that fail")
    parser.add_argument("--replay", type=Path, help="try the case in this folder again")
    given = parser.parse_args(arguments)
    with Judge() as judge:
        if given.replay is not None:
            return _replay(judge, given.replay)
        number = int(time.time()) if given.seed is None else given.seed
        kinds = given.only or list(KINDS)
        print(f"seed {number}, {given.seconds:g} s for {', '.join(kinds)}")
        shown = 0
        started = time.monotonic()
        for index, kind in enumerate(kinds):

            def show(found: Found) -> None:
                nonlocal shown
                shown += 1
                _show(found, given.output, shown)

            until = started + given.seconds * (index + 1) / len(kinds)
            search(judge, kind, number, until=until, on_found=show)
        for kind, tally in judge.tallies.items():
            print(f"{kind}: {tally}")
    print(f"{shown} failures" if shown else "no failure")
    return 1 if shown else 0


def _show(found: Found, output: Path, number: int) -> None:
    folder = output / f"{number:03d}-{found.case.kind}"
    shutil.rmtree(folder, ignore_errors=True)
    found.case.write(folder)
    print(f"\n{found.finding.signature}\n  {found.finding.message}")
    for name in found.case.hostile:
        content = found.case.files.get(name)
        shown = repr(content[:300]) if isinstance(content, bytes) else content
        print(f"  {folder / name}: {shown}")
    print(f"  cd {folder} && {' ; '.join(commands(found.case))}")
    print(f"  python tools/fuzz.py --replay {folder}")


def _replay(judge: Judge, folder: Path) -> int:
    files: dict[str, Content] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            files[name] = Odd("link", str(path.readlink()))
        elif path.is_fifo():
            files[name] = Odd("pipe")
        elif path.is_file():
            files[name] = path.read_bytes()
        elif path.is_dir() and not any(path.iterdir()):
            files[name] = Odd("folder")
    kind = next((kind for kind in KINDS if folder.name.endswith(kind)), "scenarios")
    finding = judge.judge(Case(kind, files))
    if finding is None:
        print(f"no failure: {judge.tallies[kind]}")
        return 0
    print(f"{finding.signature}\n{finding.message}\n{finding.traceback}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
