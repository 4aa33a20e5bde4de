"""Results in notebooks: dictionaries as before, with tables of their figures."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl.report.notebook import PAGES, Shown
from edgefl.report.progress import make_bar
from edgefl.runs import Run
from edgefl.units import show_bytes

RECORDED = Path(__file__).parents[1] / "recorded" / "expected"


def cells(page: str) -> list[list[str]]:
    return [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]


@pytest.mark.parametrize("name", ["profile", "profile-creamfl", "profile-depthfl"])
def test_a_profile_has_a_row_for_each_of_its_rows(name: str) -> None:
    facts = json.loads((RECORDED / f"{name}.json").read_text())
    shown = Shown(facts, PAGES["profile"])
    assert json.loads(json.dumps(shown)) == facts == shown
    page = shown._repr_html_()
    rows = [row for each in facts.get("combinations", {"": facts}).values() for row in each["rows"]]
    found = [row for row in cells(page) if row]
    assert [row[1] for row in found] == [row["kind"] for row in rows]
    assert [row[4] for row in found] == [show_bytes(row["peak_memory_bytes"]) for row in rows]
    assert page.count("data:image/png;base64,") == 1


@pytest.mark.parametrize("name", ["sweep", "sweep-sensitivity"])
def test_a_sweep_has_a_row_for_each_cell(name: str) -> None:
    facts = json.loads((RECORDED / f"{name}.json").read_text())
    found = [row for row in cells(Shown(facts, PAGES["sweep"])._repr_html_()) if row]
    assert [row[0] for row in found] == [row["label"] for row in facts["rows"]]
    assert [row[1] for row in found] == [f"{100 * row['eligible_share']:.0f} %" for row in facts["rows"]]


def test_a_fit_has_a_row_for_each_answer() -> None:
    facts = json.loads((RECORDED / "fit.json").read_text())
    found = [row for row in cells(Shown(facts, PAGES["fit"])._repr_html_()) if row]
    assert len(found) == sum(1 + len(kind["solutions"]) + bool(kind.get("nearest")) for kind in facts["kinds"].values())
    assert found[0][0] == "as it stands"


def test_a_run_shows_its_figures_and_numbers(layerwise_run: Run) -> None:
    page = layerwise_run._repr_html_()
    (row,) = [row for row in cells(page) if row]
    assert row[1:5] == ["fedcola", "layerwise", "3", "4"]
    assert f"{layerwise_run.result['totals']['energy_joules']:.4g}" in row
    assert f"{layerwise_run.result['metrics']['image']['accuracy']:.3f}" in row
    assert "partition of the run" in page


def test_a_command_returns_what_notebooks_show(tiny: Any) -> None:
    facts = edgefl.profile(tiny())
    assert isinstance(facts, dict) and "<table>" in facts._repr_html_()  # type: ignore[attr-defined]


def test_the_bar_reaches_the_end(layerwise_run: Run) -> None:
    with contextlib.redirect_stderr(io.StringIO()) as shown, make_bar() as bar:
        bar("combination", {"label": "layerwise", "index": 0, "of": 1})
        bar("start", {"rounds": 4, "round": 0})
        bar("round", {"round": 1, "stage": 1, "selected": 7, "now": 0.0})
        bar("trained", {"round": 1, "done": 3, "of": 7})
        assert bar.share == pytest.approx(0.9 * 3 / 7 / 4) and bar.doing == "round 1/4: 3 of 7 clients trained"
        for record in layerwise_run.records("rounds"):
            bar("record", record)
    assert "round 1/4: 3 of 7 clients trained" in shown.getvalue() and "100%" in shown.getvalue()
    assert "image acc" in shown.getvalue()
