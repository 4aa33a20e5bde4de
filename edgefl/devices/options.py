"""Options of the `fleet:` section of a scenario."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isclose
from typing import Annotated, Any, Literal, NamedTuple, Self, cast, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic_core.core_schema import CoreSchema, is_instance_schema, plain_serializer_function_ser_schema

from edgefl import registry, units
from edgefl.devices.availability_options import AvailabilityOptions
from edgefl.devices.battery import BatteryOptions
from edgefl.devices.budgets import (
    BUDGETS,
    FlopsBudget,
    Joules,
    Seconds,
    TrafficBudget,
    budget_named,
    field_of,
)
from edgefl.devices.caps import CAPS
from edgefl.devices.carbon import CarbonIntensity
from edgefl.devices.failures import FailureOptions
from edgefl.devices.fleet_profile import FleetProfile, fleet_profile
from edgefl.devices.profile import is_file_name, link_names, load_device, load_link, split_mode
from edgefl.devices.runtime import PYTORCH, check_runtime, load_runtime, runtime_names
from edgefl.errors import EdgeflError, UnitError, printable, suggestion
from edgefl.registry.part_fields import Fields, path_beside

OF_DEVICE = "of device"


def _loadable(load: Any) -> AfterValidator:
    def check(name: str) -> str:
        name = profile_beside(name)
        try:
            load(name)
        except EdgeflError as error:  # pydantic reports ValueErrors together with their keys
            raise ValueError(str(error)) from None
        return name

    return AfterValidator(check)


def profile_beside(name: str) -> str:
    """The name of a profile; of a file beside the one that is read, its path.  Raises ValueError as ``path_beside``."""
    if not is_file_name(name):
        return name
    file, mode = split_mode(name)
    return path_beside(file) + (f"@{mode}" if mode else "")


def _shares(value: object, noun: str = "name") -> object:
    """Read a name, a list of names with equal shares, or a mapping of names to shares or counts.

    Shares become floats, counts stay integers.  Names are sorted, because who gets which is drawn in their order and
    the order in which somebody writes them means nothing.
    """
    if isinstance(value, str):
        return {value: 1.0}
    if isinstance(value, list | tuple) and value and all(isinstance(name, str) for name in value):
        return {name: count / len(value) for name, count in sorted(Counter(value).items())}
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is no name, list of names, or mapping of names to shares (40%) or counts (12)")
    if not value:
        raise ValueError(f"is empty; give at least one {noun} with a share (40%) or a count (12)")
    amounts: dict[object, float | int] = {}
    for name, amount in value.items():
        if isinstance(amount, int) and not isinstance(amount, bool):
            if amount < 0:
                raise ValueError(f"{printable(str(name))}: a count can't be negative: {amount}")
            amounts[name] = amount
        else:
            try:
                amounts[name] = units.SHARE.parse(amount)
            except UnitError as error:
                raise ValueError(
                    f"{printable(str(name))}: {error}; write a share (40%) or a whole count (12)"
                ) from None
    types = {type(amount) for amount in amounts.values()}
    if len(types) > 1:
        raise ValueError("mixes shares (40%) and counts (12); use one of them throughout")
    total = sum(amounts.values())
    if types == {float} and not isclose(total, 1.0, abs_tol=1e-6):
        raise ValueError(f"the shares add up to {units.show_share(total)}, not to 100 %")
    if total == 0:
        raise ValueError("the counts add up to 0; at least one must be positive")
    return {name: amounts[name] for name in sorted(amounts, key=str)}


_SHARES_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
            {
                "type": "object",
                "additionalProperties": {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]},
                "minProperties": 1,
            },
        ],
        "examples": [["phone-mid", "phone-entry"], {"raspberry-pi-4-4gb": "60%", "jetson-orin-nano-8gb": "40%"}],
    }
)
# Counts before shares: pydantic 2.7 takes an integer as the first of these types that accepts it.
DeviceShares = Annotated[
    dict[Annotated[str, _loadable(load_device)], int | float], BeforeValidator(_shares), _SHARES_SCHEMA
]
LinkShares = Annotated[
    dict[Annotated[str, _loadable(load_link)], int | float], BeforeValidator(_shares), _SHARES_SCHEMA
]


Amount = tuple[float, float] | str
"""(lowest, highest) in the base unit, or the text "40..60% of device"."""
Read = Callable[[object], Amount]
"""Reads an amount; raises UnitError."""
UNLIMITED = "unlimited"


@dataclass(frozen=True)
class Mixture:
    """Amounts of a budget, each with its share (float) or count (int) of the clients; None is without a limit.

    The smallest amount is first, shares of the device's memory after those in bytes, None last: who gets which is drawn
    in this order, so that other amounts in the same order leave the same clients small.
    """

    parts: tuple[tuple[Amount | None, float | int], ...]

    @classmethod
    def from_data(cls, value: Mapping[object, object], read: Read) -> Mixture:
        """Read a mapping of amounts to shares or counts.  Raises ValueError."""
        shares = cast(Mapping[object, float | int], _shares(value, "amount"))
        parts = {key: None if key == UNLIMITED else _amount(key, read) for key in shares}
        if twice := next((key for i, key in enumerate(parts) if parts[key] in list(parts.values())[:i]), None):
            raise ValueError(f"{twice} stands twice; give each amount one share or count")
        return cls(tuple(sorted(((parts[key], share) for key, share in shares.items()), key=_by_amount)))

    def to_data(self, quantity: units.Quantity | None = None) -> dict[str, float | int]:
        """The mapping that ``from_data`` reads as an equal mixture, amounts in the base unit."""
        return {_amount_text(amount, quantity): share for amount, share in self.parts}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        """Pydantic takes mixtures as they are, and writes them as ``to_data`` does."""
        return is_instance_schema(cls, serialization=plain_serializer_function_ser_schema(cls.to_data))


def _by_amount(part: tuple[Amount | None, float | int]) -> tuple[int, tuple[float, float]]:
    """The sort key of a part of a mixture."""
    amount = part[0]
    if amount is None:
        return 2, (0.0, 0.0)
    return (1, share_of_device(amount)) if isinstance(amount, str) else (0, amount)


def _amount_text(amount: Amount | None, quantity: units.Quantity | None) -> str:
    if amount is None or isinstance(amount, str):
        return amount or UNLIMITED
    return "..".join(dict.fromkeys(str(quantity.to_data(end) if quantity else end) for end in amount))


def amounts_of(stated: Amount | Mixture | None) -> list[tuple[Amount, float | int]]:
    """The amounts that a budget limits clients to, each with its share or count of them; no amount that nobody has."""
    parts = stated.parts if isinstance(stated, Mixture) else ((stated, 1.0),)
    return [(amount, share) for amount, share in parts if amount is not None and share]


def _amount(value: object, read: Read) -> Amount:
    """One amount.  Raises ValueError."""
    try:
        amount = read(value)
    except UnitError as error:
        raise ValueError(str(error)) from None
    low = share_of_device(amount)[0] if isinstance(amount, str) else amount[0]
    if low <= 0:
        shown = amount if isinstance(amount, str) else f"{low:g}"
        raise ValueError(f"a budget must be positive, not {shown}; leave it out if there is no limit")
    return amount


def _read_budget(value: object, read: Read) -> Amount | Mixture:
    """A budget as a scenario states it.  Raises ValueError."""
    return Mixture.from_data(value, read) if isinstance(value, Mapping) else _amount(value, read)


def _memory(value: object) -> Amount:
    """Read a memory budget: a range in bytes, or the text "LOW..HIGH of device" as it is."""
    try:
        if isinstance(value, str) and value.strip().endswith(OF_DEVICE):
            units.SHARE.parse_range(value.strip().removesuffix(OF_DEVICE))
            return value.strip()
        return units.BYTES.parse_range(value)
    except UnitError as error:
        also = "" if str(error).endswith(("?", "MiB")) else "; a share of the device's RAM is written '40% of device'"
        raise UnitError(f"{error}{also}") from None


_MIXTURE: JsonDict = {
    "type": "object",
    "additionalProperties": {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]},
    "minProperties": 1,
}


def _schema(quantity: units.Quantity) -> JsonDict:
    """The JSON Schema of a budget in this quantity."""
    schema = cast(JsonDict, units.range_schema(quantity))
    return {**schema, "anyOf": [*cast(list[JsonValue], schema["anyOf"]), _MIXTURE]}


def _reads(read: Read) -> BeforeValidator:
    return BeforeValidator(lambda value: _read_budget(value, read))


_Bytes = Annotated[
    tuple[int, int] | Mixture, _reads(units.BYTES.parse_range), WithJsonSchema(_schema(units.BYTES)), units.BYTES
]
_Flops = Annotated[
    tuple[float, float] | Mixture, _reads(units.FLOPS.parse_range), WithJsonSchema(_schema(units.FLOPS)), units.FLOPS
]
_Joules = Annotated[
    tuple[float, float] | Mixture, _reads(units.JOULES.parse_range), WithJsonSchema(_schema(units.JOULES)), units.JOULES
]
_Seconds = Annotated[
    tuple[float, float] | Mixture,
    _reads(units.SECONDS.parse_range),
    WithJsonSchema(_schema(units.SECONDS)),
    units.SECONDS,
]
_Memory = Annotated[
    tuple[int, int] | str | Mixture,
    _reads(_memory),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string"},
                {"type": "array", "minItems": 2, "maxItems": 2},
                _MIXTURE,
            ],
            "examples": ["12..48 MiB", "40% of device", {"6 MiB": "70%", "unlimited": "30%"}],
        }
    ),
    units.BYTES,
]


def _runtime(value: object) -> object:
    """Read a runtime: the name or file of one, or the bytes that it takes."""
    if isinstance(value, str) and not re.match(r"\s*[-+.]?\d", value):
        value = profile_beside(value)
        try:
            if value != PYTORCH:
                load_runtime(value)
        except EdgeflError as error:
            raise ValueError(str(error)) from None
        return value
    try:
        return units.BYTES.parse(value)
    except UnitError as error:
        raise ValueError(f"{error}, or name a runtime: {', '.join(runtime_names())}") from None


RuntimeOption = Annotated[
    str | int,
    BeforeValidator(_runtime),
    PlainSerializer(lambda taken: taken if isinstance(taken, str) else units.BYTES.to_data(taken), when_used="json"),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "number", "minimum": 0}], "examples": [PYTORCH, "executorch", "20 MB"]}
    ),
]


def _registered_budgets() -> list[str]:
    """The registered budgets that aren't fields of BudgetOptions."""
    return [name for name in registry.names("budget") if name not in BUDGETS]


