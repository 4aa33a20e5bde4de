"""Held-out splits, and the assignment of training samples to kinds of clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from edgefl.arrays import Booleans, Integers
from edgefl.data.collection import BITS, Collection
from edgefl.data.options import USUAL
from edgefl.errors import DataError
from edgefl.modalities import KINDS, Kind
from edgefl.work.tasks import like

SPLITS = ("train", "validation", "test", "public")


def hold_out(
    collection: Collection,
    validation: float,
    test: float,
    public: float | Literal["all"],
    rng: np.random.Generator,
    *,
    whole: bool = False,
) -> Integers:
    """Index into ``SPLITS`` [n]: whole groups are held out, in proportion from every class.

    Each size is a share of all groups if below 1, else a number of groups.  A published split is kept, or that number
    of its groups; -1 marks its unused samples.  Splits that aren't published are held out of the published training
    set.  With ``whole`` no training samples need to remain: all may be public.  Raises DataError for more groups than
    there are.
    """
    official = np.zeros(len(collection.label), np.int64) if collection.official is None else collection.official
    split = np.full(len(official), -1, np.int64)
    for index, size in ((1, validation), (2, test)):
        rows = np.flatnonzero(official == index)
        published = rng.permutation(np.unique(collection.group[rows]))
        chosen = published[: round(size)] if size >= 1 else published
        split[rows[np.isin(collection.group[rows], chosen)]] = index
    rows = np.flatnonzero(official == 0)
    groups, first = np.unique(collection.group[rows], return_index=True)
    n, sizes = len(groups), dict[str, int]()
    for index, wanted in enumerate((validation, test, public), 1):
        count = max(n - sum(sizes.values()), 0) if wanted == "all" else 0 if (official == index).any() else wanted
        sizes[SPLITS[index]] = round(count * n if count < 1 else count)
    if whole and sum(sizes.values()) > n:
        raise DataError(
            f"{sum(sizes.values()):,} different samples are to be held out (data.public: {sizes['public']:,}), but "
            f"there are {n:,}; data.public: all takes all that are left"
        )
    if not whole and sum(sizes.values()) >= n:
        raise DataError(
            "nothing is left to train on: of "
            + f"{n} different samples, "
            + ", ".join(f"{size} are held out for {name}" for name, size in sizes.items() if size)
        )
    # Sorted by class, at random within a class: positions at even distances hold every class in proportion.
    order = np.lexsort((rng.random(n), collection.label[rows][first]))
    of_group = np.zeros(n, np.int64)
    for name, size in sizes.items():
        free = order[of_group[order] == 0]
        of_group[free[_evenly(size, len(free))]] = SPLITS.index(name)
    split[rows] = of_group[np.searchsorted(groups, collection.group[rows])]
    return split


def held_out_samples(owner: Integers, group: Integers, share: float, rng: np.random.Generator) -> Booleans:
    """Mask [n] of the samples that their owners hold out of their training: at most this share of each owner's.

    ``owner`` [n] and ``group`` [n] are of each sample; an owner holds out whole groups, taken in random order as long
    as they fit.
    """
    groups, of = np.unique(np.column_stack([owner, group]), axis=0, return_inverse=True)
    of, size = of.reshape(-1), np.bincount(of.reshape(-1), minlength=len(groups))
    left = held_out_counts(np.bincount(owner, minlength=int(owner.max(initial=-1)) + 1), share).tolist()
    chosen = np.zeros(len(groups), bool)
    order = np.lexsort((rng.random(len(groups)), groups[:, 0]))
    for place, whose, many in zip(order.tolist(), groups[order, 0].tolist(), size[order].tolist(), strict=True):
        if many <= left[whose]:
            left[whose] -= many
            chosen[place] = True
    mask: Booleans = chosen[of]
    return mask


def held_out_counts(samples: Integers, share: float) -> Integers:
    """The most samples that clients with so many hold out: the share, rounded down."""
    # a share such as 0.29 of 100 is a little less than 29 in floating point
    return np.asarray(np.floor(samples * share + 1e-9), np.int64)


def first_samples(collection: Collection, rows: Integers, number: int, task: str, what: str) -> Integers:
    """The first ``number`` of ``rows`` [n]; where the task retrieves, those of a group follow its first one.

    Raises DataError, about ``what``, if there are fewer.
    """
    if number > len(rows):
        raise DataError(f"data.draw asks for {number:,} {what}, but there are {len(rows):,}")
    return (order_by_group(rows, collection.group[rows]) if like(task) == "retrieve" else rows)[:number]


def order_by_group(rows: Integers, group: Integers) -> Integers:
    """Reorder ``rows`` [n] so that members of a ``group`` [n] follow its first member."""
    first_row, group_index = np.unique(group, return_index=True, return_inverse=True)[1:]
    ordered: Integers = rows[np.argsort(first_row[group_index.reshape(-1)], kind="stable")]
    return ordered


def usable_mask(collection: Collection, kind: Kind, task: str, held: Integers | None = None) -> Booleans:
    """Mask [n] of the samples that serve this kind: classification needs a class, and words left after masking.

    Where samples lack a modality, one serves the kind of what it has, or of what its client has: ``held`` [n], as
    ``Collection.modality_bits``.
    """
    fits: Booleans = np.ones(len(collection.label), bool)
    if not collection.modalities.issuperset(kind.split("-")):
        return np.zeros_like(fits)
    filled = collection.modality_bits
    if filled.min() < filled.max():
        fits &= (filled if held is None else held) == bits_of(kind)
    if like(task) == "classify":
        fits &= collection.label < len(collection.classes)
        if "text" in kind and collection.text is not None:
            has_words = np.array([bool(text) for text in collection.masked])
            fits &= has_words[collection.text] | (collection.text < 0)
    return fits


def bits_of(kind: str) -> int:
    """The sum of ``BITS`` of a kind's modalities."""
    return sum(BITS[modality] for modality in kind.split("-"))


