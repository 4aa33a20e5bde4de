"""The scenario's ``round`` and ``evaluation`` sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PositiveInt,
    SerializeAsAny,
    WithJsonSchema,
    field_serializer,
    field_validator,
    model_validator,
)

from edgefl import registry
from edgefl.data.missing import parse_missing
from edgefl.devices.fleet import apportion
from edgefl.planning.staleness import StalenessOptions, parse_staleness
from edgefl.registry.part_fields import Fields, build_part, parse_options
from edgefl.units import Seconds, Share

if TYPE_CHECKING:
    from edgefl.work.description import MissingRates

_FORMS = [{"type": "string"}, {"type": "object", "properties": {"name": {"type": "string"}}}]
_SELECTION = WithJsonSchema({"anyOf": _FORMS, "examples": ["random", {"name": "oort", "exploration": "10%"}]})
_POLICY = WithJsonSchema({"anyOf": _FORMS, "examples": ["synchronous"]})


def parse_policy(value: object) -> BaseModel:
    """Options of a round policy, from its name or from a mapping with a ``name``.

    Raises UnknownName, and pydantic's ValidationError for wrong fields.
    """
    shape = "a round policy is a name, or a mapping with its name and fields"
    return parse_options("round policy", "synchronous", value, shape)


def parse_selection(value: object) -> BaseModel:
    """Options of a selection, from its name or from a mapping with a ``name``.

    Raises UnknownName, and pydantic's ValidationError for wrong fields.
    """
    shape = "a selection is a name or a mapping such as {name: oort, exploration: 20%}"
    return parse_options("selection", "random", value, shape)


def _metric(value: Any) -> BaseModel:
    from edgefl.work.metrics import parse_metric  # here, as metrics compute with torch, and who reads a run doesn't

    return parse_metric(value)


_METRIC = WithJsonSchema(
    {
        "anyOf": [
            {"type": "string"},
            {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        ]
    }
)


_UNBOUNDED_SHARE = WithJsonSchema(
    {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}], "examples": ["30%"]}
)


def _unbounded_share(value: Any) -> Any:
    """Parse a share that may be above 100 %: "150%" or 1.5."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return float(value.strip()[:-1]) / 100
        except ValueError:
            pass
    return value


def check_positive(value: float | None) -> float | None:
    """The value, if it is more than 0 or null.  Raises ValueError."""
    if value is not None and not value > 0:
        raise ValueError(f"must be more than 0, not {value:g}")
    return value


CohortSize = PositiveInt | Share
"""Clients of a round: a number, or a share of those there are."""


