"""Pages of what ``edgefl explore`` answers."""

from __future__ import annotations

from pathlib import Path

from edgefl.html import HERE as SHELL
from edgefl.html import data, templates, written
from edgefl.records.explore import Explored, ExploredDevices
from edgefl.report.charts.palette import BUDGETS, FITS, KINDS, OTHER_BUDGET, PARTS

HERE = Path(__file__).parent
PALETTE = {"fits": FITS, "budgets": BUDGETS, "other": OTHER_BUDGET, "kinds": KINDS, "parts": PARTS}
SCRIPTS = [
    HERE / f"{name}.js"
    for name in ("verdict", "units", "parts", "state", "answer", "choices", "sliders", "axes", "marks", "fleet",
                 "clients", "memory", "command", "explore")
]  # fmt: skip
"""The scripts of the view of a fleet, each using those before it."""


def page_of(record: Explored | ExploredDevices) -> str:
    """The page of a fleet, or of the library's devices."""
    css = written(SHELL / "shell.css", HERE / "explore.css")
    js = written(SHELL / "theme.js", *SCRIPTS)
    return templates(HERE).get_template("explore.html").render(
        title=record.scenario, version=record.edgefl, record=data(record.as_json()), palette=data(PALETTE), css=css, js=js
    )
