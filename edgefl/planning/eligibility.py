"""The gate: comparison of a round's cost with the budgets of devices, for all clients at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import ArrayLike

from edgefl import units
from edgefl.arrays import Booleans, Floats, Integers
from edgefl.devices.budgets import budget_named
from edgefl.devices.caps import DAY, JOB, LIMITS
from edgefl.errors import DeviceError
from edgefl.records.answer import RoundVerdict

OWNER, DEVICE = "owner", "device"
"""Whose word a memory budget is: what the owner grants, or what the device has if that is less."""
_WORDS = {LIMITS[DAY]: " a day", LIMITS[JOB]: " left for all rounds"}
"""What a sentence says of a cap's budget."""


@dataclass(frozen=True)
class Verdict:
    """Eligibility of one client: ``binding`` is the tightest budget (None if all are unlimited); ``margins`` are
    budget minus cost in the budgets' units, inf where unlimited.  ``memory_limit`` tells whose word the
    memory budget is: OWNER, DEVICE (it has less than its owner grants), or None without a budget; ``limits`` what
    those of CAPPED are for, one of LIMITS, if a cap may be tighter and the budget isn't unlimited.  ``peak_memory`` is
    the peak where a GPU's allocator reserves more, which is then the cost of memory; else None."""

    eligible: bool
    binding: str | None
    margins: Mapping[str, float]
    costs: Mapping[str, float]
    budgets: Mapping[str, float]
    memory_limit: str | None = None
    limits: Mapping[str, str] = field(default_factory=dict)
    peak_memory: float | None = None

    @property
    def reason(self) -> str:
        """The verdict as one sentence, with units."""
        if self.binding is None:
            return "eligible: no budget limits it"
        over = [key for key, margin in self.margins.items() if margin < 0]
        if not over:
            noun, show = budget_named(self.binding).noun, budget_named(self.binding).quantity.show
            used = self.costs[self.binding] / self.budgets[self.binding] if self.budgets[self.binding] else 1.0
            return (
                f"eligible: {noun} is the tightest budget, {show(self.costs[self.binding])} of "
                f"{show(self.budgets[self.binding])} ({units.show_share(used)}){self._of(self.binding)}"
                f"{self._reserve_words(self.binding)}"
            )
        over.sort(key=lambda key: key != self.binding)  # the binding budget first, the others in their order
        parts = []
        for key in over:
            noun, show = budget_named(key).noun, budget_named(key).quantity.show
            allowed = show(self.budgets[key]) if self.budgets[key] else "none"
            ends = {"": "allowed", " of the device": "left on the device", " a day": "allowed a day"}
            verb = f"is {ends.get(self._of(key), self._of(key).strip())}"
            parts.append(f"{noun} of {show(self.costs[key])}{self._reserve_words(key)} where {allowed} {verb}")
        return "not eligible: needs " + ", and ".join(parts)

    def _of(self, key: str) -> str:
        """ " of the device" for what a device has, " a day" or " left for all rounds" for a cap, or ""."""
        if key == "memory" and self.memory_limit == DEVICE:
            return " of the device"
        return _WORDS.get(self.limits.get(key, ""), "")

    def _reserve_words(self, key: str) -> str:
        """For which peak a GPU's allocator reserves the memory, if it reserves more; or ""."""
        if key != "memory" or self.peak_memory is None:
            return ""
        return f" (reserved by a GPU's allocator for a peak of {units.show_bytes(self.peak_memory)})"


def round_verdict(verdict: Verdict) -> RoundVerdict:
    """Seconds, joules and the verdict with its binding budget."""
    binding = verdict.binding
    return RoundVerdict(
        virtual_seconds=verdict.costs["seconds"],
        energy_joules=verdict.costs["joules"],
        eligible=verdict.eligible,
        binding=binding,
        memory_limit=verdict.memory_limit,
        margin=None if binding is None else verdict.margins[binding],
        budget=None if binding is None else verdict.budgets[binding],
        reason=verdict.reason,
    )


