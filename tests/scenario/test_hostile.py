"""Scenarios that are hostile or mistyped: one line with the place, never a traceback, a hang or the whole input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgefl.errors import LONGEST_LINE, EdgeflError, ScenarioError, UnknownName, shorten_text
from edgefl.scenario import load

BASE: dict[str, Any] = {"model": {"image": {}, "text": {}}}
FLEET = """\
title: mine
source: {title: a list, date: 2026-01-01, quote: none}
confidence: estimated
fleet:
  devices: raspberry-pi-4-4gb
"""
LONG = "k" * 100_000


def refused(data: dict[str, Any], *overrides: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        load(data, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("  devicez: lte", ":6: fleet.devicez: unknown key 'devicez'; did you mean 'devices'?"),
        ("  links: {wifi-5: 40%}", ":6: fleet.links: the shares add up to 40 %, not to 100 %"),
        ("  budgets: {memry: 1}", ":6: fleet.budgets.memry: unknown key 'memry'; did you mean 'memory'?"),
    ],
)
def test_a_mistyped_field_of_a_fleet_in_a_file_has_its_file_and_line(tmp_path: Path, line: str, expected: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(FLEET + line + "\n")
    assert refused({**BASE, "fleet": str(path)}).endswith(f"fleet.like: {path}{expected}")


@pytest.mark.parametrize("tower", ["{a: 1}", "[1]", "3"])
def test_a_tower_that_is_no_name_is_unknown(tower: str) -> None:
    assert "unknown tower" in refused(BASE, f"model.image.tower={tower}")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.text.mlp_ratio='inf'", "model.text.mlp_ratio: must be a finite number, not inf"),
        ("model.text.mlp_ratio='-nan'", "model.text.mlp_ratio: must be"),
        ("model.text={tower: vit}", "model.text: the tower vit takes image, not text"),
        ("training.lr='Infinity'", "training.lr: must be a finite number, not inf"),
        ("data.partition={image: 3}", "data.partition: image: 3 is not a partition; write iid"),
        ("data.partition={image: {}}", "data.partition: image: {} is not a partition"),
        ("data.partition={image: iid, texts: iid}", "'texts' is not a kind of client; did you mean 'text'?"),
        ("fleet.²=x", "fleet.²: unknown key '²'"),
        (f"fleet.links.{'9' * 5000}=x", "'x' is not a share"),
        ("data.test=1e308", "data.test: must be at most 1e+09, not 1e+308"),
        ("data.samples=1e12", "data.samples"),
        ("data.samples=1000000000000", "data.samples: must be from 1 to 2147483647, not 1000000000000"),
        ("data.vocabulary=1000000000000", "data.vocabulary: must be at most 1000000"),
        ("schedule={name: layerwise, stages: 1000000000}", "schedule.stages: must be at most 10000"),
    ],
)
def test_a_wrong_value_is_refused_in_a_line(override: str, expected: str) -> None:
    message = refused(BASE, override)
    assert expected in message and "\n" not in message


@pytest.mark.parametrize(
    "override",
    [f"{LONG}=3", f"data.{LONG}=3", f"data.source={LONG}", f"method={LONG}", f"fleet.devices={LONG}", f"name={LONG}",
     f"training.lr={LONG}", f"fleet.devices={{{LONG}: 3}}", f"compare.{LONG}=[1, 2]",
     f"data.partition={{image: {LONG}}}", "method=" + "k " * 50_000, "training.lr=[" + "1," * 2_000 + "1]"],
)  # fmt: skip
def test_long_keys_and_values_are_not_echoed_whole(override: str) -> None:
    message = refused(BASE, override)
    assert len(message) < 3 * LONGEST_LINE and LONG not in message


def test_messages_keep_both_ends_of_what_they_shorten() -> None:
    text = shorten_text(f"begin {'x' * 5000} end")
    assert text.startswith("begin xxx") and text.endswith("xxx end") and len(text) < 400
    assert shorten_text("a message of " * 20) == "a message of " * 20
    assert shorten_text(str(EdgeflError(LONG))) == str(EdgeflError(LONG))
    assert len(str(UnknownName("device", LONG, ["a", "b"]))) < 400


def test_shared_parts_of_a_dictionary_count_each_time_and_cycles_end() -> None:
    shared: list[Any] = ["lol"]
    for _ in range(30):
        shared = [shared] * 10
    assert "a scenario has at most 100,000 values" in refused({**BASE, "compare": {"seed": shared}})
    cycle: dict[str, Any] = {}
    cycle["data"] = cycle
    assert "does this part contain itself?" in refused({**BASE, "data": cycle})
    assert "data.samples: a number can't have more than 100 digits" in refused({**BASE, "data": {"samples": 10**5000}})


def test_deep_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text("edgefl: 1\ndata: " + "[" * 150 + "]" * 150 + "\n")
    with pytest.raises(ScenarioError, match=r"deep.yaml:2: data\[0\]: the YAML is nested too deeply"):
        load(path)
    path.write_text("edgefl: 1\ndata: " + "[" * 50_000 + "\n")
    with pytest.raises(ScenarioError, match="deep.yaml"):
        load(path)
