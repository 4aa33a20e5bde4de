"""Figures of the fleet: who takes part, who is left out by which budget, and what is excluded with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from edgefl import units
from edgefl.devices.budgets import BUDGETS, colour_of
from edgefl.drawing.charts.chart import Chart, ChartAxis, Panel, Series
from edgefl.drawing.charts.palette import FITS, IDLE, QUIET, of_kind
from edgefl.drawing.charts.records import Records, ShownVerdict
from edgefl.results.facts import RoundFacts

MOST_PANELS = 6
"""Stages that a figure shows, in three rows of two; of more, so many at equal distances."""
MOST_POINTS = 600
"""From this many clients on, a point stands for all clients of a kind, device, link and verdict: more points of a panel
would cover each other."""

SENT, IDLE_NAME = "sent updates", "fits, sent none"
OTHER_STAGE = "another stage's budget"


def eligible(records: Records) -> Chart:
    """How many clients of each kind fit in each stage, and which budget refuses the others."""
    bars: dict[str, dict[str, int]] = {}
    rows: list[tuple[list[Any], Mapping[str, int]]] = []
    for stage in records.facts.stages:
        for kind, counts in stage.kinds.items():
            refused = counts.refused_by
            missing = counts.clients - counts.eligible - sum(refused.values())
            bars[_place(records, stage.stage, kind)] = {
                "fits": counts.eligible, **refused,
                **({OTHER_STAGE: missing} if missing > 0 else {}),
            }  # fmt: skip
            rows.append(([stage.stage, stage.rounds, kind, counts.clients, counts.eligible], refused))
    others = sorted({name for n in bars.values() for name in n} - {*BUDGETS, "fits", OTHER_STAGE})
    names = ["fits", *(n for n in (*BUDGETS, *others, OTHER_STAGE) if any(n in bar for bar in bars.values()))]
    colours = {"fits": FITS, **{name: colour_of(name) for name in (*BUDGETS, *others)}}
    series = [
        Series(name if name == "fits" else f"refused by {name}", list(bars), [n.get(name, 0) for n in bars.values()],
               colours.get(name, QUIET))
        for name in names
    ]  # fmt: skip
    return Chart(
        "eligible", "Who fits",
        "Clients whose round fits all their budgets, by stage and kind, and the budget that refuses the others.",
        [Panel("", "stacks", ChartAxis(_axis(records)), ChartAxis("clients"), series)],
        ["stage", "rounds", "kind", "clients", "eligible", *(f"refused_by_{name}" for name in (*BUDGETS, *others))],
        [[*row, *(refused.get(name, 0) for name in (*BUDGETS, *others))] for row, refused in rows],
    )  # fmt: skip


def _axis(records: Records) -> str:
    return "stage, kind" if len(records.stages) > 1 else ""


def _place(records: Records, stage: int, kind: str) -> str:
    return f"{stage}, {kind}" if len(records.stages) > 1 else kind


def fleet(records: Records) -> Chart | None:
    """A point for each client: the memory it may use over the time of its round; one panel for each stage."""
    stages = records.stages
    if len(stages) > MOST_PANELS:
        stages = [stages[round(i * (len(stages) - 1) / (MOST_PANELS - 1))] for i in range(MOST_PANELS)]
    panels, rows, grouped, limited = [], [], False, False
    for stage in stages:
        verdicts = records.verdicts_of(stage)
        if not verdicts:
            continue
        numbers = {r.round for r in records.rounds if r.stage == stage}
        sent = Counter(f.client for f in records.flights if f.round in numbers and f.outcome == "finished")
        points = [_point(v, sent.get(v.client, 0)) for v in verdicts]
        if len(points) > MOST_POINTS or any(p.clients > 1 for p in points):
            points, grouped = _group_points(points), True
        limited |= any(p.memory_limit_bytes is not None for p in points)
        panels.append(_panel(f"stage {stage}" if len(records.stages) > 1 else "", points, records.kinds))
        rows += [[stage, *(getattr(p, name) for name in COLUMNS)] for p in points]
    if not panels:
        return None
    caption = "The memory that a client may use over the predicted time of its round. "
    if not limited:
        caption = "The memory that a client's round needs over its predicted time (no budget limits memory). "
    caption += "Filled marks fit all budgets, hollow ones are refused; dashed lines are what a kind's round needs."
    notes = ["A point stands for all clients of a kind, device, link and verdict."] if grouped else []
    if len(stages) < len(records.stages):
        notes.append(f"{len(stages)} of {len(records.stages)} stages are shown.")
    columns = ["stage", *COLUMNS]
    return Chart("fleet", "Clients by memory and time", caption, panels, columns, rows, notes=notes)


@dataclass
class Point:
    """A client, or all alike, in the figure and its table."""

    client: int
    clients: int
    kind: str
    device: str
    link: str
    verdict: str
    updates: int
    memory_bytes: float
    memory_limit_bytes: float | None
    flops: float
    traffic_bytes: float
    virtual_seconds: float
    energy_joules: float


COLUMNS = [each.name for each in fields(Point)]


def _point(v: ShownVerdict, updates: int) -> Point:
    margin = v.margins["memory"]
    state = (SENT if updates else IDLE_NAME) if v.eligible else f"refused by {v.binding}"
    return Point(
        v.client, v.clients, v.kind, v.device, v.link, state, updates, v.costs["memory"],
        None if margin is None else v.costs["memory"] + margin, v.costs["flops"], v.costs["bytes"], v.costs["seconds"],
        v.costs["joules"],
    )  # fmt: skip


def _group_points(points: Sequence[Point]) -> list[Point]:
    """One point for all of a kind, device, link and verdict: the first client's, with the number of all."""
    groups: dict[object, Point] = {}
    for point in points:
        key = (point.kind, point.device, point.link, point.verdict)
        if key in groups:
            groups[key].clients += point.clients
            groups[key].updates += point.updates
        else:
            groups[key] = replace(point)
    return list(groups.values())


