"""Secure aggregation as cost: SecAgg (Bonawitz et al. 2017) and SecAgg+ (Bell et al. 2020); nothing is encrypted."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2

import numpy as np

from edgefl.cost.client_cost import NO_COMPUTE, TRAFFIC_PARTS, ComputeCost, ExchangeCost, Traffic, traffic_part
from edgefl.operator_classes import OperatorClass
from edgefl.work import Address, Payload

KEY_BITS = SHARE_BITS = 256
"""Bits of a public key and of a share of a secret: those of elliptic curves, with which the first paper's expansions
(1.73 and 1.98) follow."""
TRIPS = 3
"""Round trips beside the download of the model and the upload of masked values: keys, shares and unmasking."""


@dataclass(frozen=True)
class SecureSum:
    """A sum of integers of ``bits`` bits from so many ``clients``, each with so many ``neighbours`` (n - 1 in SecAgg).

    A client sends two public keys, two encrypted shares for each neighbour, its masked values, and in the end a share
    for each neighbour and itself.  It receives its neighbours' keys and shares.
    """

    clients: int
    neighbours: int
    bits: int

    @classmethod
    def among(cls, clients: int, protocol: str, neighbours: int | None, bits: int) -> SecureSum:
        """The sum over so many clients; SecAgg+ without ``neighbours`` has 2 ceil(3 log2 n), which is an assumption."""
        most = max(clients - 1, 1)
        few = neighbours or 2 * ceil(3 * log2(max(clients, 2)))
        return cls(clients, most if protocol == "secagg" else min(most, few), bits)

    @property
    def value_bits(self) -> int:
        """Bits of a masked value: of integers modulo R = n (2^bits - 1) + 1, which holds every sum."""
        return int(self.clients * (2**self.bits - 1)).bit_length()

    @property
    def up_bits(self) -> int:
        """Bits of keys and shares that a client sends."""
        return 2 * KEY_BITS + (3 * self.neighbours + 1) * SHARE_BITS

    @property
    def down_bits(self) -> int:
        """Bits of keys and shares that it receives."""
        return 2 * self.neighbours * (KEY_BITS + SHARE_BITS)

    @property
    def masks(self) -> int:
        """Masks that a client expands, each as long as its values: one with each neighbour, and its own."""
        return self.neighbours + 1

    def server_masks(self, arrived: int, dropped: int) -> int:
        """Masks that the server expands: the own ones of those that arrived, and those that dropouts had in common."""
        return arrived + dropped * self.neighbours

    @property
    def exchange(self) -> ExchangeCost:
        """Keys and shares, in round trips during which the client waits; the server takes no time."""
        up, down = self.up_bits // 8, self.down_bits // 8
        return ExchangeCost(TRIPS, up, up, down, down, NO_COMPUTE, 0.0)

    def mask(self, computed: ComputeCost, values: int) -> ComputeCost:
        """The cost with masks of so many values, whose words are written and read to be added, and the exchange."""
        word = 4 if self.value_bits <= 32 else 8
        added = [[0.0, 2.0 * word * values, self.masks, OperatorClass.POINTWISE]]
        return replace(computed, operators=np.concatenate([computed.operators, added]), exchange=self.exchange)

    def pack(self, moved: Traffic, up: Sequence[Payload], buffers: Container[Address]) -> Traffic:
        """The traffic with masked values in place of the payloads ``up``; a tensor's values fill whole bytes."""
        by_payload, by_part = dict.fromkeys((p.name for p in up), 0), dict.fromkeys(TRAFFIC_PARTS, 0)
        for payload, item in ((each, item) for each in up for item in each.items):
            size = -(-values_of(item.shape) * self.value_bits // 8)
            by_payload[payload.name] += size
            by_part[traffic_part(item, buffers)] += size
        headers = moved.serialised_upload_bytes - moved.upload_bytes
        return replace(
            moved, upload_bytes_by_payload=by_payload, upload_bytes_by_part=by_part,
            serialised_upload_bytes=headers + sum(by_payload.values()),
        )  # fmt: skip


def values_of(shape: Sequence[int]) -> int:
    """The number of values of a tensor."""
    return int(np.prod(shape, dtype=np.int64))
