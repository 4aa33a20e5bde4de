import numpy as np

from edgefl import seeds
from edgefl.data.collection import Collection, DataSet, Report


def build(size: int | None, report: Report) -> Collection:
    """200 pictures of stripes [200, 1, size, size], across or along."""
    size = size or 16
    draw = seeds.generator(0, "stripes")
    label = np.arange(200) % 2
    images = draw.integers(0, 128, (200, 1, size, size), dtype=np.uint8)
    for image, along in zip(images[:, 0], label, strict=True):
        (image.T if along else image)[:: draw.integers(2, 5)] += 127
    return Collection(("across", "along"), label, group=np.arange(200), images=images)


STRIPES = DataSet(build, packages=("numpy",), revision=1)  # raise the revision when build returns something else
