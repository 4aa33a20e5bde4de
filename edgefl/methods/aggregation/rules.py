"""Rules of aggregation: how one change is made of many clients' changes of a parameter.

``mean`` is added up as updates arrive.  The others need all updates of a round: rules by coordinate (median, trimmed
mean: Yin et al. 2018, definitions 1 and 2), and rules by update, which weigh whole updates (Krum, a geometric median).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar

import torch
from torch import Tensor

from edgefl import registry
from edgefl.errors import MethodError
from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.registry.part_fields import NamedFields, build_part
from edgefl.work.sums import exact
from edgefl.work.update import Update

TRIM = 0.1
"""Default share that a trimmed mean drops at each end: a choice, for at most a tenth of attackers."""

_AT_ONCE, _TOGETHER = 2**20, 2**24
"""Elements of each update, and of all together, that a rule by update sees at a time: it bounds their copies,
128 MiB in float64 for 16 updates or more."""


class Rule:
    """A rule of ``aggregation.rule``, made for each aggregation: it remembers nothing between rounds."""

    class Options(NamedFields):
        """Fields next to the name: none."""

    options: Any
    """The ``Options`` of this rule."""
    section: AggregationOptions
    """The scenario's ``aggregation`` section."""
    paper: ClassVar[str] = ""
    """Where it was published: authors and year, or the paper's name."""
    adds_up: ClassVar[bool] = False
    """Whether updates are added up as they arrive; only for ``Mean``."""

    def __init__(self, options: Any, section: AggregationOptions):
        self.options, self.section = options, section

    def withstands(self, updates: int) -> int | None:
        """How many of so many updates may be of attackers, whatever they send, without moving the result beyond what
        honest updates allow; None: not known.

        A run with attackers warns where they are more, and a scenario in which one always is too many is refused.
        """
        return None


class Mean(Rule):
    """The mean of the changes, weighted by samples."""

    adds_up = True


class ByCoordinate(Rule, ABC):
    """A rule that treats each coordinate by itself, over the clients that sent it and have samples."""

    @abstractmethod
    def centre(self, changes: Tensor, weights: Tensor) -> Tensor:
        """``[clients, n] -> [n]``: one number for each coordinate, whatever the order of clients.

        ``changes`` are of some coordinates of one parameter, in its precision; ``weights`` ``[clients]`` are the
        clients' in a mean, in float64, above zero.
        """


class ByUpdate(Rule, ABC):
    """A rule that weighs whole updates: each client's counts equally much in all that it sent."""

    @abstractmethod
    def shares(self, group: ComparableUpdates) -> Sequence[float] | Tensor:
        """The share of each update of a group, not below zero; they are scaled to add up to 1.

        A client that sent a parameter which no other did has all of it.
        """


