"""A sweep's tables: the price of each work by itself, and verdicts that a loop over clients and ways finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgefl.cost.price import price_rounds
from edgefl.devices import Device, Link, load_device, load_link
from edgefl.devices.budgets import BUDGETS, amounts
from edgefl.planning.offers import Prices
from edgefl.planning.planner import Demand
from edgefl.planning.workload import LEFT_OUT, Workload, stage_eligibility, workload_of
from edgefl.scenario import load
from edgefl.setup.compose import compose, predictor_of

DECLARED = {"source": "declared", "clients": {"image": 30, "text": 20}, "samples": {"image": "8..60", "text": 20},
            "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}, "text": {"vocabulary": 200}}}  # fmt: skip


@pytest.fixture(scope="module")
def workload(tiny: Callable[..., dict[str, Any]]) -> Workload:
    """Parts that take turns, of which each client does the first that fits; text clients are left out."""
    fleet = {"devices": {"raspberry-pi-4-4gb": "50%", "phone-mid": "50%"}, "links": {"wifi-5": "50%", "lte": "50%"}}
    scenario = load(tiny(data=DECLARED, fleet=fleet, round={"leave_out": ["text"]},
                         schedule={"name": "elastic", "stages": 2, "rounds": 4}))  # fmt: skip
    return workload_of(compose(scenario), predictor_of(scenario))


def taken(demand: Demand, device: Device, link: Link, throttling: bool = False) -> dict[str, float]:
    price = price_rounds([(demand.compute, demand.traffic)], device, link, throttling=throttling)
    return {name: values.item() for name, values in amounts(BUDGETS, price).items()}


def test_each_work_has_the_price_that_it_has_by_itself(workload: Workload) -> None:
    prices = Prices(workload.demands)
    hot = replace(load_device("phone-mid"), throttle_after_seconds=1e-4, throttled_share=0.5)
    assert len({id(d.compute) for d in workload.demands}) < len(workload.demands)  # some share what they compute
    for device in (hot, load_device("raspberry-pi-4-4gb"), hot):
        for link in (load_link("wifi-5"), load_link("lte")):
            pair = device, link
            for throttling in (False, True):
                # the pair by itself, and as the second of two
                alone, second = prices.on([pair], throttling), prices.on([(hot, link), pair], throttling)
                costs = [taken(demand, device, link, throttling) for demand in workload.demands]
                for name in BUDGETS:
                    wanted = [cost[name] for cost in costs]
                    assert alone.costs[name][0].tolist() == second.costs[name][1].tolist() == wanted


@pytest.mark.parametrize("seed", range(3))
def test_every_client_does_the_first_way_that_fits_or_the_nearest(workload: Workload, seed: int) -> None:
    setup, draw = workload.setup, np.random.default_rng(seed)
    costs = [taken(d, setup.fleet.devices[0], setup.fleet.links[0]) for d in workload.demands]
    budgets = {n: draw.uniform(0.8, 1.2, 50) * draw.choice([c[n] for c in costs], 50) for n in BUDGETS}
    fleet = replace(setup.fleet, budgets=budgets)
    assert any(len(ways) > 1 for ways in workload.candidates)
    found, fast = (stage_eligibility(workload, fleet, why=why) for why in (True, False))
    for judged, again, ways in zip(found, fast, workload.candidates, strict=True):
        assert judged.eligible.tolist() == again.eligible.tolist()
        assert judged.work[judged.eligible].tolist() == again.work[judged.eligible].tolist()
        for client in range(50):
            if setup.kind_of(client) == "text":
                assert judged.work[client] == LEFT_OUT == judged.binding[client] and not judged.eligible[client]
                assert judged.seconds[client] == judged.joules[client] == 0
                continue
            tried = []
            for index, works in ways.items():
                work = int(works[setup.clients.client_group[client]])
                spent = taken(workload.demands[work], fleet.device(client), fleet.link(client))
                shares = [1 - spent[n] / budgets[n][client] for n in BUDGETS]
                tried.append((min(shares) >= 0, min(shares), index, work, spent, shares.index(min(shares))))
                if min(shares) >= 0:
                    break
            fits, _, _, work, spent, binding = max(tried, key=lambda way: way[:3])
            assert (judged.eligible[client], judged.work[client], judged.binding[client]) == (fits, work, binding)
            assert (judged.seconds[client], judged.joules[client]) == (spent["seconds"], spent["joules"])
