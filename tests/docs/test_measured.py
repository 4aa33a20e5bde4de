"""Figures in sentences: each is the one of its file, and a wrong name or place is said with its line."""

from __future__ import annotations

import pytest

from tools.pages.measured import figures, files_with_figures, recorded, with_figures
from tools.published_steps.agreement import FACTOR

SPAN = "It is off by <!-- figure: {} -->1 %<!-- / --> there."


def test_a_span_gets_the_figure_of_its_name() -> None:
    known = figures()["seconds.unseen-device"]
    expected = f"A.\nIt is off by <!-- figure: seconds.unseen-device -->{known}<!-- / --> there."
    assert with_figures("A.\n" + SPAN.format("seconds.unseen-device"), "a.md") == expected


def test_an_unknown_name_is_said_with_its_line_and_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"a\.md:2: no figure 'seconds\.unseen-devise'; nearest: seconds\.unseen-dev"):
        with_figures("A.\n" + SPAN.format("seconds.unseen-devise"), "a.md")


@pytest.mark.parametrize("before", ["", "- ", "  1. ", "## About "])
def test_a_span_neither_begins_a_line_nor_is_in_a_heading(before: str) -> None:
    with pytest.raises(ValueError, match=r"a\.md:2: a figure's span can't begin a line"):
        with_figures(f"A.\n{before}<!-- figure: gpu.models -->30<!-- / --> models", "a.md")


def test_figures_of_the_gpu_are_counted_from_its_rows() -> None:
    models = recorded("gpu")["models"]
    steps = [1 + model["seconds_error"] / 100 for model in models if "gru" not in model["model"]]
    assert figures()["gpu.seconds.within"] == str(sum(1 / FACTOR <= step <= FACTOR for step in steps))
    assert int(figures()["gpu.models-compared"]) < int(figures()["gpu.models"]) == len(models)


@pytest.mark.parametrize("file", files_with_figures())
def test_pages_have_the_figures_of_the_files(file: str) -> None:
    from tools.pages.running import ROOT

    text = (ROOT / file).read_text(encoding="utf-8")
    assert with_figures(text, file) == text, f"run `python tools/pages.py {file}`"
