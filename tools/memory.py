"""Compare edgefl's predicted peak memory with what torch's CPU allocator hands out in a step written by hand.

    python tools/memory.py --configurations 1000 --seed 1 [--nets] [--out FILE] [--workers 1]
    python tools/memory.py --configurations 1000 --seed 1 --record docs/evidence/figures/memory.json
    python tools/memory.py --only 1-17
    python tools/memory.py --kernel

draws random configurations (towers, sizes, optimizers, schedules, methods), every fifth of a net of timm. One process
predicts each with edgefl and cold caches. Another, which never imports edgefl, forks for each configuration and runs
it as written by hand in torch, timm and transformers, with one thread and under torch's profiler; its peak is the
largest running sum of the memory events. No configuration is left out: one that a side can't answer counts as a
failure. ``--only`` runs one by its id.
``--kernel`` finds the limit at which Linux kills a client instead (``memory.kernel``; root, ten minutes).
Exit codes: 0 all errors are at most 0.1 % or 4 KiB, 1 some are larger or unknown, 2 wrong arguments.  It runs on Linux.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
sys.path[:0] = [str(TOOLS), str(TOOLS.parent)]

from measuring import parser_of  # noqa: E402
from memory.comparing import Compared, compare, recorded, report, to_data  # noqa: E402
from memory.drawing import EVERY_NET, draw, identified  # noqa: E402


def indices(configurations: int, nets: bool) -> range:
    """The first so many of a sequence, or of those in it that are of timm's nets."""
    return range(EVERY_NET - 1, configurations * EVERY_NET, EVERY_NET) if nets else range(configurations)


def main(arguments: list[str] | None = None) -> int:
    """Compare, print the report, and return the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--configurations", type=int, default=30, help="how many are drawn (default: 30)")
    parser.add_argument("--seed", type=int, default=1, help="number of the sequence (default: 1)")
    parser.add_argument("--out", type=Path, help="write every comparison to this file")
    parser.add_argument("--record", type=Path, help="write the figures that pages repeat to this file")
    parser.add_argument("--workers", type=int, default=1, help="configurations at a time (default: 1)")
    parser.add_argument("--nets", action="store_true", help="only those of timm's nets, every fifth of the sequence")
    parser.add_argument("--only", metavar="ID", help="run one configuration, SEED-INDEX, and print it")
    parser.add_argument("--kernel", action="store_true", help="find the limit at which Linux kills a client instead")
    given = parser.parse_args(arguments)
    if given.kernel:
        from memory.kernel import validate

        validate()
        return 0
    if given.configurations < 1 or given.workers < 1 or given.seed < 0:
        parser.error("--configurations and --workers: 1 or more; --seed: 0 or more")
    try:
        chosen = (
            [identified(given.only)]
            if given.only
            else [draw(given.seed, i) for i in indices(given.configurations, given.nets)]
        )
    except ValueError as error:
        parser.error(f"--only {error}")
    if given.only:
        print(json.dumps(chosen[0], indent=1))
    done, started = 0, time.monotonic()

    def on_result(result: Compared) -> None:
        nonlocal done
        done += 1
        seconds = time.monotonic() - started
        print(f"[{done}/{len(chosen)} {seconds:.0f} s] {result.line()}", file=sys.stderr, flush=True)

    results = compare(chosen, given.workers, on_result)
    for line in report(results):
        print(line)
    if given.only:
        print(json.dumps(results[0].parts))
    if given.out:
        given.out.write_text(json.dumps(to_data(given.seed, results), indent=1) + "\n", encoding="utf-8")
    if given.record:
        command = f"tools/memory.py --configurations {given.configurations} --seed {given.seed}"
        given.record.write_text(json.dumps(recorded(command, results), indent=1) + "\n", encoding="utf-8")
    return 1 if any(result.outside for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
