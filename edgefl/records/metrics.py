"""Metrics of an evaluation: their names, titles and directions, which are read without the records that hold them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, NamedTuple

from edgefl.records.record import Keys, Share

Metrics = Annotated[Mapping[str, Mapping[str, Share | None]], Keys("KIND.METRIC")]
"""Metrics of an evaluation, by kind and name; null where the scores aren't finite."""


class ShownMetric(NamedTuple):
    """What tables call a metric of edgefl's, what a progress line does, and whether short tables have it."""

    title: str
    short: str = ""
    is_headline: bool = False


METRICS: Mapping[str, ShownMetric] = {
    "accuracy": ShownMetric("accuracy", "acc", is_headline=True),
    "balanced_accuracy": ShownMetric("balanced accuracy"),
    "soft_score": ShownMetric("soft score", "score", is_headline=True),
    "r@1": ShownMetric("R@1"),
    "r@10": ShownMetric("R@10", "R@10", is_headline=True),
    "r@1_sum": ShownMetric("R@1 sum"),
    "perplexity": ShownMetric("perplexity", "perplexity"),
    "token_accuracy": ShownMetric("token accuracy"),
}
"""edgefl's metrics that tables show if a run has them, in their order.  Records hold more."""
SHORT = {name: metric.short for name, metric in METRICS.items() if metric.short}
"""Those that tell most of a kind, and their short names."""

OVER_CLIENTS = "_deviation"
"""The end of the name of a metric's standard deviation over clients that each have a model."""

LOWER = ("loss", "error", "perplexity", "distance", "divergence", "mse", "mae", "rank")
"""Parts of the names of metrics of which lower values are better."""


MEAN = "mean"
"""Stands for a kind in the name of a score over kinds: ``mean.accuracy`` is the plain mean of those that have it."""


def metric_values(metrics: Metrics, metric: str) -> list[float | None]:
    """The values behind ``KIND.NAME``, of a score over kinds one for each kind; empty if no such kind has it."""
    kind, _, name = metric.partition(".")
    return [values[name] for each, values in metrics.items() if kind in (each, MEAN) and name in values]


def metric_value(metrics: Metrics, metric: str) -> float | None:
    """The value of ``KIND.NAME`` or of a score over kinds; None if there is none, or one that isn't finite."""
    values = metric_values(metrics, metric)
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def with_means(metrics: Iterable[str]) -> list[str]:
    """These metrics, ``KIND.NAME``, and then the mean over kinds of each name."""
    there = [*metrics]
    return [*there, *dict.fromkeys(f"{MEAN}.{metric.partition('.')[2]}" for metric in there)]


def lower_is_better(metric: str) -> bool:
    """Whether lower values of this metric are better, by its name."""
    name = metric.partition(".")[2].lower() or metric.lower()
    return any(word in name for word in LOWER)


def best_metrics(evaluations: Sequence[Metrics]) -> Metrics:
    """Each metric's best value in these evaluations by itself; None where no evaluation has a finite one."""
    names = dict.fromkeys((kind, name) for each in evaluations for kind, values in each.items() for name in values)
    best: dict[str, dict[str, float | None]] = {}
    for kind, name in names:
        found = [value for each in evaluations if (value := each.get(kind, {}).get(name)) is not None]
        choose = min if lower_is_better(f"{kind}.{name}") else max
        best.setdefault(kind, {})[name] = choose(found, default=None)
    return best


@dataclass
class BestMetric:
    """The best value of a metric so far, the first of equal ones, and its round.

    ``without`` counts the values in a row that were no better.
    """

    metric: str
    lower: bool
    value: float | None = None
    round: int | None = None
    without: int = 0

    @classmethod
    def from_name(cls, metric: str, better: str | None = None) -> BestMetric:
        """The best of a metric of which ``better`` values are better; None: as its name says."""
        return cls(metric, better == "lower" if better else lower_is_better(metric))

    def sees(self, value: float | None, round: int) -> bool:
        """Whether this value is better; it is then the best."""
        better = value is not None and (
            self.value is None or (value < self.value if self.lower else value > self.value)
        )
        self.without = 0 if better else self.without + 1
        if better:
            self.value, self.round = value, round
        return better


_RECORDED = re.compile(r"macro_(precision|recall|f1)|top\d+_accuracy|matched@\d+|(\w+_to_\w+_)?r@\d+(_both|_fold)?")
"""edgefl's other metrics, which only records hold."""


def own_metrics(found: Iterable[str]) -> list[str]:
    """Of these metrics those of steps of one's own, without those of a pattern (``f1[image]``)."""
    return [
        name for name in dict.fromkeys(found)
        if name not in METRICS and "[" not in name and not _RECORDED.fullmatch(name)
        and not name.endswith(OVER_CLIENTS)
    ]  # fmt: skip


def shown_metrics(found: Iterable[str]) -> list[str]:
    """Of these metrics those that tables show: ``METRICS``, then one's own; where there are none of both, all."""
    names = [name for name in dict.fromkeys(found) if "[" not in name and not name.endswith(OVER_CLIENTS)]
    return [*(name for name in METRICS if name in names), *own_metrics(names)] or names


def split_of(works: Iterable[str]) -> str:
    """The split of a round's metrics: that of the last evaluation among its works of the server; "" without one."""
    return next((when.split()[1] for when in reversed([*works]) if when.startswith("evaluate ")), "")
