"""Hold the simulator's clock against clients whose links and processors this machine's kernel slows down.

    python tools/validate_clock.py                     # three methods x three schedules, four devices, three links
    python tools/validate_clock.py -o clock.json --figure clock.png --record docs/evidence/figures/emulation.json
    python tools/validate_clock.py --from clock.json   # print and draw what was measured before
    python tools/validate_clock.py --only background   # or "own links", "shared line"

Each of nine scenarios is emulated (``tools/emulate.py``) with five clients on four devices, and simulated with rates
that were measured under the same quotas.  A tenth has a server's line that all clients share, and an eleventh such a
line with the traffic of others on it.  It needs Linux and root, and takes a quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import matplotlib.pyplot as plt

from edgefl import terminal
from edgefl.machine import host
from edgefl.records.reading import from_data
from tools.emulation.answer import ClientRound, Emulation
from tools.emulation.playing import emulate, errors_of

METHODS: dict[str, Any] = {
    "fedavg": "fedavg",
    "fedprox": "fedprox",
    "fedcola": {"name": "fedcola", "complementary": "blocks", "collaborate": "attention", "compensation": False},
}
SCHEDULES: dict[str, Any] = {
    "end-to-end": {"name": "end-to-end", "rounds": 2},
    "layerwise": {"name": "layerwise", "stages": 2, "rounds": 2},
    "progressive": {"name": "progressive", "stages": 2, "rounds": 2},
}
DEVICES = {"raspberry-pi-zero-2w": 2, "raspberry-pi-3b-plus": 1, "coral-dev-board-1gb": 1, "raspberry-pi-4-4gb": 1}
"""Clients of each device; their rates fit on two cores of 100 GFLOP/s."""
LINKS = {"lte": 2, "home-dsl": 2, "wifi-4": 1}
OWN, LINE, BACKGROUND = "own links", "shared line", "background"
LINES: dict[str, Any] = {
    LINE: {"download": "30 Mbit/s", "upload": "10 Mbit/s"},
    BACKGROUND: {"download": "30 Mbit/s", "upload": "10 Mbit/s", "background": {"flows": 2}},
}
FIELDS = ("method", "schedule", "device", "link")
LEAST = 8
"""Client-rounds of each method, schedule, device and link."""


def scenario(method: str, schedule: str, seed: int) -> dict[str, Any]:
    """A scenario of five clients of three kinds; the seed deals out devices and links."""
    return {
        "name": f"{method}-{schedule}",
        "seed": seed,
        "data": {"source": "glyphs", "clients": {"image": 2, "text": 1, "image-text": 2},
                 "samples": {"image": 300, "image-text": 100}},
        "model": {"image": {"tower": "vit", "blocks": 4, "width": 96, "heads": 4, "mlp_ratio": 2, "patch": 8},
                  "text": {"tower": "transformer", "blocks": 4, "width": 96, "heads": 4, "mlp_ratio": 2, "tokens": 16}},
        "method": METHODS[method],
        "schedule": SCHEDULES[schedule],
        "training": {"batch": 32, "epochs": 1},
        # the least of these devices has no memory left beside a runtime
        "fleet": {"devices": DEVICES, "links": LINKS, "budgets": {"memory": "512 MiB", "within_device": False}},
        "round": {"cohort": 1.0},
        "evaluation": {"every": 10},
        "executor": {"device": "cpu"},
    }  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A client-round, and of which scenario it is."""

    part: str
    method: str
    schedule: str
    of: ClientRound

    def value(self, field: str) -> str:
        """Its method, schedule, device or link."""
        return str(getattr(self if hasattr(self, field) else self.of, field))


def measured(calibration: Any, only: str | None) -> dict[str, Any]:
    """The answers of all scenarios as plain data, or of those of the ``only`` part, and the machine."""
    answers = []
    cells = [(OWN, method, schedule) for method in METHODS for schedule in SCHEDULES]
    cells += [(line, "fedavg", "end-to-end") for line in LINES]
    with tempfile.TemporaryDirectory() as folder:
        for seed, (part, method, schedule) in enumerate(cells, 1):
            if only not in (None, part):
                continue
            given = scenario(method, schedule, seed)
            if part in LINES:
                given["fleet"]["server_link"] = LINES[part]
            print(f"{seed}/{len(cells)}: {part}, {method}, {schedule}", file=sys.stderr)
            answer = emulate(given, out=Path(folder) / str(seed), calibration=calibration)
            answers.append({"part": part, "method": method, "schedule": schedule, "answer": answer.to_data()})
    machine = {"processor": host.model_name(), "cores": os.cpu_count(), "kernel": platform.release().split("-")[0]}
    return {"machine": machine, "calibration": calibration, "answers": answers}


def rows_of(found: dict[str, Any], path: str) -> list[Row]:
    """The client-rounds of what ``measured`` gave."""
    return [
        Row(each["part"], each["method"], each["schedule"], row)
        for each in found["answers"]
        for row in from_data(Emulation, each["answer"], path).client_rounds
    ]


