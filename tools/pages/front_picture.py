"""The front picture: who takes part in the quickstart under each schedule, and the score that comes of it.

``docs/front-picture.json`` has the facts, read from a run of the scenario ``quickstart``.  The picture is made of it
twice, for a light and for a dark ground.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

FACTS = Path(__file__).resolve().parents[2] / "docs" / "front-picture.json"
METRIC = "image.balanced_accuracy"
NAMES = {"layerwise": "layer-wise"}
"""Schedules whose name in a scenario isn't the word of a text."""
DEVICES = {
    "raspberry-pi-3b-plus": "Pi 3B+",
    "raspberry-pi-4-4gb": "Raspberry Pi 4",
    "jetson-orin-nano-8gb": "Jetson",
    "macbook-air-m1": "MacBook",
}
"""Short names, in the order of the groups of dots."""
SAME = 0.05
"""Scores that differ by less come from the same code on another processor, as for the outputs of pages."""

WIDTH, HEIGHT = 420, 370
TOP, ROW, DOT, STEP, GAP, LEFT = 98, 76, 7, 18, 16, 8
"""Where the first row begins, height of a row, radius and distance of dots, room between devices, left margin."""


@dataclass(frozen=True)
class Colours:
    """What a picture is painted with: text, quiet text, clients that fit, the outline of others."""

    ink: str
    quiet: str
    fits: str
    out: str


LIGHT = Colours("#1f2328", "#59636e", "#1a7f37", "#a0522d")
DARK = Colours("#e6edf3", "#9198a1", "#56d364", "#e8965a")


# --- the facts -------------------------------------------------------------------------------------------------------


def front_facts() -> str:
    """Run the quickstart, a minute or more, and read who fits all stages, some or none, and what was learned."""
    import edgefl

    with tempfile.TemporaryDirectory() as folder:
        edgefl.run("quickstart", out=Path(folder) / "quickstart")
        return facts_of(Path(folder) / "quickstart")


def facts_of(folder: Path) -> str:
    """The facts of a run that has ended."""
    import edgefl

    table = edgefl.read_run(folder).eligibility
    found = edgefl.compare([folder])
    first = table[table.run == table.run.iloc[0]].drop_duplicates("client").sort_values("client")
    runs = []
    for row in found.rows:
        of = table[table.run == row.label]
        refused, eligible = ({int(client) for client in of[of.eligible == fits].client} for fits in (False, True))
        runs.append(
            {
                "schedule": row.label,
                "score": round(row.figures[METRIC].mean or 0.0, 3),
                "in_part": sorted(refused & eligible),
                "left_out": sorted(refused - eligible),
            }
        )
    facts = {
        "command": "edgefl run quickstart",
        "metric": METRIC,
        "split": found.split,
        "chance": round(found.chance[METRIC] or 0.0, 3),
        "runs": runs,
        "clients": [
            {"client": int(c.client), "kind": str(c.kind), "device": str(c.device)} for c in first.itertuples()
        ],
    }
    return _json(facts)


