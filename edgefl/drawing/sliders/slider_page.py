"""Pages with sliders, of a fleet or of devices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgefl import units
from edgefl.devices.budgets import Budget, budget_named, colour_of
from edgefl.drawing.charts.palette import FITS, KINDS, PARTS
from edgefl.drawing.sliders.devices import devices_shown
from edgefl.drawing.sliders.page_data import DeviceChoices, FleetSliders
from edgefl.drawing.sliders.words import title_axes
from edgefl.html import HERE as SHELL
from edgefl.html import data, read_texts, templates

if TYPE_CHECKING:
    from markupsafe import Markup

HERE = Path(__file__).parent
PALETTE = {"fits": FITS, "other": Budget.colour, "kinds": KINDS, "parts": PARTS}
SCRIPTS = [
    HERE / f"{name}.js"
    for name in ("verdict", "units", "parts", "state", "answer", "choices", "sliders", "axes", "marks", "fleet",
                 "clients", "memory", "view")
]  # fmt: skip
"""The scripts of the view of a fleet, each using those before it."""


@dataclass(frozen=True)
class View:
    """What ``view.html`` needs beside its elements: the record, what is shown beside it, units, and the scripts."""

    record: Markup
    shown: Markup
    units: Markup
    js: Markup


def page_of(record: FleetSliders | DeviceChoices) -> str:
    """The page of a fleet, or of the library's devices."""
    template, given = ("fleet.html", view_of(record)) if isinstance(record, FleetSliders) else ("devices.html", None)
    js = read_texts(SHELL / "theme.js", *([] if given else [HERE / "devices.js"]))
    shown = devices_shown(record) if isinstance(record, DeviceChoices) else None
    return (
        templates(HERE)
        .get_template(template)
        .render(about=record, given=given, shown=shown, css=read_texts(SHELL / "shell.css") + css_of_view(), js=js)
    )


def view_of(record: FleetSliders) -> View:
    """The view of a fleet, for a page of its own or as a section of another."""
    axes = [{"title": axis.title, "choices": list(axis.choices)} for axis in title_axes(record.axes)]
    shown = {**PALETTE, "budgets": {budget.name: colour_of(budget.name) for budget in record.budgets}, "axes": axes}
    budgets = {budget.unit: budget_named(budget.name).quantity for budget in record.budgets}
    own = {
        "share": units.SHARE,
        **{each.unit: each for each in (units.BYTES, units.FLOPS, units.SECONDS, units.JOULES)},
    }
    quantities = {unit: quantity.to_page() for unit, quantity in {**budgets, **own}.items()}
    return View(data(record.to_data()), data(shown), data(quantities), read_texts(*SCRIPTS))


def css_of_view() -> Markup:
    """How the view looks."""
    from markupsafe import Markup

    colours = f":root {{ --fits: {FITS}; --refused: {colour_of('memory')}; }}\n"
    return Markup(colours) + read_texts(HERE / "view.css")
