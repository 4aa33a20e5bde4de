"""Figures of costs: memory by part against the budgets, and each cost as predicted beside what the run had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from edgefl import units
from edgefl.drawing.charts.chart import Chart, ChartAxis, Panel, Series, mean
from edgefl.drawing.charts.fleet import _axis, _place
from edgefl.drawing.charts.palette import INK, MEASURED, PARTS, PREDICTED, QUIET
from edgefl.drawing.charts.records import Records, ShownFlight, ShownVerdict
from edgefl.records.record import UNSET

ABOVE = 2.2
"""The axis of memory ends at this multiple of the largest need, so that needs can be seen beside large budgets."""
RESERVED = "reserved beyond the peak"


def _groups(records: Records) -> dict[tuple[int, str], list[ShownFlight]]:
    """The flights by stage and kind, in order."""
    groups: dict[tuple[int, str], list[ShownFlight]] = {}
    for flight in records.flights:
        groups.setdefault((flight.stage, flight.kind), []).append(flight)
    order = {kind: i for i, kind in enumerate(records.kinds)}
    return dict(sorted(groups.items(), key=lambda item: (item[0][0], order.get(item[0][1], 99))))


def memory(records: Records) -> Chart | None:
    """Peak memory of each kind's largest work by part, and the budgets of the kind's clients, in each stage."""
    flights = _groups(records)
    last = {(v.stage, v.kind, v.client): v for v in records.verdicts}
    verdicts: dict[tuple[int, str], list[ShownVerdict]] = {}
    for (stage, kind, _), v in last.items():
        verdicts.setdefault((stage, kind), []).append(v)
    order = {kind: i for i, kind in enumerate(records.kinds)}
    keys = sorted({*flights, *verdicts}, key=lambda key: (key[0], order.get(key[1], 99)))
    places, bars, budgets, rows = [], [], [], []
    for key in keys:
        largest = max(flights.get(key, ()), key=lambda f: f.peak_memory_bytes, default=None)
        need = max((v.costs["memory"] for v in verdicts.get(key, ())), default=None)
        parts: dict[str, float | None] = {} if largest is None else dict(largest.memory_bytes.by_part())
        peak = largest.peak_memory_bytes if largest else need
        if largest and largest.reserved_memory_bytes is not UNSET:
            parts[RESERVED] = max(largest.reserved_memory_bytes - largest.peak_memory_bytes, 0)
        if not parts:
            parts = {"not told apart": peak}
        left = [(v.costs["memory"], v.margins["memory"]) for v in verdicts.get(key, ())]
        limits = [cost + margin for cost, margin in left if margin is not None]
        places.append(_place(records, *key) if len({k[0] for k in keys}) < 2 else f"{key[0]}, {key[1]}")
        bars.append(parts)
        budgets.append((min(limits), median(limits), max(limits)) if limits else None)
        rows.append([key[0], key[1], peak, *(budgets[-1] or (None, None, None)), parts])
    if not places:
        return None
    names = [name for name in (*PARTS, RESERVED, "not told apart") if any(parts.get(name) for parts in bars)]
    series = [Series(name, places, [parts.get(name, 0) for parts in bars], PARTS.get(name, QUIET)) for name in names]
    known = [(place, b) for place, b in zip(places, budgets, strict=True) if b]
    if known:
        series.append(
            Series(
                "budgets: least, median, most", [place for place, _ in known], [b[1] for _, b in known], INK,
                [b[0] for _, b in known], [b[2] for _, b in known], form="points",
                notes=["budgets " + ", ".join(map(units.show_bytes, b)) for _, b in known],
            )
        )  # fmt: skip
    most = max(row[2] or 0 for row in rows)
    top = ABOVE * most if any(b and b[2] > ABOVE * most for b in budgets) else None
    notes = ["Larger budgets than the axis shows are in the table."] if top else []
    if any("not told apart" in parts for parts in bars):
        notes.append("Where no client took part, the peak isn't told apart.")
    return Chart(
        "memory", "Memory against the budgets",
        "Peak memory of the largest client's work by part, and the memory that the kind's clients may use, by stage "
        "and kind.",
        [Panel("", "stacks", ChartAxis(_axis(records)), ChartAxis("peak memory", "bytes", top=top), series)],
        ["stage", "kind", "peak_memory_bytes", "least_budget_bytes", "median_budget_bytes", "largest_budget_bytes",
         *(f"{name.replace(' ', '_')}_bytes" for name in names)],
        [[*row[:-1], *(row[-1].get(name, 0) for name in names)] for row in rows], notes=notes,
    )  # fmt: skip


def costs(records: Records) -> Chart | None:
    """Each cost of a client's round, by stage and kind: as predicted, and as measured or as it was in the run."""
    groups = _groups(records)
    if not groups:
        return None
    verdicts = {(v.client, v.stage): v.costs for v in records.verdicts if v.clients == 1}

    def verdict_getter(name: str) -> Callable[[ShownFlight], float | None]:
        return lambda f: verdicts.get((f.client, f.stage), {}).get(name)

    wanted: tuple[tuple[str, str, str, str, Any, Any, Any], ...] = (
        ("peak memory", "peak_memory_bytes", "bytes", "measured", lambda f: f.peak_memory_bytes,
         lambda f: f.measured_peak_memory_bytes, max),
        ("computation", "flops", "flops", "measured", lambda f: f.predicted_flops, lambda f: f.measured_flops, None),
        ("traffic", "traffic_bytes", "bytes", "in the run",
         lambda f: f.serialised_download_bytes + f.serialised_upload_bytes,
         lambda f: f.carried_download_bytes + f.carried_upload_bytes, None),
        ("time", "seconds", "seconds", "in the run", verdict_getter("seconds"), lambda f: f.virtual_seconds, None),
        ("energy", "joules", "joules", "in the run", verdict_getter("joules"), lambda f: f.energy_joules, None),
    )  # fmt: skip
    stages = {stage for stage, _ in groups}
    places = [f"{stage}, {kind}" if len(stages) > 1 else kind for stage, kind in groups]
    panels, columns = [], []
    table: list[list[Any]] = [[stage, kind, len(flights)] for (stage, kind), flights in groups.items()]
    for title, name, unit, second, predicted, measured, how in wanted:
        pairs = [[(predicted(flight), measured(flight)) for flight in flights] for flights in groups.values()]
        # what was measured of some works stands beside the prediction for the same works
        alike = [[pair for pair in found if pair[1] is not None] or found for found in pairs]
        first = [_summarise((one for one, _ in found), how) for found in alike]
        other = [_summarise((two for _, two in found), how) for found in alike]
        series = [Series("predicted", places, first, PREDICTED)]
        if any(value is not None for value in other):
            series.append(Series(second, places, other, MEASURED))
        axis = ChartAxis("stage, kind" if len(stages) > 1 else "")
        if any(value for each in series for value in each.y):
            panels.append(Panel(title, "bars", axis, ChartAxis("", unit, bottom=0.0), series))
        columns += [f"predicted_{name}", f"{'measured' if second == 'measured' else 'simulated'}_{name}"]
        for row, one, two in zip(table, first, other, strict=True):
            row += [one, two]
    return Chart(
        "costs", "Cost of a client's round",
        "Predicted costs beside what was measured (memory, computation) and what the run had (traffic, time, energy), "
        "by stage and kind. Memory is the largest client's; the others are means of the clients' rounds. Where works "
        "were measured, both figures are theirs.",
        panels, ["stage", "kind", "client_rounds", *columns], table,
        notes=["Predicted time and energy are those of the verdict: without jitter, and without waiting for the "
               "server's line."],
    )  # fmt: skip


def _summarise(values: Any, how: Callable[[Sequence[float]], float] | None) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return float(how(known)) if how else mean(known)
