"""Glyphs: pictures of characters and their Unicode names, drawn from the fonts that come with matplotlib.

Nothing is downloaded.  Classes are scripts and families of symbols.  Mathematical letters are left out: they are
Latin and Greek letters in another style, so their pictures would contradict their class.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgefl.data.collection import Collection, DataSet, OnMessage, check_fits, number_keys, remove_words
from edgefl.data.packages.drawing import draw_characters
from edgefl.errors import DataError

SIZE = 32
"""Height and width unless ``data.size`` says otherwise: a choice, not measured.  Costs grow with its square."""

# Class -> its words, which are masked; a name belongs to it by its first word ("arrow": by any word).
CLASSES: dict[str, tuple[str, ...]] = {
    "latin": ("latin",),
    "arabic": ("arabic",),
    "canadian syllabics": ("canadian", "syllabics"),
    "greek": ("greek", "coptic"),
    "arrow": ("arrow", "arrows", "arrowhead", "arrowheads", "arrow-tail"),
    "cyrillic": ("cyrillic",),
    "braille": ("braille",),
    "yijing": ("hexagram", "tetragram", "trigram", "yijing"),
    "box": ("box", "drawings"),
    "georgian": ("georgian",),
    "hebrew": ("hebrew",),
    "armenian": ("armenian",),
}
MASKED_WORDS = tuple(word for words in CLASSES.values() for word in words)


def class_of(name: str) -> int:
    """Index of the class of a character's name; ``len(CLASSES)`` if it has none."""
    words = name.lower().split()
    firsts = {"latin": 0, "arabic": 1, "canadian": 2, "greek": 3, "cyrillic": 5, "braille": 6, "hexagram": 7,
              "tetragram": 7, "box": 8, "georgian": 9, "hebrew": 10, "armenian": 11}  # fmt: skip
    if words[0] in firsts:
        return firsts[words[0]]
    return 4 if {"arrow", "arrows", "arrowhead"} & set(words) else len(CLASSES)


def fonts() -> list[Path]:
    """The 16 text fonts: DejaVu without its two display cuts, and STIXGeneral."""
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    paths = [path for path in sorted(folder.glob("DejaVu*.ttf")) if "Display" not in path.name]
    paths += sorted(folder.glob("STIXGeneral*.ttf"))
    if not paths:
        raise DataError("no DejaVu or STIX fonts among matplotlib's fonts: pip install --force-reinstall matplotlib")
    return paths


def build(size: int | None, on_message: OnMessage) -> Collection:
    """Draw every named character of every font: [n, 1, size, size], white on black."""
    from matplotlib.ft2font import FT2Font

    size = size or SIZE
    pictures: list[npt.NDArray[np.uint8]] = []
    owners: list[str] = []
    paths = fonts()
    codes = [sorted(FT2Font(str(path)).get_charmap()) for path in paths]
    count = sum(map(len, codes))
    check_fits((count, size, size), f"{count:,} pictures of {size:,} x {size:,} pixels")
    for number, (path, own) in enumerate(zip(paths, codes, strict=True), 1):
        on_message(f"drawing glyphs: font {number} of {len(paths)}")
        characters = [chr(code) for code in own if unicodedata.name(chr(code), "")]
        each = draw_characters(characters, path, round(size * 0.7), size)
        inked = np.flatnonzero(each.any((1, 2)))
        pictures.append(each[inked])
        owners += [characters[index] for index in inked]
    return glyph_collection(np.concatenate(pictures)[:, None], owners)


def glyph_collection(images: npt.NDArray[np.uint8], owners: list[str]) -> Collection:
    """A collection of pictures [n, 1, size, size] and their characters, ``owners`` [n]."""
    letters = {
        character
        for character in set(owners)
        if unicodedata.name(character).startswith("MATHEMATICAL") and unicodedata.category(character)[0] in "LN"
    }
    keep = np.array([character not in letters for character in owners])
    kept_owners = [character for character in owners if character not in letters]
    characters = sorted(set(kept_owners))
    index = {character: position for position, character in enumerate(characters)}
    texts = [unicodedata.name(character).lower() for character in characters]
    masked = [remove_words(MASKED_WORDS, text) for text in texts]
    text = np.array([index[character] for character in kept_owners])
    label = np.array([class_of(name) for name in texts])
    # Names that are the same once masked ("small letter a") are held out together.
    group = number_keys([short or whole for short, whole in zip(masked, texts, strict=True)])
    return Collection(tuple(CLASSES), label[text], group[text], images[keep], text, tuple(texts), tuple(masked))


GLYPHS = DataSet(
    build, ("matplotlib", "pillow"), summary="54,215 pictures of 7,353 characters with their names, 12 scripts"
)
