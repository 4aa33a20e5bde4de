"""``edgefl profile --measure``: what is predicted is what this machine does, and what doesn't fit isn't begun."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import edgefl
from edgefl.commands.profile.measure import count, measure
from edgefl.commands.profile.measured_table import print_counts, print_measured
from edgefl.commands.profile.table import print_answer
from edgefl.drawing.text_tables import screen
from edgefl.errors import ScenarioError, UnknownName

Tiny = Callable[..., dict[str, Any]]
DECLARED = {
    "source": "declared",
    "clients": {"image": 2, "image-text": 1},
    "samples": 64,
    "shapes": {"image": {"size": 16, "classes": 5}, "text": {"vocabulary": 50, "classes": 5}},
}


QUICK = {"calibration_seconds": 0.05}
"""Rates at which nothing here looks closely."""


def test_declared_data_are_measured_to_the_byte(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[str] = []
    found = measure(tiny(data=DECLARED), on_progress=lambda _, facts: heard.append(facts["what"]), **QUICK)
    assert [(r["kind"], r["stage"]) for r in found["rows"]] == [("image", 1), ("image-text", 1)]
    for row in found["rows"]:
        assert abs(row["memory_error"]) < 1e-3 and row["live_memory_error"] == row["flops_error"] == 0
        assert row["live_memory_bytes_by_part"] == row["measured_live_memory_bytes_by_part"]
        assert row["peak_memory_bytes"] == sum(row["memory_bytes"].values()) >= row["live_memory_bytes"]
        assert not row["memory_assumed"]
        assert 0 < row["rss_bytes_before"] <= row["rss_bytes_peak"]
        (step,) = row["steps"]
        assert step["seconds"] > 0 and step["measured_cpu_seconds"] > 0
    assert any("predicting" in what for what in heard) and any("allocator" in what for what in heard)
    json.dumps(found.to_data(), allow_nan=False)
    print_measured(found, screen())
    assert "0 %" in capsys.readouterr().out


@pytest.mark.slow(smaller="test_declared_data_are_measured_to_the_byte")
def test_a_stage_and_a_kind_are_measured_alone(tiny: Tiny) -> None:
    schedule = {"name": "layerwise", "stages": 2, "rounds": 4}
    scenario = tiny(data=DECLARED, schedule=schedule, method="fedavg", training={"batch": 8, "accumulation": 2})
    (row,) = measure(scenario, kind="image", stage=2, **QUICK)["rows"]
    assert (row["kind"], row["stage"], row["live_memory_error"]) == ("image", 2, 0)
    with pytest.raises(UnknownName, match="did you mean 'image'"):
        measure(scenario, kind="imag")
    with pytest.raises(ScenarioError, match="stages 1 to 2"):
        measure(scenario, stage=3)


def test_what_does_not_fit_is_refused_before_anything_runs(tiny: Tiny) -> None:
    huge = {**DECLARED, "samples": 4_000_000}
    heard: list[str] = []
    with pytest.raises(ScenarioError, match=r"image at stage 1 is predicted to need .*training.batch"):
        measure(
            tiny(data=huge, training={"batch": 4_000_000}), on_progress=lambda _, facts: heard.append(facts["what"])
        )
    assert not any("metered" in what or "calibrating" in what for what in heard)


def test_both_counts_of_a_scenario_agree(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    rows = count(tiny(data=DECLARED), kind="image-text")
    assert [(r["error"], r["differing"]) for r in rows] == [(0, [])]
    assert rows[0]["forward_macs_by_part"] == rows[0]["fvcore_forward_macs_by_part"]
    print_counts(rows, screen())
    assert f"{rows[0]['forward_macs']:,}" in capsys.readouterr().out


@pytest.mark.slow(smaller="test_declared_data_are_measured_to_the_byte")  # it calibrates this machine for seconds
def test_a_profile_has_what_was_measured_and_counted_beside_it(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = tiny(data=DECLARED)
    found = edgefl.profile(scenario, kind="image", measure=True, fvcore=True)
    assert found.rows == edgefl.profile(scenario, kind="image").rows
    assert found.measured and [row.flops_error for row in found.measured.rows] == [0]
    assert found.fvcore and [row.kind for row in found.fvcore] == ["image"]
    print_answer(found, screen())
    out = capsys.readouterr().out
    places = [out.index(words) for words in ("One client's round", "Predicted against measured", "Forward MACs")]
    assert places == sorted(places)
