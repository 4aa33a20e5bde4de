"""Pages of what ``edgefl explore`` answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgefl.html import HERE as SHELL
from edgefl.html import data, templates, written
from edgefl.records.explore import Explored, ExploredDevices
from edgefl.report.charts.palette import BUDGETS, FITS, KINDS, OTHER_BUDGET, PARTS
from edgefl.report.explore.devices import devices_shown
from edgefl.report.explore.words import titled

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
    if isinstance(record, ExploredDevices):
        return _page("devices.html", [HERE / "devices.js"], record, shown=devices_shown(record), link=record.link)
    return _page("explore.html", SCRIPTS, record, record=data(record.as_json()), shown=data(shown_of(record)))


def shown_of(record: Explored) -> dict[str, object]:
    """What the scripts show beside the record: the palette, and axes in words."""
    axes = [{"title": axis.title, "choices": list(axis.choices)} for axis in titled(record.axes)]
    return {**PALETTE, "axes": axes}


def _page(template: str, scripts: Sequence[Path], about: Explored | ExploredDevices, **given: object) -> str:
    from markupsafe import Markup

    colours = Markup(f":root {{ --fits: {FITS}; --refused: {BUDGETS['memory']}; }}\n")
    css, js = colours + written(SHELL / "shell.css", HERE / "explore.css"), written(SHELL / "theme.js", *scripts)
    page = templates(HERE).get_template(template)
    return page.render(title=about.scenario, version=about.edgefl, css=css, js=js, **given)
