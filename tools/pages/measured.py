"""Measured figures that several pages repeat: each has a name, and stands in one file.

A page writes a span, ``<!-- figure: seconds.unseen-device -->19 %<!-- / -->``, and ``tools/pages.py`` fills it, so that
no page keeps a figure of an older measurement.  ``python tools/pages.py --figures`` lists the names.  The files are
those of ``docs/evidence/figures``, each with where it comes from, and the profiles.  A span can't begin a line, where
Markdown takes a comment for a block, nor stand in a heading, whose anchor would change with it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from edgefl import units
from edgefl.devices import device_names, link_names, load_device
from edgefl.devices.profile import hardware
from tools.pages.markdown import PROJECT
from tools.published_steps.measurements import measurements

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "docs" / "evidence" / "figures"
SPAN = re.compile(r"<!-- figure: (\S*) -->(.*?)<!-- / -->", re.DOTALL)
STARTS = re.compile(r"^(?:[ >]*|[ >]*(?:[-*+]|\d+\.) +|#+ .*)<!-- figure: ", re.MULTILINE)


def recorded(name: str) -> Any:
    """What a file of ``docs/evidence/figures`` holds."""
    return json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))


@cache
def figures() -> dict[str, str]:
    """Each figure as pages print it, by its name."""
    found: dict[str, str] = {}
    for name, of in (
        ("counts", _counts()),
        ("memory", _memory()),
        ("seconds", _seconds()),
        ("joules", _joules()),
        ("gpu", _gpu()),
        ("emulation", _emulation()),
        ("other-programs", _other_programs()),
        ("speed", {key: f"{recorded('speed')[key]:.0f}" for key in ("quickstart", "fit")}),
    ):
        found |= {f"{name}.{key}": text for key, text in of.items()}
    return found


def with_figures(text: str, file: str) -> str:
    """The text of a page with its spans filled.

    Raises ValueError, with file and line, for an unknown name, and for a span that begins a line or is in a heading.
    """
    if wrong := STARTS.search(text):
        line = text.count("\n", 0, wrong.end()) + 1
        raise ValueError(f"{file}:{line}: a figure's span can't begin a line or be in a heading: break the line before")
    return SPAN.sub(lambda match: _filled(match, file), text)


def _filled(match: re.Match[str], file: str) -> str:
    name, known = match[1], figures()
    if name not in known:
        line = match.string.count("\n", 0, match.start()) + 1
        near = get_close_matches(name, known) or [each for each in known if each.split(".")[0] == name.split(".")[0]]
        raise ValueError(
            f"{file}:{line}: no figure {name!r}; nearest: {', '.join(near) or 'none'}; all: tools/pages.py --figures"
        )
    return f"<!-- figure: {name} -->{known[name]}<!-- / -->"


def files_with_figures() -> list[str]:
    """The pages that have a span, by their paths from the root of the repository."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = (page for page in pages if "<!-- figure: " in page.read_text(encoding="utf-8"))
    return sorted(page.relative_to(ROOT).as_posix() for page in found)


def _counts() -> dict[str, str]:
    parts = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["entry-points"]
    return {
        "methods": str(len(parts["edgefl.methods"])),
        "schedules": str(len(parts["edgefl.schedules"])),
        "devices": str(len(device_names())),
        "links": str(len(link_names())),
    }


def _memory() -> dict[str, str]:
    known = recorded("memory")
    runtimes = [load_device(name) for name in device_names()]
    (small,) = {
        (fact.value, fact.low, fact.high)
        for fact in (device.facts["runtime_overhead_bytes"] for device in runtimes if device.type == "microcomputer")
    }
    return {
        "configurations": f"{known['configurations']:,}",
        "goal": known["goal"],
        "median": f"{known['median_error_bytes']:,} B",
        "equal": f"{known['equal']:,}",
        "most": f"{known['within_90_percent_bytes']:,} B",
        "worst": f"{known['largest_error_bytes']:,} B",
        "outside": str(known["outside_goal"]),
        "without-figure": str(known["without_figure"]),
        "runtime": units.show_bytes(small[0]),
        "runtime-range": f"{units.show_bytes(small[1])} to {units.show_bytes(small[2])}",
    }


