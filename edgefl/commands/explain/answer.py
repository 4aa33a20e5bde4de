"""The answer of ``edgefl explain``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records.answer import Answer
from edgefl.records.epsilon import PrivacySpent
from edgefl.records.record import UNSET, Clients, Keys, Maybe, Record, Share, Unit

Seconds = Annotated[float, Unit("s")]


class PathPart(Record):
    """A part of a round's critical path."""

    who: str
    """`server`, `relay K` or `client K`, in the order of the critical path"""
    client: int | None
    """Number of the client; `null` for the server and a relay"""
    kind: str | None
    """Its kind"""
    device: str | None
    """Its device"""
    link: str | None
    """Its link"""
    phase: str
    """`download`, `compute`, `upload`, a work of the server, what a relay moves, or what is waited for"""
    started_virtual_seconds: float
    """When this part began"""
    seconds: float
    """How long it lasted; the parts add up to the round"""
    share: Share
    """Its share of the round"""


class Shorter(Record):
    """What would have shortened a round."""

    change: str
    """What would have shortened the round, the largest saving first"""
    seconds: float
    """What it would have saved"""
    at_most: bool
    """Whether that is an upper bound"""


class AbsentClient(Record):
    """A client without an update in a round, or several alike."""

    client: int | None
    """A client without an update in this round; `null` for a kind without records, and in a fleet of over 10,000"""
    kind: str
    """Its kind"""
    device: str | None
    """Its device"""
    link: str | None
    """Its link"""
    clients: Clients = 1
    """How many clients the entry stands for: 1, or more where `client` is `null`"""
    reason: str
    """`over budget: BUDGET`, `offline`, `cap of the day`, `not drawn`, `not drawn or not ready`, `under way`,
    `left out`, `no part`, or the outcome of its task"""
    why: str
    """The same as a sentence, with its figures"""


class StoryFlight(Record):
    """A task of the client that was asked for."""

    base_round: int
    """The round in which it was sent off"""
    outcome: str
    """How the task ended: `finished`, `late`, `dropped` or another outcome of `clients.jsonl`"""
    dispatched_virtual_seconds: float
    """When it was sent off"""
    ended_virtual_seconds: float
    """Virtual time at which the task ended: its update arrived, or was lost"""
    virtual_seconds: float
    """How long it lasted"""
    energy_joules: float | None
    """Its energy"""
    phases: Annotated[Mapping[str, Seconds], Keys("PHASE")]
    """Time of each phase"""
    slack_seconds: float | None
    """How long before the last landing of the round it landed"""


class Story(Record):
    """A client's round."""

    client: int
    """The client that was asked for (`--client`)"""
    kind: str | None
    """Its kind; `null` if it has no records"""
    device: str | None
    """Its device"""
    link: str | None
    """Its link"""
    eligible: bool | None
    """Whether it fits its budgets"""
    verdict: str | None
    """The verdict's reason"""
    reason: str | None
    """Why it was absent; `null` if it took part"""
    why: str | None
    """The same as a sentence"""
    on_the_path: bool
    """Whether it is on the critical path"""
    flights: Sequence[StoryFlight]
    """The client's tasks that ended in the round"""


class Explanation(Answer):
    """What a round's length is made of, and why each client that took no part was absent."""

    folder: str
    """The run's folder"""
    round: int
    """The round"""
    stage: int
    """Its stage"""
    policy: str
    """The round policy"""
    outcome: str
    """As in [`rounds.jsonl`](records.md#roundsjsonl)"""
    started_virtual_seconds: float
    """When it began"""
    finished_virtual_seconds: float
    """When it ended"""
    virtual_seconds: float
    """How long it lasted"""
    clients: Clients
    """Clients of the fleet"""
    unavailable: Clients
    """Clients that were asked and weren't ready"""
    path: Sequence[PathPart]
    """The critical path"""
    shorter: Sequence[Shorter]
    """What would have shortened the round"""
    took_part: Sequence[int]
    """Clients whose update was used"""
    absent: Sequence[AbsentClient]
    """Clients without an update"""
    absent_by: Annotated[Mapping[str, Clients], Keys("REASON")]
    """Number of absent clients by reason"""
    privacy: PrivacySpent | Maybe = UNSET
    """What the rounds up to this one have spent; only with noise"""
    client: Story | Maybe = UNSET
    """The client that was asked for; only with `--client`"""
