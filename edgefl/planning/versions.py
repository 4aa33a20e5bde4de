"""Versions of the parameters that each client holds, and the payloads that must therefore be sent to it.

Where payloads are encoded, a client holds the decoded value of the version that it received; decoding is deterministic.
Only a frozen part that is still at version 0 is exact, because it is preinstalled.  An active part is sent in every
round, encoded, at version 0 too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from edgefl.arrays import Integers
from edgefl.schedules import Stage, keeps
from edgefl.work import Address, Description, Item, Payload
from edgefl.work.sums import is_averaged

Versions = Mapping[Address, int]

MOST_STEPS = 8
"""Number of different steps that versions are kept apart for, as the first read adds up all of them: it took 5 us with
8 steps, and 15 us with 32.  A ninth one copies all versions."""
MOST_STATES = 256
"""Number of states above which unused states are removed, which reads all clients: 6 ms for a million with 256 states.
A choice: a smaller number does that more often, and each state holds the versions of all addresses."""


class Raised(Mapping[Address, int]):
    """Versions of which some addresses were raised by one, so many times each: a step takes no copy of all.

    ``steps`` has by identity the addresses of a step and how often it was taken; they are all in ``base``.  The entry
    holds the addresses, so that no others get their id.
    """

    def __init__(self, base: Mapping[Address, int], steps: Mapping[int, tuple[Mapping[Address, Any], int]]):
        self._base, self._steps = base, steps
        self._whole: dict[Address, int] | None = None

    def with_step(self, addresses: Mapping[Address, Any]) -> Raised:
        """These versions with the addresses at their next."""
        if len(self._steps) >= MOST_STEPS and id(addresses) not in self._steps:
            return Raised(dict(self), {}).with_step(addresses)
        _, times = self._steps.get(id(addresses), (addresses, 0))
        return Raised(self._base, {**self._steps, id(addresses): (addresses, times + 1)})

    def __getitem__(self, address: Address) -> int:
        return self._all()[address]

    def __iter__(self) -> Iterator[Address]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)

    def _all(self) -> dict[Address, int]:
        """All versions, which are added up when one is asked for: of most steps nobody asks."""
        if self._whole is None:
            self._whole = dict(self._base)
            for addresses, times in self._steps.values():
                for address in addresses:
                    self._whole[address] += times
        return self._whole


def is_always_sent(item: Item, stage: Stage) -> bool:
    """Whether an item is sent in every round: active parameters that train, what is like them, and tables."""
    return item.is_table or (stage.is_active(item.parameter) and not item.fixed)


MERGED = "merged/"
"""Beginning of what stands for a tensor that a client keeps up to date by merging an item at the address that follows;
its version is that of the item before."""


def _version_key(item: Item) -> Address:
    """The address by whose version a client's copy of an item is known to be old."""
    return item.source if item.merges is None else f"{MERGED}{item.merges}"


ACTIVATIONS = "activations/"
"""Beginning of the address of what a client computes once and keeps; it never travels, and its version is 1."""


def activations_address(work: Description) -> Address | None:
    """The address of the activations that clients keep of a work; None if they keep none."""
    return f"{ACTIVATIONS}{work.kind}" if keeps(work) else None


def frozen_addresses(work: Description, stage: Stage) -> tuple[Address, ...]:
    """Addresses of a work that are sent, or computed, only where the client's copy is stale."""
    keep, once = set(work.keep), activations_address(work)
    sent = tuple(
        _version_key(i)
        for p in work.down
        if p.travels
        for i in p.items
        if i.name not in keep and not is_always_sent(i, stage)
    )
    return sent if once is None else (*sent, once)


def older(addresses: tuple[Address, ...], held: Versions, current: Versions) -> tuple[Address, ...]:
    """Addresses whose copy at the client is older than the server's; version 0 is preinstalled."""
    return tuple(a for a in addresses if held.get(a.removeprefix(MERGED), 0) < current_version(a, current))


def current_version(address: Address, current: Versions) -> int:
    """The version of an address below which a client's copy is old."""
    if address.startswith(MERGED):
        return current.get(address.removeprefix(MERGED), 0) - 1
    return 1 if address.startswith(ACTIVATIONS) else current.get(address, 0)


def stale(work: Description, stage: Stage, held: Versions, current: Versions) -> tuple[Address, ...]:
    """Frozen addresses of a work whose copy at the client is older than the server's."""
    return older(frozen_addresses(work, stage), held, current)


def travelling(work: Description, stage: Stage, old: tuple[Address, ...]) -> tuple[Payload, ...]:
    """Downloaded payloads: active parts and tables always, frozen parts only if their address is in ``old``.

    Items that the client keeps are never sent: their first value is preinstalled.
    """
    wanted, keep = set(old), set(work.keep)
    payloads = (
        p.only(lambda item: item.name not in keep and (is_always_sent(item, stage) or _version_key(item) in wanted))
        for p in work.down
        if p.travels
    )
    return tuple(p for p in payloads if p.items)


