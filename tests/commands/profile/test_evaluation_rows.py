"""A profile's rows of clients' evaluations are what a run records for the client with the most held-out samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgefl

Tiny = Callable[..., dict[str, Any]]


def test_rows_are_what_a_run_records(tiny: Tiny, tmp_path: Path) -> None:
    scenario = tiny(
        data={"source": "glyphs", "clients": {"image": 3, "text": 2}, "samples": 40, "validation": 20, "test": 20},
        schedule={"name": "layerwise", "stages": [1, 1], "rounds": 4},
        method="ditto",
        training={"mode": "none"},
        evaluation={"clients": "25%", "every": 1},
    )
    rows = edgefl.profile(scenario)["client_evaluation_rows"]
    assert [(row["stage"], row["kind"]) for row in rows] == [(1, "image"), (1, "text"), (2, "image"), (2, "text")]
    found = edgefl.run(scenario, out=tmp_path / "run").client_evaluations
    for row in rows:
        alike = found[(found["stage"] == row["stage"]) & (found["kind"] == row["kind"])]
        assert row["samples"] == alike["samples"].max()
        alike = alike[alike["samples"] == row["samples"]]
        for field in ("peak_memory_bytes", "forward_flops", "backward_flops", "compute_seconds"):
            assert set(alike[field]) == {row[field]}
        assert row["download_bytes"] in set(alike["download_bytes"])  # of a client without stale copies
        assert row["virtual_seconds"] == pytest.approx(row["download_seconds"] + row["compute_seconds"])


def test_there_are_none_without_held_out_samples(tiny: Tiny) -> None:
    assert edgefl.profile(tiny())["client_evaluation_rows"] == []
