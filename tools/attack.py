"""Attack whole commands of edgefl, and say what didn't hold.

    python tools/attack.py [--only kills] [--count 20] [--seed 1] [--state attack.jsonl] [--seconds 1200] [--summary]

Kinds: ``kills`` (chains of SIGKILL and resume), ``disks`` (full at a drawn byte), ``caches`` (damaged files),
``starts`` (several into one folder), ``signals``, ``ray`` (its processes are killed), ``inputs`` (each case is 50 of
those of ``tools/fuzz.py``).  After each: the exit code is documented, stderr has a few lines and no traceback, no
control character is printed, nothing lies outside the output folder, no process is left, and the end has the bytes of
an uninterrupted run.  A case is drawn from the seed, its kind and its number alone.  With ``--state`` each result is a
line of that file, and the next call goes on after it: cases that failed on another commit are tried again.  Exit codes:
0 all cases are clean, 1 some failed.  It runs on Linux; as root, full disks are small file systems.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random

TOOLS = Path(__file__).resolve().parent
sys.path[:0] = [str(TOOLS), str(TOOLS.parent)]

from attacking.kinds import KINDS, Case  # noqa: E402
from attacking.starts import Bench  # noqa: E402
from measuring import parser_of  # noqa: E402

COUNTS = {"kills": 200, "disks": 100, "caches": 60, "starts": 60, "signals": 60, "ray": 8, "inputs": 400}
"""Cases of a whole attack; those of ``inputs`` hold 20,000 inputs."""


@dataclass(frozen=True)
class Result:
    """A case that was tried: what was done, on which commit, how long it took, and what didn't hold."""

    kind: str
    number: int
    seed: int
    commit: str
    seconds: float
    story: list[str]
    faults: list[str]


def commit() -> str:
    """The commit of this checkout, with a plus sign if its files differ."""
    git = ["git", "-C", str(TOOLS.parent)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False).stdout
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, check=False).stdout
    return (head.strip() or "unknown") + ("+" if changed else "")


def read(state: Path | None) -> list[Result]:
    """The results of a state file, the last of each case.  A line that was cut off is passed over."""
    found: dict[tuple[str, int, int], Result] = {}
    for line in state.read_text(encoding="utf-8").splitlines(keepends=True) if state and state.exists() else ():
        if line.endswith("\n"):
            result = Result(**json.loads(line))
            found[result.kind, result.seed, result.number] = result
    return list(found.values())


def attacked(bench: Bench, kind: str, number: int, seed: int, here: str) -> Result:
    """Try a case, in a thread."""
    began, folder = time.monotonic(), bench.home / f"{kind}-{number}"
    case = Case(bench, folder, Random(f"{seed}:{kind}:{number}"))
    try:
        KINDS[kind](case)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Result(kind, number, seed, here, round(time.monotonic() - began, 2), case.story, case.faults)


def fed(number: int, seed: int, here: str) -> Result:
    """Try a case of ``inputs``, in a process of the pool."""
    began = time.monotonic()
    from attacking.inputs import inputs  # imports edgefl, which what judges the other kinds doesn't

    story, faults = inputs(number, seed)
    return Result("inputs", number, seed, here, round(time.monotonic() - began, 2), story, faults)


def summary(results: list[Result]) -> str:
    """For each kind how many cases are clean, which failed, and the commits."""
    kinds: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        kinds[result.kind].append(result)
    lines = []
    for kind, found in kinds.items():
        failed = [each for each in found if each.faults]
        commits = ", ".join(f"{name} ({count})" for name, count in Counter(each.commit for each in found).items())
        minutes = sum(each.seconds for each in found) / 60
        lines.append(f"{kind}: {len(found) - len(failed)} clean, {len(failed)} failed; {minutes:.1f} min; on {commits}")
        lines += [f"  {kind} {each.number} of seed {each.seed}: {each.faults[0]}" for each in failed]
    return "\n".join(lines) or "no case"


def main(arguments: list[str] | None = None) -> int:
    """Attack; the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", choices=COUNTS, action="append", help="kinds of attack; may be repeated")
    parser.add_argument("--count", type=int, default=None, help="cases of each kind; by default a whole attack")
    parser.add_argument("--case", type=int, action="append", help="numbers of cases, instead of --count")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--state", type=Path, default=None, help="file of results; cases that it has aren't tried again"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case after so long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="cases at a time (default: processors)")
    parser.add_argument("--summary", action="store_true", help="only print what the file of results says")
    given = parser.parse_args(arguments)
    results, here, until = read(given.state), commit(), time.monotonic() + given.seconds
    if given.summary:
        print(summary(results))
        return 1 if any(each.faults for each in results) else 0
    done = {
        (each.kind, each.number)
        for each in results
        if each.seed == given.seed and not (each.faults and each.commit != here)
    }
    tried: list[Result] = []
    if given.state and given.state.exists():
        whole = given.state.read_bytes()
        os.truncate(given.state, whole.rfind(b"\n") + 1)  # a line that was cut off

    def note(result: Result) -> None:
        tried.append(result)
        if given.state:
            with given.state.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result)) + "\n")
        if result.faults:
            print(f"{result.kind} {result.number}: {'; '.join(result.story)}", *result.faults, sep="\n  ", flush=True)

    def all_of(executor: Executor, calls: list[Callable[[], Result]]) -> None:
        """Make the calls, a few at a time, so that none waits when the time is over."""
        with executor:
            under_way: set[Future[Result]] = set()
            while calls and time.monotonic() < until or under_way:
                while calls and len(under_way) < given.jobs and time.monotonic() < until:
                    under_way.add(executor.submit(calls.pop(0)))
                ended, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for future in ended:
                    note(future.result())

    wanted = [
        (kind, number)
        for kind in given.only or [kind for kind in COUNTS if kind in KINDS or kind == "inputs"]
        for number in given.case or range(given.count or COUNTS[kind])
        if (kind, number) not in done
    ]
    commands = [each for each in wanted if each[0] != "inputs"]
    print(f"{len(wanted)} cases on {here}, of seed {given.seed}", flush=True)
    if commands and time.monotonic() < until:
        with Bench(Path(tempfile.mkdtemp(prefix="edgefl-"))) as bench:
            all_of(
                ThreadPoolExecutor(given.jobs), [partial(attacked, bench, *each, given.seed, here) for each in commands]
            )
    fuzzed = [partial(fed, number, given.seed, here) for kind, number in wanted if kind == "inputs"]
    if fuzzed:
        all_of(ProcessPoolExecutor(given.jobs, get_context("spawn")), fuzzed)
    print(summary(tried))
    return 1 if any(each.faults for each in tried) else 0


if __name__ == "__main__":
    sys.exit(main())
