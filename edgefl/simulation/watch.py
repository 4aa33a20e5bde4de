"""The metrics that decide when a run ends early, and which weights are the best.

Both are read on ``evaluation.split`` alone, so that the split of the final evaluation stays unseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgefl.errors import MethodError
from edgefl.methods import ServerState
from edgefl.plain_data import load_data, to_data
from edgefl.planning.stop_options import StopOptions
from edgefl.records.metrics import BestMetric, lower_is_better, metric_value, metric_values
from edgefl.records.rounds import EarlyStop
from edgefl.records.run import BestRecord

Metrics = Mapping[str, Mapping[str, float | None]]


def value_of(metrics: Metrics, metric: str) -> float | None:
    """The value of a metric, None if it isn't finite.  Raises MethodError if the evaluation lacks it."""
    if not metric_values(metrics, metric):
        there = ", ".join(f"{k}.{n}" for k, values in metrics.items() for n in values)
        raise MethodError(f"the evaluation has no {metric}, which stop or evaluation.best follows; it has {there}")
    return metric_value(metrics, metric)


@dataclass
class MetricWatch:
    """Follows the metrics of ``stop`` and of ``evaluation.best`` from one evaluation to the next.

    ``stopped`` says why the run ends, once it does.  ``unwritten`` is the server's state of the best round, until its
    weights are written with the next checkpoint.
    """

    stop: StopOptions
    kept: BestMetric
    followed: BestMetric | None = None
    stopped: EarlyStop | None = None
    unwritten: ServerState | None = field(default=None, repr=False)

    @classmethod
    def from_options(cls, stop: StopOptions, best: str | None) -> MetricWatch | None:
        """The watch of a run with these options; None if they follow no metric."""
        metric = best or stop.metric
        if metric is None:
            return None
        followed = BestMetric.from_name(stop.metric, stop.better) if stop.metric else None
        lower = followed.lower if followed and metric == stop.metric else lower_is_better(metric)
        return cls(stop, BestMetric(metric, lower), followed)

    def sees(self, metrics: Metrics, round: int, state: ServerState) -> None:
        """Take in an evaluation of a state.  Raises MethodError if it lacks a metric."""
        if self.kept.sees(value_of(metrics, self.kept.metric), round):
            self.unwritten = state
        if self.followed is None:
            return
        value, best = value_of(metrics, self.followed.metric), self.followed
        best.sees(value, round)
        if round <= self.stop.after:
            best.without = 0
            return
        target = self.stop.target
        if target is not None and value is not None and (value <= target if best.lower else value >= target):
            reason, text = "target", f"{value:.4g} reached {target:.4g}"
        elif self.stop.patience is not None and best.without >= self.stop.patience:
            reason, text = "patience", self._no_better(best)
        else:
            return
        text = f"stopped after round {round}: {' '.join(best.metric.split('.', 1))} {text}"
        self.stopped = EarlyStop(round=round, metric=best.metric, value=value, reason=reason, text=text)

    def _no_better(self, best: BestMetric) -> str:
        """What ended the patience, as text."""
        times = f"{best.without} evaluation{'' if best.without == 1 else 's'}"
        if best.value is None:
            return f"was not finite in {times}"
        return f"was no better than {best.value:.4g} of round {best.round} in {times}"

    def values(self, metrics: Metrics) -> dict[str, float | None]:
        """The values of the followed metrics in an evaluation."""
        names = dict.fromkeys(each.metric for each in (self.followed, self.kept) if each)
        return {name: value_of(metrics, name) for name in names}

    @property
    def best(self) -> BestRecord:
        """Metric, value and round of the best weights."""
        return BestRecord(metric=self.kept.metric, value=self.kept.value, round=self.kept.round)

    def to_data(self) -> dict[str, Any]:
        """What the next evaluation depends on."""
        return {name: to_data(getattr(self, name)) for name in ("followed", "kept", "stopped")}

    def load_data(self, raw: Mapping[str, Any]) -> None:
        """Go on from what ``to_data`` returned; the options may be others now."""
        for name in ("followed", "kept"):
            best, its = getattr(self, name), raw[name]
            if best is not None and its is not None:
                best.value, best.round, best.without = its["value"], its["round"], its["without"]
        load_data(self, {"stopped": raw["stopped"]})


def best_round(state: Mapping[str, Any]) -> int | None:
    """The round whose weights a checkpoint's state counts as the best; None if there is none."""
    return state["watch"]["kept"]["round"] if "watch" in state else None
