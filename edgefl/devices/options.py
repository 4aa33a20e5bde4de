"""The `fleet:` section of a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from edgefl import units
from edgefl.devices.availability_options import AvailabilityOptions
from edgefl.devices.battery import BatteryOptions
from edgefl.devices.failures import FailureOptions
from edgefl.devices.fleet_profile import fleet_profile
from edgefl.devices.profile import load_device, load_link
from edgefl.errors import EdgeflError, UnitError

OF_DEVICE = "of device"
BUDGET_FIELDS = {
    "memory": "memory",
    "flops": "flops_per_round",
    "bytes": "bytes_per_round",
    "seconds": "seconds_per_round",
    "joules": "energy_per_round",
}
"""Key of a fleet's budget -> the field of BudgetOptions that it is drawn from."""


def _known(look_up: Any) -> AfterValidator:
    def check(name: str) -> str:
        try:
            look_up(name)
        except EdgeflError as error:  # pydantic gathers ValueErrors and knows the key they belong to
            raise ValueError(str(error)) from None
        return name

    return AfterValidator(check)


def _shares(value: object) -> object:
    """{name: share or count}, from that or from a single name; shares become floats, counts stay integers."""
    if isinstance(value, str):
        return {value: 1.0}
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is neither a name nor a mapping of names to shares (40%) or counts (12)")
    if not value:
        raise ValueError("names nothing; give at least one name with a share (40%) or a count (12)")
    read: dict[object, float | int] = {}
    for name, amount in value.items():
        if isinstance(amount, int) and not isinstance(amount, bool):
            if amount < 0:
                raise ValueError(f"{name}: a count can't be negative: {amount}")
            read[name] = amount
        else:
            try:
                read[name] = units.SHARE.parse(amount)
            except UnitError as error:
                raise ValueError(f"{name}: {error}; write a share (40%) or a whole count (12)") from None
    kinds = {type(amount) for amount in read.values()}
    if len(kinds) > 1:
        raise ValueError("mixes shares (40%) and counts (12); use one of them throughout")
    total = sum(read.values())
    if kinds == {float} and not isclose(total, 1.0, abs_tol=1e-6):
        raise ValueError(f"the shares add up to {units.show_share(total)}, not to 100 %")
    if total == 0:
        raise ValueError("the counts add up to 0; at least one must be positive")
    return read


_SHARES_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            {"type": "string"},
            {
                "type": "object",
                "additionalProperties": {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]},
                "minProperties": 1,
            },
        ],
        "examples": [{"raspberry-pi-4-4gb": "60%", "jetson-orin-nano-8gb": "40%"}],
    }
)
DeviceShares = Annotated[
    dict[Annotated[str, _known(load_device)], float | int], BeforeValidator(_shares), _SHARES_SCHEMA
]
LinkShares = Annotated[dict[Annotated[str, _known(load_link)], float | int], BeforeValidator(_shares), _SHARES_SCHEMA]


def _memory(value: object) -> object:
    """(lowest, highest) in bytes, or the text "LOW..HIGH of device"."""
    try:
        if isinstance(value, str) and value.strip().endswith(OF_DEVICE):
            units.SHARE.parse_range(value.strip().removesuffix(OF_DEVICE))
            return value.strip()
        return units.BYTES.parse_range(value)
    except UnitError as error:
        raise ValueError(f"{error}, or a share of the device's RAM, '40% of device'") from None


_MemoryBudget = Annotated[
    tuple[int, int] | str,
    BeforeValidator(_memory),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string"},
                {"type": "array", "minItems": 2, "maxItems": 2},
            ],
            "examples": ["12..48 MiB", "40% of device"],
        }
    ),
]