def _panel(title: str, points: Sequence[Point], kinds: Sequence[str]) -> Panel:
    limited = any(p.memory_limit_bytes is not None for p in points)

    def height(p: Point) -> float | None:
        return p.memory_limit_bytes if limited else p.memory_bytes

    refused = sorted({p.verdict for p in points if p.verdict.startswith("refused")})
    states = dict.fromkeys([*(f"refused by {name}" for name in BUDGETS), *refused])
    colours = {SENT: FITS, IDLE_NAME: IDLE, **{state: colour_of(state.removeprefix("refused by ")) for state in states}}
    series = []
    for state, shade in colours.items():
        chosen = [p for p in points if p.verdict == state and height(p) is not None]
        if chosen:
            series.append(
                Series(
                    state, [p.virtual_seconds for p in chosen], [height(p) for p in chosen], shade,
                    symbols=[kinds.index(p.kind) for p in chosen], hollow=state.startswith("refused"),
                    sizes=[p.clients for p in chosen] if any(p.clients > 1 for p in chosen) else (),
                    notes=[_words(p) for p in chosen],
                )
            )  # fmt: skip
    need = {kind: max((p.memory_bytes for p in points if p.kind == kind), default=0) for kind in kinds}
    lines = [(float(n), f"{kind} needs {units.show_bytes(n)}") for kind, n in need.items() if n] if limited else []
    present = {p.kind for p in points}
    return Panel(
        title, "points", ChartAxis("time of a round", "seconds", log=_is_wide(p.virtual_seconds for p in points)),
        ChartAxis("memory granted" if limited else "memory needed", "bytes", log=_is_wide(map(height, points))),
        series, lines,
        symbols=[kind if kind in present else "" for kind in kinds],
    )  # fmt: skip