@dataclass(frozen=True)
class Verdicts:
    """The verdicts of all clients, as arrays `[clients]`; ``verdicts[i]`` is the one of client i.

    ``binding`` indexes ``names``: the budget with the smallest margin relative to itself, -1 if all are unlimited.
    ``margins`` are budget minus cost; ``shares`` `[budgets, clients]` are margins relative to their budgets.
    ``memory_of_device`` tells whose memory budget is the device's, ``cap_limits`` what those of CAPPED are for: ROUND,
    DAY or JOB.  ``peak_memory`` are the peaks, where ``costs`` have what a GPU's allocator reserves for them.
    """

    eligible: Booleans
    binding: Integers
    shares: Floats
    margins: Mapping[str, Floats]
    costs: Mapping[str, Floats]
    budgets: Mapping[str, Floats]
    memory_of_device: Booleans
    cap_limits: Mapping[str, Integers]
    peak_memory: Floats

    @property
    def names(self) -> tuple[str, ...]:
        """The budgets, in the order of the costs."""
        return tuple(self.costs)

    @property
    def nearness(self) -> Floats:
        """Smallest remaining share of a budget, `[clients]`: below 0 if one is exceeded, inf without budgets."""
        least: Floats = self.shares.min(axis=0)
        return least

    def __len__(self) -> int:
        return len(self.eligible)

    def __getitem__(self, client: int) -> Verdict:
        index, peak = int(self.binding[client]), float(self.peak_memory[client])
        return Verdict(
            bool(self.eligible[client]),
            self.names[index] if index >= 0 else None,
            {key: float(values[client]) for key, values in self.margins.items()},
            {key: float(values[client]) for key, values in self.costs.items()},
            {key: float(values[client]) for key, values in self.budgets.items()},
            memory_limit(float(self.budgets["memory"][client]), bool(self.memory_of_device[client])),
            {key: LIMITS[of[client]] for key, of in self.cap_limits.items() if self.budgets[key][client] < inf},
            peak if peak < self.costs["memory"][client] else None,
        )

    def __iter__(self) -> Iterator[Verdict]:
        return (self[client] for client in range(len(self)))


def memory_limit(budget: float, of_device: bool) -> str | None:
    """Whose word a memory budget is: OWNER, DEVICE, or None if it is unlimited."""
    return None if budget == inf else DEVICE if of_device else OWNER


def gate(
    costs: Mapping[str, ArrayLike],
    budgets: Mapping[str, ArrayLike],
    memory_of_device: ArrayLike = False,
    cap_limits: Mapping[str, ArrayLike] | None = None,
    peak_memory: ArrayLike = inf,
) -> Verdicts:
    """Compare a round's cost with the budgets, by their names; arrays `[clients]`, or one number for all.

    ``memory_of_device`` says where the budget of memory is what the device has and not what its owner grants,
    ``cap_limits`` what those of bytes and joules are for.  ``peak_memory`` are the peaks, which are less than the cost
    of memory where a GPU's allocator reserves more.

    A budget that isn't given is unlimited.  A cost equal to its budget is eligible.  Raises DeviceError for a cost
    that is missing, negative or not a number.
    """
    if missing := [key for key in budgets if key not in costs]:
        raise DeviceError(f"no cost is given for the budget {missing[0]!r}, only for {', '.join(costs)}")
    needed = {key: np.asarray(cost, dtype=float) for key, cost in costs.items()}
    allowed = {key: np.asarray(budgets.get(key, inf), dtype=float) for key in costs}
    for key, values in needed.items():
        if not np.all(values >= 0):
            raise DeviceError(f"a cost of {key} is negative or not a number")
    for key, values in allowed.items():
        if not np.all(values >= 0):
            raise DeviceError(f"a budget of {key} is negative or not a number")
    shape = np.broadcast_shapes((1,), *(values.shape for values in (*needed.values(), *allowed.values())))
    needed = {key: np.broadcast_to(values, shape) for key, values in needed.items()}
    allowed = {key: np.broadcast_to(values, shape) for key, values in allowed.items()}

    margins = {key: _difference(allowed[key], needed[key]) for key in costs}
    shares = np.stack([_relative(margins[key], allowed[key]) for key in costs])
    eligible = np.all(np.stack([margins[key] >= 0 for key in costs]), axis=0)
    unlimited = np.all(np.stack([np.isposinf(allowed[key]) for key in costs]), axis=0)
    binding = np.where(unlimited, -1, np.argmin(shares, axis=0)).astype(np.int64)
    of_device = np.broadcast_to(np.asarray(memory_of_device, dtype=bool), shape)
    of_caps = {key: np.broadcast_to(np.asarray(of), shape) for key, of in (cap_limits or {}).items()}
    peaks = np.broadcast_to(np.asarray(peak_memory, dtype=float), shape)
    return Verdicts(eligible, binding, shares, margins, needed, allowed, of_device, of_caps, peaks)


def _difference(budget: Floats, cost: Floats) -> Floats:
    unlimited = np.isposinf(budget)
    # inf - inf is NaN, but an infinite cost fits an unlimited budget
    return np.where(unlimited, inf, np.where(unlimited, 0.0, budget) - np.where(unlimited, 0.0, cost))


def _relative(margin: Floats, budget: Floats) -> Floats:
    """Margin divided by the budget; for a budget of 0 it is 0 if the cost is 0, else -inf."""
    ratio = np.full(margin.shape, inf)
    with np.errstate(over="ignore"):  # a tiny budget may overflow to -inf too
        np.divide(margin, budget, out=ratio, where=np.isfinite(budget) & (budget > 0))
    ratio[budget == 0] = np.where(margin[budget == 0] < 0, -inf, 0.0)
    return ratio