def held_by_client(collection: Collection, rows: Integers) -> Integers:
    """Which modalities the client of each sample has in any of ``rows``: `[n]`, as ``Collection.modality_bits``."""
    assert collection.owner is not None
    held = np.zeros(int(collection.owner.max()) + 1, np.int64)
    np.bitwise_or.at(held, collection.owner[rows], collection.modality_bits[rows])
    return np.asarray(held[collection.owner], np.int64)


def one_per_text(collection: Collection, rows: Integers, rng: np.random.Generator) -> Integers:
    """One random row of ``rows`` for each distinct text, in random order."""
    assert collection.text is not None
    rows = rng.permutation(rows)
    first = np.unique(collection.text[rows], return_index=True)[1]
    return np.asarray(rows[rng.permutation(first)], np.int64)


def assign_kinds(
    collection: Collection,
    rows: Integers,
    clients: Mapping[Kind, int],
    rng: np.random.Generator,
    tasks: Mapping[Kind, str] | None = None,
    held: Mapping[Kind, Integers] | None = None,
) -> dict[Kind, Integers]:
    """Assign each sample to one kind, in proportion to the kinds' clients and within every class.

    ``held`` is that of ``usable_mask``, of kinds whose clients the data name.

    Further pictures of a name would repeat its text.  So text clients get one sample of each name with several
    pictures, and the other kinds share the remaining samples.
    """
    kinds = [kind for kind in KINDS if clients.get(kind)]
    task_of = USUAL | dict(tasks or {})
    serves = {kind: usable_mask(collection, kind, task_of[kind], (held or {}).get(kind)) for kind in kinds}
    for kind in kinds:
        if not serves[kind][rows].any():
            possible = [other for other in KINDS if usable_mask(collection, other, task_of[other]).any()]
            reason = f"it serves: {', '.join(possible)}" if possible else "no sample has a label"
            raise DataError(f"this data set has no samples for {kind} clients; {reason}")
        classes = np.unique(collection.label[rows[serves[kind][rows]]])
        # one client alone may be a device among others, which have the other classes
        if like(task_of[kind]) == "classify" and len(classes) < 2 and clients[kind] > 1:
            only = collection.classes[classes[0]]
            raise DataError(f"all training samples of {kind} clients, who classify, are of one class, {only!r}")
    dealt: dict[Kind, list[Integers]] = {kind: [] for kind in kinds}
    remaining = rows
    if "text" in kinds:
        worded = rows[serves["text"][rows]]
        chosen = one_per_text(collection, worded, rng)
        if len(kinds) == 1:
            return {"text": chosen}
        assert collection.text is not None
        pictures = np.bincount(collection.text[worded], minlength=len(collection.texts))
        repeated = chosen[pictures[collection.text[chosen]] > 1]
        dealt["text"].append(repeated)
        remaining = np.setdiff1d(rows, repeated)
        is_single = pictures[collection.text] == 1
        serves["text"] &= is_single
    # Samples that serve the same kinds are assigned together.
    pattern = sum(
        (serves[kind].astype(np.int64) << position for position, kind in enumerate(kinds)), np.zeros(1, np.int64)
    )
    for value in np.unique(pattern[remaining]):
        serving = [kind for position, kind in enumerate(kinds) if value >> position & 1]
        if not serving:
            continue
        members = remaining[pattern[remaining] == value]
        members = members[np.lexsort((rng.random(len(members)), collection.label[members]))]
        weights = np.array([clients[kind] for kind in serving], float)
        # The golden ratio's multiples fill [0, 1) evenly, so every interval (a class) is shared in proportion.
        position = (np.arange(len(members)) * 0.6180339887498949 + rng.random()) % 1.0
        owner = np.searchsorted(np.cumsum(weights / weights.sum())[:-1], position, side="right")
        for index, kind in enumerate(serving):
            dealt[kind].append(members[owner == index])
    return {kind: np.sort(np.concatenate(parts)) for kind, parts in dealt.items()}


def _evenly(size: int, n: int) -> Integers:
    return ((np.arange(size) + 0.5) * n / max(size, 1)).astype(np.int64)
