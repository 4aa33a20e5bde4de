"""Figures in sentences: each is the one of its file, and a wrong name or place is said with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.emulation.answer import ClientRound
from tools.pages.measured import figures, files_with_figures, recorded, with_figures
from tools.pages.running import ROOT
from tools.published_steps.agreement import FACTOR
from tools.validate_clock import OWN, Row, record

PHASES = ("download", "compute", "upload", "round")

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
    text = (ROOT / file).read_text(encoding="utf-8")
    assert with_figures(text, file) == text, f"run `python tools/pages.py {file}`"


def test_the_tools_record_what_the_pages_read(tmp_path: Path) -> None:
    """Of emulation: five client-rounds whose seconds of computing are 10 % too long, everything else equal."""
    seconds: dict[str, Any] = {f"{side}_{phase}_seconds": 2.0 for side in ("simulated", "emulated") for phase in PHASES}
    seconds |= {"with_measured_compute_seconds": 2.0, "processor_seconds_over_quota": 2.0}
    seconds["simulated_compute_seconds"] = 2.2
    rows = [
        Row(OWN, "fedavg", "end-to-end",
            ClientRound(round=1, client=client, stage=1, kind="image", device="a", link="b", share=0.5, **seconds))
        for client in range(5)
    ]  # fmt: skip
    file = tmp_path / "emulation.json"
    file.write_text(json.dumps({"frames": recorded("emulation")["frames"]}))
    record({"machine": "a server"}, rows, file)
    found, known = json.loads(file.read_text()), recorded("emulation")
    assert found.keys() <= known.keys() and found["frames"] == known["frames"]
    assert found["groups"][0].keys() == known["groups"][0].keys()
    assert found["groups"][0]["compute"] == pytest.approx([10.0, 10.0])
    assert found["groups"][0]["round"] == [0.0, 0.0]
