"""Metrics of an evaluation: edgefl's own and those that a scenario names in ``evaluation.metrics``.

They see fake tensors too, when a cost is predicted: no ``.item()``, and no shape that depends on data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel
from torch import Tensor

from edgefl import registry
from edgefl.errors import MethodError
from edgefl.registry.part_fields import NamedFields, build_part, parse_options

TOP = 5
"""k of the top-k accuracy, which is reported for more than k classes."""


class Confusion:
    """Counts of an evaluation: ``matrix`` [classes, classes], rows of true classes and columns of predicted ones."""

    def __init__(self, tables: Sequence[Tensor], counts: Tensor):
        self.tables = tables
        self.hits: Tensor
        self.true: Tensor
        self.predicted: Tensor
        self.hits, self.true, self.predicted = counts
        """By class ``[classes]``: correct predictions, samples, predictions."""

    @cached_property
    def matrix(self) -> Tensor:
        """The sum over all patterns."""
        return torch.stack(list(self.tables)).sum(0)

    @property
    def samples(self) -> Tensor:
        """The number of samples, at least 1."""
        return self.true.sum().clamp_min(1)


class Metric:
    """A number of an evaluation.  Override ``value``; and ``adds`` with ``add`` for what confusions don't say.

    ``task`` is what it is a metric of: ``classify``, or ``retrieve`` (then override ``ranking_value``).
    """

    class Options(NamedFields):
        """Fields beside its ``name`` in ``evaluation.metrics``."""

    summary: ClassVar[str] = ""
    """One line for ``edgefl parts``."""
    task: ClassVar[Literal["classify", "retrieve"]] = "classify"
    adds: ClassVar[bool] = False
    """Whether ``add`` gives numbers for each sample; ``value`` gets their sum."""

    def __init__(self, options: Any):
        self.options = options

    @property
    def sums(self) -> tuple[int, ...]:
        """Shape of the sum, of which ``add`` gives one for each sample: a scalar, or ``[bins]`` of a histogram."""
        return ()

    def _lacks(self, function: str) -> MethodError:
        return MethodError(f"{registry.describe_part('metric', self.options.name)} doesn't define {function}()")

    def applies(self, classes: int, fields: Sequence[str]) -> bool:
        """Whether it is written for so many classes and data with these further fields."""
        return True

    def add(self, scores: Tensor, label: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Numbers ``[batch, *sums]``, of the samples' scores ``[batch, classes]`` and classes ``[batch]``."""
        raise self._lacks("add")

    def value(self, confusion: Confusion, total: Tensor | None) -> Tensor | Mapping[str, Tensor]:
        """The metric, a scalar, or several by name; ``total`` is the sum of ``add`` over all samples ``[*sums]``."""
        raise self._lacks("value")

    def ranking_value(self, first: Tensor, second: Tensor, group: Tensor) -> Tensor | Mapping[str, Tensor]:
        """The metric of pairs: unit vectors ``[pairs, dim]``; pairs with the same ``group`` [pairs] belong together."""
        raise self._lacks("ranked")


class Classes(Metric):
    """Accuracy, balanced accuracy, and macro precision, recall and F1.

    Classes without samples are left out of the means; a class that is never predicted has precision 0.
    """

    def value(self, confusion: Confusion, total: Tensor | None) -> Mapping[str, Tensor]:
        """From the counts by class."""
        hits, true, predicted = confusion.hits, confusion.true, confusion.predicted
        present = (true > 0).float()
        classes = present.sum().clamp_min(1)
        recall, precision = hits / true.clamp_min(1), hits / predicted.clamp_min(1)
        f1 = 2 * hits / (true + predicted).clamp_min(1)
        of = (("p", precision), ("r", recall), ("f", f1))
        mean = {name: (values * present).sum() / classes for name, values in of}
        return {
            "accuracy": hits.sum() / true.sum().clamp_min(1),
            "balanced_accuracy": mean["r"],
            "macro_precision": mean["p"],
            "macro_recall": mean["r"].clone(),
            "macro_f1": mean["f"],
        }


class Top(Metric):
    """How often the class is among the five best, for more than five classes; ties count in random order."""

    adds = True

    def applies(self, classes: int, fields: Sequence[str]) -> bool:
        """For more than five classes."""
        return classes > TOP

    def add(self, scores: Tensor, label: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """The chance that the class is among the five best."""
        return top_k_hits(scores, label, TOP)

    def value(self, confusion: Confusion, total: Tensor | None) -> Mapping[str, Tensor]:
        """Their mean."""
        assert total is not None
        return {f"top{TOP}_accuracy": total / confusion.samples}


class Soft(Metric):
    """The mean score of the predicted class, where the data have soft answers (VQA)."""

    adds = True

    def applies(self, classes: int, fields: Sequence[str]) -> bool:
        """For data with the field ``target``."""
        return "target" in fields

    def add(self, scores: Tensor, label: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """The predicted class's score."""
        return batch["target"].gather(1, scores.argmax(-1)[:, None])[:, 0]

    def value(self, confusion: Confusion, total: Tensor | None) -> Mapping[str, Tensor]:
        """Their mean."""
        assert total is not None
        return {"soft_score": total / confusion.samples}


USUAL = ("classes", "top5", "soft")
"""The metrics of every classification that they apply to."""


def top_k_hits(scores: Tensor, label: Tensor, k: int) -> Tensor:
    """``[batch]``: the chance that the label is among the ``k`` best of ``[batch, classes]``, ties in random order."""
    own = scores.gather(1, label[:, None])
    above, tied = (scores > own).sum(1), (scores == own).sum(1)
    return ((k - above) / tied.clamp_min(1)).clamp(0, 1)


def metric_of(name: str, part: Any) -> Any:
    """A registered part as a metric: a function of the confusion matrix becomes one.  Raises TypeError."""
    if isinstance(part, type) or not callable(part):
        raise TypeError("is no subclass of edgefl.work.metrics.Metric and no function of a confusion matrix")

    def value(self: Metric, confusion: Confusion, total: Tensor | None) -> Tensor:
        found: Tensor = part(confusion.matrix)
        return found

    written = {"value": value, "__doc__": part.__doc__, "summary": getattr(part, "summary", "")}
    return type(name, (Metric,), written)


def parse_metric(value: Any) -> BaseModel:
    """Options of a metric, from its name or a mapping with one.  Raises ValueError, UnknownName, ValidationError."""
    options = parse_options("metric", "", value, "a metric is a name or a mapping with a name and its fields")
    if (name := getattr(options, "name", "")) in USUAL:
        raise ValueError(f"{name} is written by every evaluation: leave it out")
    return options


def metric(given: Mapping[str, object]) -> Metric:
    """The metric of these fields, as a pass has them in ``args.metrics``."""
    named: Metric = build_part("metric", given)
    return named
