"""Profile, sweep, fit and a run's own records say the same of a round's seconds and joules.

What commands say that a run moved and computed is the sum of its flights' records, which are read here as plain JSON.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

import edgefl
from edgefl import units
from edgefl.commands.run.table import print_summary
from edgefl.console import main
from edgefl.devices import library_folder, load_device
from edgefl.drawing.charts import records_of
from edgefl.drawing.charts.compared import side_by_side
from edgefl.drawing.page.matrix import matrix_of
from edgefl.drawing.page.verdict import besides
from edgefl.results.equal_costs import curve_of
from edgefl.results.facts import facts_of, summary

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
    run = edgefl.run(scenario, out=tmp_path / "run")
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


# --- what happened ---------------------------------------------------------------------------------------------------

CARRIED = ("carried_download_bytes", "carried_upload_bytes")
SPENT = (*CARRIED, "executed_flops", "energy_joules")
HALF = {"before_download": "20%", "download": "10%", "training": "20%", "upload": "10%", "corrupted": "5%"}
SLOW = {"devices": {"raspberry-pi-4-4gb": "50%", "phone-mid": "50%"}, "links": {"lte": "50%", "3g": "50%"}}
TROUBLES: dict[str, dict[str, Any]] = {
    "nobody begins": {"fleet": {**SLOW, "failures": {"before_download": "100%"}}},
    "half of them fail": {"fleet": {**SLOW, "failures": {**HALF, "slow_down": {"share": "30%", "factor": "2..5"}}}},
    "cut off by the deadline": {"fleet": SLOW, "round": {"cohort": 1.0, "gate": "everyone", "deadline": "0.4 s"}},
    "empty batteries": {"fleet": {**SLOW, "battery": {"capacity": "0.1..1 J", "initial": "20..100%"}}},
    "going offline": {"fleet": {**SLOW, "availability": {"markov": {"on": "0.5 s", "off": "0.5 s"}}}},
    "too little memory": {"fleet": {**SLOW, "budgets": {"memory": "20..400 KiB"}},
                          "round": {"cohort": 1.0, "gate": "everyone"}},
    "a shared line": {"fleet": {**SLOW, "server_link": {"download": "2 Mbit/s", "upload": "500 kbit/s"},
                                "failures": HALF}, "round": {"cohort": 1.0, "deadline": "1 s"}},
    "asynchronous": {"fleet": {**SLOW, "failures": HALF}, "round": {"policy": "asynchronous", "concurrency": 5}},
    "semi-synchronous": {"fleet": {**SLOW, "failures": HALF},
                         "round": {"policy": "semi-synchronous", "concurrency": 5, "window": "0.4 s"}},
    "behind relays": {"fleet": {**SLOW, "failures": HALF, "relays": {"count": 2, "failures": "30%"}}},
}  # fmt: skip


def troubled(tiny: Callable[..., dict[str, Any]], **sections: Any) -> dict[str, Any]:
    more = {"schedule": {"name": "end-to-end", "rounds": 4}, "training": {"mode": "none", "batch": 8, "epochs": 30}}
    return tiny(data=DECLARED, **more, **sections)


def lines(folder: Path, table: str = "clients") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{table}.jsonl").read_text(encoding="utf-8").splitlines()]


QUICK = ("nobody begins", "half of them fail", "asynchronous")


@pytest.mark.parametrize(
    "trouble", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in TROUBLES]
)
def test_what_is_said_to_have_happened_is_the_sum_of_the_flights(
    tiny: Callable[..., dict[str, Any]], tmp_path: Path, trouble: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = edgefl.run(troubled(tiny, **TROUBLES[trouble]), out=tmp_path / "run")
    flights = lines(run.path)
    sums = {name: sum(flight[name] for flight in flights) for name in SPENT}
    planned = {
        "bytes": sum(f[f"serialised_{way}_bytes"] for f in flights for way in ("download", "upload")),
        "flops": sum(f["forward_flops"] + f["backward_flops"] for f in flights),
    }
    moved, flops, joules = sum(sums[name] for name in CARRIED), sums["executed_flops"], sums["energy_joules"]
    assert moved < planned["bytes"] and (flops < planned["flops"] or trouble == "behind relays")
    if trouble == "nobody begins":
        assert (moved, flops, joules) == (0, 0, 0) and planned["flops"] > 0

    # the headline
    console = Console(file=io.StringIO(), width=400)
    print_summary(summary(run), console)
    down, up = (units.show_bytes(sums[name]) for name in CARRIED)
    said = f"down {down}, up {up}, {units.show_flops(flops)}, {units.show_joules(joules)}\n"
    assert said in console.file.getvalue()  # type: ignore[attr-defined]
    facts = facts_of(run).to_data()
    assert {name: facts["totals"][name] for name in SPENT} == pytest.approx(sums, rel=1e-12)
    assert "download_bytes" not in facts["totals"] and "forward_flops" not in facts["totals"]
    assert facts["totals"]["bytes_per_client_round"] == pytest.approx(moved / facts["totals"]["selected"])
    for row in facts["costs"]:
        mine = [f for f in flights if (f["stage"], f["kind"]) == (row["stage"], row["kind"])]
        for name in (*CARRIED, "energy_joules"):
            assert row[name] == pytest.approx(sum(f[name] for f in mine) / len(mine))

    # compare, at equal bytes, and curves
    (row,) = edgefl.compare([run.path]).rows
    assert row.figures["bytes"].mean == moved and row.figures["flops"].mean == flops
    until = [sum(f[name] for f in flights for name in CARRIED if f["round"] <= n) for n in range(1, 5)]
    assert curve_of(run).spent["bytes"] == until[-1] == moved
    records = records_of(run)
    assert records.clocks()["bytes"] == until
    # the report
    (costs,) = side_by_side({"one": [records]})
    drawn = dict(zip(costs.columns, costs.rows[0], strict=True))
    assert (drawn["traffic_bytes"], drawn["flops"]) == (moved, flops)
    matrix = matrix_of({"one": [records]})
    assert matrix.parts[0].figures[matrix.titles.index("traffic")][0].mean == moved
    ends = [flight["outcome"] for flight in flights]
    arrived, late = ends.count("finished"), ends.count("late")
    failed = len(ends) - arrived - late
    assert besides(records)[0] == f"{arrived} updates arrived; {late} clients were late, {failed} failed."
    assert f"<td>{units.show_bytes(moved)}</td>" in run._repr_html_()
    # export
    edgefl.export(run.path, "csv", tmp_path / "csv")
    (exported,) = csv.DictReader((tmp_path / "csv" / "runs.csv").read_text(encoding="utf-8").splitlines())
    assert {name: float(exported[f"totals.{name}"]) for name in SPENT} == pytest.approx(sums, rel=1e-12)
    assert {name for name in exported if name.endswith(".forward_flops")} == {"planned.forward_flops"}
    with pytest.raises(SystemExit) as ended:
        main(["run", "--resume", str(run.path), "--verify"])
    assert not ended.value.code, capsys.readouterr()


@pytest.mark.parametrize("throttling", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_client_that_dies_while_it_computes_has_executed_what_its_time_allows(
    tiny: Callable[..., dict[str, Any]], tmp_path: Path, throttling: bool
) -> None:
    """FLOPs begin when the model is loaded, and come half as fast once the board is hot."""
    fleet = {"devices": hot(tmp_path), "links": "lte", "throttling": throttling, "failures": {"training": "100%"}}
    scenario = troubled(tiny, fleet=fleet)
    cool = {
        row["kind"]: row["compute_seconds"]
        for row in edgefl.profile({**scenario, "fleet": {**fleet, "throttling": False}})["rows"]
    }
    device, shares = load_device(fleet["devices"]), []
    for policy in ({}, {"policy": "asynchronous", "concurrency": 3}):
        folder = tmp_path / f"run{len(policy)}"
        edgefl.run({**scenario, "round": {**scenario["round"], **policy}}, out=folder)
        for flight in lines(folder):
            loading = sum(flight["memory_bytes"][part] for part in ("parameters", "buffers"))
            loading /= device.storage_bytes_per_second
            spent = flight["compute_seconds"]
            done = min(spent, 1e-6) + (spent - min(spent, 1e-6)) / 2 if throttling else spent
            share = max(done - loading, 0) / (cool[flight["kind"]] - loading)
            whole = flight["forward_flops"] + flight["backward_flops"]
            assert flight["phase"] == "compute" and flight["executed_flops"] == pytest.approx(share * whole, abs=1)
            shares.append(share)
    assert min(shares) < 0.2 and 0.8 < max(shares) < 1


def test_at_equal_bytes_a_run_whose_clients_fail_isnt_charged_for_what_they_never_sent(
    tiny: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """Two runs with the same plans, of which one carried half: the budget is what that one carried."""
    runs = []
    for share in ("0%", "50%"):
        fleet = {**SLOW, "failures": {"before_download": share}}
        scenario = troubled(tiny, fleet=fleet, seed=int(share[0]) + 1)
        runs.append(edgefl.run(scenario, out=tmp_path / share[0]))
    carried = [sum(f[name] for f in lines(run.path) for name in CARRIED) for run in runs]
    assert carried[1] < 0.8 * carried[0]
    part = next(each for each in edgefl.compare([run.path for run in runs]).equal if each.axis == "bytes")
    assert part.budget == min(carried)
