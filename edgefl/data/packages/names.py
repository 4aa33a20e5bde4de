"""Names: the names of characters in 16 scripts and notations of Unicode 3.2, which Python keeps unchanged.

Needs nothing but Python.  The words that spell a class are removed, so that a class has to be inferred from the other
words ("letter ka with stroke"); names that are then equal in two classes are held out together.
"""

from __future__ import annotations

import sys
from unicodedata import ucd_3_2_0 as unicode

import numpy as np

from edgefl.data.collection import Collection, DataSet, OnMessage, number_keys, remove_words

CLASSES = (
    "yi", "arabic", "latin", "canadian", "ethiopic", "hangul", "greek", "cyrillic", "byzantine", "musical", "kangxi",
    "tibetan", "mongolian", "hebrew", "box", "katakana",
)  # fmt: skip
MASKED_WORDS = (*CLASSES, "syllabics", "music", "drawings", "radical", "coptic")
MOST = 600
"""Names of a class: a choice against imbalance.  It cuts the four largest, of 629 to 1,220; the smallest has 110."""


def build(size: int | None, on_message: OnMessage) -> Collection:
    """At most 600 names of each class, in the order of their code points."""
    class_index = {name: index for index, name in enumerate(CLASSES)}
    counts = [0] * len(CLASSES)
    texts: list[str] = []
    label: list[int] = []
    for code in range(sys.maxunicode + 1):
        name = unicode.name(chr(code), "")
        if not name or name.startswith("HANGUL SYLLABLE"):  # these 11,172 are named by a rule
            continue
        name = name.lower()
        index = class_index.get(name.split(" ", 1)[0])
        if index is not None and counts[index] < MOST and remove_words(MASKED_WORDS, name):
            counts[index] += 1
            texts.append(name)
            label.append(index)
    masked = tuple(remove_words(MASKED_WORDS, text) for text in texts)
    return Collection(CLASSES, np.array(label), number_keys(masked), None, np.arange(len(texts)), tuple(texts), masked)


NAMES = DataSet(build, summary="Unicode's names of characters, 16 classes")