def _json(facts: dict[str, Any]) -> str:
    """The facts with a line for each run and client."""
    parts = []
    for name, value in facts.items():
        if isinstance(value, list):
            lines = ",\n".join(f"    {json.dumps(each)}" for each in value)
            parts.append(f'  "{name}": [\n{lines}\n  ]')
        else:
            parts.append(f'  "{name}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def same_facts(now: str, made: str) -> bool:
    """Whether the facts are equal but for what other kernels do to a score."""
    if not now:
        return False
    old, new = json.loads(now), json.loads(made)
    near = all(abs(a["score"] - b["score"]) <= SAME for a, b in zip(old["runs"], new["runs"], strict=True))
    for each in (*old["runs"], *new["runs"]):
        del each["score"]
    return near and bool(old == new)


# --- the picture -----------------------------------------------------------------------------------------------------


def facts() -> dict[str, Any]:
    """The recorded facts."""
    return dict(json.loads(FACTS.read_text(encoding="utf-8")))


def finding(found: dict[str, Any]) -> tuple[str, str]:
    """What the picture shows, on two lines: who lets most clients in, and what that costs compared with the first."""
    first, *others = found["runs"]
    clients = len(found["clients"])
    most = max(others, key=lambda run: fitting(run, clients))
    there = fitting(most, clients)
    cost = first["score"] - most["score"]
    name = word(most["schedule"])
    whom = f"all {clients}" if there == clients else f"{there} of {clients}"
    change = f"costs {points(cost)}" if cost > 0 else f"gains {points(-cost)}"
    return f"{name[:1].upper()}{name[1:]} training fits {whom} clients,", f"and {change} balanced image accuracy"


def fitting(run: dict[str, Any], clients: int) -> int:
    """Number of clients that fit every stage."""
    return clients - len(run["in_part"]) - len(run["left_out"])


def alt_text(found: dict[str, Any]) -> str:
    """The picture in words."""
    clients = len(found["clients"])
    rows = [
        f"{word(run['schedule'])} {_shown(run, clients)}, balanced image accuracy {points(run['score'], 3)}"
        for run in found["runs"]
    ]
    return f"{' '.join(finding(found))}: {'; '.join(rows)}"


def _shown(run: dict[str, Any], clients: int) -> str:
    more = f", {len(run['in_part'])} early stages only" if run["in_part"] else ""
    return f"{fitting(run, clients)} of {clients} fit{more}"


def word(schedule: str) -> str:
    """A schedule's name in a text."""
    return NAMES.get(schedule, schedule)


def points(score: float, digits: int = 2) -> str:
    """A share without its zero: ``.08``."""
    return f"{score:.{digits}f}".removeprefix("0")


def front_picture() -> str:
    """The picture for a light ground, as SVG."""
    return picture(facts(), LIGHT)


def dark_front_picture() -> str:
    """The picture for a dark ground."""
    return picture(facts(), DARK)


def picture(found: dict[str, Any], colours: Colours) -> str:
    """Three rows of a dot for each client, by device, beside the score."""
    first, second = finding(found)
    runs, groups, clients = found["runs"], list(_devices(found)), len(found["clients"])
    right = WIDTH - LEFT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif" '
        f'fill="{colours.ink}">',
        f"<title>{escape(alt_text(found))}</title>",
        _text(LEFT, 22, first, size=17, weight=700),
        _text(LEFT, 44, second, size=17, weight=700),
        _text(right, TOP - 28, "balanced image", fill=colours.quiet, anchor="end"),
        _text(right, TOP - 12, "accuracy", fill=colours.quiet, anchor="end"),
    ]
    for name, left, members in groups:
        middle = left + (-(-len(members) // 2) - 1) * STEP / 2
        lines.append(_text(middle, TOP - 12, name, fill=colours.quiet, anchor="middle"))
    for index, run in enumerate(runs):
        y = TOP + index * ROW
        lines.append(_text(LEFT, y + 16, word(run["schedule"]), weight=700, size=15))
        lines.append(_text(LEFT + 110, y + 16, _shown(run, clients), size=14))
        marks = dict.fromkeys(run["in_part"], "in part") | dict.fromkeys(run["left_out"], "left out")
        for _, left, members in groups:
            lines += _dots(left, y + 34, members, marks, colours)
        lines.append(_text(right, y + 50, points(run["score"], 3), size=22, weight=700, anchor="end"))
    y = TOP + len(runs) * ROW + 14
    lines += [
        _dot(LEFT + DOT, y, colours),
        _text(LEFT + 20, y + 4, "fits", fill=colours.quiet),
        _dot(58 + DOT, y, colours, "in part"),
        _text(78, y + 4, "early stages only", fill=colours.quiet),
        _dot(202 + DOT, y, colours, "left out"),
        _text(222, y + 4, "left out, too little memory", fill=colours.quiet),
        _text(LEFT, y + 26, f"one seed; chance is {points(found['chance'], 3)}", fill=colours.quiet),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _devices(found: dict[str, Any]) -> Iterator[tuple[str, float, list[int]]]:
    """For each device its short name, the place of its first dot, and its clients, those first that fit most often."""
    out = [client for run in found["runs"] for client in (*run["in_part"], *run["left_out"])]
    order = list(DEVICES)
    clients = sorted(
        found["clients"], key=lambda each: (order.index(each["device"]), out.count(each["client"]), each["client"])
    )
    left = LEFT + DOT
    for device, members in groupby(clients, key=lambda each: each["device"]):
        numbers = [each["client"] for each in members]
        yield DEVICES[device], left, numbers
        left += -(-len(numbers) // 2) * STEP + GAP


def _dots(left: float, top: float, clients: Sequence[int], marks: Mapping[int, str], colours: Colours) -> Iterator[str]:
    """Two dots one above the other, and the next two beside them."""
    for index, client in enumerate(clients):
        column, line = divmod(index, 2)
        yield _dot(left + column * STEP, top + line * STEP, colours, marks.get(client, ""))


def _dot(x: float, y: float, colours: Colours, mark: str = "") -> str:
    """A full dot, or a ring for a client that fits early stages only (in part) or none (left out)."""
    ring = {"in part": colours.fits, "left out": colours.out}.get(mark)
    paint = (
        f'r="{DOT - 1:g}" fill="none" stroke="{ring}" stroke-width="2"' if ring else f'r="{DOT}" fill="{colours.fits}"'
    )
    return f'<circle cx="{x:g}" cy="{y:g}" {paint}/>'


def _text(
    x: float, y: float, words: str, *, size: int = 13, weight: int = 400, fill: str = "", anchor: str = ""
) -> str:
    more = f' font-weight="{weight}"' if weight != 400 else ""
    more += f' fill="{fill}"' if fill else ""
    more += f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}"{more}>{escape(words)}</text>'