class BudgetOptions(BaseModel):
    """What a device's owner lets a trainer use in a round.

    Each is one value, a range from which every client draws evenly ("12..48 MiB"), or left out: unlimited.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory: _MemoryBudget | None = Field(
        default=None,
        description="Most bytes of live tensors at any moment; '40% of device' is that share of its RAM, less "
        "the overhead of its runtime.",
    )
    flops_per_round: units.FlopsRange | None = Field(
        default=None, description="Most FLOPs, forward and backward, in a round."
    )
    bytes_per_round: units.BytesRange | None = Field(default=None, description="Most bytes down and up, in a round.")
    energy_per_round: units.JoulesRange | None = Field(
        default=None, description="Most joules of computing and transfer."
    )
    seconds_per_round: units.SecondsRange | None = Field(
        default=None, description="Most seconds of downloading, computing and uploading in a round."
    )
    within_device: bool = Field(
        default=False,
        description="Whether a memory budget is at most the device's usable memory less the overhead of its "
        "runtime, so that no client runs out of memory.",
    )

    @field_validator("*", mode="before")
    @classmethod
    def _unlimited(cls, value: object) -> object:
        return None if value == "unlimited" else value

    @field_validator("*", mode="after")
    @classmethod
    def _positive(cls, value: object) -> object:
        low = share_of_device(value)[0] if isinstance(value, str) else value[0] if isinstance(value, tuple) else 1
        if low <= 0:
            shown = value if isinstance(value, str) else low
            raise ValueError(f"a budget must be positive, not {shown}; leave it out if there is no limit")
        return value


class ServerLinkOptions(BaseModel):
    """The server's own line, which the clients' transfers share."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    download: units.BitsPerSecond | None = Field(
        default=None, description="Rate at which it sends to the clients together (1 Gbit/s); unlimited if left out."
    )
    upload: units.BitsPerSecond | None = Field(
        default=None, description="Rate at which it receives from the clients together; unlimited if left out."
    )
    sharing: Literal["fair", "fifo"] = Field(
        default="fair",
        description="fair: all transfers at once, each with an equal share or what its own link takes; fifo: one after "
        "the other.",
    )

    @field_validator("download", "upload", mode="before")
    @classmethod
    def _unlimited(cls, value: object) -> object:
        return None if value == "unlimited" else value

    @field_validator("download", "upload")
    @classmethod
    def _carries(cls, value: float | None) -> float | None:
        if value is not None and value <= 0:
            raise ValueError("a line of 0 bit/s never carries anything; leave it out if there is no limit")
        return value


class FleetOptions(BaseModel):
    """The `fleet:` section of a scenario: which devices and links the clients have, and what they may use."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    like: Annotated[str, _known(fleet_profile)] | None = Field(
        default=None,
        description="A fleet of the profile library; what is written beside it replaces that part of it.",
    )
    devices: DeviceShares = Field(
        default={"raspberry-pi-4-4gb": 1.0},
        description="Devices by name, each with its share (40%) or count of the clients.",
    )
    links: LinkShares = Field(
        default={"wifi-5": 1.0}, description="Links by name, each with its share (50%) or count of the clients."
    )
    budgets: BudgetOptions = Field(
        default_factory=BudgetOptions, description="What the owners let a trainer use; unlimited where left out."
    )
    server: Annotated[str, _known(load_device)] = Field(
        default="server-a5000",
        description="Device that the server's own works (distillation, evaluation) run on.",
    )
    server_link: ServerLinkOptions | None = Field(
        default=None, description="The server's own line, shared by all transfers; unlimited if left out."
    )
    availability: Literal["always"] | AvailabilityOptions = Field(
        default="always",
        description="When clients can be reached: always, {diurnal: ...}, {markov: ...} or {trace: ...}.",
        json_schema_extra={"examples": ["always", {"diurnal": {"hours": "8..10 h"}}]},
    )
    failures: FailureOptions = Field(
        default_factory=FailureOptions, description="Shares of a round's clients that drop out, damage or delay."
    )
    battery: BatteryOptions | None = Field(
        default=None, description="Batteries that run out; left out: every device is on mains."
    )
    throttling: bool = Field(
        default=False, description="Whether devices slow down once they are hot, as their profiles say."
    )

    @model_validator(mode="before")
    @classmethod
    def _like(cls, written: object) -> object:
        """What is written, over the fields of the fleet that it is like."""
        if not isinstance(written, Mapping) or not isinstance(written.get("like"), str):
            return written
        try:
            return {**fleet_profile(written["like"]).fields, **written}
        except EdgeflError:  # said where `like` itself is checked
            return written


def share_of_device(text: str) -> tuple[float, float]:
    """The lowest and the highest share of a memory budget written "40..60% of device"."""
    return units.SHARE.parse_range(text.removesuffix(OF_DEVICE))
