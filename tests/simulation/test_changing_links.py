"""Rounds over links whose rates change: both clocks tell the same, hand integrals, offline at zero, resumes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edgefl_games import Games, assert_records_resume, broken_rules, changed
from edgefl_toys import declared
from flight_toys import One, assert_same, made, played
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import edgefl
from edgefl.devices import library_folder, load_link
from edgefl.devices.changing_links import ChangingLinks
from edgefl.devices.failures import DOWNLOAD, NONE, TRAINING, TRUNCATED, UPLOAD
from edgefl.errors import ScenarioError
from edgefl.scenario import load
from edgefl.simulation.closed_form import land_flights

POLICIES = ("synchronous", "asynchronous", "buffered", "semi-synchronous")
Scenario = Callable[..., dict[str, Any]]


def write_link(folder: Path, rows: str, trace: str = "{file: rates.csv}") -> str:
    """The path of a link like lte, of 8,000 bit/s down and 80 bit/s up, with these rows as its trace."""
    text = (library_folder() / "networks" / "lte.yaml").read_text()
    text = text.replace("13 Mbit/s\n", "8 kbit/s\n").replace("4..40 Mbit/s", "8 kbit/s")
    text = text.replace("6 Mbit/s\n", "80 bit/s\n").replace("1..15 Mbit/s", "80 bit/s")
    (folder / "mine.yaml").write_text(f"{text}\ntrace: {trace}\n")
    (folder / "rates.csv").write_text("start,download,upload\n" + rows)
    return str(folder / "mine.yaml")


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> ChangingLinks:
    """Link 0 has other rates now and then, link 1 is offline now and then too, and link 2 stays as it is."""
    folder, trace = tmp_path_factory.mktemp("links"), "{file: rates.csv, period: 200 s}"
    one = load_link(write_link(folder, "0,8000,80\n1,16000,40\n40,4000,160\n", trace))
    other = load_link(write_link(folder, "0,8000,80\n20,0,80\n70,8000,0\n90,32000,320\n", trace))
    return ChangingLinks([one, other, load_link("lte")], np.arange(6) % 3, begins=3.0)


moments = st.sampled_from([0.0, 1.0, 17.0, 20.0, 55.5]) | st.floats(0, 300)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.sampled_from([0.0, 17.0, 1e5 + 0.1]))
def test_both_clocks_tell_the_same_of_any_flights(links: ChangingLinks, data: st.DataObject, at: float) -> None:
    ones = [
        One(
            down_bytes=data.draw(st.sampled_from([0, 1000, 12_345])),
            up_bytes=data.draw(st.sampled_from([0, 1000])),
            latency=data.draw(st.sampled_from([0.0, 0.7])),
            cool_seconds=data.draw(moments),
            factors=data.draw(st.sampled_from([(1.0, 1.0, 1.0), (0.7, 1.3, 2.1)])),
            phase=data.draw(st.sampled_from([NONE] * 4 + [DOWNLOAD, TRAINING, UPLOAD, TRUNCATED])),
            fraction=data.draw(st.sampled_from([0.25, 1.0])),
            leaves=at + data.draw(st.just(inf) | moments),
            joules=data.draw(st.just(inf) | moments),
        )
        for _ in range(6)
    ]
    flights = replace(made(ones, at), changing=links)
    if data.draw(st.booleans()):
        flights = replace(flights, begins=at + np.array([data.draw(moments) for _ in ones]))
    over, wanted = at + data.draw(st.just(inf) | moments), data.draw(st.none() | st.integers(1, 6))
    landed = land_flights(flights, over, wanted)
    assert_same(landed, played(flights, over, wanted))
    same = replace(flights, changing=None)
    for field in ("download_seconds", "upload_seconds", "carried_upload_bytes"):  # link 2 has no trace
        if wanted is None:
            steady = getattr(landed, field)[2::3], getattr(land_flights(same, over), field)[2::3]
            np.testing.assert_array_equal(*steady)


def test_a_round_by_hand(links: ChangingLinks) -> None:
    """1,000 bytes down, 10 s of computing, 1,000 bytes up; the run's second 0 is the trace's third."""
    landed = land_flights(replace(made([One()]), changing=links))
    # 16 kbit/s down; from 3 + .5 + 10 s on 40 bit/s for 26.5 s, then 160 bit/s
    up = 26.5 + (8000 - 26.5 * 40) / 160
    assert [landed.download_seconds[0], landed.upload_seconds[0]] == pytest.approx([0.5, up], rel=1e-12)
    # a deadline 20 s after computing: 20 s x 40 bit/s
    cut = replace(made([One()]), changing=links)
    assert land_flights(cut, 30.5).carried_upload_bytes.tolist() == [100]
    assert_same(land_flights(cut, 30.5), played(cut, 30.5))
    # twice the seconds by jitter are half the rate
    twice = land_flights(replace(made([One(factors=(2.0, 1.0, 1.0))]), changing=links))
    assert twice.download_seconds.tolist() == pytest.approx([1.0], rel=1e-12)


@pytest.fixture(scope="module")
def games(tiny: Scenario) -> Games:
    return Games(tiny)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_over_changing_links_goes_on_as_it_was(games: Games, policy: str, tmp_path: Path) -> None:
    tower = {"blocks": 1, "width": 16, "heads": 2}
    data = {**games.tiny()["data"], "clients": {"image": 5, "text": 3}, "samples": 16}
    sections = {"data": data, "model": {"image": tower, "text": {**tower, "tokens": 12}}}
    made = games.setup(**declared(sections), schedule={"name": "end-to-end", "rounds": 8})
    rows = "0,9e6,5e6\n0.1,2e6,1e6\n0.25,0,0\n0.3,3e7,3e6\n"
    path = write_link(tmp_path, rows, "{file: rates.csv, period: 0.45 s}")
    rounds = {"policy": policy, "cohort": 4, "buffer": 3, "window": 0.1, "retry": 0.05, "concurrency": None}
    setup = changed(made, rounds, {"links": {path: 0.75, "wifi-5": 0.25}}, jitter=0.3)
    whole = assert_records_resume(games.none, setup, ("rounds", "clients"))
    assert broken_rules(setup, whole) == []
    assert {"finished", "offline"} <= {flight["outcome"] for flight in whole.tables["clients"]}


@pytest.fixture
def scenario(tiny: Scenario) -> dict[str, Any]:
    base = tiny()
    return tiny(
        **declared({"data": {**base["data"], "clients": {"image": 4, "text": 2}, "samples": 16}}),
        schedule={"name": "end-to-end", "rounds": 3},
        training={**base.get("training", {}), "mode": "none"},
        fleet={"devices": "raspberry-pi-4-4gb", "links": "lte-daily"},
        round={"cohort": 1.0},
    )


def test_a_night_is_faster_than_an_afternoon(scenario: dict[str, Any], tmp_path: Path) -> None:
    """The same draws at 5:00 and at 17:00: the rates are 19.5 and 6.5 Mbit/s, and the latency and jitter are equal."""
    always = {"hours": 23, "start": "spread"}
    seconds = {}
    for begins in ("5:00", "17:00"):
        scenario["fleet"]["availability"] = {"diurnal": {**always, "begins": begins}}
        run = edgefl.run(scenario, out=tmp_path / begins.replace(":", ""))
        seconds[begins] = {r["client"]: r for r in run.records("clients") if r["round"] == 1}
    link = load_link("lte")
    both = seconds["5:00"].keys() & seconds["17:00"].keys()
    assert len(both) >= 3
    for client in both:
        night, day = seconds["5:00"][client], seconds["17:00"][client]
        bits = 8 * night["serialised_download_bytes"] / (1 - link.loss)
        # the jitter multiplies both parts: its factor is that of either
        factor = night["download_seconds"] / (link.latency_seconds + bits / 19.5e6)
        assert day["download_seconds"] == pytest.approx(factor * (link.latency_seconds + bits / 6.5e6), rel=1e-12)


def test_a_link_that_ends_at_zero_ends_the_rounds_and_not_the_clock(scenario: dict[str, Any], tmp_path: Path) -> None:
    scenario["fleet"]["links"] = write_link(tmp_path, "0,8e6,4e6\n")
    steady = edgefl.run(scenario, out=tmp_path / "steady").records("rounds")
    ends = (steady[0]["finished_virtual_seconds"] + steady[1]["finished_virtual_seconds"]) / 2
    write_link(tmp_path, f"0,8e6,4e6\n{ends!r},0,0\n")
    run = edgefl.run(scenario, out=tmp_path / "run")
    outcomes = [record["outcome"] for record in run.records("rounds")]
    assert outcomes[0] == "completed" and outcomes[2] == "nobody available"
    told = edgefl.explain(run, 3)
    assert {entry.why for entry in told.absent} == {"offline when clients were drawn, and for good"}
    cut = [r for r in run.records("clients") if r["outcome"] == "offline"]
    assert cut and all(r["ended_virtual_seconds"] == ends for r in cut)


@pytest.mark.parametrize(
    ("fleet", "said"),
    [
        ({"server_link": {"upload": "1 Gbit/s"}}, "links: lte-daily has a trace, and the rates of clients that share"),
        ({"relays": {"count": 2, "link": "lte-daily"}}, "relays.link: lte-daily has a trace"),
    ],
)
def test_lines_that_are_shared_take_no_trace(scenario: dict[str, Any], fleet: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        load({**scenario, "fleet": {**scenario["fleet"], **fleet}})


def test_a_link_that_names_no_trace_is_refused_with_its_line(scenario: dict[str, Any], tmp_path: Path) -> None:
    for trace, said in (
        ("{file: none.csv}", r"mine.yaml:\d+: trace: .*none.csv: this trace can't be read: No such file"),
        ("{file: rates.csv, every: 1 d}", r"mine.yaml:\d+: trace.every: Extra inputs are not permitted; a trace is"),
        ("{file: rates.csv, period: 0}", r"trace.period: must be greater than 0"),
        ("rates.csv", r"mine.yaml:\d+: trace: .*; a trace is \{file: rates.csv, period: 1 d\}"),
    ):
        path = write_link(tmp_path, "0,1e6,1e6\n", trace)
        with pytest.raises(ScenarioError, match=said):
            load({**scenario, "fleet": {"links": path}})
