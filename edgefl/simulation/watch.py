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
from edgefl.records.rounds import EarlyStop, lower_is_better, metric_value, metric_values
from edgefl.records.run import BestRecord

Metrics = Mapping[str, Mapping[str, float | None]]


def value_of(metrics: Metrics, metric: str) -> float | None:
    """The value of a metric, None if it isn't finite.  Raises MethodError if the evaluation lacks it."""
    if not metric_values(metrics, metric):
        there = ", ".join(f"{k}.{n}" for k, values in metrics.items() for n in values)
        raise MethodError(f"the evaluation has no {metric}, which stop or evaluation.best follows; it has {there}")
    return metric_value(metrics, metric)


@dataclass
class BestMetric:
    """The best value of a metric so far, the first of equal ones, and its round."""

    metric: str
    lower: bool
    min_delta: float = 0.0
    value: float | None = None
    round: int | None = None

    def sees(self, value: float | None, round: int) -> bool:
        """Whether this value is better by more than ``min_delta``; it is then the best."""
        if value is None:
            return False
        gain = 0.0 if self.value is None else (self.value - value if self.lower else value - self.value)
        if self.value is not None and gain <= self.min_delta:
            return False
        self.value, self.round = value, round
        return True


@dataclass
class MetricWatch:
    """Follows the metrics of ``stop`` and of ``evaluation.best`` from one evaluation to the next.

    ``stopped`` says why the run ends, once it does.  ``unwritten`` is the server's state at the best evaluation, until
    its weights are written with the next checkpoint.
    """

    stop: StopOptions
    kept: BestMetric
    followed: BestMetric | None = None
    without: int = 0
    stopped: EarlyStop | None = None
    unwritten: ServerState | None = field(default=None, repr=False)

    @classmethod
    def from_options(cls, stop: StopOptions, best: str | None) -> MetricWatch | None:
        """The watch of a run with these options; None if they follow no metric."""
        kept = best or stop.metric
        if kept is None:
            return None

        def lower(metric: str) -> bool:
            return stop.better == "lower" if stop.better and metric == stop.metric else lower_is_better(metric)

        followed = BestMetric(stop.metric, lower(stop.metric), stop.min_delta) if stop.metric else None
        return cls(stop, BestMetric(kept, lower(kept)), followed)

    def sees(self, metrics: Metrics, round: int, state: ServerState) -> None:
        """Take in an evaluation of a state.  Raises MethodError if it lacks a metric."""
        if self.kept.sees(value_of(metrics, self.kept.metric), round):
            self.unwritten = state
        if self.followed is None:
            return
        value = value_of(metrics, self.followed.metric)
        better = self.followed.sees(value, round)
        if round <= self.stop.after:
            return
        self.without = 0 if better else self.without + 1
        target, best = self.stop.target, self.followed
        if target is not None and value is not None and (value <= target if best.lower else value >= target):
            reason, text = "target", f"{value:.4g} reached {target:.4g}"
        elif self.stop.patience is not None and self.without >= self.stop.patience:
            reason, text = "patience", self._no_better(best)
        else:
            return
        text = f"stopped after round {round}: {' '.join(best.metric.split('.', 1))} {text}"
        self.stopped = EarlyStop(round=round, metric=best.metric, value=value, reason=reason, text=text)

    def _no_better(self, best: BestMetric) -> str:
        """What ended the patience, as text."""
        delta, times = self.stop.min_delta, f"{self.without} evaluation{'' if self.without == 1 else 's'}"
        if best.value is None:
            return f"was not finite in {times}"
        by = f" by more than {delta:.4g}" if delta else ""
        return f"was no better than {best.value:.4g} of round {best.round}{by} in {times}"

    def values(self, metrics: Metrics) -> dict[str, float | None]:
        """The values of the followed metrics in an evaluation."""
        names = dict.fromkeys(each.metric for each in (self.followed, self.kept) if each is not None)
        return {name: value_of(metrics, name) for name in names}

    @property
    def best(self) -> BestRecord:
        """Metric, value and round of the best weights."""
        return BestRecord(metric=self.kept.metric, value=self.kept.value, round=self.kept.round)

    def to_data(self) -> dict[str, Any]:
        """What the next evaluation depends on."""
        return {name: to_data(getattr(self, name)) for name in ("followed", "kept", "without", "stopped")}

    def load_data(self, raw: Mapping[str, Any]) -> None:
        """Go on from what ``to_data`` returned; the options may be others now."""
        for each, its in ((self.followed, raw["followed"]), (self.kept, raw["kept"])):
            if each is not None and its is not None:
                each.value, each.round = its["value"], its["round"]
        load_data(self, {name: raw[name] for name in ("without", "stopped")})


def best_round(state: Mapping[str, Any]) -> int | None:
    """The round of the best weights in a checkpoint's state; None if it follows no metric, or has seen none."""
    round: int | None = state["watch"]["kept"]["round"] if "watch" in state else None
    return round