class RoundOptions(Fields):
    """Which clients take part in a round, and when it ends."""

    policy: Annotated[BaseModel, BeforeValidator(parse_policy), _POLICY] = Field(
        default="synchronous",
        validate_default=True,
        description="what a round waits for: synchronous, asynchronous (FedAsync), buffered (FedBuff) or "
        "semi-synchronous; a policy of one's own may be a mapping with its name and fields",
    )
    selection: Annotated[SerializeAsAny[BaseModel], BeforeValidator(parse_selection), _SELECTION] = Field(
        default="random",
        validate_default=True,
        description="how clients are chosen: random, round-robin, poisson (each by itself, so that cohort is a mean), "
        "power-of-choice, oort, or a mapping with a name and its fields",
    )
    cohort: CohortSize | dict[str, CohortSize] = Field(
        0.25,
        description="clients per round: a share of each kind, a total number, or a share or number for every kind, "
        "such as {image: 34%, text: 25%, image-text: 2}",
    )
    stratify: bool = Field(
        True, description="whether each client kind has its own part of the cohort; false draws from all kinds together"
    )
    gate: Literal["eligible", "everyone"] = Field(
        "eligible",
        description="which clients may be selected: those that fit their budgets (eligible), or all (everyone); a "
        "selected client that needs more memory than its budget ends out of memory",
    )
    leave_out: tuple[str, ...] = Field(
        (),
        description="kinds of clients that are never selected; the data, models and tests of all kinds stay as "
        "they are",
    )
    deadline: Seconds | None = Field(
        None, description="virtual time after which an update is late and left out; null: no deadline"
    )
    over_selection: Annotated[float, BeforeValidator(_unbounded_share), Field(ge=0, le=10), _UNBOUNDED_SHARE] = Field(
        0.0,
        description="clients selected beyond the cohort, as a share of it; the round ends when as many updates as "
        "the cohort has clients have arrived",
    )
    quorum: PositiveInt = Field(1, description="updates that a round needs to change the model")
    below_quorum: Literal["skip", "wait", "fail"] = Field(
        "skip",
        description="what happens with fewer updates: skip the round, wait and select again, or fail with an error",
    )
    retry: Seconds = Field(
        60.0,
        description="virtual time until the server selects again, if no client is available or the quorum isn't met",
    )
    patience: Seconds = Field(
        86400.0, description="virtual time after which waiting (below_quorum: wait) ends with an error"
    )
    concurrency: PositiveInt | None = Field(
        None, description="clients under way at a time, unless the policy is synchronous; null: the size of the cohort"
    )
    buffer: PositiveInt = Field(10, description="updates that the buffered policy aggregates together")
    weighting: Literal["equal", "samples"] | None = Field(
        None,
        description="weight of an update in the mean of the parameters under a synchronous or the buffered policy: "
        "1 / K for each of K updates (equal), or its share of their samples (samples); null: samples, but equal under "
        "the buffered policy, as FedBuff is published; other policies weigh by samples, and take null only",
    )
    window: Seconds = Field(60.0, description="virtual time between two aggregations of the semi-synchronous policy")
    staleness: Annotated[StalenessOptions, BeforeValidator(parse_staleness)] = Field(
        StalenessOptions.model_validate({}),
        description="discount of an update that began on an older model: constant, polynomial, hinge, or a "
        "mapping with a name and its fields",
    )
    mixing: float = Field(
        0.6,
        gt=0,
        le=1,
        description="weight alpha of a fresh update under the asynchronous policy: (1 - alpha) model + alpha update",
    )

    _check_positive = field_validator("deadline", "retry", "patience", "window")(check_positive)

    @field_validator("cohort")
    @classmethod
    def _has_clients(cls, value: CohortSize | dict[str, CohortSize]) -> CohortSize | dict[str, CohortSize]:
        if not isinstance(value, dict):
            check_positive(value)
            return value
        for kind, size in value.items():
            if size <= 0:
                raise ValueError(f"has {size:g} {kind} clients: give more than 0, or list {kind} in round.leave_out")
        return value

    @field_validator("leave_out")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if duplicates := [kind for kind in value if value.count(kind) > 1]:
            raise ValueError(f"{duplicates[0]} is listed twice")
        return value

    @field_serializer("policy")
    def _serialise_policy(self, policy: BaseModel) -> Any:
        """The name of a policy without fields, else a mapping."""
        fields = policy.model_dump(mode="json")
        return {"name": self.policy_name, **fields} if fields.keys() - {"name"} else self.policy_name

    @model_validator(mode="after")
    def _fits_policy(self) -> RoundOptions:
        name, policy = self.policy_name, registry.get("round policy", self.policy_name)
        if policy.overlapping and self.over_selection:
            raise ValueError(f"over_selection is only for a synchronous round: {name} doesn't wait for a cohort")
        if policy.overlapping and self.quorum > 1 and not self.build_policy().is_time_bound:
            raise ValueError(f"quorum is only for rounds that end by time: a round of {name} ends with an update")
        if self.weighting is not None and policy.overlapping and not policy.weighted:
            raise ValueError(f"weighting is only for policy: synchronous or buffered; {name} weighs updates by samples")
        if registry.get("selection", self.selection_name).sampling == "poisson":
            if policy.overlapping:
                raise ValueError(
                    f"{self.selection_name} draws whole cohorts, and {name} fills one place after the other: write "
                    "policy: synchronous, or selection: random"
                )
            if self.over_selection:
                raise ValueError(f"{self.selection_name} draws a cohort of any size: leave out over_selection")
        return self

    @property
    def has_equal_weights(self) -> bool:
        """Whether every update of an aggregation has the same weight, whatever its client's samples."""
        if self.weighting is None:
            return bool(registry.get("round policy", self.policy_name).weighted)
        return self.weighting == "equal"

    def seats(self, population: Mapping[str, int]) -> dict[str, int]:
        """Places of a cohort without over-selection, by group; under ``""`` where all clients are one group."""
        if not self.stratify:
            population = {"": sum(population.values())}
        return {group: min(n, population[group]) for group, n in places(self.cohort, population).items()}

    def most_updates(self, population: Mapping[str, int]) -> dict[str, int]:
        """Updates of each kind of client that one aggregation takes, at most."""
        seats, policy = self.seats(population), self.build_policy()
        if self.stratify and not policy.overlapping:
            return seats
        return dict.fromkeys(population, max(policy.holds(sum(seats.values())), 1))

    def build_policy(self) -> Any:
        """The round policy, an ``edgefl.simulation.Policy``, with its own options and this section."""
        return build_part("round policy", self.policy, self)

    @property
    def policy_name(self) -> str:
        """The registered name of the round policy."""
        return str(getattr(self.policy, "name", "synchronous"))

    @property
    def selection_name(self) -> str:
        """The registered name of the selection."""
        return str(getattr(self.selection, "name", "random"))


