"""What a profile prints: CSV that comes back, tables that fit, figures that hold what was found."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image
from rich.console import Console

import edgefl
from edgefl import units
from edgefl.commands.profile.answer import Profile, ProfileRow
from edgefl.commands.profile.chart import stages_chart
from edgefl.commands.profile.rounds_table import print_profile
from edgefl.commands.profile.table import profile_csv
from edgefl.commands.profile.timeline import memory_timeline
from edgefl.drawing.figures import check_figure, draw_figure
from edgefl.drawing.text_tables import flat
from edgefl.errors import RunError
from edgefl.machine import kernel_scratch
from edgefl.records.record import Record
from edgefl.work import PARTS, LiveMoment, Timeline

Tiny = Callable[..., dict[str, Any]]

DECLARED = {"source": "declared", "clients": {"image": 2, "text": 2}, "samples": 40, "validation": 30,
            "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}, "text": {"vocabulary": 200}}}  # fmt: skip
STAGES = [{"name": "end-to-end", "rounds": 2}, {"name": "layerwise", "stages": 2, "rounds": 4}]


@pytest.fixture(scope="module")
def scenario(tiny: Tiny) -> dict[str, Any]:
    return tiny(data=DECLARED, method="fedcola", compare={"schedule": STAGES})


@pytest.fixture(scope="module")
def found(scenario: dict[str, Any]) -> Profile:
    return edgefl.profile(scenario)


def shown(show: Callable[..., None], facts: Record) -> str:
    file = io.StringIO()
    show(facts, Console(file=file, width=100, no_color=True, color_system=None))
    text = file.getvalue()
    assert max(map(len, text.splitlines())) <= 100
    return text


def six(rows: Sequence[ProfileRow]) -> Profile:
    """A profile of these rows alone."""
    return Profile(
        scenario="six", rows=rows, totals=[], server_rows=[], round_totals=[],
        client_evaluation_rows=[],
    )  # fmt: skip


def test_csv_comes_back_as_it_was(found: Profile) -> None:
    table = pd.read_csv(io.StringIO(profile_csv(found)))
    rows = [(label, row) for label, part in found["combinations"].items() for row in part["rows"]]
    assert list(table["combination"]) == [label for label, _ in rows]
    for line, (_, row) in zip(table.to_dict("records"), rows, strict=True):
        for name, value in flat(row).items():
            assert line[name] == value
    assert {"memory_bytes.activations", "download_bytes_by_part.blocks"} <= set(table.columns)
    # fields of one quantity stand side by side
    order = [name.partition(".")[0] for name in table.columns]
    assert sum(a != b for a, b in pairwise(order)) == len(set(order)) - 1
    assert "combination" not in profile_csv(six(found.rows)).partition("\n")[0]


def test_what_a_row_lacks_is_left_empty(found: Profile) -> None:
    (first, second) = found.rows
    second = replace(second, download_bytes_by_payload={"model": 1, "prototypes": 2})
    table = pd.read_csv(io.StringIO(profile_csv(six([first, second]))))
    assert table["download_bytes_by_payload.prototypes"].isna().tolist() == [True, False]
    assert list(table["kind"]) == ["image", "text"]


def test_the_table_keeps_the_overhead_apart(found: Profile) -> None:
    text = shown(partial(print_profile, full=True), found)
    device = found["rows"][0]["device"]
    assert "the peak and 360 MiB of Python and torch (211 MiB to 420 MiB, estimated)" in text
    assert f"{device} has 3.15 GiB for tensors" in " ".join(text.split())
    for words in ("=== layerwise on ", "Traffic by part, MiB", "evaluate validation",
                  "One round: expected selected clients and the server, without evaluation"):  # fmt: skip
        assert words in text


def test_a_profile_opens_with_its_hardest_stages(found: Profile) -> None:
    lines = shown(print_profile, found).splitlines()
    assert len(lines) <= 26 and lines[0].startswith("One client's round of tiny on raspberry-pi-4-4gb")
    total = found["combinations"]["layerwise"]["totals"][0]
    (line,) = [line for line in lines if line.startswith("layerwise")]
    hardest = max(found["combinations"]["layerwise"]["rows"], key=lambda row: row["peak_memory_bytes"])
    assert f"{hardest['stage']} of 2" in line and units.show_bytes(total["traffic_bytes"]) in line


def test_six_stages_of_three_kinds_take_26_lines_and_what_stands_out_is_told(found: Profile) -> None:
    (row, _) = found["rows"]
    rows = [replace(row, stage=stage, kind=kind) for stage in range(1, 7) for kind in ("image", "text", "image-text")]
    lines = shown(print_profile, six(rows)).splitlines()
    assert len(lines) <= 26 and sum("image-text" in line for line in lines) == 6
    hot = replace(
        rows[0], throttling_seconds=20.0, throttling_included=True, available_memory_bytes=1, memory_assumed=True
    )
    lines = shown(print_profile, six([*rows[1:], hot])).splitlines()
    assert len(lines) <= 26
    assert "times include throttling: 20 s of image, stage 1" in lines
    assert "too large for the 1 B that the device has for tensors: image, stage 1" in lines
    text = shown(print_profile, six([replace(hot, throttling_included=False)]))
    assert "throttling isn't in these times (fleet.throttling): +20 s for image, stage 1" in text
    # 36 rows are too many: a line for each kind, at its hardest stage
    many = [replace(each, stage=each.stage + more) for more in (0, 6) for each in rows]
    lines = shown(print_profile, replace(six(many), totals=found.totals)).splitlines()
    assert len(lines) <= 26 and sum("of 12" in line for line in lines) == 3


# --- figures ---------------------------------------------------------------------------------------------------------


def _moment(operator: str, scope: str, phase: str, step: int, **parts: int) -> LiveMoment:
    return LiveMoment(operator, scope, phase, 0, "image", step, tuple(parts.get(part, 0) for part in PARTS))


TIMELINE = Timeline(
    [
        _moment("aten.addmm", "image.blocks.0", "forward", 1, parameters=2**20, activations=2**20),
        _moment("aten.mm", "image.blocks.1", "backward", 1, parameters=2**20, activations=2**21, temporaries=2**19),
        _moment("aten._foreach_add_", "", "optimizer", 1, parameters=2**20, optimizer=2**21),
        _moment("aten.addmm", "image.head", "forward", 2, parameters=2**20, optimizer=2**21),
    ]
)


def test_scratch_that_cannot_be_continued_is_told_as_assumed(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call is as small as those that may be run here."""
    monkeypatch.setenv("EDGEFL_CACHE", str(tmp_path))
    monkeypatch.setattr(kernel_scratch, "PROBED_BYTES", 1)
    found = edgefl.profile(tiny(data={**DECLARED, "clients": {"text": 1}}))
    row = found.rows[0]
    assert row.memory_assumed and row.peak_memory_bytes > row.live_memory_bytes
    assert "scratch isn't measured on this machine" in shown(print_profile, found)


