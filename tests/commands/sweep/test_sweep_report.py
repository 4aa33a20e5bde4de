from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from edgefl.commands.sweep.chart import sweep_chart
from edgefl.drawing.figures import draw_figure
from edgefl.drawing.text_tables import field_formatter


def test_a_field_is_shown_by_its_unit() -> None:
    assert field_formatter("schedule_bytes")(3 * 2**20) == "3 MiB"
    assert field_formatter("round_seconds")(1.5) == "1.5 s"
    assert field_formatter("stage2.kinds.image.energy_joules")(2000.0) == "2 kJ"
    assert field_formatter("metrics.image.accuracy")(0.25) == field_formatter("eligible_share")(0.25) == "25 %"
    assert field_formatter("excluded_samples")(1234.0) == "1,234"


AXES = (["method", "training.batch"], [["fedavg", "fedcola"], ["batch=8", "batch=16", "batch=32"]])
VALUES = [0.1, 0.5, 1.0, None, 0.25, 0.75]


@pytest.mark.parametrize("form", ["png", "pdf", "svg"])
def test_two_axes_are_a_map(tmp_path: Path, form: str) -> None:
    file = tmp_path / f"map.{form}"
    draw_figure(sweep_chart("tiny", "eligible_share", *AXES, VALUES), file)
    if form == "png":
        with Image.open(file) as picture:
            assert min(picture.size) > 200
    elif form == "svg":
        assert file.read_text().startswith("<?xml")
    else:
        assert file.read_bytes().startswith(b"%PDF")


def test_one_axis_none_and_three_have_a_picture_too(tmp_path: Path) -> None:
    draw_figure(
        sweep_chart("tiny", "round_seconds", ["seed"], [["seed=1", "seed=2"]], [1.0, None]), tmp_path / "bars.png"
    )
    draw_figure(sweep_chart("tiny", "round_seconds", [], [], [1.0]), tmp_path / "one.png")
    three = (["seed", *AXES[0]], [["seed=1", "seed=2"], *AXES[1]])
    draw_figure(sweep_chart("tiny", "eligible_share", *three, VALUES * 2), tmp_path / "three.png")
    draw_figure(sweep_chart("tiny", "round_seconds", *AXES, [None] * 6), tmp_path / "nobody.png")
    assert len(list(tmp_path.iterdir())) == 4


def test_a_page_says_each_cell_in_its_unit(tmp_path: Path) -> None:
    draw_figure(sweep_chart("tiny", "eligible_share", *AXES, VALUES), tmp_path / "map.html")
    page = (tmp_path / "map.html").read_text()
    assert "25 %" in page and "no client" in page and "training.batch" in page
