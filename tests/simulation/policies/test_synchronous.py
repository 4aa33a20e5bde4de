"""Whole tiny runs: rounds, deadlines, quorums, budgets, versions, and records that add up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from edgefl_games import granted
from edgefl_toys import Memory
from tensors import assert_equal_tensors

import edgefl
from edgefl.cost.predict import Predictor
from edgefl.cost.scratch import ScratchTable
from edgefl.machine.kernel_scratch import kernels, probe
from edgefl.memo import cache_folder
from edgefl.planning.round_options import RoundOptions
from edgefl.planning.setup import Setup
from edgefl.scenario import load
from edgefl.schedules import part_of
from edgefl.setup.compose import compose
from edgefl.simulation import Simulation
from edgefl.training import Inline

Tiny = Callable[..., dict[str, Any]]
SUMMED = (
    "download_bytes",
    "upload_bytes",
    "serialised_download_bytes",
    "serialised_upload_bytes",
    "forward_flops",
    "backward_flops",
    "executed_flops",
    "energy_joules",
)


PREDICTOR = Predictor(cache_folder() / "costs", "cpu", ScratchTable(kernels("cpu"), partial(probe, device="cpu")))


def play(setup: Setup, *, training: bool = True) -> tuple[Simulation, Memory]:
    journal = Memory()
    if not training:
        simulation = Simulation(setup, None, PREDICTOR, journal)
        simulation.play()
        return simulation, journal
    with Inline(setup.clients, "cpu") as executor:  # type: ignore[arg-type]
        simulation = Simulation(setup, executor, PREDICTOR, journal)
        simulation.play()
    return simulation, journal


@pytest.fixture(scope="module")
def setup(tiny: Tiny) -> Setup:
    return compose(load(tiny()))


@pytest.fixture(scope="module")
def once(tiny: Tiny) -> Setup:
    """One round of the same."""
    return compose(load(tiny(schedule={"name": "end-to-end", "rounds": 1})))


@pytest.fixture(scope="module")
def plain(setup: Setup) -> tuple[Simulation, Memory]:
    return play(setup)


def with_round(setup: Setup, **options: Any) -> Setup:
    return replace(setup, round=RoundOptions(**{"cohort": 1.0, **options}))


def jittered(setup: Setup, sigma: float) -> Setup:
    devices = tuple(replace(d, jitter=sigma) for d in setup.fleet.devices)
    return replace(setup, fleet=replace(setup.fleet, devices=devices))


# rounds -------------------------------------------------------------------------------------------------------------


def test_a_round_lasts_as_long_as_its_slowest_client_and_the_servers_work(plain: tuple[Simulation, Memory]) -> None:
    simulation, journal = plain
    now = 0.0
    for record in journal.tables["rounds"]:
        flown = [c["virtual_seconds"] for c in journal.tables["clients"] if c["round"] == record["round"]]
        assert record["started_virtual_seconds"] == pytest.approx(now)
        assert record["virtual_seconds"] == pytest.approx(max(flown) + record["server_seconds"])
        now += record["virtual_seconds"]
    assert simulation.run.now == pytest.approx(now)


def test_records_add_up(plain: tuple[Simulation, Memory], layerwise_run: Any) -> None:
    simulation, journal = plain
    for tables in (journal.tables, {t: layerwise_run.records(t) for t in ("rounds", "clients")}):
        for record in tables["rounds"]:
            mine = [c for c in tables["clients"] if c["round"] == record["round"]]
            for field in SUMMED:
                assert record[field] == pytest.approx(sum(c[field] for c in mine), rel=1e-12)
            assert record["selected"] == len(mine) == record["finished"] + record["late"]
            for client in mine:
                assert client["peak_memory_bytes"] == sum(client["memory_bytes"].values())
                assert client["download_bytes"] == sum(client["download_bytes_by_payload"].values())
                assert client["serialised_download_bytes"] > client["download_bytes"]
    for field in SUMMED:
        assert simulation.run.progress.totals[field] == pytest.approx(sum(r[field] for r in journal.tables["rounds"]))


def test_predicted_is_measured_in_the_records(layerwise_run: Any) -> None:
    metered = [c for c in layerwise_run.records("clients") if c["measured_peak_memory_bytes"] is not None]
    assert {(c["kind"], c["stage"]) for c in metered} == {
        (k, s) for k in ("image", "text", "image-text") for s in (1, 2)
    }
    works = [w for r in layerwise_run.records("rounds") for w in r["server_works"]]
    for record in metered + [w for w in works if w["measured_peak_memory_bytes"] is not None]:
        assert abs(record["measured_peak_memory_bytes"] - record["peak_memory_bytes"]) <= 4096
        assert record["measured_forward_flops"] == record["forward_flops"]
        assert record["measured_backward_flops"] == record["backward_flops"]


def test_measuring_all_meters_every_work_and_changes_no_weight(setup: Setup, plain: tuple[Simulation, Memory]) -> None:
    simulation, journal = play(replace(setup, measure="all"))
    assert all(abs(c["measured_peak_memory_bytes"] - c["peak_memory_bytes"]) <= 4096 for c in journal.tables["clients"])
    assert_equal_tensors(simulation.state.tensors, plain[0].state.tensors)


def test_the_same_scenario_twice(setup: Setup, plain: tuple[Simulation, Memory]) -> None:
    simulation, journal = play(setup)
    assert_equal_tensors(simulation.state.tensors, plain[0].state.tensors)
    for table in ("rounds", "clients", "eligibility"):
        assert journal.tables[table] == plain[1].tables[table]


def test_another_seed_gives_another_run(tiny: Tiny, plain: tuple[Simulation, Memory]) -> None:
    simulation, _ = play(compose(load(tiny(seed=4, schedule={"name": "end-to-end", "rounds": 1}))))
    assert not all(torch.equal(t, plain[0].state.tensors[a]) for a, t in simulation.state.tensors.items())


def test_a_devices_rate_changes_time_and_no_weight(setup: Setup, plain: tuple[Simulation, Memory]) -> None:
    slow = tuple(replace(d, flops_per_second=d.flops_per_second / 100) for d in setup.fleet.devices)
    simulation, _ = play(replace(setup, fleet=replace(setup.fleet, devices=slow)))
    assert simulation.run.now > plain[0].run.now
    assert_equal_tensors(simulation.state.tensors, plain[0].state.tensors)


def test_server_work_is_charged(plain: tuple[Simulation, Memory]) -> None:
    last = plain[1].tables["rounds"][-1]
    assert [w["when"] for w in last["server_works"]] == ["evaluate test"] * 3
    assert (
        last["server_seconds"] == pytest.approx(sum(w["seconds"] for w in last["server_works"]))
        and last["server_seconds"] > 0
    )
    assert plain[1].tables["rounds"][0]["server_works"] == []
    assert set(last["metrics"]) == {"image", "text", "image-text"} and plain[1].tables["rounds"][0]["metrics"] == {}
    assert plain[0].run.progress.totals["server_seconds"] == pytest.approx(last["server_seconds"])


# deadline, quorum, nobody -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hurried(setup: Setup, plain: tuple[Simulation, Memory]) -> tuple[Simulation, Memory, float]:
    """A deadline that every client meets without jitter, and some miss with it."""
    nominal = max(v["costs"]["seconds"] for v in plain[1].tables["eligibility"])
    deadline = nominal * 1.001
    return *play(with_round(jittered(setup, 2.0), deadline=deadline)), deadline


def test_late_clients_are_left_out(hurried: tuple[Simulation, Memory, float]) -> None:
    _, journal, deadline = hurried
    clients = journal.tables["clients"]
    assert {c["outcome"] for c in clients} == {"finished", "late"}
    for client in clients:
        # who is late is cut short at the deadline: the server tells it to stop
        assert client["virtual_seconds"] == pytest.approx(deadline) or client["outcome"] == "finished"
        assert (client["phase"] is None) == (client["outcome"] == "finished")
        assert (client["loss"] is None) == (client["outcome"] == "late")
    for record in journal.tables["rounds"]:
        mine = [c for c in clients if c["round"] == record["round"]]
        assert record["late"] == sum(c["outcome"] == "late" for c in mine) and record["outcome"] == "completed"
        if record["late"]:
            assert record["virtual_seconds"] == pytest.approx(deadline + record["server_seconds"])


def test_a_late_update_changes_nothing(hurried: tuple[Simulation, Memory, float]) -> None:
    """A kind whose clients are all late keeps its model."""
    _, journal, _ = hurried
    (before, _), (after, _) = journal.states[1], journal.states[2]
    for kind in ("image", "text", "image-text"):
        arrived = [
            c for c in journal.tables["clients"] if (c["round"], c["kind"], c["outcome"]) == (2, kind, "finished")
        ]
        mine = [a for a in before if a.startswith(f"{kind}/")]
        assert all(torch.equal(before[a], after[a]) for a in mine) == (not arrived)


def test_below_quorum_a_round_changes_nothing(once: Setup) -> None:
    simulation, journal = play(with_round(once, quorum=8))
    assert [r["outcome"] for r in journal.tables["rounds"]] == ["below quorum"]
    assert_equal_tensors(simulation.state.tensors, once.method.initial(once.seed).tensors)
    assert set(simulation.state.versions.values()) == {0}
    assert all(r["finished"] == 7 and r["virtual_seconds"] > 0 for r in journal.tables["rounds"])


def test_exactly_the_quorum_is_enough(once: Setup) -> None:
    _, journal = play(with_round(once, quorum=7))
    assert [r["outcome"] for r in journal.tables["rounds"]] == ["completed"]


@pytest.mark.parametrize("policy", [{"deadline": "10 min"}, {"policy": "buffered", "buffer": 5}], ids=str)
def test_a_wait_gives_signs_of_life(tiny: Tiny, tmp_path: Any, policy: dict[str, Any]) -> None:
    """At once, and then by wall time: for what it waits, since when and until when, on the virtual clock."""
    data = {"source": "declared", "clients": {"image": 6}, "samples": 20,
            "shapes": {"image": {"channels": 1, "size": 16, "classes": 3}}}  # fmt: skip
    fleet = {"availability": {"diurnal": {"hours": "1..2 h"}}}
    round = {"cohort": 6, "below_quorum": "wait", **policy}
    heard: list[str] = []
    edgefl.run(
        tiny(data=data, fleet=fleet, round=round, training="none"), out=tmp_path / "run",
        on_progress=lambda event, facts: heard.append(str(facts.get("what"))),
    )  # fmt: skip
    (text, *_) = [text for text in heard if "waits" in text]
    assert text.startswith("round 1 waits for a quorum of 1 since 0 s on the virtual clock, now ")
    assert "nobody available, 0 updates arrived; after 24 h the run ends (round.patience)" in text


def budgets(setup: Setup, **limits: float) -> Setup:
    arrays = {k: np.full(len(setup.fleet), limits.get(k, np.inf)) for k in setup.fleet.budgets}
    return replace(setup, fleet=granted(setup.fleet, **arrays))


def test_a_round_with_nobody_eligible_is_a_defined_outcome(setup: Setup) -> None:
    simulation, journal = play(budgets(setup, memory=1000.0))
    for record in journal.tables["rounds"]:
        assert record["outcome"] == "nobody eligible"
        assert record["eligible"] == {"image": 0, "text": 0, "image-text": 0} and record["selected"] == 0
        assert all(record[field] == 0 for field in SUMMED) and record["losses"] == {}
    assert journal.tables.get("clients", []) == []
    assert simulation.run.at.round == 2 and set(journal.states) == {1, 2}
    assert_equal_tensors(simulation.state.tensors, setup.method.initial(setup.seed).tensors)
    assert set(simulation.run.progress.metrics) == {"image", "text", "image-text"}


# budgets ------------------------------------------------------------------------------------------------------------

NAMES = {
    "memory": "memory",
    "flops": "flops_per_round",
    "bytes": "bytes_per_round",
    "seconds": "seconds_per_round",
    "joules": "energy_per_round",
}


@pytest.mark.parametrize("budget", NAMES)
def test_each_budget_can_be_the_one_that_binds(tiny: Tiny, plain: tuple[Simulation, Memory], budget: str) -> None:
    """Just under what the costliest client needs: it is refused for this budget alone, the cheapest takes part."""
    costs = {v["client"]: v["costs"][budget] for v in plain[1].tables["eligibility"]}
    whole = budget in ("memory", "bytes")
    allowed = max(costs.values()) - 1 if whole else max(costs.values()) * (1 - 1e-6)
    stated = f"{allowed} B" if whole else allowed
    scenario = tiny(fleet={"budgets": {NAMES[budget]: stated}}, schedule={"name": "end-to-end", "rounds": 1})
    setup = compose(load(scenario))
    (device,) = setup.fleet.devices
    has = device.usable_memory_bytes - device.runtime_overhead_bytes
    _, journal = play(setup, training=False)
    drawn = {r["client"]: r for r in journal.tables["clients"]}
    for verdict in journal.tables["eligibility"]:
        cost = costs[verdict["client"]]
        assert verdict["costs"][budget] == cost
        assert verdict["eligible"] == (cost <= allowed) == (verdict["client"] in drawn)
        assert verdict["binding"] == budget
        assert verdict["margins"][budget] == pytest.approx(allowed - cost)
        assert all(m is None for name, m in verdict["margins"].items() if name not in (budget, "memory"))
        if budget != "memory":  # which no scenario leaves open: the device has so much
            assert verdict["margins"]["memory"] == has - verdict["costs"]["memory"]
        assert verdict["memory_limit"] == ("owner" if budget == "memory" else "device")
        assert verdict["reason"].startswith("eligible" if cost <= allowed else "not eligible")
    assert 0 < len(drawn) < 7


def test_the_deadline_is_a_budget_of_seconds(setup: Setup, plain: tuple[Simulation, Memory]) -> None:
    costs = {v["client"]: v["costs"]["seconds"] for v in plain[1].tables["eligibility"]}
    deadline = sorted(costs.values())[3]
    _, journal = play(with_round(setup, deadline=deadline), training=False)
    refused = {v["client"] for v in journal.tables["eligibility"] if not v["eligible"]}
    assert refused == {c for c, seconds in costs.items() if seconds > deadline} and refused
    assert {v["binding"] for v in journal.tables["eligibility"]} == {"seconds"}


def test_a_verdict_is_recorded_when_it_is_new(layerwise_run: Any) -> None:
    verdicts = layerwise_run.records("eligibility")
    assert sorted((v["stage"], v["round"], v["client"]) for v in verdicts) == [
        (stage, 2 * stage - 1, client) for stage in (1, 2) for client in range(7)
    ]


# layer-wise ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def staged(tiny: Tiny) -> dict[str, tuple[Simulation, Memory]]:
    found = {}
    for final in (False, True):
        schedule = {"name": "layerwise", "stages": 2, "rounds": 4, "deliver_final": final}
        found[str(final)] = play(compose(load(tiny(method="fedcola", schedule=schedule, round={"cohort": 1.0}))))
    return found


@pytest.mark.slow(smaller="test_frozen_blocks_travel_once_to_an_older_copy")
def test_under_layer_wise_only_active_blocks_change(staged: dict[str, tuple[Simulation, Memory]]) -> None:
    simulation, journal = staged["False"]
    states = {r: t for r, (t, _) in journal.states.items()} | {0: simulation.run.parts.setup.method.initial(3).tensors}
    for round in range(1, 5):
        stage = simulation.run.parts.setup.schedule.stage(round)
        for address, value in states[round].items():
            if address.startswith("array:"):
                continue
            name = address.split("/", 1)[1]
            changed = not torch.equal(value, states[round - 1][address])
            assert changed <= stage.is_active(name), (round, address)
            if part_of(name)[1] == "blocks" and name.endswith("attn.qkv.weight"):
                assert changed == stage.is_active(name)


def test_versions_count_the_changes(staged: dict[str, tuple[Simulation, Memory]]) -> None:
    versions = staged["False"][0].state.versions
    assert versions["image/image.blocks.0.attn.qkv.weight"] == 2 == versions["image/image.blocks.1.attn.qkv.weight"]
    assert versions["image/image.embedding.pos"] == 2 and versions["image/image.head.weight"] == 4


def floats(setup: Setup, kind: str, keep: Callable[[str], bool]) -> int:
    return sum(s.bytes for n, s in setup.method.setting.kinds[kind].parameters().items() if keep(n))


def frozen(name: str) -> bool:
    return ".blocks.0." in name or ".embedding." in name


def test_frozen_blocks_travel_once_to_an_older_copy(staged: dict[str, tuple[Simulation, Memory]]) -> None:
    simulation, journal = staged["False"]
    for client in journal.tables["clients"]:
        kind, round = client["kind"], client["round"]
        active = floats(simulation.run.parts.setup, kind, simulation.run.parts.setup.schedule.stage(round).is_active)
        # the last aggregation of stage 1 has made every copy old; from round 4 on it is held
        extra = floats(simulation.run.parts.setup, kind, frozen) if round == 3 else 0
        assert client["download_bytes_by_payload"]["model"] == active + extra
        assert client["upload_bytes"] == active


def test_blocks_that_were_delivered_do_not_travel_again(staged: dict[str, tuple[Simulation, Memory]]) -> None:
    simulation, journal = staged["True"]
    setup = simulation.run.parts.setup
    delivered = {
        stage: sum(
            len(setup.of_kind(k)) * floats(setup, k, lambda n, s=stage: f".blocks.{s - 1}." in n)  # type: ignore[misc]
            for k in setup.clients.kinds
        )
        for stage in (1, 2)
    }
    for record in journal.tables["rounds"]:
        mine = [c for c in journal.tables["clients"] if c["round"] == record["round"]]
        expected = delivered[record["stage"]] if record["round"] in (2, 4) else 0
        assert record["final_delivery_bytes"] == expected
        assert record["download_bytes"] == sum(c["download_bytes"] for c in mine) + expected
    for client in journal.tables["clients"]:
        if client["round"] == 3:  # the embeddings are still old: only blocks are delivered
            active = floats(setup, client["kind"], setup.schedule.stage(3).is_active)
            embedding = floats(setup, client["kind"], lambda n: ".embedding." in n)
            assert client["download_bytes_by_payload"]["model"] == active + embedding


def test_delivery_changes_no_weight(staged: dict[str, tuple[Simulation, Memory]]) -> None:
    assert_equal_tensors(staged["False"][0].state.tensors, staged["True"][0].state.tensors)
    assert staged["True"][0].run.now > staged["False"][0].run.now


def test_a_client_that_missed_a_stage_gets_it_when_it_comes(tiny: Tiny) -> None:
    schedule = {"name": "layerwise", "stages": 2, "rounds": 6}
    simulation, journal = play(compose(load(tiny(schedule=schedule, round={"cohort": 0.34}))))
    seen: set[int] = set()
    for client in journal.tables["clients"]:
        if client["stage"] == 2:
            kind = client["kind"]
            active = floats(simulation.run.parts.setup, kind, simulation.run.parts.setup.schedule.stages[1].is_active)
            extra = 0 if client["client"] in seen else floats(simulation.run.parts.setup, kind, frozen)
            assert client["download_bytes_by_payload"]["model"] == active + extra
            seen.add(client["client"])


# checkpoints --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("round", [1, 2, 3])
def test_a_simulation_goes_on_from_any_checkpoint(staged: dict[str, tuple[Simulation, Memory]], round: int) -> None:
    whole, told = staged["False"]
    tensors, state = told.states[round]
    journal = Memory()
    with Inline(whole.run.parts.setup.clients, "cpu") as executor:  # type: ignore[arg-type]
        simulation = Simulation(whole.run.parts.setup, executor, PREDICTOR, journal)
        simulation.load_data(tensors, state)
        result = simulation.play()
    assert_equal_tensors(simulation.state.tensors, whole.state.tensors)
    assert simulation.state.versions == whole.state.versions
    for table in ("rounds", "clients", "eligibility"):
        assert journal.tables.get(table, []) == [r for r in told.tables[table] if r["round"] > round]
    assert result.totals.to_data() == dict(whole.run.progress.totals)
    assert result.virtual_seconds == whole.run.now


def test_a_checkpoint_of_another_model_is_refused(setup: Setup, staged: dict[str, tuple[Simulation, Memory]]) -> None:
    tensors, state = staged["False"][1].states[1]
    lacking = {a: t for a, t in tensors.items() if a != "image/image.head.bias"}
    simulation = Simulation(setup, Inline(setup.clients, "cpu"), PREDICTOR, Memory())  # type: ignore[arg-type]
    with pytest.raises(edgefl.errors.RunError, match="tensors differ"):
        simulation.load_data(lacking, state)
