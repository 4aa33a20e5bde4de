"""Joules for all rounds together, and grams of CO2 equivalent: sums over the records that this file makes itself."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edgefl_games import Games, assert_records_resume, broken_rules, changed
from edgefl_toys import declared

import edgefl
from edgefl.commands.run.table import print_summary
from edgefl.devices import load_device, load_link
from edgefl.devices.caps import DAY, JOB, ROUND
from edgefl.errors import ScenarioError
from edgefl.planning.eligibility import gate
from edgefl.planning.setup import Setup
from edgefl.results.facts import summary
from edgefl.results.verify import verify
from edgefl.scenario import load

POLICIES = ("synchronous", "asynchronous", "buffered", "semi-synchronous")
TOTAL = "0.2..3 J"
TROUBLE = {
    "failures": {"training": "20%", "corrupted": "10%", "slow_down": {"share": "20%", "factor": "2..4"}},
    "availability": {"markov": {"on": 1.0, "off": 0.05}},
}
Scenario = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def games(tiny: Scenario) -> Games:
    return Games(tiny)


def setup_of(games: Games, policy: str, fleet: dict[str, Any], jitter: float, schedule: str = "end-to-end") -> Setup:
    tower = {"blocks": 2, "width": 16, "heads": 2}
    data = {**games.tiny()["data"], "clients": {"image": 5, "text": 3}, "samples": 16}
    sections = {"data": data, "model": {"image": tower, "text": {**tower, "tokens": 12}}}
    stages = {} if schedule == "end-to-end" else {"stages": 2}
    made = games.setup(**declared(sections), schedule={"name": schedule, "rounds": 12, **stages})
    rounds = {"policy": policy, "cohort": 4, "buffer": 3, "window": 0.1, "retry": 0.05, "concurrency": None}
    devices = {
        "devices": {"raspberry-pi-4-4gb": 0.5, "jetson-orin-nano-8gb": 0.5},
        "links": {"wifi-5": 0.5, "lte": 0.5},
    }
    return changed(made, rounds, {**devices, "budgets": {"energy_total": TOTAL}, **fleet}, jitter=jitter)


def spent_by(records: list[dict[str, Any]]) -> dict[int, float]:
    joules: defaultdict[int, float] = defaultdict(float)
    for record in records:
        joules[record["client"]] += record["energy_joules"]
    return dict(joules)


@pytest.mark.parametrize("schedule", ["end-to-end", "layerwise"])
@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_spends_more_than_its_total(games: Games, policy: str, schedule: str) -> None:
    setup = setup_of(games, policy, {}, jitter=0.0, schedule=schedule)
    assert setup.fleet.caps is not None
    total = setup.fleet.caps.amounts["energy_total"]
    assert total.min() >= 0.2 and total.max() <= 3 and len(set(total.tolist())) == 8
    _, played = games.none(setup)
    assert broken_rules(setup, played) == []
    spent, latest = spent_by(played.tables["clients"]), {v["client"]: v for v in played.tables["eligibility"]}
    refused = [c for c, v in latest.items() if not v["eligible"]]
    assert all(joules <= total[client] for client, joules in spent.items())
    # whoever is out can't pay for one more round of the last stage
    assert refused
    for client in refused:
        verdict = latest[client]
        assert (verdict["binding"], verdict["joules_limit"]) == ("joules", "job")
        left = total[client] - spent.get(client, 0.0)
        assert verdict["costs"]["joules"] > left
        # it was told what was left then, which may have been more than at the end of other flights
        assert verdict["margins"]["joules"] + verdict["costs"]["joules"] >= left - 1e-9


@pytest.mark.parametrize("policy", POLICIES)
def test_unfinished_flights_count_and_only_the_last_may_exceed(games: Games, policy: str) -> None:
    setup = setup_of(games, policy, TROUBLE, jitter=0.3)
    assert setup.fleet.caps is not None
    total = setup.fleet.caps.amounts["energy_total"]
    _, played = games.none(setup)
    assert broken_rules(setup, played) == []
    flights: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for record in played.tables["clients"]:
        flights[record["client"]].append(record)
    assert any(r["outcome"] != "finished" and r["energy_joules"] > 0 for r in played.tables["clients"])
    for client, records in flights.items():
        records.sort(key=lambda r: r["dispatched_virtual_seconds"])
        before = sum(r["energy_joules"] for r in records[:-1])
        # it was sent off with enough for a round without jitter, of which no round costs less than this
        least = min(v["costs"]["joules"] for v in played.tables["eligibility"] if v["client"] == client)
        assert before + least <= total[client] + 1e-9


@pytest.mark.parametrize("policy", POLICIES)
def test_a_resumed_run_knows_what_was_spent(games: Games, policy: str) -> None:
    setup = setup_of(games, policy, {**TROUBLE, "carbon_intensity": 400}, jitter=0.3)
    whole = assert_records_resume(games.none, setup)
    assert any(not v["eligible"] for v in whole.tables["eligibility"] if v["round"] > 2)


def test_the_smaller_of_both_budgets_binds_and_the_verdict_says_which() -> None:
    costs = {"memory": 1.0, "flops": 1.0, "bytes": 1.0, "seconds": 1.0, "joules": 5.0}
    of_round, of_job, eligible = gate(
        costs, {"joules": np.array([4.0, 3.0, 6.0])}, False, {"joules": np.array([ROUND, JOB, JOB])}
    )
    assert (of_round.limits["joules"], of_job.limits["joules"]) == ("round", "job")
    assert of_round.reason == "not eligible: needs energy of 5 J where 4 J is allowed"
    assert of_job.reason == "not eligible: needs energy of 5 J where 3 J is left for all rounds"
    assert eligible.reason == "eligible: energy is the tightest budget, 5 J of 6 J (83.3 %) left for all rounds"
    assert gate(costs, {}, cap_limits={"joules": ROUND})[0].limits == {}
    a_day = gate(costs, {"joules": 4.0}, cap_limits={"joules": DAY})[0]
    assert a_day.reason == "not eligible: needs energy of 5 J where 4 J is allowed a day"


@pytest.fixture
def scenario(tiny: Scenario) -> dict[str, Any]:
    base = tiny()
    return tiny(
        **declared({"data": {**base["data"], "clients": {"image": 4, "text": 2}, "samples": 16}}),
        schedule={"name": "end-to-end", "rounds": 5},
        training={**base.get("training", {}), "mode": "none"},
        fleet={"devices": "raspberry-pi-4-4gb", "links": "wifi-5", "carbon_intensity": "0.4 kg/kWh"},
        round={"cohort": 1.0},
    )


def test_grams_are_joules_times_the_intensity_by_phase(scenario: dict[str, Any], tmp_path: Path) -> None:
    run = edgefl.run(scenario, out=tmp_path / "run")
    device, link = (load_device("raspberry-pi-4-4gb"), load_link("wifi-5"))
    watts = {
        "download": device.idle_watts + link.download_watts,
        "compute": device.compute_watts,
        "upload": device.idle_watts + link.upload_watts,
    }
    sums: Counter[str] = Counter()
    for record in run.each("clients"):
        for phase, power in watts.items():
            grams = record[f"{phase}_seconds"] * power / 1000 / 3600 * 400
            assert record[f"{phase}_carbon_grams"] == pytest.approx(grams, rel=1e-9)
            sums[f"{phase}_carbon_grams"] += grams
    for name, grams in sums.items():
        assert grams > 0
        assert sum(r[name] for r in run.records("rounds")) == pytest.approx(grams, rel=1e-9)
        assert run.result["totals"][name] == pytest.approx(grams, rel=1e-9)
    assert sum(sums.values()) == pytest.approx(run.result["totals"]["energy_joules"] / 3.6e6 * 400)
    assert verify(run.path)["valid"]


def test_nothing_is_told_of_carbon_without_an_intensity(
    scenario: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_intensity = edgefl.run(scenario, out=tmp_path / "with")
    del scenario["fleet"]["carbon_intensity"]
    without = edgefl.run(scenario, out=tmp_path / "without")
    assert "carbon" not in (without.path / "clients.jsonl").read_text()
    assert "carbon" not in (without.path / "rounds.jsonl").read_text()
    for run, told in ((with_intensity, True), (without, False)):
        print_summary(summary(run))
        assert ("CO2 equivalent of the clients' energy" in capsys.readouterr().out) is told
        edgefl.report(run)
        assert ("CO2 equivalent" in (run.path / "report.html").read_text(encoding="utf-8")) is told


def test_a_sweep_tells_for_how_many_rounds_the_total_lasts(scenario: dict[str, Any]) -> None:
    profile = edgefl.profile(scenario)
    joules = {row["kind"]: row["energy_joules"] for row in profile["rows"]}
    budget = 3.5 * max(joules.values())
    row = edgefl.sweep(scenario, [f"fleet.budgets.energy_total={budget}"])["rows"][0]["caps"]["energy_total"]
    lasts = [min(5, int(budget // joules[kind])) for kind, n in (("image", 4), ("text", 2)) for _ in range(n)]
    assert row["least_rounds"] == min(lasts) == 3
    assert row["median_rounds"] == float(np.median(lasts))
    assert row["expected_rounds"] == 5
    assert row["lasting_share"] == pytest.approx(
        np.mean([5 * joules[k] <= budget for k in ["image"] * 4 + ["text"] * 2])
    )
    # one round costs more than this total
    none = edgefl.sweep(scenario, [f"fleet.budgets.energy_total={0.5 * min(joules.values())}"])["rows"][0]
    assert none["eligible_share_ever"] == 0 and none["caps"] == {"energy_total": None}
    assert "caps" not in edgefl.sweep(scenario)["rows"][0]


@pytest.mark.parametrize(
    ("fleet", "said"),
    [
        ({"budgets": {"energy_total": "0 J"}}, "a budget must be positive, not 0"),
        ({"budgets": {"energy_total": "2 kg"}}, "unknown unit 'kg'"),
        ({"budgets": {"energy_totals": "2 kJ"}}, "did you mean 'energy_total'"),
        ({"carbon_intensity": "400 g"}, "unknown unit 'g'"),
        ({"carbon_intensity": -1}, "must be 0 or more"),
    ],
)
def test_wrong_values_are_refused(scenario: dict[str, Any], fleet: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        load({**scenario, "fleet": fleet})


def test_a_profile_of_clients_compares_the_whole_total(scenario: dict[str, Any]) -> None:
    scenario["fleet"]["budgets"] = {"energy_total": "1 mJ"}
    rows = edgefl.profile(scenario, clients=True)["clients"]
    assert not any(row["eligible"] for row in rows)
    assert all(row["reason"].endswith("where 1 mJ is left for all rounds") for row in rows), rows[0]["reason"]
