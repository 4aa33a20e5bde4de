"""What is held out, and which samples go to clients of which kind."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgefl.data.collection import BoolArray, Collection, IntArray
from edgefl.data.options import KINDS, USUAL, Kind, Task
from edgefl.errors import DataError

SPLITS = ("train", "validation", "test", "public")
Sizes = tuple[float, float, float]
"""Validation, test and public samples that are asked for."""


def hold_out(
    collection: Collection,
    validation: float,
    test: float,
    public: float,
    rng: np.random.Generator,
    *,
    whole: bool = False,
) -> IntArray:
    """Index into ``SPLITS`` [n]: whole groups are held out, from every class alike.

    Each size is a share of all groups if below 1, else a number of groups.  A published split is kept; -1 marks
    samples of it that aren't used.  With ``whole`` nothing has to be left to train on: all may be public.
    """
    official = collection.official
    if official is not None:
        return _published(collection, official, (validation, test, public), rng, whole)
    return _held_out(collection, np.arange(len(collection.label)), (validation, test, public), rng, whole)


def _held_out(
    collection: Collection, rows: IntArray, sizes_of: Sizes, rng: np.random.Generator, whole: bool
) -> IntArray:
    """The same for ``rows`` alone; others get -1."""
    groups, first = np.unique(collection.group[rows], return_index=True)
    n = len(groups)
    sizes = {
        name: round(size * n) if size < 1 else round(size) for name, size in zip(SPLITS[1:], sizes_of, strict=True)
    }
    if whole:
        sizes["public"] = min(sizes["public"], n - sizes["validation"] - sizes["test"])
    elif sum(sizes.values()) >= n:
        raise DataError(
            "nothing is left to train on: of "
            + f"{n} names, "
            + ", ".join(f"{size} are held out for {name}" for name, size in sizes.items() if size)
        )
    # By class, at random within a class: places at even distances then hold every class in proportion.
    order = np.lexsort((rng.random(n), collection.label[rows][first]))
    split = np.zeros(n, np.int64)
    for name, size in sizes.items():
        free = order[split[order] == 0]
        split[free[_evenly(size, len(free))]] = SPLITS.index(name)
    found = np.full(len(collection.label), -1, np.int64)
    found[rows] = split[np.searchsorted(groups, collection.group[rows])]
    return found


def _published(
    collection: Collection, official: IntArray, sizes_of: Sizes, rng: np.random.Generator, whole: bool
) -> IntArray:
    """With a published test set (and validation set) that is the one; a size of 1 or more takes so many groups of it.

    What isn't published is held out of the published training set.
    """
    validation, test, public = sizes_of
    found = np.full(len(official), -1, np.int64)
    for place, size in ((1, validation), (2, test)):
        rows = np.flatnonzero(official == place)
        groups = rng.permutation(np.unique(collection.group[rows]))
        kept = groups[: round(size)] if size >= 1 else groups
        found[rows[np.isin(collection.group[rows], kept)]] = place
    there = [bool((official == place).any()) for place in (1, 2)]
    wanted = (0.0 if there[0] else validation, 0.0 if there[1] else test, public)
    rest = _held_out(collection, np.flatnonzero(official == 0), wanted, rng, whole)
    return np.where(rest >= 0, rest, found)


def usable(collection: Collection, kind: Kind, task: Task) -> BoolArray:
    """Which samples [n] can serve this kind: classification needs a class, texts need words left after masking."""
    fits: BoolArray = np.ones(len(collection.label), bool)
    if not collection.modalities.issuperset(kind.split("-")):
        return np.zeros_like(fits)
    if task == "classify":
        fits &= collection.label < len(collection.classes)
        if "text" in kind and collection.text is not None:
            worded = np.array([bool(text) for text in collection.masked])
            fits &= worded[collection.text]
    return fits


def one_per_text(collection: Collection, rows: IntArray, rng: np.random.Generator) -> IntArray:
    """One of ``rows`` for each text among them, at random, in random order."""
    if collection.text is None:
        raise DataError("there are no texts")
    rows = rng.permutation(rows)
    first = np.unique(collection.text[rows], return_index=True)[1]
    return np.asarray(rows[rng.permutation(first)], np.int64)


def by_kind(
    collection: Collection,
    rows: IntArray,
    clients: Mapping[Kind, int],
    rng: np.random.Generator,
    tasks: Mapping[Kind, Task] | None = None,
) -> dict[Kind, IntArray]:
    """Deal the samples to the kinds in proportion to their clients, from every class alike; none goes to two kinds.

    A further picture of the same name would be a repeated text, so a text kind gets one sample for each name that has
    more than one picture, and the other kinds share the rest.
    """
    kinds = [kind for kind in KINDS if clients.get(kind)]
    asked = USUAL | dict(tasks or {})
    serves = {kind: usable(collection, kind, asked[kind]) for kind in kinds}
    for kind in kinds:
        if not serves[kind][rows].any():
            possible = [other for other in KINDS if usable(collection, other, asked[other]).any()]
            raise DataError(f"this data set has no samples for {kind} clients; it serves: {', '.join(possible)}")
    dealt: dict[Kind, list[IntArray]] = {kind: [] for kind in kinds}
    left = rows
    if "text" in kinds:
        words = rows[serves["text"][rows]]
        chosen = one_per_text(collection, words, rng)
        if len(kinds) == 1:
            return {"text": chosen}
        assert collection.text is not None
        pictures = np.bincount(collection.text[words], minlength=len(collection.texts))
        many = chosen[pictures[collection.text[chosen]] > 1]
        dealt["text"].append(many)
        left = np.setdiff1d(rows, many)
        alone = pictures[collection.text] == 1
        serves["text"] &= alone
    # Samples that serve the same kinds are dealt together.
    pattern = sum((serves[kind].astype(np.int64) << place for place, kind in enumerate(kinds)), np.zeros(1, np.int64))
    for value in np.unique(pattern[left]):
        takers = [kind for place, kind in enumerate(kinds) if value >> place & 1]
        if not takers:
            continue
        members = left[pattern[left] == value]
        members = members[np.lexsort((rng.random(len(members)), collection.label[members]))]
        weights = np.array([clients[kind] for kind in takers], float)
        # The golden ratio's multiples fill [0, 1) evenly, so every stretch (a class) is shared in proportion.
        place = (np.arange(len(members)) * 0.6180339887498949 + rng.random()) % 1.0
        taker = np.searchsorted(np.cumsum(weights / weights.sum())[:-1], place, side="right")
        for index, kind in enumerate(takers):
            dealt[kind].append(members[taker == index])
    return {kind: np.sort(np.concatenate(parts)) for kind, parts in dealt.items()}


def _evenly(size: int, n: int) -> IntArray:
    return ((np.arange(size) + 0.5) * n / max(size, 1)).astype(np.int64)
