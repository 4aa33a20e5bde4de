"""Fit the factors of profiles/factors/fitted.yaml to the fitted half of the published measurements.

    python tools/fit_rates.py           # writes the file
    python tools/fit_rates.py --check   # exit code 1 if the file isn't what would be written

A class of devices shares the factors that classes.yaml lists for it.  The loss is the sum over (device, source) of the
mean of log(predicted / measured)^2 over its rows of seconds, so that a table of many rows counts once.  The held-out
half doesn't enter the factors; it is only held against the result.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from math import exp, log, sqrt

import numpy as np
import yaml
from edgefl.commands.devices.factors import LOADING_SECONDS, classes
from scipy.optimize import least_squares

from edgefl.commands.devices.published import Held, against, held
from edgefl.devices.measurements import measurements
from edgefl.devices.written_facts import library_folder

LOSS = "sum over (device, source) of the mean over its rows of log(predicted seconds / measured seconds)^2"
TITLE = "Factors on profiles' rates, fitted to published measurements of training; written by tools/fit_rates.py"


def fit(rows: list[Held]) -> dict[str, dict[str, float]]:
    """The factors of every class with numbers to fit, from these rows of seconds."""
    factors = {}
    for name, one in classes().by_name.items():
        mine = [held for held in rows if held.row.device in one.devices]
        if one.fitted and mine:
            factors[name] = _fitted(mine, list(one.fitted))
    return factors


def _fitted(rows: list[Held], numbers: list[str]) -> dict[str, float]:
    count = defaultdict(int)
    for held_ in rows:
        count[_group(held_)] += 1

    def residuals(logs: np.ndarray) -> list[float]:
        factors = {number: exp(value) for number, value in zip(numbers, logs, strict=True)}
        return [log(h.predicted(factors) / h.measured) / sqrt(count[_group(h)]) for h in rows]

    found = least_squares(residuals, np.zeros(len(numbers)), bounds=(log(1 / 32), log(32)))
    return {number: float(f"{exp(value):.3g}") for number, value in zip(numbers, found.x, strict=True)}


def _group(held_: Held) -> tuple[str, str]:
    return held_.row.device, held_.row.source.url or held_.row.source.title


def written() -> str:
    """The text of fitted.yaml."""
    rows = [h for h in held(measurements()) if h.quantity == "seconds" and h.cost is not None]
    ratios, held_out = defaultdict(list), defaultdict(list)
    for h in rows:
        ratio = h.predicted() / h.measured
        ratios[h.row.device].append(ratio)
        hidden = "data loading" in h.row.includes and h.predicted() < LOADING_SECONDS
        if h.row.half == "held-out" and not hidden:
            held_out[classes().of(h.row.device)].append(ratio)
    content = {
        "title": TITLE,
        "loss": LOSS,
        "factors": fit([h for h in rows if h.row.half == "fitted"]),
        "devices": {name: against(found).model_dump() for name, found in sorted(ratios.items())},
        "classes": {name: against(found).model_dump() for name, found in sorted(held_out.items())},
    }
    return yaml.safe_dump(content, sort_keys=False, width=120)


def main() -> int:
    """Write the file, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the file, write nothing")
    path = library_folder() / "factors" / "fitted.yaml"
    text = written()
    if parser.parse_args().check:
        same = path.read_text(encoding="utf-8") == text
        print(f"{path.name} is {'what the fit gives' if same else 'out of date: python tools/fit_rates.py'}")
        return 0 if same else 1
    path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
