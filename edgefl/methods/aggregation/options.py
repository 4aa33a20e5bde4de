"""Fields of a scenario's ``aggregation`` section: how the server combines updates."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    WithJsonSchema,
    model_validator,
)

from edgefl import registry
from edgefl.registry.part_fields import Fields, parse_options

ADAPTIVE = ("adagrad", "adam", "yogi")
"""Server optimizers that read ``tau`` and ``beta1``."""
KRUM = ("krum", "multi-krum")
"""Rules that read ``attackers``."""


def named_part(noun: str, default: str, value: object) -> Any:
    """A registered part's name, or its options where it has fields beside the name, from a name or a mapping.

    Raises UnknownName, and pydantic's ValidationError for wrong fields.
    """
    if isinstance(value, BaseModel):
        return value
    made: Any = parse_options(noun, default, value, f"the {noun} is a name, or a mapping with a name and its fields")
    return made if type(made).model_fields.keys() - {"name"} else made.name


def named_schema(*examples: Any) -> WithJsonSchema:
    """The JSON Schema of a field that ``named_part`` reads."""
    named = {"type": "object", "properties": {"name": {"type": "string"}}}
    return WithJsonSchema({"anyOf": [{"type": "string"}, named], "examples": list(examples)})


class AggregationOptions(Fields):
    """``aggregation: {rule: median, clip: 1.0, optimizer: adam}``; for every method that averages parameters."""

    rule: Annotated[
        Any, BeforeValidator(partial(named_part, "aggregation", "mean")), named_schema("median", {"name": "krum"})
    ] = Field(
        "mean",
        description="how the updates of a parameter are combined: mean by samples, median or trimmed-mean of each "
        "coordinate, only the whole update closest to most others (krum), the mean of several such (multi-krum), or a "
        "mapping with a name and its fields",
    )
    trim: float | None = Field(
        None,
        ge=0,
        lt=0.5,
        description="share of the smallest and of the largest values that trimmed-mean drops; null: 0.1",
    )
    attackers: NonNegativeInt | None = Field(
        None,
        description="attackers f that krum and multi-krum assume among the m updates that they compare; in a group "
        "that is too small for so many, and with null, the largest f with 2f + 2 < m",
    )
    clip: PositiveFloat | None = Field(
        None, description="largest L2 norm of a client's whole update; a longer one is scaled down; null: no clipping"
    )
    noise: PositiveFloat | None = Field(
        None,
        description="central differential privacy: the deviation of the Gaussian noise on each sum of clipped updates, "
        "as a multiple of clip; null: none, or with privacy.epsilon what keeps to it over all rounds",
    )
    secure: Literal["secagg", "secagg+"] | None = Field(
        None,
        description="the cost of secure aggregation, and sums of integers as it gives them: SecAgg (Bonawitz et al. "
        "2017), or SecAgg+ (Bell et al. 2020); null: none. Nothing is encrypted",
    )
    neighbours: PositiveInt | None = Field(
        None, description="clients that share keys and masks with a client under secagg+; null: 2 ceil(3 log2 n) of n"
    )
    bits: int = Field(16, ge=2, le=32, description="bits of a value of an update under secure, from -clip to clip")
    non_finite: Literal["reject", "keep"] = Field(
        "reject",
        description="what happens to an update with a NaN or an infinity: it is left out and the record names "
        "its client (reject), or it is used (keep)",
    )
    compensation: bool = Field(
        False,
        description="whether a parameter's mean is over the samples of all the kind's clients in the cohort, not "
        "only of those that sent it",
    )
    optimizer: Annotated[
        Any,
        BeforeValidator(partial(named_part, "server optimizer", "average")),
        named_schema("adam", {"name": "momentum"}),
    ] = Field(
        "average",
        description="the server's step along the mean update (Reddi et al. 2021): average, momentum, adagrad, adam or "
        "yogi, or a mapping with a name and its fields",
    )
    lr: PositiveFloat | None = Field(
        None, description="the server's learning rate; null: 1, or 0.01 for adagrad, adam and yogi"
    )
    momentum: float | None = Field(None, ge=0, lt=1, description="momentum of optimizer: momentum; null: 0.9")
    beta1: float | None = Field(
        None, ge=0, lt=1, description="decay of the mean update, of adagrad, adam and yogi; null: 0.9, or 0 for adagrad"
    )
    beta2: float | None = Field(
        None, ge=0, lt=1, description="decay of the squared updates, of adam and yogi; null: 0.99"
    )
    tau: PositiveFloat | None = Field(
        None, description="number added to the root of the squared updates, of adagrad, adam and yogi; null: 0.001"
    )

    @model_validator(mode="after")
    def _reject_unused_fields(self) -> AggregationOptions:
        if self.noise is not None and self.clip is None:
            raise ValueError(
                "noise is a multiple of clip, without which one update may move the sum by any length: add clip"
            )
        if self.secure is not None and self.clip is None:
            raise ValueError("secure sums integers of a range that clip gives: add clip")
        if self.neighbours is not None and self.secure != "secagg+":
            raise ValueError("neighbours belongs to secure: secagg+; in secagg all others of a cohort are")
        optimizers_of = {"momentum": ("momentum",), "beta1": ADAPTIVE, "beta2": ADAPTIVE[1:], "tau": ADAPTIVE}
        for name, optimizers in optimizers_of.items():
            if getattr(self, name) is not None and self.optimizer_name not in optimizers:
                raise ValueError(f"{name} belongs to optimizer {' or '.join(optimizers)}, not {self.optimizer_name}")
        if self.trim is not None and self.rule_name != "trimmed-mean":
            raise ValueError(f"trim belongs to rule trimmed-mean, not {self.rule_name}")
        if self.attackers is not None and self.rule_name not in KRUM:
            raise ValueError(f"attackers belongs to rule {' or '.join(KRUM)}, not {self.rule_name}")
        return self

    @property
    def rule_name(self) -> str:
        """The registered name of the rule."""
        return str(getattr(self.rule, "name", self.rule))

    @property
    def optimizer_name(self) -> str:
        """The registered name of the server's optimizer."""
        return str(getattr(self.optimizer, "name", self.optimizer))

    @property
    def adds_up(self) -> bool:
        """Whether the rule adds updates up as they arrive, and so compares none of them with others."""
        return bool(registry.get("aggregation", self.rule_name).adds_up)

    @property
    def by_update(self) -> bool:
        """Whether the rule weighs whole updates."""
        return hasattr(registry.get("aggregation", self.rule_name), "shares")

    @property
    def plain(self) -> bool:
        """Whether all fields but ``non_finite`` have their defaults."""
        return self.model_copy(update={"non_finite": "reject"}) == MEAN


MEAN = AggregationOptions.model_validate({})
"""The defaults: the mean by samples."""
