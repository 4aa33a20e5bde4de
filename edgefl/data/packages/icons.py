"""Icons: the 7,367 Material Design Icons and their names, from the package qtawesome (Qt isn't needed).

A class is the word that a name begins with, for the words that begin many names; texts for classification lack that
word and only hint at it ("50 bluetooth" for a battery), so pictures are more informative here.
"""

from __future__ import annotations

import json

import numpy as np

from edgefl.data.collection import Collection, DataSet, OnMessage, check_fits, number_keys, package_folder, remove_words
from edgefl.data.packages.drawing import draw_characters
from edgefl.errors import DataError

SIZE = 32
"""Height and width unless ``data.size`` says otherwise: a choice, equal to that of glyphs."""
CLASSES = (
    "arrow", "file", "alpha", "account", "folder", "numeric", "battery", "calendar", "book", "home", "car", "cloud",
)  # fmt: skip
STYLES = ("outline", "variant")


def build(size: int | None, on_message: OnMessage) -> Collection:
    """Pictures [n, 1, size, size], white on black, with their names."""
    size = size or SIZE
    folder = package_folder("qtawesome") / "fonts"
    typefaces, maps = (sorted(folder.glob(f"materialdesignicons6-{part}")) for part in ("*.ttf", "*charmap*.json"))
    if not typefaces or not maps:
        raise DataError("qtawesome has no Material Design Icons 6 among its fonts: pip install 'qtawesome>=1.4'")
    codes = json.loads(maps[-1].read_text(encoding="utf-8"))
    on_message(f"drawing {len(codes)} icons")
    names = sorted(codes)
    check_fits((len(names), 1, size, size), f"{len(names):,} pictures of {size:,} x {size:,} pixels")
    characters = [chr(int(codes[name], 16)) for name in names]
    images = draw_characters(characters, typefaces[-1], round(size * 0.9), size)[:, None]
    texts = tuple(name.replace("-", " ") for name in names)
    class_index = {name: index for index, name in enumerate(CLASSES)}
    plural = [f"{name}s" for name in CLASSES]
    return Collection(
        classes=CLASSES,
        label=np.array([class_index.get(text.split()[0], len(CLASSES)) for text in texts], np.int64),
        # An icon and its outline are the same picture in two styles, so they are held out together.
        group=number_keys([remove_words(STYLES, text) or text for text in texts]),
        images=images,
        text=np.arange(len(names)),
        texts=texts,
        masked=tuple(remove_words([*CLASSES, *plural], text) for text in texts),
    )


ICONS = DataSet(build, ("qtawesome", "pillow"), summary="7,367 icons with their names")
