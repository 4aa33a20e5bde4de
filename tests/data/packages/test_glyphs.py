from __future__ import annotations

import re
import unicodedata
from collections import Counter

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont
from split_texts import texts_in

from edgefl.data.packages.drawing import SHEET, draw_characters
from edgefl.data.packages.glyphs import CLASSES, class_of, fonts, glyph_collection


def test_sixteen_fonts():
    assert len(fonts()) == 16


def test_classes_have_the_known_numbers_of_characters(glyph_federation):
    whole = [name for data in ("train", "validation", "test", "public") for name in texts_in(glyph_federation, data)]
    assert len(whole) == len(set(whole)) == 6352  # 7,353 less 1,001 mathematical letters and digits
    counts = Counter(class_of(name) for name in whole)
    known = {"latin": 990, "arabic": 463, "canadian syllabics": 404, "greek": 363, "arrow": 326, "cyrillic": 319,
             "braille": 255, "yijing": 145, "box": 128, "georgian": 120, "hebrew": 100, "armenian": 91}  # fmt: skip
    assert {name: counts[place] for place, name in enumerate(CLASSES)} == known


def test_fifteen_percent_of_names_are_held_out_and_five_hundred_pairs_can_be_ranked(glyph_federation):
    held = len(texts_in(glyph_federation, "validation")) + len(texts_in(glyph_federation, "test"))
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
    pictures = draw_characters([chr(0x2801), chr(0x2820)], fonts()[3], 22, 32)
    made = glyph_collection(pictures[:, None], [chr(0x2801), chr(0x2820)])
    assert made.texts == tuple(unicodedata.name(chr(code)).lower() for code in (0x2801, 0x2820))
    assert made.masked == ("pattern dots-1", "pattern dots-6")
    assert not np.array_equal(made.images[0], made.images[1])


@pytest.mark.parametrize("size", [8, 17, 32])
def test_a_sheet_has_what_pillow_draws_on_a_canvas_of_its_own(size: int) -> None:
    font = ImageFont.truetype(str(fonts()[3]), 22, layout_engine=ImageFont.Layout.BASIC)
    wide = [
        "\ufdfa",
        "\ufb03",
        "\u01c4",
        "\u2e3b",
        "W",
    ]  # reaches out of its canvas, and into its neighbours' if it may
    characters = [*wide, *map(chr, range(0x21, 0x21 + 260)), *wide]
    assert len(characters) > SHEET
    expected = []
    for character in characters:
        canvas = Image.new("L", (size, size))
        ImageDraw.Draw(canvas).text((size / 2, size / 2), character, fill=255, font=font, anchor="mm")
        expected.append(np.asarray(canvas))
    assert np.array_equal(draw_characters(characters, fonts()[3], 22, size), expected)
