"""What a run's ``scenario.yaml`` says, as far as its records are read with it.

The scenario's own sections (``edgefl.scenario``) know every option and import whatever the scenario names.  These know
only what tables, figures and explanations ask, and read a run also where a plug-in is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgefl.records.record import UNSET, Maybe, Record

Option = str | int | float | bool | None | Sequence[object] | Mapping[str, object]
"""An option that is only shown."""


class NamedPartSettings(Record):
    """A part that is named."""

    name: str
    """Its name"""


class DataSettings(Record):
    """The section ``data``."""

    source: Option
    """The data set"""
    partition: Option
    """How samples are dealt out"""
    clients: Mapping[str, int] | None
    """Clients by kind"""


class FleetSettings(Record):
    """The section ``fleet``."""

    devices: Option
    """Shares of the clients, by device"""
    links: Option
    """Shares of the clients, by link"""
    budgets: Mapping[str, Option] | None
    """What clients may use"""
    battery: Option
    """Batteries; null without"""
    server_link: Option
    """The server's line; null without a limit"""
    relays: Option
    """Edge servers between the clients and the server; null without"""


class RoundSettings(Record):
    """The section ``round``."""

    policy: Option
    """The round policy, with its options if it has some"""
    selection: Option
    """How clients are chosen, with its options"""
    cohort: Option
    """Clients of a round, their share, or either by kind"""
    over_selection: float | None
    """Clients that are asked beyond the cohort, as a share"""
    deadline: Option
    """Longest flight, in seconds"""
    quorum: Option
    """Updates that a round needs, or their share"""
    gate: str
    """Whom the budgets let take part"""
    leave_out: Sequence[str] | None
    """Kinds of clients that take no part"""

    @property
    def policy_name(self) -> str:
        """The name of the round policy."""
        return str(self.policy["name"] if isinstance(self.policy, Mapping) else self.policy)


class ReportedSettings(Record):
    """Which of the last evaluations is the score of a run (`evaluation.reported`)."""

    last: int
    """Last rounds whose best scores count"""


class EvaluationSettings(Record):
    """The section ``evaluation``."""

    split: str
    """The split of evaluations in between"""
    final: str
    """The split of the last evaluation"""
    pairs: int
    """Most pairs that are ranked"""
    fold: int
    """Pairs of a fold, where more are ranked"""
    missing: Mapping[str, Mapping[str, object]] | None
    """Shares of pairs that lack a modality, by kind"""
    reported: ReportedSettings | None = None
    """Which score is reported, if it isn't that of the last round"""


class TrainingSettings(Record):
    """The section ``training``."""

    mode: str
    """`real` or `none`"""
    optimizer: Option
    """The optimizer"""
    lr: Option
    """The learning rate"""
    batch: Option
    """Samples of a batch"""
    epochs: Option
    """Passes over a client's samples"""
    steps: Option = None
    """Batches of a client's round, in place of passes"""
    precision: Option
    """The precision of its numbers"""


class Settings(Record):
    """A run's scenario, with every default written out."""

    name: str
    """Its name"""
    seed: int
    """Its seed"""
    data: DataSettings
    """The clients and their data"""
    method: NamedPartSettings
    """The method"""
    schedule: NamedPartSettings
    """The schedule"""
    training: TrainingSettings
    """How clients train"""
    fleet: FleetSettings
    """Devices, links and budgets"""
    round: RoundSettings
    """Who takes part in a round"""
    evaluation: EvaluationSettings
    """On what models are scored"""
    compare: Mapping[str, Option] | Maybe = UNSET
    """Fields that a comparison varies; only in a comparison"""
