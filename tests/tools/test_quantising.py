"""tools/quantising.py: what it measures of a finished run."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgefl

TOOL = Path(__file__).resolve().parents[2] / "tools" / "quantising.py"


@pytest.mark.slow(smaller="test_a_quantised_base_leaves_with_the_values_that_it_computes_with")
def test_a_run_that_is_not_quantised_has_its_own_metric(tiny: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("quantising_program", TOOL)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    data = {"source": "glyphs", "clients": {"text": 2}, "samples": 20, "validation": 20, "test": 40}
    adapter = {"name": "lora", "rank": 2, "also": ["head"]}
    edgefl.run(tiny(data=data, adapter=adapter), out=tmp_path / "run")
    own = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]["text"]
    assert tool.metric(tmp_path / "run", "accuracy", None) == pytest.approx(own["accuracy"])
    assert tool.metric(tmp_path / "run", "accuracy", "int8") == pytest.approx(own["accuracy"], abs=0.1)
