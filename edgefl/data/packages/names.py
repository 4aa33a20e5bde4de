"""Names: the names of characters in 16 scripts and notations of Unicode 3.2, which Python keeps unchanged.

Needs nothing but Python.  The words that spell a class are removed, so that "letter ka with stroke" has to be told
from its other words; a name that is then the same in two classes is held out as one.
"""

from __future__ import annotations

import sys
from unicodedata import ucd_3_2_0 as unicode

import numpy as np

from edgefl.data.collection import Collection, DataSet, OnMessage, numbered, without

CLASSES = (
    "yi", "arabic", "latin", "canadian", "ethiopic", "hangul", "greek", "cyrillic", "byzantine", "musical", "kangxi",
    "tibetan", "mongolian", "hebrew", "box", "katakana",
)  # fmt: skip
MASKED_WORDS = (*CLASSES, "syllabics", "music", "drawings", "radical", "coptic")
MOST = 600


def build(size: int | None, on_message: OnMessage) -> Collection:
    """At most 600 names of each class, in the order of their code points."""
    places = {name: place for place, name in enumerate(CLASSES)}
    taken = [0] * len(CLASSES)
    texts: list[str] = []
    label: list[int] = []
    for code in range(sys.maxunicode + 1):
        name = unicode.name(chr(code), "").lower()
        # The 11,172 syllables of Hangul are named by a rule.
        place = places.get(name.split(" ", 1)[0]) if not name.startswith("hangul syllable") else None
        if place is not None and taken[place] < MOST and without(MASKED_WORDS, name):
            taken[place] += 1
            texts.append(name)
            label.append(place)
    masked = tuple(without(MASKED_WORDS, text) for text in texts)
    return Collection(CLASSES, np.array(label), numbered(masked), None, np.arange(len(texts)), tuple(texts), masked)


NAMES = DataSet(build)
