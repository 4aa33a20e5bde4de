"""What may not be printed on a terminal: text from a stranger that moves the cursor or turns letters around."""

from __future__ import annotations

import re

CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""C0 but the line end, DEL, C1, line and paragraph separators, and what changes the direction of text."""


def unprintable(text: str) -> str:
    """The first such character with its surroundings, "" if there is none."""
    found = CONTROLS.search(text)
    return f"U+{ord(found[0]):04X} in {text[max(0, found.start() - 40) : found.end() + 40]!r}" if found else ""
