"""What only a machine with a CUDA GPU can tell, by one command that goes on where it was interrupted.

    python tools/gpu_check.py [--out runs/gpu-check] [--only STEP] [--again] [--minutes 9] [--device cuda] [--table]
    python tools/gpu_check.py --only memory,tests,packed --in-all 8

The six steps are the tests marked ``gpu``, the quickstart, predicted against allocated memory of 30 models, a
calibration, steps per second against a bare loop, and several workers on a GPU.  Each step takes at most
``--minutes``, and a share of ``--in-all`` by how long steps usually take: the second command is for a GPU that is lent
for a few minutes.  A step writes its result as JSON when it ends (the memory step also writes a file for each model),
and a step with a result doesn't run again.  Finally all results are printed as one Markdown table for
docs/evidence/gpu.md.  ``--device cpu`` runs all steps except the tests without a GPU.

Each measurement on the GPU runs in its own process, so that memory or errors of one can't affect the next.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu.measurements import part
from gpu.models import MODELS
from gpu.results import Json, read, write
from gpu.steps import PROGRAM, STEPS, Check, call, due, forget, run_step
from gpu.table import table


def outcome(result: Json) -> str:
    """Outcome of a step in one line."""
    if "skipped" in result:
        return f"skipped: {result['skipped']}"
    text = "done"
    if "failed" in result:
        text = f"failed: {result['failed']}; --again repeats it"
    elif "cut" in result:
        text = "stopped, its time is over; what there is by now is kept, --only goes on with it"
    return f"{text} ({result['seconds']:.0f} s)"


def usage_error(chosen: argparse.Namespace) -> str:
    """What is wrong with the arguments, in one line; empty if nothing is."""
    if unknown := [name for name in chosen.steps if name not in STEPS]:
        return f"--only {unknown[0]}: there is no such step; there are {', '.join(STEPS)}"
    if not 1 <= chosen.models <= len(MODELS):
        return f"--models {chosen.models}: 1 to {len(MODELS)}"
    for name in ("minutes", "in_all"):
        if not getattr(chosen, name) > 0:
            return f"--{name.replace('_', '-')} {getattr(chosen, name):g}: more than 0"
    if chosen.table and not read(Path(chosen.out) / "machine.json"):
        return f"{chosen.out} holds no results"
    return ""


def prepare(chosen: argparse.Namespace, folder: Path) -> str:
    """Write ``machine.json``; returns in one line why the folder can't be used, empty if it can."""
    folder.mkdir(parents=True, exist_ok=True)
    check = Check(folder, chosen.device, chosen.minutes, time.monotonic() + 300, chosen.models)
    ended = call(check, "machine", PROGRAM, "--part", "machine", "--device", chosen.device)
    machine, recorded = ended.last(), read(folder / "machine.json")
    if not machine:
        return f"{ended.message}; --device cpu tries what a CPU can do"
    if chosen.again and chosen.only is None:
        for name in STEPS:
            forget(name, folder)
    elif recorded and recorded != machine:
        changes = [
            f"{name} {recorded.get(name)}, here {fact}" for name, fact in machine.items() if recorded.get(name) != fact
        ]
        return f"{folder} has results of another machine or version ({'; '.join(changes)}): another --out, or --again"
    write(folder / "machine.json", machine)
    return ""


def main() -> int:
    """Run the steps that are due and print the table; exit code 1 if a step failed, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", default="runs/gpu-check", metavar="DIR", help="folder of the results")
    parser.add_argument("--only", metavar="STEP,...", help=f"these steps, in this order: {', '.join(STEPS)}")
    parser.add_argument("--again", action="store_true", help="also what has a result")
    parser.add_argument("--minutes", type=float, default=9.0, metavar="M", help="most minutes of a step")
    parser.add_argument("--in-all", type=float, default=float("inf"), metavar="M", help="most minutes of all steps")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries it without a GPU")
    parser.add_argument("--models", type=int, default=len(MODELS), metavar="N", help="the first N models of memory")
    parser.add_argument("--table", action="store_true", help="only print the table of what there is")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    chosen.steps = list(STEPS) if chosen.only is None else chosen.only.split(",")
    if chosen.part is not None:
        part(chosen.part, chosen.device)
        return 0
    folder = Path(chosen.out).resolve()
    if error := usage_error(chosen) or ("" if chosen.table else prepare(chosen, folder)):
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    if not chosen.table:
        run_steps(chosen, folder)
        print()
    print(table(folder))
    return int(any("failed" in read(folder / f"{name}.json") for name in STEPS))


def run_steps(chosen: argparse.Namespace, folder: Path) -> None:
    """Run every chosen step that is due."""
    end = time.monotonic() + 60 * chosen.in_all
    for index, name in enumerate(chosen.steps, 1):
        if chosen.again:
            forget(name, folder)
        usual = [STEPS[each].minutes.get(chosen.device, 0.0) for each in chosen.steps[index - 1 :]]
        share = (end - time.monotonic()) / 60 * usual[0] / (sum(usual) or 1)
        minutes = max(min(chosen.minutes, share), 0.0)
        check = Check(folder, chosen.device, minutes, time.monotonic() + 60 * minutes, chosen.models)
        head = f"{index} of {len(chosen.steps)}, {name}: {STEPS[name].title}"
        if not due(name, check, chosen.only is not None):
            print(f"{head}: has a result", flush=True)
            continue
        if usual[0]:
            head += f": about {min(usual[0], minutes):.2g} minutes, at most {minutes:.2g}"
        print(head, flush=True)
        print(f"  {outcome(run_step(name, check))}", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("gpu_check: interrupted; the same command goes on", file=sys.stderr)
        sys.exit(130)
