"""Whole texts of a federation's splits, by which tests tell that no text is on two sides."""

from __future__ import annotations

import json

import numpy as np

from edgefl.data import Federation
from edgefl.data.split import SPLITS


def texts_in(federation: Federation, data: str) -> list[str]:
    """The texts in "train", "validation", "test" or "public", sorted."""
    found = list[str]()
    for part in federation._parts:
        if "text" in part.arrays:
            rows = part.arrays["text"][part.arrays["split"] == SPLITS.index(data)]
            texts = json.loads(part.collection.text("texts.json"))["texts"]
            found += [texts[index] for index in np.unique(rows) if index >= 0]
    return sorted(found)
