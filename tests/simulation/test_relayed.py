"""Rounds behind relays: times and bytes by hand, lost relays, and the mean that is the flat one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from edgefl_games import Games, broken_rules, changed
from edgefl_toys import declared
from tensors import assert_equal_tensors
from torch import Tensor

import edgefl
from edgefl.commands.explain.command import explain
from edgefl.devices import load_link
from edgefl.methods import ServerState
from edgefl.planning.setup import Setup
from edgefl.training import Assignment, Inline
from edgefl.work.update import Update

Tiny = Callable[..., dict[str, Any]]
SLOW_LINE = {"download": "20 Mbit/s", "upload": "5 Mbit/s", "latency": "30 ms"}


@pytest.fixture(scope="module")
def games(tiny: Tiny) -> Games:
    return Games(tiny)


def untrained(games: Games, relays: Any, round: dict[str, Any] | None = None, **sections: Any) -> Setup:
    """Seven clients of three kinds behind relays, without jitter."""
    made = games.setup(**declared(games.tiny(schedule={"name": "end-to-end", "rounds": 4}) | sections))
    fleet = {"devices": "raspberry-pi-4-4gb", "links": "lte", "relays": relays}
    return changed(made, round or {"cohort": 1.0}, fleet, jitter=0.0)


# by hand --------------------------------------------------------------------------------------------------------------


def test_two_relays_and_three_clients_by_hand(games: Games) -> None:
    data = {**games.tiny()["data"], "clients": {"image": 2, "text": 1}}
    setup = untrained(games, {"count": 2, "link": SLOW_LINE}, data=data)
    assert setup.fleet.relays is not None
    _, journal = games.none(setup)
    assert broken_rules(setup, journal) == []
    lte = load_link("lte")
    goodput = lte.download_bits_per_second * (1 - lte.loss), lte.upload_bits_per_second * (1 - lte.loss)
    for round in journal.tables["rounds"]:
        clients = [c for c in journal.tables["clients"] if c["round"] == round["round"]]
        assert len(clients) == 3 and {c["relay"] for c in clients} == {0, 1}
        began, bytes_, ended = round["started_virtual_seconds"], [], {}
        for relay in (0, 1):
            mine = [c for c in clients if c["relay"] == relay]
            # FedAvg's kinds share no tensor, and clients of one kind download the same
            down = sum({c["kind"]: c["serialised_download_bytes"] for c in mine}.values())
            up = sum({c["kind"]: c["serialised_upload_bytes"] for c in mine}.values())
            fetched = began + 0.03 + 8 * down / 20e6
            for c in mine:
                assert c["dispatched_virtual_seconds"] == pytest.approx(fetched, rel=1e-12)
                assert c["download_seconds"] == pytest.approx(
                    lte.latency_seconds + 8 * c["serialised_download_bytes"] / goodput[0]
                )
                assert c["upload_seconds"] == pytest.approx(
                    lte.latency_seconds + 8 * c["serialised_upload_bytes"] / goodput[1]
                )
                spent = c["download_seconds"] + c["compute_seconds"] + c["upload_seconds"]
                assert c["ended_virtual_seconds"] == pytest.approx(fetched + spent, rel=1e-12)
            ended[relay] = max(c["ended_virtual_seconds"] for c in mine) + 0.03 + 8 * up / 5e6
            bytes_.append((down, up))
        assert (round["relays"], round["relays_failed"]) == (2, 0)
        assert round["relay_download_bytes"] == sum(down for down, _ in bytes_)
        assert round["relay_upload_bytes"] == sum(up for _, up in bytes_)
        assert round["last_relay"] == max(ended, key=ended.__getitem__)
        assert round["last_sum_virtual_seconds"] == pytest.approx(max(ended.values()), rel=1e-12)
        assert round["virtual_seconds"] == pytest.approx(max(ended.values()) - began + round["server_seconds"])


def test_one_relay_downloads_once_for_clients_that_are_equal(games: Games) -> None:
    data = {**games.tiny()["data"], "clients": {"image": 5}}
    _, journal = games.none(untrained(games, {"count": 1, "link": SLOW_LINE}, data=data))
    for round in journal.tables["rounds"]:
        assert 5 * round["relay_download_bytes"] == round["carried_download_bytes"]
        assert 5 * round["relay_upload_bytes"] == round["carried_upload_bytes"]


def test_encoded_updates_make_no_smaller_sum(games: Games) -> None:
    plain, by_int8 = (
        games.none(untrained(games, 2, payload={"up": up}))[1].tables["rounds"] for up in ("float32", "int8")
    )
    assert by_int8[0]["upload_bytes"] < 0.4 * plain[0]["upload_bytes"]
    assert [r["relay_upload_bytes"] for r in by_int8] == [r["relay_upload_bytes"] for r in plain]


def test_a_line_without_limits_takes_no_time(games: Games) -> None:
    """Records are those of a run without relays but for what relays did."""
    setup = untrained(games, {"count": 3, "link": {}})
    (_, plain), (_, behind) = games.none(replace(setup, fleet=replace(setup.fleet, relays=None))), games.none(setup)
    for without, record in zip(plain.tables["clients"], behind.tables["clients"], strict=True):
        assert without == {name: value for name, value in record.items() if name != "relay"}
    of_relays = {"relays", "relays_failed", "relay_download_bytes", "relay_upload_bytes", "last_relay",
                 "last_sum_virtual_seconds"}  # fmt: skip
    for without, record in zip(plain.tables["rounds"], behind.tables["rounds"], strict=True):
        assert record.keys() - without.keys() == of_relays
        assert without == {name: value for name, value in record.items() if name not in of_relays}


@pytest.mark.parametrize("events", [False, True])
def test_a_deadline_is_of_the_landings_at_the_relays(games: Games, events: bool) -> None:
    relays = {"count": 3, "link": {**SLOW_LINE, "upload": "20 kbit/s"}}
    setup = untrained(games, relays)
    _, journal = games.none(setup, events=events)
    ends = sorted(c["ended_virtual_seconds"] for c in journal.tables["clients"] if c["round"] == 1)
    began = journal.tables["rounds"][0]["started_virtual_seconds"]
    deadline = (ends[3] + ends[4]) / 2 - began
    setup = changed(setup, {"cohort": 1.0, "deadline": deadline, "gate": "everyone"})
    _, cut = games.none(setup, events=events)
    assert broken_rules(setup, cut) == []
    first = cut.tables["rounds"][0]
    assert (first["finished"], first["late"]) == (4, 3)
    assert first["virtual_seconds"] > 10 * deadline  # the sums go up after it


@pytest.mark.parametrize("events", [False, True])
def test_relays_that_are_not_ready_at_the_deadline_stop(games: Games, events: bool) -> None:
    """A download of 1 kbit/s would take minutes: no client ever begins."""
    relays = {"count": 2, "link": {"download": "1 kbit/s", "latency": "1 s"}}
    setup = untrained(games, relays, {"cohort": 1.0, "deadline": 5.0, "gate": "everyone"})
    _, journal = games.none(setup, events=events)
    assert broken_rules(setup, journal) == []
    for round in journal.tables["rounds"]:
        assert (round["outcome"], round["late"], round["relay_upload_bytes"]) == ("below quorum", 7, 0)
        assert round["relay_download_bytes"] == 2 * (4 * 1000 // 8)  # 4 s of 5 s at 1 kbit/s
        assert round["carried_download_bytes"] == 0
    for client in journal.tables["clients"]:
        assert client["virtual_seconds"] == 0.0 and client["phase"] == "download"
        assert client["dispatched_virtual_seconds"] == client["ended_virtual_seconds"]


def test_with_over_selection_a_round_has_the_first_landings(games: Games) -> None:
    setup = untrained(games, {"count": 3, "link": SLOW_LINE}, {"cohort": 4, "over_selection": 0.7, "stratify": False})
    _, journal = games.none(setup)
    assert broken_rules(setup, journal) == []
    for round in journal.tables["rounds"]:
        clients = [c for c in journal.tables["clients"] if c["round"] == round["round"]]
        finished = [c["ended_virtual_seconds"] for c in clients if c["outcome"] == "finished"]
        assert len(finished) == 4 < len(clients)
        assert all(c["ended_virtual_seconds"] == max(finished) for c in clients if c["outcome"] == "late")


def test_a_finished_stage_goes_through_the_relays(games: Games) -> None:
    schedule = {"name": "layerwise", "stages": 2, "rounds": 2, "deliver_final": True}
    data = {**games.tiny()["data"], "clients": {"image": 4}}
    setup = untrained(games, {"count": 2, "link": SLOW_LINE}, schedule=schedule, data=data)
    _, behind = games.none(setup)
    _, plain = games.none(replace(setup, fleet=replace(setup.fleet, relays=None)))
    assert broken_rules(setup, behind) == []
    for with_them, without in zip(behind.tables["rounds"], plain.tables["rounds"], strict=True):
        for name in ("final_delivery_bytes", "download_bytes", "carried_download_bytes"):
            assert with_them[name] == without[name]
        # four equal clients behind two relays: half of their downloads, the delivery's too
        assert 2 * with_them["relay_download_bytes"] == with_them["carried_download_bytes"]
    assert behind.tables["rounds"][0]["final_delivery_bytes"] > 0


# lost relays ----------------------------------------------------------------------------------------------------------

LOST = ("outcome", "phase", "lost_upload_bytes")
OF_TIME = ("dispatched_virtual_seconds", "ended_virtual_seconds")


@pytest.mark.parametrize("events", [False, True])
def test_a_lost_relay_loses_its_clients_updates_and_nothing_else(games: Games, events: bool) -> None:
    fleet = {"relays": {"count": 3, "failures": "40%"}, "failures": {"training": "10%", "upload": "10%"}}
    setup = changed(games.setup(**declared(games.tiny(schedule={"name": "end-to-end", "rounds": 8}))), {}, fleet)
    _, journal = games.none(setup, events=events)
    assert broken_rules(setup, journal) == []
    assert setup.fleet.relays is not None
    spared = replace(setup, fleet=replace(setup.fleet, relays=replace(setup.fleet.relays, failures=0.0)))
    _, whole = games.none(spared, events=events)
    lost: dict[tuple[int, int], set[bool]] = defaultdict(set)
    for client, before in zip(journal.tables["clients"], whole.tables["clients"], strict=True):
        same = [name for name in client if name not in (*LOST, *OF_TIME)]
        assert [client[name] for name in same] == [before[name] for name in same]
        gone = client["outcome"] == "relay failed"
        if gone:
            assert (before["outcome"], client["phase"]) == ("finished", "upload")
            assert client["lost_upload_bytes"] == client["carried_upload_bytes"] == before["carried_upload_bytes"] > 0
        else:
            assert [client[name] for name in LOST] == [before[name] for name in LOST]
        if before["outcome"] == "finished":
            lost[client["round"], client["relay"]].add(gone)
    assert all(len(seen) == 1 for seen in lost.values()) and {True} in lost.values() and {False} in lost.values()
    for round in journal.tables["rounds"]:
        gone = sum(seen == {True} for (number, _), seen in lost.items() if number == round["round"])
        assert gone <= round["relays_failed"] <= round["relays"] == 3
        assert round["outcomes"].get("relay failed", 0) <= round["failed"]
        assert round["outcome"] == ("completed" if round["finished"] else "below quorum")


def test_a_client_whose_update_was_lost_holds_what_it_downloaded(games: Games) -> None:
    schedule = {"name": "layerwise", "stages": 2, "rounds": 4}
    setup = untrained(games, {"count": 2, "failures": "100%"}, schedule=schedule)
    lost, journal = games.none(setup)
    assert {c["outcome"] for c in journal.tables["clients"]} == {"relay failed"}
    assert {r["outcome"] for r in journal.tables["rounds"]} == {"below quorum"} and not lost.run.at.version
    # all dropped while uploading to the server: they hold the same
    fleet = {"devices": "raspberry-pi-4-4gb", "links": "lte", "failures": {"corrupted": "100%"}}
    corrupted, _ = games.none(changed(setup, None, fleet, jitter=0.0))
    of, states = lost.run.parts.roster.client_versions.to_data()
    other, others = corrupted.run.parts.roster.client_versions.to_data()
    assert np.array_equal(of, other) and [dict(s) for s in states] == [dict(s) for s in others]


# training -------------------------------------------------------------------------------------------------------------


class Keeping(Inline):
    """Keeps what every client sent."""

    def __init__(self, *given: Any):
        super().__init__(*given)
        self.sent: dict[int, dict[str, Tensor]] = {}

    def submit(self, task: Assignment) -> Future[Update]:
        future = super().submit(task)
        if task.client is not None:
            payloads = future.result().payloads
            self.sent[task.client] = {
                item.source: payloads[payload.name][item.name].double().clone()
                for payload in task.form.up
                for item in payload.items
            }
        return future


def trained(games: Games, setup: Setup) -> tuple[ServerState, ServerState, dict[int, dict[str, Tensor]], Any]:
    """The state before and after one round, what every client sent, and the journal."""
    with Keeping(setup.clients, "cpu") as executor:
        simulation, journal = games.real(setup, executor)
    return setup.method.at_start(setup.seed), simulation.state, executor.sent, journal


@pytest.mark.parametrize("failures", ["0%", "50%"])
def test_the_mean_of_the_relays_sums_is_the_flat_mean(games: Games, failures: str) -> None:
    """By hand in float64: each relay's weighted sum with its weights, then the server's sum of sums over weights."""
    fleet = {"relays": {"count": 3, "failures": failures}}
    data = {**games.tiny()["data"], "partition": {"quantity": 0.1}}
    setup = games.setup({}, fleet, data=data, schedule={"name": "end-to-end", "rounds": 1})
    before, after, sent, journal = trained(games, setup)
    clients = journal.tables["clients"]
    assert len(clients) == 7 and len({c["samples"] for c in clients}) > 1
    outcomes = {c["outcome"] for c in clients}
    assert outcomes == ({"finished"} if failures == "0%" else {"finished", "relay failed"})
    sums: dict[int, dict[str, list[Any]]] = defaultdict(dict)
    for client in clients:
        if client["outcome"] != "finished":
            continue
        relay, weight = sums[client["relay"]], client["samples"]
        for address, value in sent[client["client"]].items():
            total = relay.setdefault(address, [torch.zeros_like(value), 0])
            total[0] += weight * (value - before.tensors[address].double())
            total[1] += weight
    moved = 0
    for address, start in before.tensors.items():
        parts = [relay[address] for relay in sums.values() if address in relay]
        mean = sum(part for part, _ in parts) / sum(w for _, w in parts) if parts else torch.zeros(start.shape)
        torch.testing.assert_close(after.tensors[address].double(), start.double() + mean, rtol=1e-6, atol=1e-7)
        moved += bool((after.tensors[address] != start).any())
    assert moved > 20


def test_without_losses_the_weights_are_those_without_relays(games: Games, tmp_path: Path) -> None:
    sections = {"payload": {"up": "int8"}, "aggregation": {"clip": 1.0}}
    fleets = {"plain": {}, "relays": {"relays": {"count": 2, "link": SLOW_LINE}}}
    runs = {
        name: edgefl.run(games.tiny(fleet=fleet, **sections), out=tmp_path / name) for name, fleet in fleets.items()
    }
    weights = [(run.path / "weights.safetensors").read_bytes() for run in runs.values()]
    assert weights[0] == weights[1]
    last = [list(run.records("rounds"))[-1] for run in runs.values()]
    assert last[0]["metrics"] == last[1]["metrics"] and last[0]["losses"] == last[1]["losses"]
    assert last[0]["virtual_seconds"] < last[1]["virtual_seconds"]
    result = runs["relays"].result
    assert result["totals"]["relays"] == sum(r["relays"] for r in runs["relays"].records("rounds")) == 4
    told = explain(runs["relays"].path, 1)
    assert sum(part["seconds"] for part in told["path"]) == pytest.approx(told["virtual_seconds"])
    who = [part["who"] for part in told["path"]]
    relay = f"relay {next(iter(runs['relays'].records('rounds')))['last_relay']}"
    assert who[0] == relay and who.count(relay) == 2 and who[1].startswith("client")


def test_a_killed_run_ends_with_the_same_bytes(games: Games) -> None:
    """Resumed after its first round, with training."""
    fleet = {"relays": {"count": 3, "failures": "30%"}}
    setup = games.setup({}, fleet, schedule={"name": "end-to-end", "rounds": 3})
    whole, told = games.real(setup)
    again, journal = games.real(setup, since=(1, *told.states[1]))
    assert_equal_tensors(again.state.tensors, whole.state.tensors)
    for table in ("rounds", "clients"):
        assert journal.tables[table] == [r for r in told.tables[table] if r["round"] > 1]
    assert journal.result == told.result  # type: ignore[attr-defined]
