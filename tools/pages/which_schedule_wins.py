"""The answer of the suite ``memory``, recorded in docs/, as the front picture and as the tables of its page.

``docs/evidence/which-schedule-wins.json`` is the ``bench.json`` that ``edgefl bench memory`` wrote.
"""

from __future__ import annotations

import io
import re
import tempfile
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
STYLESHEET = RECORDED.parents[1] / "stylesheets" / "extra.css"
WIDTH = 110


def recorded() -> BenchAnswer:
    """The answer."""
    return decode(BenchAnswer, RECORDED.read_bytes(), RECORDED)


def front_picture() -> str:
    """The staircase as SVG; equal answers give equal texts."""
    chart = staircase(recorded())
    assert chart is not None
    with tempfile.TemporaryDirectory() as folder:
        draw(chart, Path(folder) / "staircase.svg")
        return (Path(folder) / "staircase.svg").read_text(encoding="utf-8")


def dark_front_picture() -> str:
    """The staircase for a dark ground, by the filter with which the site's stylesheet darkens drawings."""
    stylesheet = STYLESHEET.read_text(encoding="utf-8")
    (rule,) = re.findall(r"\.md-typeset img \{ (filter: [^;]+); \}", stylesheet)
    return front_picture().replace("<svg ", f'<svg style="{rule}" ', 1)


def same_picture(now: str, made: str) -> bool:
    """Whether two pictures are equal; matplotlib of another version may place letters otherwise."""
    return now == made if f"v{mpl.__version__}," in now else now != ""


def answer_tables() -> dict[str, str]:
    """The tables that ``edgefl bench`` prints, by what they tell."""
    blocks: dict[str, list[str]] = {"winners": [], "scores": [], "ranks": [], "costs": [], "variants": []}
    for section in sections(recorded()):
        name = next((name for start, name in STARTS if section.title.startswith(start)), None)
        if name is None:
            continue
        file = io.StringIO()
        print_section(Console(file=file, width=WIDTH, highlight=False, color_system=None), *section)
        blocks[name].append("\n".join(line.rstrip() for line in file.getvalue().strip().splitlines()))
    return {name: "```text\n" + "\n\n".join(texts) + "\n```" for name, texts in blocks.items()}


STARTS = (("Best where", "winners"), ("image-text R@10 on test: mean", "scores"), ("Ranks", "ranks"),
          ("Costs", "costs"), ("Variants", "variants"))  # fmt: skip
"""The beginnings of titles, and the blocks of the page that they stand in."""
