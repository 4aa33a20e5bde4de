"""Relays in records, only with `fleet.relays`: the columns and the words."""

from __future__ import annotations

from edgefl import units
from edgefl.records.record import UNSET, Maybe, Record


class FlightRelay(Record):
    """The relay of a flight."""

    relay: int | Maybe = UNSET
    """Number of the relay that it is behind, from 0; only with [`fleet.relays`](../concepts/fleets.md#relays)"""


class RelaySums(Record):
    """Sums over relays of what they did in a round."""

    relays: int | Maybe = UNSET
    """Relays that had clients to serve; this and the others of relays only with
    [`fleet.relays`](../concepts/fleets.md#relays)"""
    relays_failed: int | Maybe = UNSET
    """Those of them that were lost"""
    relay_download_bytes: int | Maybe = UNSET
    """Serialised bytes that crossed the relays' own links down from the server, a final delivery included"""
    relay_upload_bytes: int | Maybe = UNSET
    """The same, up to the server: sums of updates"""


class LastRelay(Record):
    """The relay that a round waited for."""

    last_relay: int | Maybe | None = UNSET
    """Number of the relay whose sum, or whose last client where it had no sum to send, ended the wait for clients;
    `null` if none was sent off"""
    last_sum_virtual_seconds: float | Maybe | None = UNSET
    """Virtual time at which that was; `null` likewise"""


def relay_words(totals: RelaySums) -> str:
    """One line: "relays and server: down 1.2 GiB, up 1.2 GiB, 12 of 600 relays lost"; empty without relays."""
    if totals.relays is UNSET or totals.relay_download_bytes is UNSET or totals.relay_upload_bytes is UNSET:
        return ""
    down, up = units.show_bytes(totals.relay_download_bytes), units.show_bytes(totals.relay_upload_bytes)
    lost = f", {totals.relays_failed:,} of {totals.relays:,} relay-rounds lost" if totals.relays_failed else ""
    return f"relays and server: down {down}, up {up}{lost}"