@dataclass(frozen=True)
class ComparableUpdates:
    """Updates ``[m]`` of one client kind that send the same tensors, or the same slices of them, by client.

    An update is what its client changed over all tensors that are averaged, shortened by ``factors``.
    """

    updates: Sequence[Update]
    """The updates."""
    weights: Sequence[float]
    """Their weights in a mean, above zero."""
    factors: Sequence[float]
    """What shortens them: clipping, and the round policy's."""

    def __len__(self) -> int:
        return len(self.updates)

    @property
    def has_no_values(self) -> bool:
        """Whether its tensors have no data (meta): costs are planned without."""
        return any(t.is_meta for update in self.updates for _, *both in update.changing() for t in both)

    def parts(self) -> Iterator[Tensor]:
        """The updates in pieces ``[m, n]`` in float64, one after the other, which together are whole."""
        sent: dict[str, list[tuple[Tensor, Tensor, float]]] = {}
        for update, factor in zip(self.updates, self.factors, strict=True):
            for address, value, base in update.changing():
                sent.setdefault(address, []).append((value.flatten(), base.flatten(), factor))
        step = max(1, min(_AT_ONCE, _TOGETHER // len(self.updates)))
        for address in sorted(sent):
            rows = sent.pop(address)
            for first in range(0, len(rows[0][0]), step):
                at = slice(first, first + step)
                yield torch.stack(
                    [(exact(v[at].to(b.dtype)) - exact(b[at])).mul(factor).double() for v, b, factor in rows]
                )

    def squared_distances(self) -> Tensor:
        """Squared L2 distances ``[m, m]`` between whole updates, in float64."""
        found = torch.zeros(len(self), len(self), dtype=torch.float64, device="cpu")
        for part in self.parts():
            # not by products of matrices, which lose the small distances between large updates
            found += torch.cdist(part, part, compute_mode="donot_use_mm_for_euclid_dist").square()
        return found


class Median(ByCoordinate):
    """Each coordinate's median; of an even number of clients the mean of the two middle values."""

    paper = "Yin et al. 2018"

    def withstands(self, updates: int) -> int:
        """Fewer than half."""
        return max(updates - 1, 0) // 2

    def centre(self, changes: Tensor, weights: Tensor) -> Tensor:
        """The median; clients have equal weight, as published."""
        return _middle(changes, (len(changes) - 1) // 2)


class TrimmedMean(ByCoordinate):
    """Each coordinate's mean without the smallest and the largest values; ``aggregation.trim`` is their share."""

    paper = "Yin et al. 2018"

    def withstands(self, updates: int) -> int:
        """As many as are dropped at each end: floor(trim m)."""
        trim = TRIM if self.section.trim is None else self.section.trim
        return int(trim * updates + 1e-9)  # 30 % of 10 is 3, despite binary fractions

    def centre(self, changes: Tensor, weights: Tensor) -> Tensor:
        """The mean of m values without floor(trim m) at each end; clients have equal weight, as published."""
        return _middle(changes, self.withstands(len(changes)))


def _middle(values: Tensor, dropped: int) -> Tensor:
    return values.sort(0).values[dropped : len(values) - dropped].mean(0)


# --- by name ---------------------------------------------------------------------------------------------------------


def rule_of(name: str, part: Any) -> type[Rule]:
    """The class that is registered as a rule.  Raises TypeError, whose text is the end of a message, for others."""
    if not (isinstance(part, type) and issubclass(part, Mean | ByCoordinate | ByUpdate)):
        raise TypeError("is no subclass of ByCoordinate or ByUpdate, which edgefl.methods has")
    return part


def rule(options: AggregationOptions) -> Rule:
    """The rule that an ``aggregation`` section names.  Raises UnknownName and PluginError."""
    named: Rule = build_part("aggregation", options.rule, options)
    return named


def centre(rule: ByCoordinate, changes: Tensor, weights: Tensor) -> Tensor:
    """What a rule makes of ``changes`` ``[clients, n]``.  Raises MethodError for another shape than ``[n]``."""
    found = rule.centre(changes, weights)
    if not isinstance(found, Tensor) or found.shape != changes.shape[1:]:
        told = f"a tensor {list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise MethodError(f"{_describe_rule(rule)}: centre() returned {told} for {list(changes.shape)}, not [n]")
    return found.to(changes.dtype)


def shares(
    rule: ByUpdate, updates: Sequence[Update], weights: Sequence[float], factors: Sequence[float]
) -> list[float]:
    """The share of each update in the mean: 0 if it isn't kept, and a group's shares add up to its number of updates.

    An update without weight isn't kept and counts for none; tensors without data (meta) are kept.  Raises MethodError
    for answers of a rule that are no shares.
    """
    groups: dict[object, list[int]] = {}
    for index, update in enumerate(updates):
        if weights[index]:
            cuts = update.cuts()
            sent = frozenset((address, cuts.get(address)) for address, _, _ in update.changing())
            groups.setdefault((update.kind, sent), []).append(index)
    found = [0.0] * len(updates)
    for members in groups.values():
        group = ComparableUpdates(
            [updates[i] for i in members], [weights[i] for i in members], [factors[i] for i in members]
        )
        told = [1.0] * len(group) if group.has_no_values else [float(share) for share in rule.shares(group)]
        total = sum(told)
        if len(told) != len(group) or not all(share >= 0 and isfinite(share) for share in told) or not total:
            raise MethodError(
                f"{_describe_rule(rule)}: shares() of {len(group)} updates returned {told!r:.60}, not a number for "
                "each, none of them below 0 and one of them above"
            )
        for index, share in zip(members, told, strict=True):
            found[index] = len(group) * share / total
    return found


def _describe_rule(rule: Rule) -> str:
    return registry.describe_part("aggregation", rule.options.name)
