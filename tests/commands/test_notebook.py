"""Answers in notebooks: tables of their figures."""

from __future__ import annotations

import contextlib
import html
import io
import re
from dataclasses import replace
from typing import Any

import pytest

import edgefl
from edgefl.commands.fit.table import print_fit
from edgefl.commands.profile.table import print_answer
from edgefl.commands.sweep.table import print_sweep
from edgefl.console.display import make_bar
from edgefl.runs import Run
from tests.toys.answers import recorded_fit, recorded_profile, recorded_sweep


def cells(page: str) -> list[list[str]]:
    return [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]


SHOWN = {
    "profile": (lambda: recorded_profile("profile"), print_answer),
    "sweep": (lambda: recorded_sweep("sweep"), print_sweep),
    "fit": (recorded_fit, print_fit),
}


@pytest.mark.parametrize("name", SHOWN)
def test_an_answer_shows_what_its_command_prints(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    made, show = SHOWN[name]
    show(made())
    page = made()._repr_html_()
    assert page.startswith("<pre>") and html.unescape(page) == f"<pre>{capsys.readouterr().out}</pre>"


def test_no_name_is_a_tag_of_the_page() -> None:
    fit = replace(recorded_fit(), scenario="<script>")
    assert "&lt;script&gt;" in fit._repr_html_() and "<script>" not in fit._repr_html_()


def test_a_run_shows_its_figures_and_numbers(layerwise_run: Run) -> None:
    page = layerwise_run._repr_html_()
    (row,) = [row for row in cells(page) if row]
    assert row[1:5] == ["fedcola", "layerwise", "3", "4"]
    assert f"{layerwise_run.result['totals']['energy_joules']:.4g}" in row
    assert f"{layerwise_run.result['metrics']['image']['accuracy']:.3f}" in row and "image accuracy, test" in page
    assert "partition of the run" in page


def test_a_command_returns_what_notebooks_show(tiny: Any) -> None:
    assert "<pre>" in str(edgefl.profile(tiny())._repr_html_())


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
