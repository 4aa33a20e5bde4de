"""docs/evidence/papers/fedcola-layerwise.md: FedCola's memory, MACs and traffic under three schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edgefl.commands.profile.answer import ProfileRow, Tables
from edgefl.commands.profile.chart import stages_chart
from edgefl.drawing.figures import draw_figure
from tools.paper_tables.page_tables import PageTable, alike, mib, ratio
from tools.paper_tables.profiles import LIVE, Profiles, highest

OPTIONS = ("none", "attention", "mlp", "blocks")
SCHEDULES = {"end-to-end": "end-to-end", "progressive": "progressive", "layerwise": "layer-wise"}
"""Schedules, and what the page calls them."""
STAGES = 6
"""Those of COMPARED's schedules."""
COMPARED = (
    "compare={schedule: [{name: end-to-end, rounds: 30}, {name: progressive, stages: 6, rounds: 30}, "
    "{name: layerwise, stages: 6, rounds: 30}]}"
)
KINDS = {"image": OPTIONS, "text": OPTIONS, "image-text": ("any",)}
"""Client kinds, and the co-layers whose costs differ: clients of pairs have no partners."""

Found = Mapping[str, Mapping[str, Tables]]


def profiles_by_schedule(profiles: Profiles, option: str) -> dict[str, Tables]:
    """Profiles by schedule for one co-layer option."""
    return dict(zip(SCHEDULES, profiles.combinations(f"fedcola-layerwise-{option}", COMPARED).values(), strict=True))


def figures(profiles: Profiles, folder: Path) -> list[Path]:
    """Draw the page's figure."""
    path = folder / "fedcola-layerwise.png"
    draw_figure(stages_chart(profiles.combinations("fedcola-layerwise-attention", COMPARED), LIVE), path)
    return [path]


def tables(profiles: Profiles) -> list[PageTable]:
    """The page's four tables."""
    found = {option: profiles_by_schedule(profiles, option) for option in OPTIONS}
    return [_whole(found), _peaks(found), _macs(found), _downloads(found)]


def _options(option: str) -> tuple[str, ...]:
    return OPTIONS if option == "any" else (option,)


def _total(found: Found, option: str, schedule: str, kind: str) -> Mapping[str, Any]:
    (total,) = (t for t in found[option][schedule].totals if t.kind == kind)
    return {**total.to_data(), LIVE: highest(_stages(found, option, schedule, kind))}


def _stages(found: Found, option: str, schedule: str, kind: str) -> list[ProfileRow]:
    return [row for row in found[option][schedule].rows if row.kind == kind]


def _whole(found: Found) -> PageTable:
    shown: tuple[tuple[str, Callable[[float], str]], ...] = (
        (LIVE, lambda value: mib(value, 1)),
        ("fvcore_macs_per_sample_all_rounds", lambda value: f"{value / 1e12:.3f}e12"),
        ("traffic_bytes", lambda value: mib(value, 1)),
    )
    rows = []
    for kind, options in KINDS.items():
        for option in options:
            row = [kind, option]
            for field, show in shown:
                costs = [
                    [_total(found, each, schedule, kind)[field] for schedule in SCHEDULES] for each in _options(option)
                ]
                row.append(alike(show(whole) for whole, _, _ in costs))
                row += [alike(ratio(each[index], each[0]) for each in costs) for index in (1, 2)]
            rows.append(tuple(row))
    to = ("prog.", "layer")
    header = ("kind", "co-layers", "memory, MiB", *to, "MACs", *to, "traffic, MiB", *to)
    heading = "Whole schedules compared with end-to-end training"
    return PageTable(heading, "whole-schedules", header, tuple(rows), 2)


def _by_stage(heading: str, name: str, labels: tuple[str, ...], rows: list[tuple[str, ...]]) -> PageTable:
    header = (*labels, "schedule", "stage 1", *map(str, range(2, STAGES + 1)))
    filled = tuple((*row, *[""] * (len(header) - len(row))) for row in rows)
    return PageTable(heading, name, header, filled, len(labels) + 1)


def _peaks(found: Found) -> PageTable:
    rows = []
    for kind, options in KINDS.items():
        for option in options:
            for schedule in SCHEDULES:
                stages = [_stages(found, each, schedule, kind) for each in _options(option)]
                cells = [alike(mib(r[LIVE], 1) for r in same) for same in zip(*stages, strict=True)]
                rows.append((kind, option, SCHEDULES[schedule], *cells))
    return _by_stage("Peak memory of a client, MiB", "peaks", ("kind", "co-layers"), rows)


def _macs(found: Found) -> PageTable:
    rows = []
    for kind in KINDS:
        for schedule in SCHEDULES:
            stages = [_stages(found, option, schedule, kind) for option in OPTIONS]
            cells = [
                alike(f"{row['fvcore_macs_per_sample'] / 1e9:.2f}" for row in same)
                for same in zip(*stages, strict=True)
            ]
            rows.append((kind, SCHEDULES[schedule], *cells))
    return _by_stage("MACs of a sample in a local epoch, 1e9", "macs", ("kind",), rows)


def together(found: Found, option: str, schedule: str, field: str) -> list[int]:
    """Bytes of one image and one text client by stage; ``field`` is download_bytes or upload_bytes."""
    image, text = (_stages(found, option, schedule, kind) for kind in ("image", "text"))
    return [getattr(a, field) + getattr(b, field) for a, b in zip(image, text, strict=True)]


def _downloads(found: Found) -> PageTable:
    rows = []
    for option in OPTIONS:
        for schedule in SCHEDULES:
            down = together(found, option, schedule, "download_bytes")
            rows.append((option, SCHEDULES[schedule], *(mib(b, 2) for b in down)))
    for schedule in SCHEDULES:
        stages = [together(found, option, schedule, "upload_bytes") for option in OPTIONS]
        cells = [alike(mib(b, 2) for b in same) for same in zip(*stages, strict=True)]
        rows.append(("any, up", SCHEDULES[schedule], *cells))
    return _by_stage("Download of one image and one text client in a round, MiB", "downloads", ("co-layers",), rows)