def _is_wide(of_points: Iterable[float | None]) -> bool:
    values = [value for value in of_points if value]
    return bool(values) and max(values) > 8 * min(values)


def _words(p: Point) -> str:
    who = f"client {p.client}" if p.clients == 1 else f"{p.clients:,} clients"
    limit = p.memory_limit_bytes
    of = f" of {units.show_bytes(limit)}" if limit is not None else ""
    return (
        f"{who}: {p.kind}, {p.device}, {p.link}; {p.verdict}; needs {units.show_bytes(p.memory_bytes)}"
        f"{of}, {units.show_seconds(p.virtual_seconds)}"
    )


def excluded_data_chart(records: Records) -> Chart | None:
    """The samples, classes and modalities that refused clients take with them; None if no sample is excluded."""
    stages = records.facts.stages
    worst: dict[int, RoundFacts] = {}
    for stage in stages:
        rounds = [r for r in records.rounds if r.stage == stage.stage]
        worst[stage.stage] = max(rounds, key=lambda r: r.excluded.samples)
    if not any(r.excluded.samples for r in worst.values()):
        return None
    places = [f"stage {number}" for number in worst] if len(worst) > 1 else ["all rounds"]
    kinds = records.kinds
    lost = [
        Series(kind, places, [_refused_samples(r, kind) for r in worst.values()], of_kind(i))
        for i, kind in enumerate(kinds)
    ]
    shares = {number: r.excluded.modality_samples_share for number, r in worst.items()}
    modalities = list(dict.fromkeys(name for share in shares.values() for name in share))
    kept = [
        Series(name, places, [_rest(share.get(name)) for share in shares.values()], _of_modality(name, kinds))
        for name in modalities
    ]
    rows = [
        [number, r.excluded.samples, sum(r.samples.values()), *(_refused_samples(r, kind) for kind in kinds),
         *(_rest(shares[number].get(name)) for name in modalities),
         _join_names(r.excluded.lost_classes), _join_names(r.excluded.lost_modalities)]
        for number, r in worst.items()
    ]  # fmt: skip
    notes = []
    for number, r in worst.items():
        for noun, names in (("class", r.excluded.lost_classes), ("modality", r.excluded.lost_modalities)):
            if names:
                plural = noun if len(names) == 1 else {"class": "classes", "modality": "modalities"}[noun]
                notes.append(f"Stage {number}: only refused clients have the {plural} {_join_names(names[:12])}"
                             f"{f' and {len(names) - 12} more' if len(names) > 12 else ''}.")  # fmt: skip
    if not notes:
        notes.append("No class and no modality is lost as a whole.")
    return Chart(
        "excluded", "What is excluded",
        "Samples of refused clients by kind, and the share of each modality's samples that they hold; in each stage, "
        "those of the round that excludes most.",
        [Panel("samples of refused clients", "stacks", ChartAxis(""), ChartAxis("samples"), lost),
         Panel("share of the modality's samples", "bars", ChartAxis(""), ChartAxis("excluded", "share", bottom=0.0),
               kept)],
        ["stage", "excluded_samples", "of_samples", *(f"excluded_samples_{kind}" for kind in kinds),
         *(f"excluded_share_{name}" for name in modalities), "lost_classes", "lost_modalities"],
        rows, notes=notes,
    )  # fmt: skip


def _of_modality(name: str, kinds: Sequence[str]) -> str:
    """The colour of the kind that has this modality alone, else of one that has it beside others."""
    return of_kind(kinds.index(min((kind for kind in kinds if name in kind.split("-")), key=len, default=kinds[0])))


def _rest(share: float | None) -> float | None:
    return None if share is None else 1 - share


def _refused_samples(r: RoundFacts, kind: str) -> int:
    return int(r.samples.get(kind, 0) - r.eligible_samples.get(kind, 0))


def _join_names(names: Sequence[Any] | None) -> str:
    return "" if not names else ", ".join(map(str, names))