def preinstalled_items(work: Description, down: tuple[Payload, ...], current: Versions) -> frozenset[str]:
    """Names of a work's items that the client already has: at version 0 and not in ``down``, or kept."""
    sent = {item.name for payload in down for item in payload.items}
    first = {
        i.name for p in work.down for i in p.items if i.name not in sent and (i.merges or not current.get(i.source, 0))
    }
    return frozenset(first.union(work.keep))


def final_blocks(work: Description, stage: Stage) -> Payload:
    """Payload of a finished stage's blocks, sent once to all clients (LW-FedMML, Algorithm 1, line 12)."""
    items = (
        i
        for p in work.up
        for i in p.items
        if ".blocks." in i.name and not i.is_beside_model and is_always_sent(i, stage)
    )
    # the items of the upload, with the codec of the download
    return Payload("final", tuple(items), codec=next((p.codec for p in work.down if p.codec), None))


class ClientVersions:
    """Versions held by each client; a client that never took part holds version 0 of everything.

    ``of`` `[clients]` indexes ``states``: clients that received the same payloads share a state, and a dispatch
    to a million of them is a loop over states: it took 35 ms, and would take 54 s client by client.  ``keeping=False``
    stores nothing, for schedules without frozen parts, under which everything is sent in every round.
    """

    def __init__(self, clients: int = 1, *, keeping: bool = True):
        self.keeping = keeping
        self.of: Integers = np.zeros(clients if keeping else 0, np.int32)
        self.states: list[Versions] = [{}]
        self._known: dict[tuple[tuple[Address, int], ...], int] = {(): 0}
        self._changed: list[Integers] = []
        self._most = MOST_STATES

    def versions_of(self, client: int) -> Versions:
        """Versions that this client holds, by address."""
        return self.states[self.of[client]] if self.keeping else {}

    def record_download(
        self, clients: int | Integers, payloads: Sequence[Payload], current: Versions, computed: Address | None = None
    ) -> None:
        """Record that these clients hold these payloads at the versions in ``current``, or at newer ones.

        ``computed`` is the address of what they have computed and keep.
        """
        if not self.keeping:
            return
        clients = np.atleast_1d(clients)
        before = self.of[clients]
        fresh = {i.source: version for p in payloads for i in p.items if (version := current.get(i.source, 0))}
        if computed is not None:
            fresh[computed] = 1
        for state in np.unique(before):
            held = self.states[state]
            newest = {a: max(v, held.get(a, 0)) for a, v in fresh.items()}
            self.of[clients[before == state]] = self._state({**held, **newest})
        self._changed.append(clients[self.of[clients] != before])

    def _state(self, versions: Versions) -> int:
        key = tuple(sorted(versions.items()))
        if key not in self._known:
            self._known[key] = len(self.states)
            self.states.append(versions)
        return self._known[key]

    def pop_changed_clients(self) -> Integers:
        """Clients whose versions have changed since the last call, ascending."""
        changed, self._changed = self._changed, []
        return np.unique(np.concatenate(changed)) if changed else np.zeros(0, np.int64)

    @property
    def is_crowded(self) -> bool:
        """Whether there are enough states to make ``thin``, which reads all clients, worth its time."""
        return len(self.states) > self._most

    def thin(self, current: Versions) -> None:
        """Renumber the states, without unused states and without versions that are older than ``current``.

        Versions only rise, so an outdated copy stays outdated, whatever its version.  Of a table the version before
        counts too: it says that a tensor which ``merges`` the table is up to date.
        """
        used = np.flatnonzero(np.bincount(self.of, minlength=len(self.states)))
        numbers, before = np.zeros(len(self.states), np.int32), self.states
        self.states, self._known = [{}], {(): 0}
        for number in used.tolist():
            numbers[number] = self._state(
                {a: v for a, v in before[number].items() if v >= current_version(a, current) - (not is_averaged(a))}
            )
        self.of = numbers[self.of]
        self._most = max(MOST_STATES, 2 * len(self.states))

    def to_data(self) -> tuple[Integers, list[Versions]]:
        """``of`` and ``states`` for a checkpoint, without unused states."""
        used, of = np.unique(self.of, return_inverse=True)
        return of.astype(np.int32), [self.states[i] for i in used]

    def load_data(self, of: Integers, states: Sequence[Versions]) -> None:
        """Restore ``of`` and ``states``, as ``to_data`` returned them."""
        self.of, self.states = np.array(of, np.int32), [dict(versions) for versions in states] or [{}]
        self._known = {tuple(sorted(versions.items())): i for i, versions in enumerate(self.states)}
