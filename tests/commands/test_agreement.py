"""Profile, sweep, fit and a run's own records say the same of a round's seconds and joules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import edgefl
from edgefl.devices import library_folder, load_device

DECLARED = {"source": "declared", "clients": {"image": 3, "text": 2}, "samples": {"image": 40, "text": 20},
            "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}, "text": {"vocabulary": 200}}}  # fmt: skip


def hot(folder: Path) -> str:
    """A board as the library's that is slower once it has computed for a microsecond, and never jitters."""
    profile = yaml.safe_load((library_folder() / "devices" / "jetson-orin-nano-8gb.yaml").read_text())
    source = {"title": "assumed", "date": profile["ram_bytes"]["source"]["date"], "quote": "assumed"}
    for name, value in (("throttle_after_seconds", "1 us"), ("throttled_share", "50%"), ("jitter", 0)):
        profile[name] = {"value": value, "range": value, "confidence": "estimated", "source": source}
    file = folder / "hot.yaml"
    file.write_text(yaml.safe_dump(profile))
    return str(file)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_all_commands_price_a_round_alike(tiny: Callable[..., dict[str, Any]], tmp_path: Path, precision: str) -> None:
    """Loading, goodput, throttling and the rate of a half precision are in each of them."""
    place = hot(tmp_path)
    assert load_device(place).rate("float16") != load_device(place).rate("float32")
    link = yaml.safe_load((library_folder() / "networks" / "lte.yaml").read_text())
    link["jitter"] |= {"value": 0, "range": 0}
    (way := tmp_path / "calm.yaml").write_text(yaml.safe_dump(link))
    scenario = tiny(
        data=DECLARED,
        schedule={"name": "end-to-end", "rounds": 1},
        training={"mode": "none", "batch": 8, "precision": precision},
        fleet={"devices": place, "links": str(way), "throttling": True},
    )
    found = edgefl.profile(scenario)
    profiled = {row["kind"]: (row["virtual_seconds"], row["energy_joules"]) for row in found["rows"]}
    assert profiled == {row["kind"]: (row["virtual_seconds"], row["energy_joules"]) for row in found["totals"]}
    (row,) = edgefl.sweep(scenario)["rows"]
    swept = {k: (v["round_seconds"], v["energy_joules"]) for k, v in row["stages"][0]["kinds"].items()}
    fitted = {
        kind: tuple(one["as_it_stands"]["costs"][name] for name in ("seconds", "joules"))
        for kind, one in edgefl.fit(scenario, device=place)["kinds"].items()
    }
    run = edgefl.run(scenario, output=tmp_path / "run")
    judged = {r["kind"]: (r["costs"]["seconds"], r["costs"]["joules"]) for r in run.records("eligibility")}
    flown = {r["kind"]: (r["virtual_seconds"], r["energy_joules"]) for r in run.records("clients")}
    for other in (swept, fitted, judged, flown):
        assert other.keys() == profiled.keys()
        for kind, spent in other.items():
            assert spent == pytest.approx(profiled[kind], rel=1e-12)
    if precision == "float32":
        cool = edgefl.profile({**scenario, "fleet": {**scenario["fleet"], "throttling": False}})["rows"][0]
        # all but the first microsecond takes twice as long
        assert found["rows"][0]["compute_seconds"] == pytest.approx(2 * cool["compute_seconds"] - 1e-6)
