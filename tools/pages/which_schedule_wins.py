"""The answer of the suite ``memory``, recorded in docs/, as the picture and the tables of its page.

``docs/evidence/which-schedule-wins.json`` is the ``bench.json`` that ``edgefl bench memory`` wrote.
"""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from rich.console import Console

from edgefl.commands.bench.answer import BenchAnswer
from edgefl.commands.bench.chart import staircase
from edgefl.commands.bench.table import sections
from edgefl.drawing.charts.picture import draw
from edgefl.drawing.text_tables import print_section
from edgefl.records.reading import decode

RECORDED = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "which-schedule-wins.json"
GROUND = "#1e2129"
"""The site's dark ground."""
WIDTH = 110


def recorded() -> BenchAnswer:
    """The answer."""
    return decode(BenchAnswer, RECORDED.read_bytes(), RECORDED)


def light_staircase() -> str:
    """The staircase as SVG; equal answers give equal texts."""
    chart = staircase(recorded())
    assert chart is not None
    with tempfile.TemporaryDirectory() as folder:
        draw(chart, Path(folder) / "staircase.svg", title=chart.title)
        return (Path(folder) / "staircase.svg").read_text(encoding="utf-8")


def dark_staircase() -> str:
    """The staircase in colours for a dark ground."""
    light = light_staircase().replace(
        "<svg ", '<svg fill="#000000" ', 1
    )  # of letters, which have no colour of their own
    return re.sub(r"#[0-9a-f]{6}\b", lambda match: darkened(match[0]), light)


def darkened(colour: str) -> str:
    """A colour of a light page on a dark one, as the script of edgefl's pages has it (``edgefl/html/theme.js``)."""
    parts = [float(int(colour[at : at + 2], 16)) for at in (1, 3, 5)]
    if min(parts) == 255:
        return GROUND
    if max(parts) - min(parts) < 8 and _bright(parts) < 0.2:
        parts = [255 - part for part in parts]
    while _bright(parts) < 0.5:
        parts = [part + (255 - part) * 0.1 for part in parts]
    return "#" + "".join(f"{round(part):02x}" for part in parts)


def _bright(parts: Sequence[float]) -> float:
    red, green, blue = parts
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


def same_picture(now: str, made: str) -> bool:
    """Whether two pictures are equal; matplotlib of another version may place letters otherwise."""
    return now == made if f"v{mpl.__version__}," in now else now != ""


def answer_tables() -> dict[str, str]:
    """The tables that ``edgefl bench`` prints, by what they tell."""
    blocks: dict[str, list[str]] = {"winners": [], "others": [], "scores": [], "ranks": [], "costs": [], "variants": []}
    for section in sections(recorded()):
        name = next((name for start, name in STARTS if section.title.startswith(start)), None)
        if name is None:
            continue
        file = io.StringIO()
        print_section(Console(file=file, width=WIDTH, highlight=False, color_system=None), *section)
        blocks[name].append("\n".join(line.rstrip() for line in file.getvalue().strip().splitlines()))
    return {name: "```text\n" + "\n\n".join(texts) + "\n```" for name, texts in blocks.items()}


STARTS = (("Best where all", "winners"), ("Best where", "others"), ("image-text R@10 on test: mean", "scores"),
          ("Ranks", "ranks"), ("Costs", "costs"), ("Variants", "variants"))  # fmt: skip
"""The beginnings of titles, and the blocks of the page that they stand in."""
