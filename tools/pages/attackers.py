"""Accuracy that aggregation rules keep under attack: a table in Markdown for docs/explanation/methods/aggregation.md.

    python tools/attackers.py

Ten clients train a small transformer on scikit-learn's digits with FedAvg; two of them attack.  A row is an attack, a
column a rule; a cell has mean and standard deviation (n - 1) of the last test accuracy over the seeds, in per cent.  A
seed draws the same data, initial weights and attackers for every cell.  Each figure is of one edgefl run, in this
process.  ``--partition 'dirichlet: 0.5'`` gives clients unequal classes, ``--seeds`` other seeds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml

import edgefl

SCENARIO: Mapping[str, Any] = {
    "edgefl": 1,
    "name": "attackers",
    "data": {"source": "digits", "clients": {"image": 10}, "samples": 100, "validation": 200, "test": 500},
    "model": {"image": {"tower": "vit", "blocks": 1, "width": 32, "heads": 2, "patch": 4}},
    "method": "fedavg",
    "schedule": {"name": "end-to-end", "rounds": 8},
    "training": {"batch": 50, "epochs": 3, "lr": 0.01},
    "round": {"cohort": 1.0},
    "evaluation": {"every": 8},
    "executor": {"name": "inline", "device": "cpu"},
}
RULES: Mapping[str, Mapping[str, Any]] = {
    "mean": {},
    "clip 4": {"clip": 4},
    "median": {"rule": "median"},
    "trimmed mean 20 %": {"rule": "trimmed-mean", "trim": 0.2},
    "Krum": {"rule": "krum"},
    "multi-Krum": {"rule": "multi-krum"},
}
ATTACKS: Mapping[str, Mapping[str, Any] | None] = {
    "none": None,
    "sign-flip": {"share": "20%", "kind": "sign-flip"},
    "scaling": {"share": "20%", "kind": "scaling"},
    "label-flip": {"share": "20%", "kind": "label-flip"},
}


def accuracy(rule: Mapping[str, Any], attack: Mapping[str, Any] | None, partition: Any, seed: int) -> float:
    """The test accuracy after the last round of one run, in per cent."""
    scenario = {
        **SCENARIO,
        "seed": seed,
        "data": {**SCENARIO["data"], "partition": partition},
        "aggregation": dict(rule),
        "fleet": {"failures": {"attack": attack}},
    }
    with tempfile.TemporaryDirectory() as folder:
        result = edgefl.run(scenario, output=Path(folder) / "run").result
    return 100 * float(result["metrics"]["image"]["accuracy"])


def table(found: Mapping[tuple[str, str], Sequence[float]]) -> str:
    """Markdown of the accuracies by attack and rule."""
    lines = ["| attack | " + " | ".join(RULES) + " |", "| --- |" + " --- |" * len(RULES)]
    for attack in ATTACKS:
        cells = [found[attack, rule] for rule in RULES]
        spread = [f"{fmean(cell):.1f}" + (f" ± {stdev(cell):.1f}" if len(cell) > 1 else "") for cell in cells]
        lines.append(f"| {attack} | " + " | ".join(spread) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run every cell and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--partition", type=yaml.safe_load, default="iid", help="iid, or 'dirichlet: 0.5'")
    options = parser.parse_args()
    found: dict[tuple[str, str], list[float]] = {}
    for attack, clients in ATTACKS.items():
        for rule, fields in RULES.items():
            cell = [accuracy(fields, clients, options.partition, seed) for seed in options.seeds]
            found[attack, rule] = cell
            print(f"{attack}, {rule}: {', '.join(f'{x:.1f}' for x in cell)}", file=sys.stderr, flush=True)
    print(table(found))
    print(f"{time.process_time():.0f} s of CPU", file=sys.stderr)


if __name__ == "__main__":
    main()
