"""Pictures of the characters of a font."""

from __future__ import annotations

from collections.abc import Sequence
from math import modf
from pathlib import Path

import numpy as np
import numpy.typing as npt

SHEET = 256
"""Characters that are drawn on one sheet: 16 to 4,096 take the same time, half of that of one each (5,794 characters of
DejaVu Sans, 28 November 2026).  A larger sheet takes more memory."""


def draw_characters(characters: Sequence[str], font_file: Path, points: int, size: int) -> npt.NDArray[np.uint8]:
    """Pictures `[characters, size, size]`, white on black, each as Pillow's ``ImageDraw.text`` draws it on its own.

    They are centred by advance and line, not by ink, so that a dot keeps its position in a braille cell.  Of a canvas
    for each most of the time would be Pillow's own bookkeeping: here many stand below each other on one sheet.
    """
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(str(font_file), points, layout_engine=ImageFont.Layout.BASIC)
    fraction, middle = modf(size / 2)
    pictures = np.empty((len(characters), size, size), np.uint8)
    for first in range(0, len(characters), SHEET):
        some = characters[first : first + SHEET]
        sheet = Image.new("L", (size, size * len(some)))
        pen = ImageDraw.Draw(sheet).draw
        for row, character in enumerate(some):
            ink, offset = font.getmask2(character, "L", anchor="mm", start=(fraction, fraction))
            left, top = (int(middle) + by for by in offset)
            if left >= 0 <= top and left + ink.size[0] <= size >= top + ink.size[1]:
                pen.draw_bitmap((left, top + row * size), ink, 255)
            else:  # it would reach into its neighbours
                own = Image.new("L", (size, size))
                ImageDraw.Draw(own).draw.draw_bitmap((left, top), ink, 255)
                sheet.paste(own, (0, row * size))
        pictures[first : first + len(some)] = np.asarray(sheet).reshape(-1, size, size)
    return pictures
