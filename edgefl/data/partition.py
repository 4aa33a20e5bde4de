"""How the samples of one kind are spread over its clients.

A partition is ``f(labels [n], clients, argument, rng) -> one array of sample positions per client``: every position
in exactly one array, except under ``overlapping_split``.  A label of -1 marks a sample of no class.  The attribute
``reads`` of a partition replaces the labels: "owner" by the clients that the data name, "group" by the groups that are
held out together.  Such a partition may leave samples out, and so may ``dirichlet-equal``.  Partitions are registered
by name (entry points ``edgefl.partitions``); a user writes ``{name: argument}``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgefl.arrays import Integers
from edgefl.errors import DataError

MINIMUM = 10
"""Fewest samples that a client may end with, as in the codes of FedMA, MOON and those that came from them."""

DRAWS = 500
"""Draws before a partition raises an error.  For 50 clients with 5,000 samples of 10 classes, alpha 0.2 took at
most 2, and 0.1 at most 100 (8 seeds); 0.05 isn't met in 500, which take 0.2 s."""


def iid(labels: Integers, clients: int, argument: Any, rng: np.random.Generator) -> list[Integers]:
    """Equal parts at random; sizes differ by one at most."""
    if argument is not None:
        raise DataError(f"the partition iid takes no argument, found {argument!r}")
    _check_enough(len(labels), clients)
    return np.array_split(rng.permutation(len(labels)), clients)


def dirichlet(labels: Integers, clients: int, argument: Any, rng: np.random.Generator) -> list[Integers]:
    """Shares of each class drawn from Dir(alpha), in the balanced form that FedCola, FedMA and MOON use.

    A client that already holds ``n / clients`` samples or more gets none of the next class; the whole draw is
    repeated until every client holds at least ``MINIMUM``.  Samples of no class are dealt evenly.
    Raises DataError if a client stays below the minimum.
    """
    alpha = _positive("dirichlet", argument)
    n = len(labels)
    _check_enough(n, clients)
    classless = np.flatnonzero(labels < 0)
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels[labels >= 0])]
    best = 0
    for _ in range(DRAWS):
        owner = np.empty(n, np.int64)
        owner[classless] = rng.permutation(np.arange(len(classless)) % clients)
        counts = np.bincount(owner[classless], minlength=clients)
        for members in classes:
            share = rng.dirichlet(np.full(clients, alpha)) * (counts < n / clients)
            if not (total := share.sum()) > 0:  # a tiny alpha can underflow for all clients below the cap
                share, total = (counts < n / clients).astype(float), float((counts < n / clients).sum())
            cuts = (np.cumsum(share / total)[:-1] * len(members)).astype(np.int64)
            sizes = np.diff(cuts, prepend=0, append=len(members))
            owner[rng.permutation(members)] = np.repeat(np.arange(clients), sizes)
            counts += sizes
        if (smallest := int(counts.min())) >= MINIMUM:
            return _by_owner(owner, clients, rng)
        best = max(best, smallest)
    raise DataError(
        f"dirichlet: {alpha:g} over {clients} clients left a client with at most {best} samples in all {DRAWS} draws "
        f"({n} samples; each client needs {MINIMUM}): take fewer clients or a larger value"
    )


