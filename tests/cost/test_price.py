"""A client's round on a device and a link: the sum that a loop over its operators and its bytes finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.cost.client_cost import NO_COMPUTE, ComputeCost, Traffic, traffic
from edgefl.cost.price import price_rounds
from edgefl.devices import Device, Link, load_device, load_link
from edgefl.devices.budgets import BUDGETS, amounts
from edgefl.devices.processors import ROOFLINE
from edgefl.operator_classes import OperatorClass
from edgefl.planning.planner import Planner
from edgefl.planning.versions import stale
from edgefl.scenario import load
from edgefl.setup.compose import planner_of

_LOADED = [load_device(name) for name in ("raspberry-pi-4-4gb", "phone-mid", "jetson-orin-nano-8gb")]
DEVICES = [*_LOADED, replace(_LOADED[0], processor=ROOFLINE)]
LINKS = [load_link(name) for name in ("wifi-5", "lte")]
Operators = list[tuple[int, int, int, OperatorClass]]
BUSY = st.lists(
    st.tuples(st.integers(0, 10**12), st.integers(0, 10**9), st.integers(1, 1000), st.sampled_from(OperatorClass)),
    max_size=4,
)


def computing(operators: Operators, parameters: int = 0) -> ComputeCost:
    return ComputeCost(
        5000, {"parameters": parameters, "activations": 7}, 30, 60, 0.0, np.array(operators, float).reshape(-1, 4)
    )


def travelling(down: int, up: int) -> Traffic:
    return Traffic({"model": down}, {"model": up}, {}, {}, down, up)


def taken(cost: tuple[ComputeCost, Traffic], device: Device, link: Link, throttling: bool = False) -> dict[str, float]:
    price = price_rounds([cost], device, link, throttling=throttling)
    return {name: values.item() for name, values in amounts(BUDGETS, price).items()}


def seconds_by_hand(
    operators: Any, parameters: int, down: int, up: int, device: Device, link: Link
) -> tuple[float, float, float, float]:
    """Download, loading and computing, and upload, without throttling; and what of it a GPU waits."""
    busy = launches = gaps = 0.0
    processor = device.processor
    fixed = processor.launch * device.seconds_per_operator
    for flops, touched, times, kind in operators:
        arithmetic = flops / (device.flops_per_second * processor.arithmetic[kind])
        memory = touched / (device.memory_bytes_per_second * processor.memory[kind])
        if processor.type == "cpu":
            busy += times * (arithmetic + memory + fixed)
        elif processor.type == "gpu":
            busy += times * (max(arithmetic, memory) + processor.kernel_seconds)
            launches += times * fixed
            gaps += times * processor.kernel_seconds
        else:
            busy += times * (max(arithmetic, memory) + fixed)
    waits = max(0.0, launches - busy)
    busy += waits + parameters / device.storage_bytes_per_second
    ways = []
    for moved, rate in ((down, link.download_bits_per_second), (up, link.upload_bits_per_second)):
        ways.append(link.latency_seconds + 8 * moved / (rate * (1 - link.loss)) if moved else 0.0)
    return ways[0], busy, ways[1], waits + gaps


@given(
    BUSY, st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9),
    st.sampled_from(DEVICES), st.sampled_from(LINKS),
)  # fmt: skip
def test_seconds_and_joules_by_hand(
    operators: Operators,
    parameters: int,
    down: int,
    up: int,
    device: Device,
    link: Link,
) -> None:
    found = taken((computing(operators, parameters), travelling(down, up)), device, link)
    receiving, busy, sending, waits = seconds_by_hand(operators, parameters, down, up, device, link)
    joules = device.compute_watts * (busy - waits) + device.idle_watts * waits
    joules += (device.idle_watts + link.download_watts) * receiving + (device.idle_watts + link.upload_watts) * sending
    assert found["seconds"] == pytest.approx(receiving + busy + sending)
    assert found["joules"] == pytest.approx(joules)
    assert (found["memory"], found["flops"], found["bytes"]) == (5000, 90, down + up)


@given(BUSY, st.integers(0, 10**9), st.integers(0, 10**9), st.booleans())
def test_computing_and_travelling_add_up(operators: Operators, down: int, up: int, throttling: bool) -> None:
    """What a sweep stands on: neither changes what the other costs."""
    compute, moved = computing(operators), travelling(down, up)
    for device in DEVICES:
        whole = price_rounds([(compute, moved)], device, LINKS[0], throttling=throttling)
        alone = price_rounds([(compute, traffic((), ()))], device, LINKS[1], throttling=throttling)
        still = price_rounds([(NO_COMPUTE, moved)], DEVICES[0], LINKS[0])
        assert whole.compute_seconds == alone.compute_seconds == alone.virtual_seconds
        assert (whole.download_seconds, whole.upload_seconds) == (still.download_seconds, still.upload_seconds)
        assert still.compute_seconds == 0
    assert set(taken((NO_COMPUTE, traffic((), ())), DEVICES[0], LINKS[0], throttling).values()) == {0}


@pytest.fixture(scope="module")
def planner(tiny: Callable[..., dict[str, Any]]) -> Planner:
    data = {"source": "declared", "clients": {"image": 3, "text": 2}, "samples": "5..30",
            "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}, "text": {"vocabulary": 200}}}  # fmt: skip
    links = {"wifi-5": "50%", "lte": "50%"}
    return planner_of(load(tiny(data=data, schedule={"name": "layerwise", "stages": 2, "rounds": 4},
                                fleet={"devices": {d.name: "30%" for d in DEVICES[:2]} | {DEVICES[2].name: "40%"},
                                       "links": links, "throttling": True})))  # fmt: skip


def test_a_plan_is_a_demand_on_the_clients_own_device(planner: Planner) -> None:
    setup = planner.setup
    for round, stage in ((1, setup.schedule.stages[0]), (3, setup.schedule.stages[1])):
        for client in range(5):
            work, _ = planner.work(setup.kind_of(client), round, stage)
            # everything frozen is old to a client that was never sent any of it
            for old in {(), stale(work, stage, {}, dict.fromkeys((i.source for p in work.down for i in p.items), 1))}:
                plan = planner.plan(*setup.cell_indices(client), round, stage, old)
                representative = int(setup.representative[setup.clients.client_group[client]])
                demand = planner.demand(representative, round, stage, old)
                at = setup.fleet.device(client), setup.fleet.link(client)
                assert plan.amounts == taken((demand.compute, demand.traffic), *at, throttling=True)
                assert (plan.form, plan.key, plan.down) == (demand.form, demand.key, demand.down)


def test_a_demand_has_what_its_payloads_weigh_and_batches_no_larger_than_the_samples(planner: Planner) -> None:
    setup = planner.setup
    stage = setup.schedule.stages[1]
    for client in range(5):
        work, _ = planner.work(setup.kind_of(client), 3, stage)
        samples = int(setup.clients.client_samples[client])
        fresh = planner.demand(client, 3, stage)
        assert [p.batch for p in fresh.form.passes] == [min(p.batch, samples) for p in work.passes]
        bytes_of = {i.source: (p.bytes_of(i), stage.is_active(i.name)) for p in work.down for i in p.items}
        frozen = tuple(source for source, (_, active) in bytes_of.items() if not active)
        assert fresh.traffic.download_bytes == sum(n for n, active in bytes_of.values() if active)
        late = planner.demand(client, 3, stage, frozen)
        assert frozen and late.traffic.download_bytes == sum(n for n, _ in bytes_of.values())
        assert late.traffic.upload_bytes == fresh.traffic.upload_bytes and late.compute is fresh.compute
