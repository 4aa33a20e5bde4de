"""Several data sets as one: what clients of one kind hold, in one model with one head."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from edgefl.arrays import AnyArray, Integers, JoinedArray
from edgefl.data.collection import Collection
from edgefl.data.stored_arrays import Built, StoredEntry, entry
from edgefl.errors import DataError
from edgefl.modalities import SIGNALS
from edgefl.work.description import digest

_LARGE = {"images": "; set data.size, or data.channels: 3", **dict.fromkeys(SIGNALS, "")}
"""Arrays that are read where they are, with what makes those of several sets alike."""


def read_collection(stored: StoredEntry) -> Collection:
    """The collection that an entry stores."""
    texts = json.loads(stored.text("texts.json"))
    return Collection(
        classes=tuple(stored.meta["classes"]), texts=tuple(texts["texts"]), masked=tuple(texts["masked"]),
        **stored.arrays,
    )  # fmt: skip


def join(members: Mapping[str, StoredEntry], cache: Path, waiting: Callable[[], None]) -> StoredEntry:
    """The data sets as one; one alone is itself.

    Samples, classes and groups of each follow those of the set before.  It has the modalities that all sets have, and
    no published splits, since each set is split by itself.  Raises DataError for sets that no model can read both.
    """
    if len(members) == 1:
        return next(iter(members.values()))
    name = f"{' + '.join(members)}-{digest([stored.path.name for stored in members.values()])}"
    small = entry(cache, name, lambda: _build(members), waiting)
    large = {
        name: cast(AnyArray, JoinedArray([stored.arrays[name] for stored in members.values()]))
        for name in _LARGE
        if all(name in stored.arrays for stored in members.values())
    }
    return replace(small, arrays={**small.arrays, **large})


def _build(members: Mapping[str, StoredEntry]) -> Built:
    sets = {name: read_collection(stored) for name, stored in members.items()}
    each = [*sets.values()]
    shared = frozenset.intersection(*(one.modalities for one in each))
    if not shared:
        raise DataError(f"{' and '.join(members)} have no modality in common, so no client can hold samples of both")
    if scored := [name for name, one in sets.items() if one.answer is not None]:
        raise DataError(f"{scored[0]} scores several answers to a sample, which can't be joined with other classes")
    for large, remedy in _LARGE.items():
        shapes = {name: stored.arrays[large].shape[1:] for name, stored in members.items() if large in stored.arrays}
        if large.removesuffix("s") in shared and len({*shapes.values()}) > 1:
            told = " and ".join(f"{' x '.join(map(str, shape))} in {name}" for name, shape in shapes.items())
            raise DataError(f"one {large.removesuffix('s')} tower can't read {told}{remedy}")
    classes = [len(one.classes) for one in each]
    labels = _follow([np.where(one.label < n, one.label, -1) for one, n in zip(each, classes, strict=True)], classes)
    arrays: dict[str, AnyArray] = {
        "label": np.where(labels < 0, sum(classes), labels),
        "group": _follow([np.unique(one.group, return_inverse=True)[1].reshape(-1) for one in each]),
    }
    if "image" in shared and any(one.image is not None for one in each):
        pictures = [np.arange(len(one.label)) if one.image is None else one.image for one in each]
        arrays["image"] = _follow(pictures, [len(members[name].arrays["images"]) for name in members])
    if "text" in shared:
        arrays["text"] = _follow([one.text for one in each if one.text is not None], [len(one.texts) for one in each])
    texts = {
        name: [text for one in each for text in getattr(one, name) if "text" in shared] for name in ("texts", "masked")
    }
    code = " ".join(stored.meta["code"] for stored in members.values())
    names = [label for one in each for label in one.classes]
    return Built(arrays, {"classes": names, "code": code}, {"texts.json": json.dumps(texts, ensure_ascii=False)})


def _follow(numbers: list[Integers], counts: list[int] | None = None) -> Integers:
    """Numbers [n] of each set one after the other, each set's past the ``counts`` of those before; -1 stays."""
    counts = counts or [int(each.max()) + 1 for each in numbers]
    firsts = np.cumsum([0, *counts[:-1]])
    return np.concatenate([np.where(each < 0, -1, each + first) for each, first in zip(numbers, firsts, strict=True)])