def dirichlet_equal(labels: Integers, clients: int, argument: Any, rng: np.random.Generator) -> list[Integers]:
    """Equal sizes; the classes of each client's samples are drawn from its own q ~ Dir(alpha p) (Hsu et al. 2019).

    p are the shares of the classes among the samples.  Clients draw in turns, without replacement; a class without
    samples left drops out, and q is normalised over the others.  Samples of no class are dealt evenly.  What is left of
    either after a division by the number of clients is left out.
    """
    alpha = _positive("dirichlet-equal", argument)
    classless = rng.permutation(np.flatnonzero(labels < 0))
    size = (len(labels) - len(classless)) // clients
    classless = classless[: len(classless) // clients * clients]
    _check_enough(size * clients + len(classless), clients)
    names, counts = np.unique(labels[labels >= 0], return_counts=True)
    if not size:
        return np.split(classless, clients)
    q = rng.dirichlet(alpha * counts / counts.sum(), clients)
    owned = np.zeros((clients, len(names)), np.int64)
    left = counts.copy()
    for _ in range(size):
        waiting = rng.permutation(clients)
        while len(waiting):
            # a tiny alpha can leave a client no mass on the classes that are left
            chances = q[waiting] * (left > 0)
            chances = np.where(chances.sum(1, keepdims=True) > 0, chances, left)
            sums = chances.cumsum(1)
            drawn = (sums <= rng.random((len(waiting), 1)) * sums[:, -1:]).sum(1)
            # the first in line get what is left of a class
            order = np.argsort(drawn, kind="stable")
            place = np.arange(len(drawn)) - np.searchsorted(drawn[order], drawn[order])
            served = np.empty(len(drawn), bool)
            served[order] = place < left[drawn[order]]
            np.add.at(owned, (waiting[served], drawn[served]), 1)
            left -= np.bincount(drawn[served], minlength=len(names))
            waiting = waiting[~served]
    parts: list[list[Integers]] = [[part] for part in np.split(classless, clients)]
    for name, sizes in zip(names, owned.T, strict=True):
        members = rng.permutation(np.flatnonzero(labels == name))[: sizes.sum()]
        for part, own in zip(parts, np.split(members, np.cumsum(sizes)[:-1]), strict=True):
            part.append(own)
    return [rng.permutation(np.concatenate(part)) for part in parts]


def quantity(labels: Integers, clients: int, argument: Any, rng: np.random.Generator) -> list[Integers]:
    """One mix of classes for all; sizes are ``MINIMUM`` plus a share of the other samples drawn from Dir(alpha)."""
    alpha = _positive("quantity", argument)
    n = len(labels)
    _check_enough(n, clients)
    share = np.cumsum(rng.dirichlet(np.full(clients, alpha)))
    spare = n - MINIMUM * clients
    cuts = np.minimum((share[:-1] * spare).astype(np.int64), spare)
    sizes = np.diff(cuts, prepend=0, append=spare) + MINIMUM
    return _by_owner(rng.permutation(np.repeat(np.arange(clients), sizes)), clients, rng)


def overlapping_split(labels: Integers, clients: int, argument: Any, rng: np.random.Generator) -> list[Integers]:
    """``argument`` distinct samples for each client, drawn from all: several clients may hold the same ones.

    So a fleet may have more clients than the data have samples.  Raises DataError if there are fewer samples than a
    client holds.
    """
    if isinstance(argument, bool) or not isinstance(argument, int) or not MINIMUM <= argument <= len(labels):
        raise DataError(
            f"shared needs the number of samples of a client, from {MINIMUM} to the {len(labels)} that there are, e.g. "
            f"{{shared: 64}}; found {argument!r}"
        )
    return [rng.choice(len(labels), argument, replace=False) for _ in range(clients)]


def natural(owners: Integers, clients: int, argument: Any, rng: np.random.Generator) -> list[Integers]:
    """Samples by the client that the data name, such as the writer of a text, or the column ``client`` of a table.

    Draws ``clients`` of those with ``MINIMUM`` samples or more; the samples of all others are left out.
    Raises DataError if there are fewer, or if the data name no clients.
    """
    if argument is not None:
        raise DataError(f"the partition natural takes no argument, found {argument!r}")
    names, owner, counts = np.unique(owners, return_inverse=True, return_counts=True)
    large = np.flatnonzero((counts >= MINIMUM) & (names >= 0))
    if len(large) < clients:
        raise DataError(
            f"natural: {clients} clients are requested, but only {len(large)} of the {len(names)} that the data name "
            f"have {MINIMUM} samples or more"
        )
    chosen = np.sort(rng.permutation(large)[:clients])
    return [rng.permutation(np.flatnonzero(owner == index)) for index in chosen]


natural.reads = "owner"  # type: ignore[attr-defined]


def groups(group_of: Integers, clients: int, argument: Any, rng: np.random.Generator) -> list[Integers]:
    """Equal parts of the groups, so that a client has all captions of a picture: ``group_of`` [n] instead of labels.

    The argument is an optional range of the share of its groups that a client keeps, drawn uniformly; [0.95, 0.99] in
    FedCola's code.
    """
    if argument is None:
        argument = [1.0, 1.0]
    limits = argument if isinstance(argument, list | tuple) and len(argument) == 2 else [0.0, 0.0]
    if not all(isinstance(share, int | float) for share in limits) or not 0 < limits[0] <= limits[1] <= 1:
        raise DataError(f"groups: {argument!r} is not a range of shares; write groups, or groups: [0.95, 0.99]")
    names, group = np.unique(group_of, return_inverse=True)
    _check_enough(len(group_of), clients)
    if len(names) < clients:
        raise DataError(f"{len(names)} groups are too few for {clients} clients")
    owner = np.empty(len(names), np.int64)
    for client, part in enumerate(np.array_split(rng.permutation(len(names)), clients)):
        owner[part] = client
        owner[part[max(round(rng.uniform(*limits) * len(part)), 1) :]] = -1
    return [np.flatnonzero(owner[group] == client) for client in range(clients)]


groups.reads = "group"  # type: ignore[attr-defined]


def _by_owner(owner: Integers, clients: int, rng: np.random.Generator) -> list[Integers]:
    shuffled = rng.permutation(len(owner))
    order = shuffled[np.argsort(owner[shuffled], kind="stable")]
    return np.split(order, np.cumsum(np.bincount(owner, minlength=clients))[:-1])


def _positive(name: str, argument: Any) -> float:
    if isinstance(argument, bool) or not isinstance(argument, int | float) or not 0 < argument < 1e6:
        found = "none" if argument is None else repr(argument)
        raise DataError(f"{name} needs a number above 0, e.g. {{{name}: 0.5}}; found {found}")
    return float(argument)


def _check_enough(n: int, clients: int) -> None:
    if n < MINIMUM * clients:
        raise DataError(
            f"{n} samples can't give {clients} clients {MINIMUM} each: take at most {n // MINIMUM} clients of this kind"
        )
