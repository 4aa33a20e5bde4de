"""tools/second_runtime.py: the rows of the page of evidence are those that it measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.second_runtime import MODELS, measure

KEPT = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "figures" / "second-runtime.json"


def test_batch_norm_that_trains_is_refused_in_the_words_of_the_page() -> None:
    rows = {row["model"]: row for row in json.loads(KEPT.read_text(encoding="utf-8"))["rows"]}
    assert list(rows) == [title for title, _, _ in MODELS.values()]
    assert measure(*MODELS["batchnorm"]) == rows[MODELS["batchnorm"][0]]


@pytest.mark.slow(smaller="test_batch_norm_that_trains_is_refused_in_the_words_of_the_page")
def test_the_row_of_the_text_transformer_is_measured_again() -> None:
    pytest.importorskip("executorch", reason="the extra executorch isn't installed")
    rows = {row["model"]: row for row in json.loads(KEPT.read_text(encoding="utf-8"))["rows"]}
    again = measure(*MODELS["text"])
    for name in ("parameter_bytes", "arena_bytes", "peak_memory_bytes"):
        assert again[name] == rows[again["model"]][name]
