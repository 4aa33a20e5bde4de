"""The page about joules says what its data file holds, and the file holds what the published rows say."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from math import exp, log
from pathlib import Path
from typing import Any

import yaml

from edgefl import units

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "evidence" / "joules.md").read_text(encoding="utf-8")
KEPT = json.loads((ROOT / "docs" / "evidence" / "figures" / "joules.json").read_text(encoding="utf-8"))


def off_by_device() -> dict[str, list[float]]:
    """|ln(predicted / measured)| of the rows of each device."""
    found = defaultdict(list)
    for row in KEPT["rows"]:
        found[row["device"]].append(abs(log(row["predicted"] / row["measured"])))
    return found


def cells(first: str) -> list[str]:
    """The first row of a table of the page that begins so."""
    return next(line for line in PAGE.splitlines() if line.startswith(f"| {first} |")).strip("| ").split(" | ")


def test_factors_by_device_are_those_of_the_rows() -> None:
    for device, off in off_by_device().items():
        _, _, rows, _, mean, eighty, worst, _ = cells(f"`{device}`")
        assert (int(rows), mean, worst) == (len(off), f"x{exp(sum(off) / len(off)):.2f}", f"x{exp(max(off)):.2f}")
        # the least error that four fifths of the rows don't exceed
        least = min(each for each in off if sum(other <= each for other in off) >= 0.8 * len(off) - 1e-9)
        assert eighty == f"x{exp(least):.2f}", device


def test_factors_of_all_rows_count_each_device_once() -> None:
    off = off_by_device()
    mean = exp(sum(sum(each) / len(each) for each in off.values()) / len(off))
    inside = {limit: sum(sum(one <= limit for one in each) / len(each) for each in off.values())
              for each in off.values() for limit in each}  # fmt: skip
    eighty = exp(min(limit for limit, share in inside.items() if share >= 0.8 * len(off) - 1e-9))
    assert cells("all | ")[2] == str(sum(map(len, off.values())))
    assert f"-->{mean:.2f}<!-- / -->" in PAGE and f"-->{eighty:.2f}<!-- / -->" in PAGE


def test_the_rows_are_the_published_ones_with_watts() -> None:
    """Joules are those of YAML alone: seconds of a step times watts, of every row of seconds that has watts."""
    seconds: dict[str, Callable[[dict[str, Any]], float]] = {
        "seconds_per_step": lambda row: units.SECONDS.parse(row["value"]),
        "samples_per_second": lambda row: row["batch"] / float(row["value"].split()[0]),
        "seconds_per_epoch": lambda row: units.SECONDS.parse(row["value"]) / -(-row["samples"] // row["batch"]),
    }
    published = []
    for path in sorted((ROOT / "profiles" / "measurements").glob("*.yaml")):
        for row in yaml.safe_load(path.read_text(encoding="utf-8"))["measurements"]:
            if "watts" in row:
                joules = seconds[row["measured"]](row) * units.WATTS.parse(row["watts"])
                published.append((row["device"], row["model"], row["batch"], f"{joules:.6g}"))
    kept = [(row["device"], row["model"], row["batch"], f"{row['measured']:.6g}") for row in KEPT["rows"]]
    assert sorted(kept) == sorted(published)


def test_ratios_of_a_network_are_those_of_its_rows() -> None:
    for device, network, batches, rows, _, ratios in re.findall(
        r"^\| `([\w-]+)` \| (\S+, \w+) \| ([\d to]+) \| (\d+) \| ([^|]+) \| ([\d. to]+) \|$", PAGE, re.MULTILINE
    ):
        of = [r for r in KEPT["rows"] if (r["device"], f"{r['model']}, {r['precision']}") == (device, network)]
        found = [r["predicted"] / r["measured"] for r in of]
        assert len(of) == int(rows) and {str(min(r["batch"] for r in of))} <= set(batches.split())
        assert {f"{min(found):.2f}", f"{max(found):.2f}"} == set(ratios.split(" to "))
