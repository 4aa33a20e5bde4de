"""An emulation: its refusals, and that what it plays is the run that ``edgefl run`` plays, on another clock."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import edgefl
from edgefl.cost.step_seconds import step_seconds
from edgefl.devices import load_device
from edgefl.devices.processors import ROOFLINE, Processor
from edgefl.machine.fitted_rates import TimedStep
from edgefl.operator_classes import OPERATOR_CLASSES
from edgefl.results.verify import verify
from edgefl.scenario import load
from edgefl.setup.compose import compose
from tools.emulation.answer import PhaseError
from tools.emulation.kernel import EmulationError, missing
from tools.emulation.machines import at_share, check_scope, cores_of, machines_of, shares_of
from tools.emulation.playing import PhasesOfFlight, emulate, errors_of, rows_of
from tools.emulation.rates import fit_device

Scenario = Callable[..., dict[str, Any]]

DEVICE = "raspberry-pi-4-4gb"


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"round": {"policy": "asynchronous"}}, "only synchronous rounds are emulated, not round.policy: asynchronous"),
        ({"round": {"over_selection": 0.5}}, "round.over_selection isn't emulated"),
        ({"schedule": {"name": "elastic", "stages": 2, "rounds": 2}}, "schedule elastic isn't emulated"),
        ({"fleet": {"failures": {"upload": "10%"}}}, "fleet.failures aren't emulated"),
        ({"fleet": {"availability": {"diurnal": {"hours": "8..10 h"}}}}, "availability, battery and throttling"),
        ({"fleet": {"server_link": {"upload": "10 Mbit/s", "sharing": "fifo"}}}, "with sharing: fair only"),
        (
            {"fleet": {"server_link": {"upload": "10 Mbit/s", "background": {"flows": 101}}}},
            "server_link.background: 100 flows at most are emulated",
        ),
        ({"fleet": {"relays": 2}}, "fleet.relays aren't emulated"),
        ({"payload": {"up": "int8"}}, "encoded payloads aren't emulated"),
        ({"training": {"mode": "none"}}, "an emulation trains"),
    ],
)
def test_what_only_the_simulation_plays_is_refused(tiny: Scenario, sections: dict[str, Any], said: str) -> None:
    scenario = load(tiny(**sections))
    with pytest.raises(EmulationError, match=said):
        check_scope(scenario, compose(scenario, trains=False))


def test_a_device_faster_than_a_core_is_refused(tiny: Scenario) -> None:
    setup = compose(load(tiny(fleet={"devices": "macbook-air-m1"})), trains=False)
    with pytest.raises(EmulationError, match="a client gets at most 95 % of a core"):
        shares_of(setup, range(7), load_device(DEVICE))
    (share,) = shares_of(setup, range(7), load_device("server-a5000")).values()
    assert share == load_device("macbook-air-m1").flops_per_second / load_device("server-a5000").flops_per_second


def test_a_share_of_a_core_takes_the_core_s_seconds_over_it_whatever_the_profile_s_processor() -> None:
    core = replace(load_device(DEVICE), processor=ROOFLINE)
    table = np.array([(1e9 * (1 + kind), 1e7, 3.0, kind) for kind in OPERATOR_CLASSES])
    for name in (DEVICE, "server-h200"):
        emulated = at_share(load_device(name), core, 0.25)
        for precision in ("float32", "bfloat16"):
            seconds = step_seconds(table, emulated, precision).total
            assert seconds == pytest.approx(4 * step_seconds(table, core).total)
        assert emulated.compute_watts == load_device(name).compute_watts


def test_more_clients_than_the_cores_bear_are_refused(tiny: Scenario) -> None:
    setup = compose(load(tiny(fleet={"devices": DEVICE})), trains=False)
    cores = sorted(os.sched_getaffinity(0))
    of_each = -(-7 // len(cores))
    placed = cores_of(setup, range(7), {0: 0.9 / of_each}, [1 << 20] * 7)
    assert sorted(placed) == list(range(7)) and set(placed.values()) <= set(cores)
    many = range(len(cores) + 1)
    with pytest.raises(EmulationError, match=rf"it bears about {len(cores)} of them \(--clients\)"):
        cores_of(setup, [client % 7 for client in many], {0: 0.9}, [0 for _ in many])
    with pytest.raises(EmulationError, match="7 clients need .* of memory"):
        cores_of(setup, range(7), {0: 0.01}, [1 << 50] * 7)


def test_a_device_that_its_runtime_fills_is_refused(tiny: Scenario) -> None:
    fleet: dict[str, Any] = {"devices": "raspberry-pi-zero-2w"}
    with pytest.raises(EmulationError, match="raspberry-pi-zero-2w has no memory left for tensors beside its runtime"):
        machines_of(compose(load(tiny(fleet=fleet)), trains=False), {0: 0}, {0: 0.25})
    fleet["budgets"] = {"memory": "512 MiB", "within_device": False}
    [machine] = machines_of(compose(load(tiny(fleet=fleet)), trains=False), {0: 0}, {0: 0.25})
    assert machine.memory_bytes == 512 * 2**20


def test_fitted_rates_are_those_that_the_works_were_made_of() -> None:
    arithmetic, memory = np.linspace(1.0, 0.1, 10), np.linspace(0.3, 1.2, 10)
    here = replace(load_device(DEVICE), processor=Processor("cpu", tuple(arithmetic), tuple(memory)))
    true = {"flops_per_second": 5e9, "memory_bytes_per_second": 3e9, "seconds_per_operator": 4e-5}
    draw, works = np.random.default_rng(0), []
    for _ in range(12):
        flops, moved = 10 ** draw.uniform(3, 6.5, 30), 10 ** draw.uniform(2, 6, 30)
        times, of_class = draw.integers(1, 50, 30), draw.integers(0, 10, 30)
        each = flops / (5e9 * arithmetic[of_class]) + moved / (3e9 * memory[of_class]) + 4e-5
        works.append(TimedStep(np.stack([flops, moved, times, of_class], axis=1), float(each @ times)))
    found = fit_device(here, works)
    assert found.processor == here.processor
    for name, value in true.items():
        assert getattr(found, name) == pytest.approx(value, rel=0.02)


def test_errors_are_those_of_pairs_that_finished() -> None:
    def flight(client: int, seconds: tuple[float, float, float], outcome: str = "finished") -> PhasesOfFlight:
        phases = dict(zip(("download_seconds", "compute_seconds", "upload_seconds"), seconds, strict=True))
        return PhasesOfFlight(round=1, client=client, stage=1, kind="text", outcome=outcome, **phases)

    simulated = [flight(0, (1.0, 2.0, 1.0)), flight(1, (1.0, 1.0, 2.0)), flight(2, (1.0, 1.0, 1.0))]
    emulated = [flight(0, (1.0, 4.0, 1.0)), flight(1, (2.0, 1.0, 1.0)), flight(2, (1.0, 1.0, 1.0), "dropped")]
    who = dict.fromkeys(range(3), ("pi", "lte", 0.5))
    replayed = [flight(0, (1.0, 4.0, 1.0)), flight(1, (1.0, 1.0, 1.0)), flight(2, (1.0, 1.0, 1.0))]
    rows = rows_of(simulated, emulated, replayed, who=who, processor={(1, 0): 2.0, (1, 1): 0.5, (1, 2): 1.0})
    assert [row.client for row in rows] == [0, 1]
    errors = errors_of(rows)
    assert errors["compute"] == PhaseError(median=0.25, worst=0.5, client_rounds=2)
    assert errors["round with measured compute"] == PhaseError(median=0.125, worst=0.25, client_rounds=2)
    assert errors["compute as processor time over quota"].worst == 0.0


@pytest.mark.slow(smaller="test_inline_and_processes_give_the_same_reports")
@pytest.mark.parametrize(
    ("method", "schedule"),
    [
        ("fedavg", "end-to-end"),
        pytest.param("fedcola", "layerwise", marks=pytest.mark.slow),
        pytest.param("fedprox", "progressive", marks=pytest.mark.slow),
    ],
)
def test_an_emulation_trains_the_weights_that_a_run_trains(
    tiny: Scenario, tmp_path: Path, method: str, schedule: str
) -> None:
    if lacks := missing(line=True):
        pytest.skip("; ".join(lacks))
    stages = {} if schedule == "end-to-end" else {"stages": 2}
    line = {"download": "40 Mbit/s", "upload": "20 Mbit/s", "background": {"flows": 2, "rate": "2 Mbit/s"}}
    scenario = tiny(
        method=method,
        schedule={"name": schedule, "rounds": 4, **stages},
        fleet={"devices": "raspberry-pi-3b-plus", "links": "wifi-5", "server_link": line},  # two busy cores bear three
        data={**tiny()["data"], "clients": {"image": 1, "text": 1, "image-text": 1}},
    )
    result = emulate(scenario, out=tmp_path / "emulated")
    plain = edgefl.run(scenario, out=tmp_path / "plain")
    emulated = edgefl.read_run(tmp_path / "emulated" / "emulated")
    weights = plain.weights()
    assert weights.keys() == emulated.weights().keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in emulated.weights().items())
    # what crossed the links is what the records say, to the byte
    sent = {(flown["round"], flown["client"]): flown for flown in result["flights"]}
    for record in emulated.each("clients"):
        flown = sent[record["round"], record["client"]]
        assert flown["download_bytes"] == record["serialised_download_bytes"]
        assert flown["upload_bytes"] == record["serialised_upload_bytes"]
    assert len(result["client_rounds"]) == 12
    assert verify(emulated.path)["valid"], verify(emulated.path)
    # with the wall clock the same rounds took other seconds
    assert [r["metrics"] for r in emulated.records("rounds")] == [r["metrics"] for r in plain.records("rounds")]
