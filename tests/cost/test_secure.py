"""Secure aggregation as cost, against the abstract of its paper and the protocol's messages one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil, log2, prod
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl.cost.secure import SecureSum
from edgefl.planning.planner import Planner
from edgefl.results.verify import verify
from edgefl.scenario import load
from edgefl.setup.compose import compose, predictor_of

Tiny = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(("users", "values", "expansion"), [(2**10, 2**20, 1.73), (2**14, 2**24, 1.98)])
def test_the_expansions_are_those_of_the_abstract(users: int, values: int, expansion: float) -> None:
    secure = SecureSum.among(users, "secagg", None, 16)
    bits = secure.up_bits + secure.down_bits + values * secure.value_bits
    assert round(bits / (values * 16), 2) == expansion
    # the paper's own sum of what a user sends and receives, with keys and shares of 256 bits
    assert bits == 256 * 2 * users + 256 * (5 * users - 4) + values * ceil(log2(users * (2**16 - 1) + 1))


@pytest.mark.parametrize(
    ("clients", "protocol", "neighbours"), [(5, "secagg", 4), (5, "secagg+", 2), (9, "secagg+", 3)]
)
def test_bits_are_those_of_the_messages_one_by_one(clients: int, protocol: str, neighbours: int) -> None:
    up, down = [0] * clients, [0] * clients
    ring = {i: [(i + d) % clients for d in range(1, neighbours + 1)] for i in range(clients)}
    for client in range(clients):
        up[client] += 2 * 256  # its public keys, for encryption and for masks
        for other in ring[client]:  # of a circulant graph, so that each sends to and hears of equally many
            down[other] += 2 * 256  # the keys
            up[client] += 2 * 256  # shares of its mask's seed and of its secret key
            down[other] += 2 * 256
        up[client] += (len(ring[client]) + 1) * 256  # in the end one share of each neighbour, and of itself
    secure = SecureSum.among(clients, protocol, None if protocol == "secagg" else neighbours, 16)
    assert {(secure.up_bits, secure.down_bits)} == set(zip(up, down, strict=True))


@pytest.mark.parametrize(("arrived", "dropped"), [(6, 0), (4, 2)])
def test_masks_cancel_with_those_that_the_server_expands(arrived: int, dropped: int) -> None:
    clients = arrived + dropped
    secure = SecureSum.among(clients, "secagg", None, 16)
    own, pairs = 0, 0
    for i in range(clients):
        own += i < arrived  # the own mask of who arrived
        pairs += sum(
            i >= arrived > j for j in range(clients)
        )  # of a dropout those with whom it had one and who arrived
    assert own + pairs <= secure.server_masks(arrived, dropped) == own + dropped * (clients - 1)
    assert secure.masks == clients


def secure_tiny(tiny: Tiny, **more: Any) -> dict[str, Any]:
    data = {**tiny()["data"], "clients": {"image": 4}, "samples": 16}
    round_ = {"cohort": 1.0, "weighting": "equal"}
    return tiny(**{"data": data, "round": round_, "aggregation": {"clip": 1.0, "secure": "secagg"}, **more})


def test_a_client_pays_for_masked_values_keys_shares_and_trips(tiny: Tiny) -> None:
    setup = compose(load(secure_tiny(tiny)))
    aggregation = setup.method.setting.aggregation.model_copy(update={"secure": None})
    plain = type(setup.method)(setup.method.options, replace(setup.method.setting, aggregation=aggregation))
    predictor, stage = predictor_of(load(secure_tiny(tiny))), setup.schedule.stage(1)
    costs = [Planner(each, predictor).plan(0, 0, 0, 1, stage, ()) for each in (setup, replace(setup, method=plain))]
    masked, usual = (plan.traffic for plan in costs)
    sizes = [prod(item.shape) for payload in costs[0].form.up for item in payload.items]
    packed = sum(ceil(n * 18 / 8) for n in sizes)  # 4 (2^16 - 1) + 1 needs 18 bits
    assert masked.upload_bytes == packed + 2 * 32 + 10 * 32 and usual.upload_bytes == 4 * sum(sizes)
    assert masked.download_bytes == usual.download_bytes + 6 * 32 + 6 * 32
    link, device = setup.fleet.links[0], setup.fleet.devices[0]
    waits = 6 * link.latency_seconds + 8 * 384 / link.upload_goodput + 8 * 384 / link.download_goodput
    assert costs[0].exchange_seconds == pytest.approx(waits)
    words = 4 * 2 * 4 * sum(sizes)  # of four masks: each is written, and read to be added
    _, touched, times, _ = costs[0].compute.operators[-1]
    assert touched * times == words
    more = costs[0].compute.seconds(device) - costs[1].compute.seconds(device)
    assert more > words / device.memory_bytes_per_second
    assert costs[0].compute.peak_memory_bytes == costs[1].compute.peak_memory_bytes


def test_a_run_counts_what_dropouts_ask_of_the_server(tiny: Tiny, tmp_path: Path) -> None:
    fleet = {"devices": {"raspberry-pi-4-4gb": 1.0}, "links": {"wifi-5": 1.0}, "failures": {"upload": 0.3}}
    run = edgefl.run(secure_tiny(tiny, fleet=fleet, training={"mode": "none"}), out=tmp_path / "run")
    assert verify(run.path).valid
    dropped = 0
    for record in run.rounds.to_dict("records"):
        lost = record["selected"] - record["finished"]
        assert record["unmasked_secrets"] == record["selected"] == 4
        assert record["unmasked_vectors"] == record["finished"] + 3 * lost
        dropped += lost
    assert dropped
