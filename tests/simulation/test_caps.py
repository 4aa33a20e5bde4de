"""Caps in runs: sums over the records that this file makes itself, midnights, resumes, and what commands say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from edgefl_games import Games, assert_records_resume, broken_rules, changed
from edgefl_toys import declared

import edgefl
from edgefl.errors import ScenarioError
from edgefl.results.verify import verify
from edgefl.scenario import load

POLICIES = ("synchronous", "asynchronous", "buffered", "semi-synchronous")
DAY, BEGINS = 86_400, 23 * 3600 + 59 * 60
Scenario = Callable[..., dict[str, Any]]


@pytest.fixture
def scenario(tiny: Scenario) -> dict[str, Any]:
    """Clients with and without a capped link; the run begins a minute before midnight."""
    base = tiny()
    return tiny(
        **declared({"data": {**base["data"], "clients": {"image": 4, "text": 2}, "samples": 16}}),
        schedule={"name": "end-to-end", "rounds": 7},
        training={**base.get("training", {}), "mode": "none"},
        fleet={
            "devices": "raspberry-pi-4-4gb",
            "links": {"lte": 3, "wifi-5": 3},
            "availability": {"diurnal": {"hours": 23.9, "start": "spread", "jitter": 0, "begins": "23:59"}},
        },
        round={"cohort": 1.0, "quorum": 6, "below_quorum": "wait", "retry": "30 min", "patience": "3 d"},
    )


def cost_of(scenario: dict[str, Any]) -> dict[str, float]:
    """Bytes of a round, both ways, by kind."""
    rows = edgefl.profile(scenario)["rows"]
    return {row["kind"]: row["serialised_download_bytes"] + row["serialised_upload_bytes"] for row in rows}


def by_day(records: list[dict[str, Any]], link: str) -> dict[tuple[int, int], int]:
    """Bytes over this link by client and day of the fleet's clock, of each round on the day on which it ended."""
    moved: Counter[tuple[int, int]] = Counter()
    for record in records:
        if record["link"] == link:
            day = int((record["ended_virtual_seconds"] + BEGINS) // DAY)
            moved[record["client"], day] += record["carried_download_bytes"] + record["carried_upload_bytes"]
    return dict(moved)


@pytest.mark.parametrize("cap", ["bytes_per_day", "energy_per_day"])
def test_clients_sit_out_until_midnight(scenario: dict[str, Any], tmp_path: Path, cap: str) -> None:
    profile = edgefl.profile(scenario, clients=True)
    cost = max(cost_of(scenario).values())
    if cap == "energy_per_day":
        cost = max(row["energy_joules"] for row in profile["clients"])
    scenario["fleet"]["budgets"] = {cap: 2.5 * cost if cap == "energy_per_day" else f"{int(2.5 * cost)} B"}
    run = edgefl.run(scenario, out=tmp_path / "run")
    records = list(run.records("clients"))
    assert verify(run.path)["valid"]
    if cap == "bytes_per_day":
        days, free = by_day(records, "lte"), by_day(records, "wifi-5")
        assert max(days.values()) <= int(2.5 * cost) < max(free.values())
        assert {day for _, day in days} >= {0, 1, 2}
        # the dearer kind's last round of each day but the last leaves less than another would take
        dear = {r["client"] for r in records if r["serialised_download_bytes"] > 0.4 * cost}
        assert all(moved + cost > 2.5 * cost for (c, day), moved in days.items() if c in dear and day < 2)
    else:
        spent: Counter[tuple[int, int]] = Counter()
        for r in records:
            spent[r["client"], int((r["ended_virtual_seconds"] + BEGINS) // DAY)] += r["energy_joules"]
        # jitter may make a client's last round dearer than it was predicted
        assert max(spent.values()) < 2.5 * cost * 1.5 and len({day for _, day in spent}) >= 3
    # all are back soon after midnight
    first: dict[int, float] = {}
    for start in sorted(r["dispatched_virtual_seconds"] for r in records if r["link"] == "lte"):
        first.setdefault(int((start + BEGINS) // DAY), (start + BEGINS) % DAY)
    assert len(first) >= 3 and all(since < 1800 for day, since in first.items() if day)
    waiting = next(r for r in run.records("rounds") if r["virtual_seconds"] > 3600)
    told = {entry.reason for entry in edgefl.explain(run, waiting["round"] - 1).absent}
    assert told <= {"cap of the day", "offline", "not drawn"}
    scenario["executor"] = {"clock": "events"}
    again = edgefl.run(scenario, out=tmp_path / "events")
    for table in ("rounds", "clients", "eligibility"):
        assert (again.path / f"{table}.jsonl").read_bytes() == (run.path / f"{table}.jsonl").read_bytes()


def test_a_total_ends_a_clients_part(scenario: dict[str, Any], tmp_path: Path) -> None:
    costs = cost_of(scenario)
    total = int(3.5 * min(costs.values()))
    scenario["fleet"]["budgets"] = {"bytes_total": f"{total} B"}
    scenario["round"] = {"cohort": 1.0}
    run = edgefl.run(scenario, out=tmp_path / "run")
    moved: Counter[tuple[int, str]] = Counter()
    for r in run.records("clients"):
        moved[r["client"], r["link"]] += r["carried_download_bytes"] + r["carried_upload_bytes"]
    capped = {client: bytes_ for (client, link), bytes_ in moved.items() if link == "lte"}
    latest = {v["client"]: v for v in run.records("eligibility")}
    assert len(capped) == 3 and max(capped.values()) <= total < max(moved.values())
    for client, verdict in latest.items():
        assert verdict["eligible"] == (client not in capped)
        assert verdict["bytes_limit"] == ("job" if client in capped else None)
    assert all(latest[c]["reason"].endswith("is left for all rounds") for c in capped)
    assert "joules_limit" not in latest[0]


@pytest.fixture(scope="module")
def games(tiny: Scenario) -> Games:
    return Games(tiny)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_resumed_run_knows_what_was_spent(games: Games, policy: str) -> None:
    tower = {"blocks": 1, "width": 16, "heads": 2}
    data = {**games.tiny()["data"], "clients": {"image": 5, "text": 3}, "samples": 16}
    sections = {"data": data, "model": {"image": tower, "text": {**tower, "tokens": 12}}}
    made = games.setup(**declared(sections), schedule={"name": "end-to-end", "rounds": 10})
    rounds = {"policy": policy, "cohort": 4, "buffer": 3, "window": 0.1, "retry": "2 h", "concurrency": None}
    fleet = {
        "links": {"lte": 0.75, "wifi-5": 0.25},
        "budgets": {"bytes_per_day": "100..300 kB", "bytes_total": "200..500 kB", "energy_per_day": "1..4 J"},
        "failures": {"training": "20%", "corrupted": "10%"},
    }
    setup = changed(made, rounds, fleet, jitter=0.3)
    whole = assert_records_resume(games.none, setup)
    assert broken_rules(setup, whole) == []
    assert any(record["unavailable"] for record in whole.tables["rounds"])


def test_commands_say_how_many_rounds_fit(scenario: dict[str, Any]) -> None:
    costs = cost_of(scenario)
    day, total = int(2.5 * max(costs.values())), int(9.2 * max(costs.values()))
    caps = {"bytes_per_day": f"{day} B", "bytes_total": f"{total} B", "energy_total": "1 MJ"}
    scenario["fleet"]["budgets"] = caps
    for row in edgefl.profile(scenario, clients=True)["clients"]:
        by_hand = {"bytes_per_day": day // costs[row["kind"]], "bytes_total": total // costs[row["kind"]]}
        joules = {"energy_total": int(1e6 // row["energy_joules"])}
        assert row["rounds_within"] == (by_hand if row["link"] == "lte" else {}) | joules
    caps = edgefl.sweep(scenario)["rows"][0]["caps"]
    assert caps["bytes_per_day"].least_rounds == 2 and "lasting_share" not in caps["bytes_per_day"]
    assert caps["bytes_total"].least_rounds == 7 and caps["bytes_total"].lasting_share == 1
    # a cap below a round refuses it, and fit looks for one that fits
    scenario["fleet"]["budgets"] = {"bytes_per_day": f"{int(min(costs.values())) - 1} B"}
    rows = edgefl.profile(scenario, clients=True)["clients"]
    assert {row["link"] for row in rows if not row["eligible"]} == {"lte"}
    assert all(row["reason"].endswith("is allowed a day") for row in rows if not row["eligible"])
    found = edgefl.fit(scenario, device="raspberry-pi-4-4gb", link="lte", kind="text")
    assert found.budgets["bytes"].source == "fleet.budgets.bytes_per_day" and not found.kinds["text"].fits
    assert edgefl.fit(scenario, device="raspberry-pi-4-4gb", link="wifi-5", kind="text").kinds["text"].fits


@pytest.mark.parametrize(
    ("fleet", "said"),
    [
        ({"links": "wifi-5", "budgets": {"bytes_per_day": "1 MB"}}, r"bytes_per_day counts bytes of capped links, "
         r"and wifi-5 is not: take a capped link \(3g, 5g-nr, lte, lte-daily, lte-m, nb-iot\), or one of your own"),
        ({"links": ["wifi-5", "fibre"], "budgets": {"bytes_total": "1 MB"}}, "fibre, wifi-5 are not"),
        ({"links": "lte", "budgets": {"bytes_per_day": "0 B"}}, "a budget must be positive, not 0"),
        ({"links": "lte", "budgets": {"bytes_a_day": "1 MB"}}, "did you mean 'bytes_per_day'"),
    ],
)  # fmt: skip
def test_wrong_caps_are_refused(scenario: dict[str, Any], fleet: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        load({**scenario, "fleet": {**scenario["fleet"], **fleet}})


def test_a_link_of_your_own_may_be_capped(scenario: dict[str, Any], tmp_path: Path) -> None:
    text = (Path(edgefl.__file__).parents[1] / "profiles" / "networks" / "satellite-geo.yaml").read_text()
    (link := tmp_path / "mine.yaml").write_text(text + "capped: true\n")
    fleet = {**scenario["fleet"], "links": str(link), "budgets": {"bytes_per_day": "1 MB"}}
    assert load({**scenario, "fleet": fleet})
    link.write_text(text + "capped: sometimes\n")
    with pytest.raises(ScenarioError, match=r"mine.yaml:\d+: capped: 'sometimes' is neither true nor false"):
        load({**scenario, "fleet": fleet})
