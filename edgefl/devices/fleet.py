"""What the clients of a federation have: devices, links and budgets, as arrays with one entry per client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf, isclose
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator

from edgefl import seeds, units
from edgefl.devices.profile import Device, Link, device, link
from edgefl.errors import DeviceError, EdgeflError, UnitError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

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
                read[name] = units.share(amount)
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
DeviceShares = Annotated[dict[Annotated[str, _known(device)], float | int], BeforeValidator(_shares), _SHARES_SCHEMA]
LinkShares = Annotated[dict[Annotated[str, _known(link)], float | int], BeforeValidator(_shares), _SHARES_SCHEMA]


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
        description="Most bytes of live tensors at any moment; '40% of device' is taken of its RAM, less the overhead "
        "of its runtime.",
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

    @field_validator("*", mode="before")
    @classmethod
    def _unlimited(cls, value: object) -> object:
        return None if value == "unlimited" else value

    @field_validator("*", mode="after")
    @classmethod
    def _positive(cls, value: object) -> object:
        low = _of_device(value)[0] if isinstance(value, str) else value[0] if isinstance(value, tuple) else 1
        if low <= 0:
            shown = value if isinstance(value, str) else low
            raise ValueError(f"a budget must be positive, not {shown}; leave it out if there is no limit")
        return value


class FleetOptions(BaseModel):
    """The `fleet:` section of a scenario: which devices and links the clients have, and what they may use."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

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
    server: Annotated[str, _known(device)] = Field(
        default="server-a5000",
        description="The device that the server's own work (distillation, evaluation) is charged to.",
    )


@dataclass(frozen=True)
class Fleet:
    """The clients' devices, links and budgets: arrays `[clients]`, no object per client.

    ``device_index`` and ``link_index`` point into ``devices`` and ``links``; ``budgets`` has the keys memory, flops,
    bytes, seconds and joules, inf where unlimited; ``server`` is the server's device.
    """

    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    device_index: Integers
    link_index: Integers
    budgets: Mapping[str, Floats]
    server: Device

    @classmethod
    def draw(cls, options: FleetOptions, clients: int, seed: int) -> Fleet:
        """A fleet for this many clients, a function of (options, clients, seed).

        Shares are met exactly, as near as whole clients allow (largest remainder); who gets which is shuffled, the
        devices independently of the links. Raises DeviceError if counts don't add up to ``clients``.
        """
        if clients < 0:
            raise DeviceError(f"a fleet can't have {clients} clients")
        devices = tuple(device(name) for name in options.devices)
        device_index = _assign("devices", options.devices, clients, seed)
        links = tuple(link(name) for name in options.links)
        link_index = _assign("links", options.links, clients, seed)
        budgets: dict[str, Floats] = {}
        for key, name in BUDGET_FIELDS.items():
            asked = getattr(options.budgets, name)
            if asked is None:
                budgets[key] = np.full(clients, inf)
                continue
            share = isinstance(asked, str)
            low, high = _of_device(asked) if share else asked
            # From one draw per client and budget, so that raising an end of the range lowers nobody's budget.
            drawn = low + seeds.generator(seed, f"budget {name}").random(clients) * (high - low)
            if share:
                ram = np.array([d.ram_bytes for d in devices], dtype=float)[device_index]
                overhead = np.array([d.runtime_overhead_bytes for d in devices], dtype=float)[device_index]
                drawn = np.maximum(drawn * ram - overhead, 0.0)
            budgets[key] = np.floor(drawn) if key in ("memory", "bytes") else drawn
        return cls(devices, links, device_index, link_index, budgets, device(options.server))

    def __len__(self) -> int:
        return len(self.device_index)

    def device(self, client: int) -> Device:
        """The client's device."""
        return self.devices[int(self.device_index[client])]

    def link(self, client: int) -> Link:
        """The client's link."""
        return self.links[int(self.link_index[client])]

    def of_devices(self, number: str) -> Floats:
        """A number of each client's device ("flops_per_second", ...): `[clients]`."""
        return np.array([getattr(d, number) for d in self.devices], dtype=float)[self.device_index]

    def of_links(self, number: str) -> Floats:
        """A number of each client's link ("latency_seconds", ...): `[clients]`."""
        return np.array([getattr(one, number) for one in self.links], dtype=float)[self.link_index]

    @cached_property
    def available_memory_bytes(self) -> Floats:
        """What each device could give to tensors at most: usable memory less the runtime's overhead, `[clients]`.

        Not a budget: an owner who sets none is taken at their word, but no device has more than this.
        """
        return np.maximum(self.of_devices("usable_memory_bytes") - self.of_devices("runtime_overhead_bytes"), 0.0)

    def jitter(self, seed: int, round: int) -> dict[str, Floats]:
        """Factors with median 1 on the durations of this round: "compute", "download" and "upload", `[clients]`."""
        sigma = {"compute": self.of_devices("jitter"), "download": self.of_links("jitter")}
        sigma["upload"] = sigma["download"]
        return {
            phase: np.exp(sigma[phase] * seeds.generator(seed, f"jitter {phase}", round).standard_normal(len(self)))
            for phase in sigma
        }


def apportion(shares: Mapping[str, float | int], clients: int) -> dict[str, int]:
    """Whole clients for each name, adding up to ``clients``: counts as they are, shares by largest remainder.

    No name is further than one client from its exact share; of equal remainders the first listed wins. Raises
    DeviceError if counts don't add up.
    """
    if all(isinstance(amount, int) for amount in shares.values()):
        total = int(sum(shares.values()))
        if total != clients:
            listed = ", ".join(f"{name}: {amount}" for name, amount in shares.items())
            raise DeviceError(f"the counts ({listed}) add up to {total}, but there are {clients} clients")
        return {name: int(amount) for name, amount in shares.items()}
    whole = float(sum(shares.values()))
    # Rounded, so that 3 x 33.333333% and 0.1 + 0.2 don't decide by their last binary digit.
    exact = {name: round(amount / whole * clients, 6) for name, amount in shares.items()}
    counts = {name: int(amount) for name, amount in exact.items()}
    left = clients - sum(counts.values())
    for name in sorted(exact, key=lambda name: counts[name] - exact[name])[:left]:
        counts[name] += 1
    return counts


def _assign(what: str, shares: Mapping[str, float | int], clients: int, seed: int) -> Integers:
    try:
        counts = apportion(shares, clients)
    except DeviceError as error:
        raise DeviceError(f"fleet.{what}: {error}") from None
    index = np.repeat(np.arange(len(counts), dtype=np.int64), list(counts.values()))
    seeds.generator(seed, f"fleet {what}").shuffle(index)
    return index


def _of_device(text: str) -> tuple[float, float]:
    return units.SHARE.parse_range(text.removesuffix(OF_DEVICE))
