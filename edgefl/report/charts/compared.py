"""Figures of a comparison: the runs side by side, runs that differ in their seeds only as mean and spread."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from edgefl.report.charts.chart import Axis, Chart, Panel, Series, colour, deviation, mean
from edgefl.report.charts.curves import evaluated
from edgefl.report.charts.records import Curves, Records
from edgefl.report.console import title_of

if TYPE_CHECKING:
    from edgefl.runs import Run

C = TypeVar("C", bound=Curves)
SEED = re.compile(r"(^|,)\s*seed=[^,]*")


def groups_of(run: Run, runs: Sequence[C]) -> dict[str, list[C]]:
    """The runs of a comparison by label without the seed: runs in a group differ in their seeds only."""
    groups: dict[str, list[C]] = {}
    for records in runs:
        name = SEED.sub("", records.label).strip(", ") or run.name
        groups.setdefault(name, []).append(records)
    return groups


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _figures(records: Records) -> dict[str, float | None]:
    facts, totals = records.facts, records.facts.totals
    everyone = facts.everyone
    hardest = []
    for stage in facts.stages:
        clients = sum(kind.clients for kind in stage.kinds.values())
        hardest.append(sum(kind.eligible for kind in stage.kinds.values()) / max(clients, 1))
    return {
        "eligible_share": min(hardest, default=None),
        "took_part_share": _share(everyone.took_part, everyone.clients),
        "took_part_samples_share": _share(everyone.took_part_samples, everyone.samples),
        "peak_memory_bytes": max((row.peak_memory_bytes for row in facts.costs), default=None),
        "traffic_bytes": totals.download_bytes + totals.upload_bytes,
        "flops": totals.forward_flops + totals.backward_flops,
        "virtual_seconds": facts.virtual_seconds,
        "energy_joules": totals.energy_joules,
    }


_COSTS = (
    ("clients that fit in the hardest stage", "eligible_share", "share"),
    ("clients that took part", "took_part_share", "share"),
    ("samples that took part", "took_part_samples_share", "share"),
    ("largest peak memory", "peak_memory_bytes", "bytes"),
    ("traffic, all rounds", "traffic_bytes", "bytes"),
    ("computation, all rounds", "flops", "flops"),
    ("virtual time", "virtual_seconds", "seconds"),
    ("energy, all rounds", "energy_joules", "joules"),
)


def side_by_side(groups: Mapping[str, Sequence[Records]]) -> list[Chart]:
    """Last metrics, and participation and costs, of each group of runs."""
    costs = {label: [_figures(run) for run in runs] for label, runs in groups.items()}
    charts = [
        _chart(
            "runs-costs", "Participation and costs of the runs", groups, costs,
            [(title, name, Axis("", unit, bottom=0.0), ()) for title, name, unit in _COSTS],
        )
    ]  # fmt: skip
    pairs = evaluated([run for runs in groups.values() for run in runs])
    if pairs:
        last = {label: [_last(run, pairs) for run in runs] for label, runs in groups.items()}
        wanted: list[tuple[str, str, Axis, list[tuple[float, str]]]] = []
        for kind, name in pairs:
            known = (run.facts.chance.get(kind, {}).get(name) for runs in groups.values() for run in runs)
            lines = [(level, "chance") for level in dict.fromkeys(known) if level is not None]
            axis = Axis("", bottom=0.0)
            wanted.append((f"{kind}: {title_of(name)}", f"{kind}.{name}", axis, lines))
        charts.insert(0, _chart("runs-metrics", "Last metrics of the runs", groups, last, wanted))
    return charts


def _last(run: Records, pairs: Sequence[tuple[str, str]]) -> dict[str, float | None]:
    return {f"{kind}.{name}": run.facts.metrics.get(kind, {}).get(name) for kind, name in pairs}


def _chart(
    slug: str, title: str, groups: Mapping[str, Sequence[Records]],
    values: Mapping[str, Sequence[Mapping[str, float | None]]],
    wanted: Sequence[tuple[str, str, Axis, Sequence[tuple[float, str]]]],
) -> Chart:  # fmt: skip
    spread = any(len(runs) > 1 for runs in groups.values())
    panels, columns = [], ["run", "seeds"]
    rows: list[list[Any]] = [[label, len(runs)] for label, runs in groups.items()]
    for panel_title, name, axis, lines in wanted:
        series = []
        for index, (label, found) in enumerate(values.items()):
            centre, off = mean(v[name] for v in found), deviation(v[name] for v in found)
            bar = Series(label, [label], [centre], colour(index))
            if off is not None and centre is not None:
                bar = Series(label, [label], [centre], colour(index), [centre - off], [centre + off])
            series.append(bar)
            rows[index] += [centre, off] if spread else [centre]
        panels.append(Panel(panel_title, "bars", Axis(""), axis, series, lines))
        columns += [name, f"{name}_deviation"] if spread else [name]
    caption = f"{title}: " + (
        "means over the seeds; error bars are the standard deviation." if spread else "one bar for each run."
    )
    return Chart(slug, title, caption, panels, columns, rows)
