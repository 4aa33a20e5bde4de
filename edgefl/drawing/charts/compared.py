"""Figures of a comparison: the runs side by side, runs that differ in their seeds only as mean and spread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from edgefl.drawing.charts.chart import Chart, ChartAxis, Panel, Series
from edgefl.drawing.charts.curves import REACH, evaluated_metrics
from edgefl.drawing.charts.palette import of_run
from edgefl.drawing.charts.records import Curves, Records
from edgefl.drawing.text_tables import or_dash, title_of, without_seed
from edgefl.records.summary import RunSummary
from edgefl.results.facts import compared_split, fitting, hardest, peak_of, share
from edgefl.results.spread import SeedSpread, spread_words, with_confidence
from edgefl.units import NAMED

if TYPE_CHECKING:
    from edgefl.runs import Run

C = TypeVar("C", bound=Curves)
MOST_WRITTEN = 12
"""Up to this many bars have their value written on them; on more, values would overlap."""


def groups_of(run: Run, runs: Sequence[C]) -> dict[str, list[C]]:
    """The runs of a comparison by label without the seed: runs in a group differ in their seeds only."""
    groups: dict[str, list[C]] = {}
    for records in runs:
        name = without_seed(records.label) or run.name
        groups.setdefault(name, []).append(records)
    return groups


_COSTS: tuple[tuple[str, str, str, Callable[[RunSummary], float | None]], ...] = (
    ("eligible clients, in the hardest stage", "eligible_share", "share",
     lambda facts: share(*fitting(stage)) if (stage := hardest(facts)) else None),
    ("clients that took part", "took_part_share", "share",
     lambda facts: share(facts.everyone.took_part, facts.everyone.clients)),
    ("samples that took part", "took_part_samples_share", "share",
     lambda facts: share(facts.everyone.took_part_samples, facts.everyone.samples)),
    ("largest peak memory, of clients too that don't fit", "peak_memory_bytes", "bytes",
     lambda facts: max((peak_of(facts, kind) for kind in facts.kinds), default=None)),
    ("traffic, all rounds", "traffic_bytes", "bytes", lambda facts: facts.totals.carried_bytes),
    ("computation, all rounds", "flops", "flops", lambda facts: facts.totals.executed_flops),
    ("virtual time", "virtual_seconds", "seconds", lambda facts: facts.virtual_seconds),
    ("energy, all rounds", "energy_joules", "joules", lambda facts: facts.totals.energy_joules),
)  # fmt: skip
"""What is compared beside metrics: title, column, unit, and the figure of a run."""


def side_by_side(groups: Mapping[str, Sequence[Records]]) -> list[Chart]:
    """Metrics, and participation and costs, of each group of runs."""
    costs = [
        _Column(title, name, unit, [SeedSpread(tuple(of(run.facts) for run in runs)) for runs in groups.values()])
        for title, name, unit, of in _COSTS
    ]
    charts = [_chart("runs-costs", "Participation and costs of the runs", groups, costs)]
    metrics, everyone = [], [run.facts for runs in groups.values() for run in runs]
    split = compared_split(everyone)
    for kind, name in evaluated_metrics([run for runs in groups.values() for run in runs]):
        spreads = [
            SeedSpread(tuple(run.facts.metrics_on(split).get(kind, {}).get(name) for run in runs))
            for runs in groups.values()
        ]
        known = {facts.chance.get(kind, {}).get(name) for facts in everyone if facts.metrics_split == split}
        chance = [level for level in known if level is not None]
        metrics.append(_Column(f"{kind}: {title_of(name)}, {split}", f"{split}.{kind}.{name}", "", spreads, chance))
    if metrics:
        charts.insert(0, _chart("runs-metrics", "Metrics of the runs", groups, metrics))
    return charts


@dataclass(frozen=True)
class _Column:
    """A figure of all groups, over the seeds of each: a panel, and columns of the table."""

    title: str
    name: str
    unit: str
    spreads: Sequence[SeedSpread]
    across: Sequence[float] = ()
    """Chance levels."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw: no group has a value, or no run spent anything."""
        return not any(
            spread.mean or (spread.mean is not None and self.unit in ("", "share")) for spread in self.spreads
        )


def _chart(slug: str, title: str, groups: Mapping[str, Sequence[Records]], columns: Sequence[_Column]) -> Chart:
    confidence = with_confidence([spread for column in columns for spread in column.spreads])
    seeds = max(map(len, groups.values()))
    rows: list[list[Any]] = [[label, len(runs)] for label, runs in groups.items()]
    names, panels = ["run", "seeds"], []
    for column in columns:
        series = []
        for index, (label, found) in enumerate(zip(groups, column.spreads, strict=True)):
            centre, reach = found.mean, found.reach(confidence=confidence)
            low, high = ([centre - reach], [centre + reach]) if centre is not None and reach is not None else ((), ())
            show = NAMED[column.unit].show if column.unit else "{:.3f}".format
            series.append(Series(label, [label], [centre], of_run(index), low, high, notes=[or_dash(show, centre)],
                                 written=len(groups) <= MOST_WRITTEN))  # fmt: skip
            rows[index] += [centre, reach] if seeds > 1 else [centre]
        if not column.is_empty:
            lines = [(level, "chance") for level in column.across]
            panels.append(
                Panel(column.title, "bars", ChartAxis(""), ChartAxis("", column.unit, bottom=0.0), series, lines)
            )
        names += [column.name, f"{column.name}_{REACH[confidence]}"] if seeds > 1 else [column.name]
    spread = f"Means over the seeds; error bars: {spread_words(confidence=confidence)}." if seeds > 1 else ""
    return Chart(slug, title, f"{title}: a bar for each run.", panels, names, rows, spread=spread)