def places(cohort: float | Mapping[str, float], population: Mapping[str, int]) -> dict[str, int]:
    """Number of places of each group of clients.

    A share gives each group ``max(int(share x clients), 1)``.  A number is apportioned to the groups by size and met
    exactly, unless the population is smaller.  A mapping has the share or number of each group; one that it lacks gets
    no place.
    """
    if isinstance(cohort, Mapping):
        return {
            group: places(cohort[group], {group: clients})[group] if group in cohort else 0
            for group, clients in population.items()
        }
    if isinstance(cohort, int):
        return apportion({group: float(n) for group, n in population.items()}, min(cohort, sum(population.values())))
    return {group: max(int(cohort * n), 1) for group, n in population.items()}


class ReportedOptions(Fields):
    """Which score of a run is its result, where that isn't the one of the last round."""

    rule: Literal["best"] = Field(
        "best",
        description="best: the best value of each metric, each from its own round; optimistic where the split is test",
    )
    last: int = Field(10, ge=2, description="number of last rounds whose evaluations are compared")


class EvaluationOptions(Fields):
    """When and on what the global models are evaluated, at the server and at the clients."""

    every: PositiveInt = Field(
        1, description="number of rounds between evaluations; the last round is always evaluated"
    )
    split: Literal["validation", "test"] = Field("validation", description="split that is scored before the last round")
    final: Literal["validation", "test"] = Field("test", description="split that is scored after the last round")
    best: str | None = Field(
        None,
        description="metric of split, as kind and name (image.accuracy), at whose best value the weights are kept in "
        "best.safetensors; null: stop.metric, if there is one, else none are kept",
    )
    reported: ReportedOptions | None = Field(
        None,
        description="score of the run in tables, result.json and exports: {rule: best, last: 10} for the best of the "
        "last ten rounds, for which split and final must be the same; null: that of the last round",
    )
    batch: PositiveInt = Field(100, description="samples per step")
    pairs: PositiveInt = Field(500, description="maximum number of pairs that retrieval ranks")
    missing: Any = Field(
        None,
        description="modalities that samples of pairs lack in an evaluation, written as data.missing; retrieval "
        "leaves incomplete pairs out",
    )
    fold: PositiveInt = Field(
        1000,
        description="images per fold: if there are more pairs, retrieval also ranks disjoint folds of this size "
        "(R@1 on 1K in the papers)",
    )
    metrics: tuple[Annotated[SerializeAsAny[BaseModel], BeforeValidator(_metric), _METRIC], ...] = Field(
        (),
        description="metrics beside those of every evaluation: names of registered ones, or mappings with a name and "
        "its fields: [kappa, {name: fbeta, beta: 2}]",
    )

    clients: Share = Field(
        0.0,
        description="share of each client's own samples that it holds out of its training, to score its model on: "
        "rounded down, so that clients with few samples hold none out; 0: clients train on all, and aren't scored",
    )
    client_sample: PositiveInt | Share | None = Field(
        None,
        description="clients that are scored on their held-out samples: a share of each kind or a total number, "
        "drawn once; null: all",
    )

    @field_validator("clients")
    @classmethod
    def _some_left(cls, value: float) -> float:
        if value == 1:
            raise ValueError("must be less than 100%, or nothing is left to train on")
        return value

    _some_scored = field_validator("client_sample")(check_positive)

    @model_validator(mode="after")
    def _fits(self) -> EvaluationOptions:
        if self.client_sample is not None and not self.clients:
            raise ValueError("client_sample needs samples to score clients on: set clients, such as clients: 20%")
        return self

    @field_validator("metrics")
    @classmethod
    def _each_once(cls, value: tuple[BaseModel, ...]) -> tuple[BaseModel, ...]:
        names = [getattr(metric, "name", "") for metric in value]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"{twice[0]} is listed twice")
        return value

    @field_validator("missing")
    @classmethod
    def _missing(cls, value: Any) -> dict[str, MissingRates] | None:
        return None if value is None else parse_missing(value)
