"""Answers in notebooks: tables of their figures."""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import replace
from typing import Any

import pytest

import edgefl
from edgefl.commands.fit.answer import ScenarioChange
from edgefl.console.display import make_bar
from edgefl.runs import Run
from edgefl.units import show_bytes
from tests.toys.answers import recorded_fit, recorded_profile, recorded_sweep


def cells(page: str) -> list[list[str]]:
    return [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]


@pytest.mark.parametrize("name", ["profile", "profile-creamfl", "profile-depthfl"])
def test_a_profile_has_a_row_for_each_of_its_rows(name: str) -> None:
    profile = recorded_profile(name)
    page = profile._repr_html_()
    rows = [row for part in profile.parts.values() for row in part.rows]
    found = [row for row in cells(page) if row]
    assert [row[1] for row in found] == [row.kind for row in rows]
    assert [row[4] for row in found] == [show_bytes(row.peak_memory_bytes) for row in rows]
    assert page.count("data:image/png;base64,") == 1


@pytest.mark.parametrize("name", ["sweep", "sweep-sensitivity"])
def test_a_sweep_has_a_row_for_each_cell(name: str) -> None:
    sweep = recorded_sweep(name)
    found = [row for row in cells(sweep._repr_html_()) if row]
    assert [row[0] for row in found] == [row.label for row in sweep.rows]
    assert [row[1] for row in found] == [f"{100 * row.eligible_share:.0f} %" for row in sweep.costed_cells]


def test_a_fit_has_a_row_for_each_answer() -> None:
    fit = recorded_fit()
    found = [row for row in cells(fit._repr_html_()) if row]
    assert len(found) == sum(1 + len(kind.solutions) + bool(kind.nearest) for kind in fit.kinds.values())
    assert found[0][0] == "as it stands"
    (name, kind), *_ = fit.kinds.items()
    changed = replace(kind.as_it_stands, changes=[ScenarioChange(what="batch 4", changes="computation")])
    page = replace(fit, kinds={name: replace(kind, solutions=[changed])})._repr_html_()
    assert [row[0] for row in cells(page) if row] == ["as it stands", "batch 4"]


def test_a_run_shows_its_figures_and_numbers(layerwise_run: Run) -> None:
    page = layerwise_run._repr_html_()
    (row,) = [row for row in cells(page) if row]
    assert row[1:5] == ["fedcola", "layerwise", "3", "4"]
    assert f"{layerwise_run.result['totals']['energy_joules']:.4g}" in row
    assert f"{layerwise_run.result['metrics']['image']['accuracy']:.3f}" in row and "image accuracy, test" in page
    assert "partition of the run" in page


def test_a_command_returns_what_notebooks_show(tiny: Any) -> None:
    assert "<table>" in str(edgefl.profile(tiny())._repr_html_())


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
