"""Budgets: what a round may use up, each a registered part; edgefl's own are below.

A budget reads the price of rounds and says how much of its resource they take.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from edgefl import registry, units
from edgefl.arrays import Floats, Integers
from edgefl.devices.profile import Device, Link
from edgefl.errors import PluginError, UnknownName
from edgefl.records.answer import RoundVerdict

BUDGETS = ("memory", "flops", "bytes", "seconds", "joules")
"""The budgets of every verdict, limited or not, in the order of its costs; those that a scenario states beside them
follow in the order of their names."""


@dataclass(frozen=True)
class Price:
    """What rounds of clients cost on one device and over one link: arrays `[rounds]` in the units of their names.

    Seconds and joules are without jitter.
    """

    device: Device
    """The device that all these rounds are on."""
    link: Link
    """Its link."""
    peak_memory_bytes: Integers
    """Predicted peak of live tensors and kernels' scratch."""
    tensor_bytes: Integers
    """What tensors take of the device: the peak, or what a GPU's allocator reserves if that is more."""
    loaded_bytes: Integers
    """Parameters and buffers, which a client reads from storage before it computes."""
    forward_flops: Integers
    """FLOPs forward."""
    backward_flops: Integers
    """FLOPs backward."""
    download_bytes: Integers
    """Serialised bytes down, with headers."""
    upload_bytes: Integers
    """Serialised bytes up."""
    download_seconds: Floats
    """Seconds of the download."""
    compute_seconds: Floats
    """Seconds of loading and computing, with throttling if the fleet has it."""
    upload_seconds: Floats
    """Seconds of the upload."""
    energy_joules: Floats
    """Energy of all phases."""
    peak_watts: Floats
    """The highest power of a phase that takes time: compute power, or idle and radio power."""

    def __len__(self) -> int:
        return len(self.peak_memory_bytes)

    @property
    def virtual_seconds(self) -> Floats:
        """Download, loading, computing and upload, one after the other."""
        return self.download_seconds + self.compute_seconds + self.upload_seconds


class Budget(ABC):
    """A resource that an owner may limit, ``fleet.budgets.NAME`` in a scenario.

    Where a scenario states it, every client's round is compared with it: the gate, ``profile``, ``sweep``, ``fit`` and
    the records of eligibility.  edgefl's own are registered in the same way.
    """

    noun: ClassVar[str]
    """What sentences and tables call it: ``needs energy of 500 J where 250 J is allowed``."""
    quantity: ClassVar[units.Quantity]
    """How amounts are read, written and shown; of a ``whole`` one, drawn budgets are rounded down."""
    summary: ClassVar[str]
    """Its description in the scenario's JSON Schema."""
    grows: ClassVar[bool] = False
    """Whether a round that computes or moves more never takes less of it; ``fit`` then decides more candidates without
    a prediction."""
    colour: ClassVar[str] = "#404858"
    """The colour of the clients that it refuses, in figures and pages."""

    @abstractmethod
    def round_amounts(self, price: Price) -> ArrayLike:
        """How much each round takes, `[rounds]`, at least 0; equal for equal rounds."""


class _Field(Budget):
    """One of BUDGETS, which is a field of ``BudgetOptions``."""

    field: ClassVar[str]


def budget_named(name: str) -> Budget:
    """The budget registered as ``name``.  Raises UnknownName, and PluginError if it is broken."""
    return _instance(registry.get("budget", name))


def field_of(name: str) -> str:
    """What ``fleet.budgets`` calls a budget: one of BUDGETS has a field, another its name."""
    part = budget_named(name)
    return part.field if isinstance(part, _Field) else name


def colour_of(name: str) -> str:
    """The colour of those whom a budget refuses, also where the budget that a run's records name isn't known here."""
    try:
        return budget_named(name).colour
    except (UnknownName, PluginError):
        return Budget.colour


@cache
def _instance(part: type[Budget]) -> Budget:
    return part()