class _NamedBudget(NamedTuple):
    """A budget that isn't a field, as a scenario states it."""

    name: object
    value: object


def _limits(stated: object) -> Amount | Mixture:
    """A registered budget.  Raises ValueError."""
    assert isinstance(stated, _NamedBudget)
    if stated.name not in (others := _registered_budgets()):
        allowed = (*BudgetOptions.model_fields, *others)
        raise ValueError(f"unknown key {stated.name!r}{suggestion(str(stated.name), allowed)}")
    try:
        return _read_budget(stated.value, budget_named(str(stated.name)).quantity.parse_range)
    except EdgeflError as error:
        raise ValueError(str(error)) from None


def _add_registered(schema: JsonDict) -> None:
    """Add the registered budgets that aren't fields to the JSON Schema."""
    properties = cast(dict[str, object], schema["properties"])
    for name in _registered_budgets():
        part = budget_named(name)
        properties[name] = {
            "anyOf": [_schema(part.quantity), {"type": "null"}],
            "default": None,
            "description": part.summary,
            "title": name.title(),
        }
    schema["additionalProperties"] = False


class BudgetOptions(BaseModel):
    """The resources that a device's owner allows training to use, in a round or in all together.

    Each budget is one value, a range from which every client draws uniformly ("12..48 MiB"), or a mixture: a mapping of
    these and `unlimited` to shares or counts of the clients (`{6 MiB: 70%, unlimited: 30%}`). A budget that is left out
    is unlimited; memory is never more than the device has. Every registered budget can be stated by its name.
    """

    model_config = ConfigDict(extra="allow", frozen=True, json_schema_extra=_add_registered)
    __pydantic_extra__: dict[str, Annotated[tuple[float, float] | Mixture, BeforeValidator(_limits)]]

    memory: _Memory | None = Field(
        default=None,
        description="Most bytes of live tensors and kernels' scratch at any moment that the owner grants (the "
        "predicted peak); '40% of device' is that share of its RAM, less the overhead of its runtime. A device never "
        "gives more than it has (`within_device`).",
    )
    flops_per_round: _Flops | None = Field(default=None, description=FlopsBudget.summary)
    bytes_per_round: _Bytes | None = Field(default=None, description=TrafficBudget.summary)
    energy_per_round: _Joules | None = Field(default=None, description=Joules.summary)
    seconds_per_round: _Seconds | None = Field(default=None, description=Seconds.summary)
    bytes_per_day: _Bytes | None = Field(
        default=None,
        description="Most bytes on a day, of clients whose link is `capped` (cellular ones). A client whose next round "
        "would take more than is left isn't asked until midnight of the fleet's clock; one that it has begun it "
        "finishes, and it counts for the day on which it ends.",
    )
    bytes_total: _Bytes | None = Field(
        default=None, description="The same in all rounds together, as `energy_total` counts joules."
    )
    energy_per_day: _Joules | None = Field(
        default=None, description="Most joules on a day, as `bytes_per_day` counts bytes, of all clients."
    )
    energy_total: _Joules | None = Field(
        default=None,
        description="Most joules in all rounds together, those of unfinished ones too. A client whose next round would "
        "take more than is left isn't eligible; one that it has begun it finishes.",
    )
    within_device: bool = Field(
        default=True,
        description="Whether a memory budget is at most the device's usable memory less the overhead of its "
        "runtime; `false` ignores what devices have, for budgets without devices such as those of a paper's table.",
    )

    @field_validator("*", mode="before")
    @classmethod
    def _read_unlimited(cls, value: object) -> object:
        return None if value == UNLIMITED else value

    @model_validator(mode="before")
    @classmethod
    def _read_registered(cls, written: object) -> object:
        if not isinstance(written, Mapping):
            return written
        others = written.keys() - cls.model_fields.keys()
        read = {name: _NamedBudget(name, value) if name in others else value for name, value in written.items()}
        without = [n for n in others & set(_registered_budgets()) if written[n] is None or written[n] == UNLIMITED]
        return {name: value for name, value in read.items() if name not in without}

    @model_serializer(mode="wrap")
    def _with_units(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        named = {field_of(name): (name, limit) for name, limit in self.limits().items()}
        named |= {name: (CAPS[name].budget, limit) for name, limit in self.caps().items()}
        for field, (name, limit) in named.items():
            quantity = budget_named(name).quantity
            if isinstance(limit, Mixture):
                data[field] = limit.to_data(quantity)
            elif isinstance(limit, tuple) and quantity.least_bare:
                data[field] = [quantity.to_data(end) for end in limit]
        return data

    def limits(self) -> dict[str, Amount | Mixture | None]:
        """What clients draw each budget from, None if it is unlimited: those of BUDGETS, then the others by name."""
        others: Mapping[str, Amount | Mixture] = self.model_extra or {}
        return {name: getattr(self, field_of(name)) for name in BUDGETS} | {n: others[n] for n in sorted(others)}

    def caps(self) -> dict[str, Amount | Mixture | None]:
        """What clients draw each of CAPS from, None if there is no such cap."""
        return {name: getattr(self, name) for name in CAPS}


def _with_words(schema: JsonDict) -> None:
    """Add the registered availabilities that a word can name to the JSON Schema: those that aren't fields."""
    words = [name for name in registry.names("availability") if name not in AvailabilityOptions.model_fields]
    schema["anyOf"] = [{"enum": [*words]}, *cast(list[JsonValue], schema["anyOf"])[1:]]
    schema["examples"] = ["always", {"diurnal": {"hours": "8..10 h"}}]


def _positive(rate: float | None) -> float | None:
    if rate is not None and rate <= 0:
        raise ValueError("a rate must be more than 0 bit/s; leave it out if there is no limit")
    return rate


_Limit = Annotated[
    units.BitsPerSecond | None,
    BeforeValidator(lambda value: None if value == UNLIMITED else value),
    AfterValidator(_positive),
]


class BackgroundOptions(Fields):
    """Transfers of others on the server's own link."""

    flows: int = Field(
        ge=1, le=1000, description="How many transfers of others run at any time, in each direction that has a rate."
    )
    rate: _Limit = Field(default=None, description="The most that each of them takes; as much as it gets if left out.")


class ServerLinkOptions(Fields):
    """The server's own link, whose capacity the clients' transfers share."""

    download: _Limit = Field(
        default=None, description="Total rate of sending to the clients (1 Gbit/s); unlimited if left out."
    )
    upload: _Limit = Field(default=None, description="Total rate of receiving from the clients; unlimited if left out.")
    sharing: Literal["fair", "fifo"] = Field(
        default="fair",
        description="fair: all transfers run at once, each with an equal share of the rate or the rate of its own link "
        "if that is lower; fifo: one transfer after the other.",
    )
    background: BackgroundOptions | None = Field(
        default=None,
        description="Traffic of others on this link, which never ends and gets the same shares as the clients' "
        "transfers (`sharing: fair` only); none if left out.",
    )

    @model_validator(mode="after")
    def _background_has_a_share(self) -> Self:
        if self.background is not None and self.sharing != "fair":
            raise ValueError("background: traffic that never ends has a place with sharing: fair only")
        if self.background is not None and self.download is None and self.upload is None:
            raise ValueError("background: it takes nothing from an unlimited link; give download, upload or both")
        return self

    @property
    def others(self) -> tuple[int, float]:
        """The number of the background's flows, and the most that each takes in bit/s (inf: no limit)."""
        return (0, inf) if self.background is None else (self.background.flows, self.background.rate or inf)


class RelayLinkOptions(Fields):
    """A relay's own link to the server, by its numbers."""

    download: _Limit = Field(
        default=None, description="Rate from the server to each relay (1 Gbit/s); unlimited if left out."
    )
    upload: _Limit = Field(default=None, description="Rate from each relay to the server; unlimited if left out.")
    latency: units.Seconds = Field(default=0.0, description="Charged once for each transfer (5 ms).")


class RelayOptions(Fields):
    """Edge servers between the clients and the server, which add up what their clients send.

    A bare number is short for the `count`.
    """

    count: int = Field(ge=1, description="How many there are; the clients are spread evenly over them, by the seed.")
    link: Annotated[str, _loadable(load_link)] | RelayLinkOptions = Field(
        default="fibre",
        description="Each relay's own link to the server: a known one or a file, or its rates and latency.",
    )
    failures: units.Share = Field(
        default=0.0, description="Share of a round's relays that are lost with the sum of their clients' updates."
    )


def _relays(value: object) -> object:
    """Read a bare number of relays as their count."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"count": value}
    if value is None or isinstance(value, Mapping | BaseModel | bool):  # a truth value is told with its place
        return value
    raise ValueError(f"{value!r} is neither a number of relays (1000) nor a mapping with their count")


def _uncertainty(value: object) -> object:
    """Read an uncertainty: the interval that published seconds have.  Raises ValueError."""
    if value is None or (isinstance(value, str) and value.replace(" ", "") == "80%"):
        return None if value is None else "80%"
    raise ValueError(f"the interval of seconds is that of 80%, not of {value!r}; write 80%, or leave it out")


def _with_count(schema: JsonDict) -> None:
    """Add the bare count to the JSON Schema."""
    schema["anyOf"] = [{"type": "integer", "minimum": 1}, *cast(list[JsonValue], schema["anyOf"])]
    schema["examples"] = [1000, {"count": 1000, "link": "fibre", "failures": "2%"}]


class FleetOptions(BaseModel):
    """The `fleet:` section of a scenario: which devices and links the clients have, and what they may use."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    like: Annotated[str, _loadable(lambda name: _fleet_of(name))] | None = Field(
        default=None,
        description="A fleet of the profile library to start from; other fields of the section replace its fields.",
    )
    devices: DeviceShares = Field(
        default={"raspberry-pi-4-4gb": 1.0},
        description="Devices by name: one, a list with equal shares, or each with its share (40%) or count of the "
        "clients.",
    )
    links: LinkShares = Field(
        default={"wifi-5": 1.0}, description="Links by name, each with its share (50%) or count of the clients."
    )
    runtime: RuntimeOption = Field(
        default=PYTORCH,
        description="What trains on the devices, for the memory that it takes before any tensor: pytorch (each "
        "profile's own overhead), a lean runtime that edgefl has (executorch, mnn, onnxruntime), a file, or bytes "
        "('20 MB'). Costs stay those of PyTorch's operators.",
    )
    budgets: BudgetOptions = Field(
        default_factory=lambda: BudgetOptions.model_validate({}),
        description="Resources that training may use; unlimited if left out.",
    )
    server: Annotated[str, _loadable(load_device)] = Field(
        default="server-a5000", description="Device that the server's own works (distillation, evaluation) run on."
    )
    server_link: ServerLinkOptions | None = Field(
        default=None, description="The server's own link, shared by all transfers; unlimited if left out."
    )
    relays: Annotated[RelayOptions | None, BeforeValidator(_relays)] = Field(
        default=None,
        description="Edge servers between the clients and the server, which add up what their clients send, or their "
        "number; none if left out.",
        json_schema_extra=_with_count,
    )
    availability: Literal["always"] | AvailabilityOptions = Field(
        default="always",
        description="When clients are available: always, {diurnal: ...}, {markov: ...}, {trace: ...}, or another "
        "registered name with its fields.",
        json_schema_extra=_with_words,
    )
    failures: FailureOptions = Field(
        default_factory=FailureOptions,
        description="Shares of a round's clients that drop out, send damaged uploads or are slow.",
    )
    battery: BatteryOptions | None = Field(
        default=None, description="Batteries that can run out; if left out, every device is on mains power."
    )
    throttling: bool = Field(
        default=False, description="Whether devices slow down after long computing (throttling), as in their profiles."
    )
    carbon_intensity: CarbonIntensity = None
    uncertainty: Annotated[Literal["80%"] | None, BeforeValidator(_uncertainty)] = Field(
        default=None,
        description="Draw how fast devices are: the seconds of each device model are multiplied by one log-normal "
        "factor throughout a run, which the seed decides. 80 % of the draws lie within the interval of the model's "
        "seconds that `edgefl devices show` prints. Over several seeds (`edgefl sweep --vary seed=1,2,3`) shares of "
        "eligible clients and of devices that train in time are those over draws. If left out, seconds are those of "
        "the profiles, as they always are for profiles with rates of their own.",
    )

    @property
    def begins(self) -> float:
        """The time of day in seconds at which a run begins: that of ``availability.diurnal``, else midnight."""
        diurnal = None if isinstance(self.availability, str) else self.availability.diurnal
        return 0.0 if diurnal is None else 3600 * diurnal.begins[0]

    def pace_seed(self, seed: int) -> int | None:
        """The seed by which devices' paces are drawn; None without ``uncertainty``."""
        return None if self.uncertainty is None else seed

    @field_validator("runtime", mode="after")
    @classmethod
    def _fits_devices(cls, runtime: str | int, info: ValidationInfo) -> str | int:
        for name, amount in info.data.get("devices", {}).items():
            if amount:
                try:
                    check_runtime(runtime, load_device(name))
                except EdgeflError as error:
                    raise ValueError(str(error)) from None
        return runtime

    @model_validator(mode="after")
    def _caps_have_links(self) -> Self:
        names = [name for name, amount in self.links.items() if amount]
        stated = [name for name, cap in self.budgets.caps().items() if cap is not None and CAPS[name].budget == "bytes"]
        if stated and not any(load_link(name).capped for name in names):
            known = ", ".join(name for name in link_names() if load_link(name).capped)
            raise ValueError(
                f"budgets.{stated[0]} counts bytes of capped links, and {', '.join(names)} "
                f"{'is not' if len(names) == 1 else 'are not'}: take a capped link ({known}), or one of your own with "
                "capped: true"
            )
        return self

    @model_validator(mode="after")
    def _traces_have_own_lines(self) -> Self:
        traced = next((name for name, amount in self.links.items() if amount and load_link(name).trace), None)
        if traced and self.server_link is not None and (self.server_link.download or self.server_link.upload):
            raise ValueError(
                f"links: {traced} has a trace, and the rates of clients that share the server's line must stay as they "
                "are; leave out server_link, or take a link without a trace"
            )
        relayed = None if self.relays is None else self.relays.link
        if isinstance(relayed, str) and load_link(relayed).trace:
            raise ValueError(f"relays.link: {relayed} has a trace, and a relay's rates must stay as they are")
        return self

    @model_validator(mode="before")
    @classmethod
    def _merge_like(cls, written: object) -> object:
        """Merge the written fields into those of the library's fleet; written fields take precedence."""
        if not isinstance(written, Mapping) or not isinstance(written.get("like"), str):
            return written
        try:
            return {**_fleet_of(profile_beside(written["like"])).fields, **written}
        except (EdgeflError, ValueError):  # the validator of the field `like` reports it
            return written


