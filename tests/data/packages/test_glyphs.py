from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from edgefl.data.packages.glyphs import CLASSES, class_of, fonts


def test_sixteen_fonts():
    assert len(fonts()) == 16


def test_classes_have_the_known_numbers_of_characters(glyph_federation):
    whole = [name for data in ("train", "validation", "test", "public") for name in glyph_federation.names(data)]
    assert len(whole) == len(set(whole)) == 6352  # 7,353 less 1,001 mathematical letters and digits
    counts = Counter(class_of(name) for name in whole)
    known = {"latin": 990, "arabic": 463, "canadian syllabics": 404, "greek": 363, "arrow": 326, "cyrillic": 319,
             "braille": 255, "yijing": 145, "box": 128, "georgian": 120, "hebrew": 100, "armenian": 91}  # fmt: skip
    assert {name: counts[place] for place, name in enumerate(CLASSES)} == known


def test_fifteen_percent_of_names_are_held_out_and_five_hundred_pairs_can_be_ranked(glyph_federation):
    held = len(glyph_federation.names("validation")) + len(glyph_federation.names("test"))
    assert held / 6352 == pytest.approx(0.15, abs=0.005)
    assert glyph_federation.server_samples["test"]["image-text"] >= 500


def test_pictures_are_grey_32(glyph_federation):
    assert glyph_federation.facts["image"] == {"channels": 1, "size": 32, "classes": 12}
    assert len(glyph_federation._parts[0].arrays["images"]) > 50_000
    assert glyph_federation._parts[0].arrays["images"].max((1, 2, 3)).min() > 0  # none is blank


def test_classified_texts_spell_no_class(glyph_federation):
    tokenizer, arrays = glyph_federation.tokenizer, glyph_federation._parts[0].arrays
    spelled = re.compile(
        r"\b(latin|arabic|canadian|greek|arrows?|cyrillic|braille|hexagram|georgian|hebrew|armenian)\b"
    )
    for text in tokenizer.decode_batch(np.asarray(arrays["tokens_masked"]).tolist()):
        assert not spelled.search(text.replace(" ##", ""))


def test_a_dot_keeps_its_place_in_a_braille_cell(glyph_federation):
    # Dot 1 is at the top left and dot 6 at the bottom right: centred by ink, both pictures would be the same.
    import unicodedata

    from PIL import Image, ImageDraw, ImageFont

    from edgefl.data.packages.glyphs import collected

    font = ImageFont.truetype(str(fonts()[3]), 22, layout_engine=ImageFont.Layout.BASIC)
    pictures = []
    for code in (0x2801, 0x2820):
        canvas = Image.new("L", (32, 32))
        ImageDraw.Draw(canvas).text((16, 16), chr(code), fill=255, font=font, anchor="mm")
        pictures.append(np.asarray(canvas))
    made = collected(np.stack(pictures)[:, None], [chr(0x2801), chr(0x2820)])
    assert made.texts == tuple(unicodedata.name(chr(code)).lower() for code in (0x2801, 0x2820))
    assert made.masked == ("pattern dots-1", "pattern dots-6")
    assert not np.array_equal(made.images[0], made.images[1])