MOST_USED = 10.0
"""A round that takes this much of a budget or more is told by what the budget lacks: 3,000 % says less than 2 GiB."""


def show_binding(row: RoundVerdict) -> str:
    """The binding budget, and how much of it the round takes: ``memory 36 %``.

    Where the share says nothing, because it is huge or rounds to all of a budget that doesn't suffice, it says how much
    is lacking: ``device lacks 2 MiB``.
    """
    binding, margin = str(row.binding), row.margin or 0.0
    word = "device" if binding == "memory" and row.memory_limit == "device" else binding
    used = 1 - margin / row.budget if row.budget else MOST_USED
    if used >= MOST_USED or (margin < 0 and units.show_share(used) == units.show_share(1.0)):
        return f"{word} lacks {budget_named(binding).quantity.show(-margin)}"
    return f"{word} {units.show_share(used)}"


def amounts(names: Iterable[str], price: Price) -> dict[str, Integers]:
    """What rounds take of each of these budgets, `[rounds]`.

    Raises PluginError if a budget doesn't give a number for each round.
    """
    return {name: _amounts(name, price) for name in names}


def _amounts(name: str, price: Price) -> Integers:
    given = np.asarray(budget_named(name).round_amounts(price))
    if given.shape != (len(price),):
        found = f"an array of shape {list(given.shape)}" if given.ndim else f"{given.tolist()!r:.40}"
        raise PluginError(
            f"{registry.describe_part('budget', name)} gives {found}; it must be [rounds], {[len(price)]}"
        )
    return given


# --- edgefl's own ----------------------------------------------------------------------------------------------------


class MemoryBudget(_Field):
    """The highest peak: live tensors and kernels' scratch, as torch's allocator hands them out or reserves them."""

    noun, quantity = "memory", units.BYTES
    field, colour = "memory", "#cc3311"
    summary = (
        "Most bytes of live tensors and kernels' scratch at any moment; on a GPU those that its allocator reserves, in "
        "segments of at least 2 or 20 MiB, if these are more."
    )

    def round_amounts(self, price: Price) -> Integers:
        """The peak; on a GPU what its allocator reserves, if that is more."""
        return price.tensor_bytes


class FlopsBudget(_Field):
    """Most FLOPs in a round."""

    noun, quantity = "computation", units.FLOPS
    field, colour = "flops_per_round", "#997700"
    summary = "Most FLOPs (forward and backward) in a round."

    def round_amounts(self, price: Price) -> Integers:
        """Forward and backward."""
        return price.forward_flops + price.backward_flops


class TrafficBudget(_Field):
    """Most bytes that a round moves."""

    noun, quantity = "traffic", units.BYTES
    field, colour = "bytes_per_round", "#994455"
    summary = "Most bytes (download and upload) in a round."

    def round_amounts(self, price: Price) -> Integers:
        """Down and up, as links carry them."""
        return price.download_bytes + price.upload_bytes


class Seconds(_Field):
    """Longest round."""

    noun, quantity = "time", units.SECONDS
    field, colour = "seconds_per_round", "#6f4c9b"
    summary = "Most seconds (download, computing and upload) in a round."

    def round_amounts(self, price: Price) -> Floats:
        """Download, loading, computing and upload."""
        return price.virtual_seconds


class Joules(_Field):
    """Most energy in a round."""

    noun, quantity = "energy", units.JOULES
    field, colour = "energy_per_round", "#bb5500"
    summary = "Most joules (computing and transfer) in a round."

    def round_amounts(self, price: Price) -> Floats:
        """All phases."""
        return price.energy_joules


class Power(Budget):
    """Highest power that a round draws."""

    noun, quantity = "power", units.WATTS
    summary = (
        "Most watts that a device draws at any moment of a round: its compute power, or its idle power and that of its "
        "radio while it transfers."
    )
    grows = True

    def round_amounts(self, price: Price) -> Floats:
        """The phase that draws most, of those that take time."""
        return price.peak_watts
