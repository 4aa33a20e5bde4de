"""Outputs and pictures of pages: whether they are what the commands print, and writing what they print.

A line ``...`` of an output stands for any lines, a score (three decimals) may differ by ``SCORE`` between processors,
and everything else must be equal.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from functools import cache
from io import BytesIO
from pathlib import Path

from tools.pages.running import ROOT, Shelf, pictures, write_package

SCORE = 0.06
"""Largest difference of an accuracy between processors."""
GAP = "..."
TOP = (1000, 1350)
"""Width and height in pixels of what a picture shows of an HTML page."""

_SCORE = re.compile(r"(?<![\d.,])[01]\.\d{3}(?!\d)")
_MEMORY = re.compile(r" *\d[\d.,]* [KMG]?i?B\b| *[\d.]+ %")
"""Amounts of memory, and their shares, with the spaces that line them up."""


def agree(shown: str, printed: str, *, same_kernels: bool = True) -> bool:
    """Whether the output that a page shows agrees with the printed one; in amounts of memory with ``same_kernels``,
    as their scratch is part of peaks."""
    if not same_kernels:
        shown, printed = (_MEMORY.sub(" #", text) for text in (shown, printed))
    lines, start = [line.rstrip() for line in printed.strip("\n").splitlines()], 0
    anywhere = False
    for part in _parts(shown):
        if part is None:
            anywhere = True
            continue
        starts = range(start, len(lines) - len(part) + 1) if anywhere else [start]
        match = next((i for i in starts if _same(part, lines[i : i + len(part)])), None)
        if match is None:
            return False
        start, anywhere = match + len(part), False
    return anywhere or start == len(lines)


def _parts(shown: str) -> Iterator[list[str] | None]:
    """Yield runs of consecutive lines, and None for each gap."""
    lines: list[str] = []
    for line in shown.strip("\n").splitlines():
        if line.strip() == GAP:
            if lines:
                yield lines
            yield None
            lines = []
        else:
            lines.append(line.rstrip())
    if lines:
        yield lines


def _same(shown: list[str], printed: list[str]) -> bool:
    return len(shown) == len(printed) and all(map(_agree, shown, printed))


def _agree(shown: str, printed: str) -> bool:
    if shown == printed:
        return True
    scores, others = ([float(n) for n in _SCORE.findall(line)] for line in (shown, printed))
    return _SCORE.sub("#", shown) == _SCORE.sub("#", printed) and all(
        abs(a - b) <= SCORE for a, b in zip(scores, others, strict=True)
    )


# --- renewing --------------------------------------------------------------------------------------------------------

_AMOUNT = re.compile(r"\d[\d.,]*(?: ?(?:[KMG]?i?B|[KMGT]?FLOP|[mkM]?J|m?s|min|h|d)\b)?|─+")
"""What may differ between a line and the one that is printed in its place: numbers with their units, and rules."""


def renew(names: Sequence[str]) -> Iterator[str]:
    """Run pages one after the other and write into them what their commands print, and their pictures.

    Yields what has to be renewed by hand: outputs with gaps of which other lines are shown than are printed, each with
    the output.  Raises RuntimeError where pages show other amounts of memory or scores than this machine has.
    """
    _check_machine()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "shelf"
        folder.mkdir()
        write_package(folder)
        sys.path.insert(0, str(folder))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
        os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "100"}  # as for the tests
        shelf = Shelf(folder)
        for page in names:
            text = (ROOT / page).read_text(encoding="utf-8")
            for block, printed in reversed(list(shelf.read(page, slow=True))):
                new = renewed(block.text, printed)
                if new is None:
                    yield f"{block} shows other lines than\n{printed}"
                    continue
                first, last = block.span
                text = text[:first] + new + text[last:]
            (ROOT / page).write_text(text, encoding="utf-8")
            for picture in pictures(page):
                _draw(folder / picture.source, picture.file)


def _check_machine() -> None:
    import torch

    recorded = json.loads((ROOT / "tests/recorded/expected/versions.json").read_text(encoding="utf-8"))
    here = {"torch": torch.__version__.partition("+")[0], "kernels": torch.backends.cpu.get_cpu_capability()}
    if here != recorded or torch.cuda.is_available():
        gpu = " with a GPU" if torch.cuda.is_available() else ""
        raise RuntimeError(f"pages show the outputs of {recorded} without a GPU; here is {here}{gpu}")


def renewed(shown: str, printed: str) -> str | None:
    """The output ``shown`` on a page with the printed lines in the places of its own, and with its gaps.

    A line takes the place of one that differs in amounts alone; of several such places the likest are taken.  None if
    there is no place for a line.
    """
    lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
    parts = list(_parts(shown))
    if None not in parts:
        return "\n".join([*lines, ""])

    @cache
    def best(index: int, start: int) -> tuple[float, list[str]] | None:
        """The likeness of the parts from ``index`` on to the lines from ``start`` on, and the lines to show."""
        if index == len(parts):
            return (0.0, []) if start == len(lines) else None
        part = parts[index]
        if part is None:
            if index + 1 == len(parts):
                return 0.0, [GAP]
            found = [place for at in range(start, len(lines)) if (place := best(index + 1, at))]
            likest = max(found, key=lambda place: place[0], default=None)
            return likest and (likest[0], [GAP, *likest[1]])
        window = lines[start : start + len(part)]
        if [_AMOUNT.sub("#", line).split() for line in window] != [_AMOUNT.sub("#", line).split() for line in part]:
            return None
        after = best(index + 1, start + len(part))
        same = sum(SequenceMatcher(None, *pair).ratio() for pair in zip(window, part, strict=True))
        return after and (same + after[0], [*window, *after[1]])

    found = best(0, 0)
    return found and "\n".join([*found[1], ""])


def _draw(source: Path, target: Path) -> None:
    """Copy a picture, or draw the top of an HTML page.  Raises RuntimeError if there is no Chromium to draw it."""
    if source.suffix != ".html":
        shutil.copyfile(source, target)
        return
    from PIL import Image
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise RuntimeError(f"{target} is drawn by Chromium: install the package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": TOP[0], "height": TOP[1]}, color_scheme="light")
        page.goto(source.as_uri())
        page.wait_for_selector('html[data-ready="light"]')
        taken = page.screenshot()
        browser.close()
    Image.open(BytesIO(taken)).convert("RGB").quantize(128).save(target, optimize=True)
