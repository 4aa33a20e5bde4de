"""``eligibility.jsonl``: whether a client's round fits its budgets, and which budget decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records.clients import Assigned
from edgefl.records.record import UNSET, Clients, Keys, Maybe, Record, Samples, Share, Unit

ByBudget = Annotated[Mapping[str, float], Keys("BUDGET")]
ByModality = Annotated[Mapping[str, Share], Keys("MODALITY"), Unit("share")]


class VerdictRecord(Assigned):
    """A verdict on a client, or on all clients of a kind, device, link and verdict in a fleet of over 10,000.

    Written when a client is first judged, and when its stage, the verdict or the binding budget changes.
    """

    round: int
    """The round from which on the verdict holds"""
    client: int
    """Number of the client; of several the one with the smallest margin"""
    clients: Clients
    """How many clients the record stands for"""
    stage: int
    """The stage that it was judged for"""
    eligible: bool
    """Whether its round fits all budgets"""
    binding: str | None
    """The tightest budget: `memory`, `flops`, `bytes`, `seconds`, `joules`, or another that the scenario states;
    `null` if all are unlimited"""
    memory_limit: str | None
    """Whose word the memory budget is: `owner`, or `device` if it has less than its owner grants; `null` if it is
    unlimited"""
    bytes_limit: str | Maybe | None = UNSET
    """What the budget of bytes is for: `round`, `day` if less is allowed on one, or `job` if less is left for all
    rounds; `null` if it is unlimited. Only with `fleet.budgets.bytes_per_day` or `bytes_total`"""
    joules_limit: str | Maybe | None = UNSET
    """The same for joules. Only with `fleet.budgets.energy_per_day` or `energy_total`"""
    peak_memory_bytes: int | Maybe = UNSET
    """The predicted peak, where a GPU's allocator reserves more: `costs.memory` is what it reserves, and the verdict's
    figure; absent elsewhere"""
    margins: Annotated[Mapping[str, float | None], Keys("BUDGET")]
    """Budget less cost, below 0 if it doesn't fit, `null` if it is unlimited: `memory` in bytes, `flops` (forward and
    backward), `bytes` (serialised, both ways), `seconds` (without jitter), `joules`; `power` in watts (the highest of
    the round) with `fleet.budgets.power`, and a plug-in's budget under its name"""
    reason: str
    """The verdict in a sentence"""
    costs: ByBudget
    """What the round is predicted to take of each budget, in the same units"""


class LostData(Record):
    """Data that are lost with clients that don't fit."""

    excluded_samples: Samples
    """Samples of the clients that don't fit"""
    lost_classes: Sequence[str] | None
    """Classes that only those clients hold; `null` for declared data"""
    lost_modalities: Sequence[str]
    """Modalities that only those clients hold"""


class Coverage(LostData):
    """Data that clients who fit hold, and data that are lost with the others."""

    eligible_samples_share: Share
    """Samples that they hold"""
    class_coverage: Share | None
    """Classes of which one of them holds a sample; `null` for declared data"""
    modality_samples_share: ByModality
    """Samples of a modality that they hold"""
