"""The best value of a metric so far."""

from __future__ import annotations

from dataclasses import dataclass

from edgefl.records.metrics import lower_is_better


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