def table(rows: list[Row], title: str) -> None:
    """Print the errors over all rows and over those of each method, schedule, device and link."""
    print(f"\n{title}: {len(rows)} client-rounds; |simulated / emulated - 1|, median and worst")
    names = list(errors_of([row.of for row in rows]))
    print(f"{'':28}{'n':>4}  " + "  ".join(f"{name:>16.16}" for name in names))
    for name, group in groups_of(rows):
        found = errors_of([row.of for row in group])
        cells = (f"{100 * found[n].median:6.2f} {100 * found[n].worst:6.2f} %" if n in found else "-" for n in names)
        print(f"{name:28}{len(group):4}  " + "  ".join(f"{cell:>16}" for cell in cells))


def groups_of(rows: list[Row]) -> list[tuple[str, list[Row]]]:
    """All rows, and those of each method, schedule, device and link."""
    groups = [("all", rows)]
    for field in FIELDS:
        for value in dict.fromkeys(row.value(field) for row in rows):
            groups.append((f"{field} {value}", [row for row in rows if row.value(field) == value]))
    return groups


def record(found: dict[str, Any], rows: list[Row], path: Path) -> None:
    """Write the errors that pages repeat (docs/evidence/figures/emulation.json); what else the file has stays."""
    groups = []
    for part in dict.fromkeys(row.part for row in rows):
        mine = groups_of([row for row in rows if row.part == part])
        for name, group in mine if part == OWN else mine[:1]:
            errors = errors_of([row.of for row in group])
            groups.append({
                "group": f"{name}, {part}" if name == "all" else name,
                "client_rounds": len(group),
                **{each.replace(" ", "_"): [100 * errors[each].median, 100 * errors[each].worst]
                   for each in ("download", "compute", "upload", "round", "round with measured compute")},
            })  # fmt: skip
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept |= {"from": f"`tools/validate_clock.py` on {date.today():%d %B %Y}", "machine": found["machine"]}
    path.write_text(json.dumps(kept | {"groups": groups}, indent=1) + "\n", encoding="utf-8")


def figure(rows: list[Row], path: str) -> None:
    """Draw simulated over emulated seconds of each phase."""
    drawn, axes = plt.subplots(1, 4, figsize=(13, 3.6), layout="constrained")
    for axis, phase in zip(axes, ("download", "compute", "upload", "round"), strict=True):
        for device in DEVICES:
            mine = [row.of for row in rows if row.of.device == device]
            axis.scatter(
                [getattr(row, f"emulated_{phase}_seconds") for row in mine],
                [getattr(row, f"simulated_{phase}_seconds") for row in mine],
                s=14, label=device, alpha=0.8,
            )  # fmt: skip
        ends = [min(axis.get_xlim()[0], axis.get_ylim()[0]), max(axis.get_xlim()[1], axis.get_ylim()[1])]
        axis.plot(ends, ends, color="0.6", linewidth=0.8, zorder=0)
        axis.set(title=phase, xlabel="emulated seconds")
    axes[0].set_ylabel("simulated seconds")
    axes[-1].legend(fontsize=7, frameon=False)
    drawn.savefig(path, dpi=110)


def main() -> None:
    """Measure or read, print, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", help="file for the client-rounds as JSON")
    parser.add_argument("--from", dest="source", help="file of an earlier call instead of measuring")
    parser.add_argument(
        "--calibration", choices=("works", "operators"), default="works",
        help="what the simulation's rates are measured with: works of the scenario (default), or microbenchmarks",
    )  # fmt: skip
    parser.add_argument("--only", choices=(OWN, *LINES), help="measure only these scenarios")
    parser.add_argument("--record", type=Path, help="write the errors to this file, for the pages")
    parser.add_argument("--figure", help="file for the scatter: clock.png")
    options = parser.parse_args()
    found = (
        json.loads(Path(options.source).read_text(encoding="utf-8"))
        if options.source
        else measured(options.calibration, options.only)
    )
    if options.out:
        Path(options.out).write_text(json.dumps(found, indent=1), encoding="utf-8")
    rows = rows_of(found, options.source or "the answers")
    print(found["machine"], f"calibration by {found['calibration']}")
    for part in dict.fromkeys(row.part for row in rows):
        table([row for row in rows if row.part == part], part)
    own = [row for row in rows if row.part == OWN]
    for field in FIELDS:
        few = [value for value, n in Counter(row.value(field) for row in own).items() if n < LEAST]
        if few:
            print(f"fewer than {LEAST} client-rounds: {field} {', '.join(few)}")
    if options.record:
        record(found, rows, options.record)
    if options.figure and own:
        figure(own, options.figure)


if __name__ == "__main__":
    import warnings

    warnings.showwarning = terminal.warn
    main()