def _fleet_of(name: str) -> FleetProfile:
    """The fleet of the library or in a file.  Raises DeviceError with file, line and field if a field is wrong."""
    profile = fleet_profile(name)
    try:
        FleetOptions.model_validate(dict(profile.fields))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = [part for part in first["loc"] if part in _parts_of(profile.fields)]
        if first["type"] == "extra_forbidden":
            path, unknown = list(first["loc"]), str(first["loc"][-1])
            message = f"unknown key {unknown!r}{suggestion(unknown, _keys_beside(path))}"
        else:
            message = str(first["msg"]).removeprefix("Value error, ")
        raise profile.error(path, message) from None
    return profile


def _parts_of(value: object) -> set[object]:
    """All keys and list indices in ``value``; pydantic's paths also have names of union members."""
    if isinstance(value, Mapping):
        return set(value).union(*map(_parts_of, value.values()))
    if isinstance(value, list | tuple):
        return set(range(len(value))).union(*map(_parts_of, value))
    return set()


def _keys_beside(path: Sequence[str | int]) -> list[str]:
    """The keys allowed beside the one at ``path`` of a fleet; none if the place isn't a section with fixed keys."""
    model: Any = FleetOptions
    for part in path[:-1]:
        info = model.model_fields.get(part)
        members = [info.annotation, *get_args(info.annotation)] if info is not None else []
        model = next((m for m in members if isinstance(m, type) and issubclass(m, BaseModel)), None)
        if model is None:
            return []
    return list(model.model_fields)


def share_of_device(text: str) -> tuple[float, float]:
    """The lowest and the highest share of a memory budget written "40..60% of device"."""
    return units.SHARE.parse_range(text.removesuffix(OF_DEVICE))
