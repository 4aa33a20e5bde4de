"""Digits: 1,797 handwritten digits of 8x8 grey pixels, from scikit-learn's files (it isn't imported)."""

from __future__ import annotations

import numpy as np

from edgefl.data.collection import Collection, DataSet, OnMessage, package_folder, resize_images

CLASSES = tuple("0123456789")


def build(size: int | None, on_message: OnMessage) -> Collection:
    """Read pictures [1797, 1, 8, 8] and their classes."""
    table = np.loadtxt(package_folder("sklearn") / "datasets" / "data" / "digits.csv.gz", delimiter=",", dtype=np.int64)
    images = (table[:, :-1] * 255 // 16).astype(np.uint8).reshape(-1, 1, 8, 8)
    return Collection(CLASSES, table[:, -1], np.arange(len(table)), resize_images(images, size))


DIGITS = DataSet(build, ("scikit-learn",), summary="1,797 handwritten digits of 8x8 pixels")