def _seconds() -> dict[str, str]:
    known = recorded("seconds")
    rows = {f"unseen-{each['unseen']}": each for each in known["questions"]} | {"shipped": known["shipped"]}
    every = measurements()
    devices = {row.device for row in every}
    found = {
        "measurements": str(len(every)),
        "processors": str(len(devices)),
        "shipped-devices": str(len(devices.intersection(device_names()))),
        "other-processors": str(len(devices.difference(device_names()))),
    }
    for name, row in rows.items():
        found |= _agreement(name, row)
    calibrated = recorded("calibrated")
    return found | {
        "calibrated": f"{calibrated['median_error_percent']} %",
        "calibrated.worst": f"{calibrated['worst_error_percent']} %",
    }


def _joules() -> dict[str, str]:
    known = recorded("joules")
    rows = [row for row in known["rows"] if hardware(row["device"]).processor.type == "gpu"]
    found = _agreement("unseen-device", known["joules"])
    found |= {"gpus": str(len({row["device"] for row in rows})), "gpus.rows": str(len(rows))}
    for name in ("predicted", "full"):
        off = [100 * abs(row[f"{name}_watts"] / row["measured_watts"] - 1) for row in rows]
        found |= {f"gpus.{name}-watts": _percent(median(off), 0), f"gpus.{name}-watts.worst": _percent(max(off), 0)}
    return found


def _agreement(name: str, row: dict[str, Any]) -> dict[str, str]:
    return {
        name: _percent(100 * row["median_error"]["value"], 0),
        f"{name}.rows": str(row["rows"]),
        f"{name}.devices": str(row["devices"]),
        f"{name}.within": _percent(100 * row["within_factor"]["value"], 0),
        f"{name}.mean": f"{row['mean_factor']:.2f}",
        f"{name}.eighty": f"{row['share_factor']:.2f}",
        f"{name}.worst": f"{row['worst_factor']:.1f}",
        f"{name}.worst-whole": f"{row['worst_factor']:.0f}",
        f"{name}.tau": f"{row['tau']['value']:.2f}",
    }


def _gpu() -> dict[str, str]:
    known = recorded("gpu")
    models = known["models"]
    cells = [model for model in models if "gru" in model["model"]]
    others = [model for model in models if "gru" not in model["model"]]
    with_gpu = _present(model["memory_error_with_gpu"] for model in others)
    of_cells = sorted(-error for error in _present(model["memory_error_with_gpu"] for model in cells))
    without = _present(model["memory_error_without"] for model in models)
    steps = [1 + model["seconds_error"] / 100 for model in others]
    slow = sorted(1 + model["seconds_error"] / 100 for model in cells)
    return {
        "card": known["machine"]["card"],
        "models": str(len(models)),
        "models-compared": str(len(with_gpu)),
        "models-not-compared": str(sum(model["memory_error_with_gpu"] is None for model in models)),
        "memory": _percent(median(map(abs, with_gpu)), 1),
        "memory.worst": _percent(max(map(abs, with_gpu)), 1),
        "memory.gru": f"{of_cells[0]:.0f} to {of_cells[-1]:.0f} %",
        "memory-without": _percent(median(map(abs, without)), 0),
        "memory-without.range": f"{min(without):.0f} to {max(without):+.0f} %",
        "steps": str(len(steps)),
        "seconds": _percent(100 * median(abs(step - 1) for step in steps), 0),
        "seconds.within": str(sum(max(step, 1 / step) <= 1.5 for step in steps)),
        "seconds.worst": f"{max(max(step, 1 / step) for step in steps):.1f}",
        "seconds.gru": f"{slow[0]:.0f} to {slow[-1]:.0f}",
    }


def _present(numbers: Iterable[float | None]) -> list[float]:
    return [number for number in numbers if number is not None]


def _emulation() -> dict[str, str]:
    known = recorded("emulation")
    own = known["groups"][0]
    found = {"client-rounds": str(own["client_rounds"])}
    for phase in ("download", "compute", "upload", "round", "round_with_measured_compute"):
        name = phase.replace("_", "-")
        found |= {name: f"{own[phase][0]:g} %", f"{name}.worst": f"{own[phase][1]:g} %"}
    frames = known["frames"]
    for name, both in (
        ("frames", frames["down"] + frames["up"]),
        ("frames.down", frames["down"]),
        ("frames.up", frames["up"]),
    ):
        found[name] = f"{min(both):g} to {max(both):g} %"
    return {**found, "frames.small": f"{frames['small_updates_up']} %"}


def _other_programs() -> dict[str, str]:
    pairs = [pair for pair in recorded("other-programs")["pairs"] if "as it is" not in pair["compared_with"]]
    return {"worst": max((pair["difference"] for pair in pairs), key=float)}


def _percent(number: float, digits: int) -> str:
    return f"{number:.{digits}f} %"
