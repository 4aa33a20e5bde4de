"""Exports of M-Lab's unified views become a link: closed forms of medians, percentiles and spreads."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgefl.devices import load_link, read_link

TOOL = Path(__file__).resolve().parents[2] / "tools" / "import_ndt.py"
ROWS = [
    {
        "date": f"2025-06-{1 + i:02d}",
        "ip": f"192.0.2.{i}",
        "a": {"MeanThroughputMbps": 10.0 + i, "MinRTT": 20.0 + i, "LossRate": 0.02},
    }
    for i in range(21)
]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("import_ndt", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["import_ndt"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def as_csv(rows: list[dict[str, Any]], join: str) -> str:
    text = io.StringIO()
    flat = [
        {k: v for k, v in row.items() if k != "a"} | {f"a{join}{k}" if join else k: v for k, v in row["a"].items()}
        for row in rows
    ]
    writer = csv.DictWriter(text, flat[0])
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def imported(tool: ModuleType, tmp_path: Path, down: str, up: str) -> Any:
    (tmp_path / "down").write_text(down)
    (tmp_path / "up").write_text(up)
    out = tmp_path / "city.yaml"
    args = ["--downloads", str(tmp_path / "down"), "--uploads", str(tmp_path / "up"), "-o", str(out), "--force"]
    assert tool.main([*args, "--like", "lte"]) == 0
    return read_link(out)


def test_medians_and_percentiles_are_those_of_the_rows(tool: ModuleType, tmp_path: Path) -> None:
    found = imported(tool, tmp_path, as_csv(ROWS, "."), json.dumps(ROWS))
    assert found.loss == 0.02
    assert found.download_goodput == pytest.approx(20e6, rel=5e-3)  # of 10..30 Mbit/s
    fact = found.facts["download_bits_per_second"]
    assert (fact.low, fact.high) == pytest.approx((12e6 / 0.98, 28e6 / 0.98), rel=5e-3)
    assert found.latency_seconds == pytest.approx(0.030) and fact.confidence == "measured"
    spread = np.log([row["a"]["MeanThroughputMbps"] for row in ROWS]).std(ddof=1)  # type: ignore[index]
    assert found.jitter == pytest.approx(spread, rel=5e-3)
    assert "2025-06-01 to 2025-06-21" in fact.source.title and "21 tests" in fact.source.quote
    assert found.download_watts == load_link("lte").download_watts
    assert found.facts["download_watts"].confidence == "estimated"


def test_the_forms_of_an_export_say_the_same(tool: ModuleType, tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(row) for row in ROWS)
    texts = json.dumps([{**row, "a": {k: str(v) for k, v in row["a"].items()}} for row in ROWS])  # type: ignore[attr-defined]
    forms = [as_csv(ROWS, "."), as_csv(ROWS, "_"), as_csv(ROWS, ""), lines, texts]
    found = [imported(tool, tmp_path, form, form) for form in forms]
    assert all(one == found[0] for one in found)


def test_jitter_is_within_clients_where_some_have_several_tests(tool: ModuleType, tmp_path: Path) -> None:
    # two clients far apart, each with a spread of its own: sigma of +-0.1 about each mean is 0.1 x sqrt(20 / 18)
    rows = [
        {"ip": str(c), "MeanThroughputMbps": 100.0**c * math.exp(0.1 * (-1) ** i), "MinRTT": 5, "LossRate": 0}
        for c in range(2)
        for i in range(10)
    ]
    found = imported(tool, tmp_path, json.dumps(rows), json.dumps(rows))
    assert found.jitter == pytest.approx(0.1 * math.sqrt(20 / 18), abs=1e-3)
    assert "within 2 clients" in found.facts["jitter"].source.quote and found.loss == 0


def test_rows_without_a_throughput_are_counted_and_left_out(tool: ModuleType, tmp_path: Path) -> None:
    holes = [{"a": {"MeanThroughputMbps": value, "MinRTT": 1e9, "LossRate": None}} for value in (None, 0, "NaN")]
    found = imported(tool, tmp_path, json.dumps([*ROWS, *holes]), json.dumps(ROWS))
    assert found.latency_seconds == pytest.approx(0.030)
    assert "3 rows without one" in found.facts["download_bits_per_second"].source.quote


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "no column MeanThroughputMbps; the columns are a, b"),
        ("MeanThroughputMbps\nfast\n", ":2: meanthroughputmbps: 'fast' is not a number"),
        ("MeanThroughputMbps\n-3\n", "must be 0 or more"),
        ("MeanThroughputMbps,LossRate\n3,2\n", "LossRate must be a share below 1, not 2"),
        ("MeanThroughputMbps\n3\n4\n", "2 tests with a throughput; at least 10 are needed"),
        ("", "0 tests"),
        ("MeanThroughputMbps\n3,4\n", ":2: more fields than the 1 columns"),
        ("MeanThroughputMbps,MeanThroughputMbps\n3,4\n", ":1: 2 columns are named 'MeanThroughputMbps'"),
        ("{broken", "not valid JSON"),
        ("[1]", "expected an object"),
        ("\n".join(["MeanThroughputMbps", *"123456789123"]), "needs a latency"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(
    tool: ModuleType, tmp_path: Path, capsys: Any, text: str, said: str
) -> None:
    (tmp_path / "x").write_text(text)
    out = tmp_path / "out.yaml"
    assert tool.main(["--downloads", str(tmp_path / "x"), "--uploads", str(tmp_path / "x"), "-o", str(out)]) == 2
    heard = capsys.readouterr().err
    assert said in heard and heard.count("\n") == 1 and not out.exists()