def test_the_page_of_a_timeline_is_whole_and_marks_the_peak(tmp_path: Path) -> None:
    draw_figure(memory_timeline(TIMELINE, "tiny: image, stage 1"), tmp_path / "t.html")
    page = (tmp_path / "t.html").read_text()
    assert "peak 3.50 MiB at aten.mm in image.blocks.1, backward" in page
    assert "image.head, forward" in page.replace("\\u002f", "/") and "optimizer" in page
    # nothing is fetched: the program that draws it is inside
    assert len(page) > 1_000_000 and '<script src="http' not in page
    plots = json.loads(page.partition('id="plots">')[2].partition("</script>")[0])
    assert [trace["name"] for trace in plots[0]["data"]] == [
        "parameters", "optimizer", "activations", "temporaries", "all", "peak"
    ]  # fmt: skip


def test_the_picture_of_a_timeline_is_one(tmp_path: Path) -> None:
    draw_figure(memory_timeline(TIMELINE, "tiny: image, stage 1"), tmp_path / "t.png")
    with Image.open(tmp_path / "t.png") as picture:
        assert picture.width > 2 * picture.height > 0


def test_the_profile_draws_what_peaks_highest(scenario: dict[str, Any], tmp_path: Path) -> None:
    plain = {key: value for key, value in scenario.items() if key != "compare"}
    found = edgefl.profile(plain, timeline=tmp_path / "t.png", figure=tmp_path / "f.png")
    facts = found["timeline"]
    hungriest = max(found["rows"], key=lambda row: row["peak_memory_bytes"])
    assert (facts["kind"], facts["stage"]) == (hungriest["kind"], 1)
    scratch = hungriest["memory_bytes"]["scratch"]  # which the timeline of tensors lacks
    assert hungriest["peak_memory_bytes"] - scratch <= facts["peak_memory_bytes"] <= hungriest["peak_memory_bytes"]
    assert facts["phase"] in ("forward", "backward", "optimizer") and facts["operator"].startswith("aten.")
    assert 0 <= facts["moment"] < facts["moments"]
    assert (tmp_path / "t.png").stat().st_size
    with Image.open(tmp_path / "f.png") as picture:
        assert picture.mode == "P" and picture.height > picture.width > 0
    json.dumps(found.to_data())


@pytest.mark.parametrize("form", ["png", "svg"])
def test_the_stages_are_drawn_by_combination(found: Profile, tmp_path: Path, form: str) -> None:
    draw_figure(stages_chart(found["combinations"]), tmp_path / f"stages.{form}")
    assert (tmp_path / f"stages.{form}").stat().st_size > 1000


def test_a_figure_that_can_not_be_is_said_before_anything_is_computed(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"t.pdf: its name ends in .pdf; allowed: .html, .png"):
        edgefl.profile("quickstart", timeline=tmp_path / "t.pdf")
    with pytest.raises(RunError, match="its name has no extension"):
        edgefl.profile("quickstart", figure=tmp_path / "f")
    with pytest.raises(RunError, match="the folder .* doesn't exist"):
        check_figure(tmp_path / "none" / "f.png", ("png",))
    (tmp_path / "d.png").mkdir()
    with pytest.raises(RunError, match="it is a folder"):
        check_figure(tmp_path / "d.png", ("png",))
