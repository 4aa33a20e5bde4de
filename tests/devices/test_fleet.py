"""Fleets: options, exact shares, draws that are made at once and depend on the seed alone."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from itertools import pairwise
from math import floor, inf, log

import numpy as np
import pytest
from calls import calls
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from edgefl import units
from edgefl.cost.step_seconds import step_seconds
from edgefl.devices import BudgetOptions, Fleet, FleetOptions, apportion, device_names, load_device
from edgefl.devices.fleet import with_pace
from edgefl.devices.processors import ROOFLINE
from edgefl.errors import DeviceError

MIXED = FleetOptions(
    devices={"raspberry-pi-3b-plus": "40%", "raspberry-pi-4-4gb": "40%", "jetson-orin-nano-8gb": "20%"},
    links={"wifi-5": "50%", "lte": "50%"},
    budgets={"memory": "12..48 MiB", "flops_per_round": "2 TFLOP", "energy_per_round": "1..2 kJ"},
)

amounts = st.lists(st.integers(1, 1000), min_size=1, max_size=8)


@given(amounts, st.integers(0, 10_000))
def test_apportionment(weights, clients):
    shares = {str(i): weight / sum(weights) for i, weight in enumerate(weights)}
    counts = apportion(shares, clients)
    assert sum(counts.values()) == clients
    for name, share in shares.items():
        assert floor(share * clients - 1e-5) <= counts[name] <= share * clients + 1  # the quota rule


@given(amounts)
def test_counts_are_taken_as_they_are(counts):
    wanted = {str(i): count for i, count in enumerate(counts)}
    assert apportion(wanted, sum(counts)) == wanted
    with pytest.raises(DeviceError, match=f"add up to {sum(counts)}, but there are {sum(counts) + 1} clients"):
        apportion(wanted, sum(counts) + 1)


def test_a_known_apportionment():
    assert apportion({"a": 0.4, "b": 0.4, "c": 0.2}, 30) == {"a": 12, "b": 12, "c": 6}
    assert apportion({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, 10) == {"a": 4, "b": 3, "c": 3}


DRAWN = MIXED.model_copy(update={"uncertainty": "80%"})


def test_paces_of_device_models_have_the_quantiles_of_their_intervals():
    for name in ("raspberry-pi-4-8gb", "phone-mid", "server-h200"):
        within = load_device(name).processor.within
        paces = np.sort([with_pace(load_device(name), seed).processor.pace for seed in range(4000)])
        assert np.log(paces[[400, 2000, 3600]]) == pytest.approx(
            np.log([1 / within, 1, within]), abs=0.08 * log(within)
        )
        assert np.log(paces).std() == pytest.approx(log(within) / 1.2816, rel=0.04)  # the .9 quantile of a normal


def test_a_pace_multiplies_all_seconds_of_a_model_and_moves_no_other_draw():
    assert FleetOptions.model_validate({"uncertainty": "80 %"}).uncertainty == "80%"
    fleet, drawn = (Fleet.draw(options, 30, seed=3) for options in (MIXED, DRAWN))
    assert drawn.devices != fleet.devices and [d.processor.pace for d in fleet.devices] == [1.0] * 3
    paces = [device.processor.pace for device in drawn.devices]
    assert len(set(paces)) == 3 and drawn.devices == Fleet.draw(DRAWN, 7, seed=3).devices
    assert paces != [device.processor.pace for device in Fleet.draw(DRAWN, 30, seed=4).devices]
    for name, budget in fleet.budgets.items():
        assert (drawn.budgets[name] == budget).all()
    assert (drawn.device_index == fleet.device_index).all() and (drawn.link_index == fleet.link_index).all()
    # FLOPs, bytes, times, class: of products, of depthwise convolutions, of updates
    operators = np.array([[1e9, 1e6, 3, 0], [1e6, 1e7, 5, 4], [0.0, 1e3, 900, 9]])
    for before, after in zip((*fleet.devices, fleet.server), (*drawn.devices, drawn.server), strict=True):
        old, new = step_seconds(operators, before), step_seconds(operators, after)
        pace = after.processor.pace
        assert new.total == pytest.approx(pace * old.total) and new.busy == pytest.approx(pace * old.busy)
    assert (
        paces[0]
        == Fleet.draw(FleetOptions(devices=drawn.devices[0].name, uncertainty="80%"), 2, 3).devices[0].processor.pace
    )


def test_a_device_that_was_calibrated_has_no_pace():
    own = replace(load_device("raspberry-pi-4-8gb"), processor=ROOFLINE)
    assert with_pace(own, 3) is own


@pytest.mark.parametrize("value", ["90%", "0.9", 0.8, True, "80"])
def test_another_uncertainty_is_refused(value):
    with pytest.raises(ValidationError, match="that of 80%, not of .*; write 80%, or leave it out"):
        FleetOptions.model_validate({"uncertainty": value})


def test_a_fleet_meets_its_options():
    fleet = Fleet.draw(MIXED, 30, seed=1)
    assert len(fleet) == 30
    assert np.bincount(fleet.device_index).tolist() == [6, 12, 12]  # by name
    assert np.bincount(fleet.link_index).tolist() == [15, 15]
    memory = fleet.budgets["memory"]
    assert memory.min() >= 12 * 2**20
    assert memory.max() <= 48 * 2**20
    assert len(np.unique(memory)) == 30
    assert set(fleet.budgets["flops"]) == {2e12}
    assert set(fleet.budgets["bytes"]) == set(fleet.budgets["seconds"]) == {inf}
    assert list(fleet.budgets) == ["memory", "flops", "bytes", "seconds", "joules"]
    assert fleet.device(3) is fleet.devices[fleet.device_index[3]]
    assert fleet.of_devices("ram_bytes")[3] == fleet.device(3).ram_bytes
    assert fleet.of_links("latency_seconds")[3] == fleet.link(3).latency_seconds
    assert fleet.server == load_device("server-a5000")


def _same(one, other):
    return (
        np.array_equal(one.device_index, other.device_index)
        and np.array_equal(one.link_index, other.link_index)
        and all(np.array_equal(one.budgets[key], other.budgets[key]) for key in one.budgets)
    )


def test_a_fleet_is_a_function_of_its_seed():
    assert _same(Fleet.draw(MIXED, 100, seed=1), Fleet.draw(MIXED, 100, seed=1))
    assert not _same(Fleet.draw(MIXED, 100, seed=1), Fleet.draw(MIXED, 100, seed=2))


@given(st.permutations([("raspberry-pi-4-4gb", 5), ("jetson-orin-nano-8gb", 7), ("macbook-air-m1", 9)]), st.booleans())
def test_the_order_in_which_names_are_written_means_nothing(devices, turned):
    def drawn(turn, devices):
        turned = slice(None, None, -1 if turn else 1)
        links = dict([("wifi-5", 0.5), ("lte", 0.25), ("5g-nr", 0.25)][turned])
        memory = [("6 MiB", 7), ("2..4 MiB", 7), ("10..40% of device", 4), ("unlimited", 3)]
        budgets = {"memory": dict(memory[turned]), "power": dict([("5 W", "50%"), ("2 W", "50%")][turned])}
        return Fleet.draw(FleetOptions(devices=devices, links=links, budgets=budgets), 21, seed=4)

    expected = drawn(False, {"jetson-orin-nano-8gb": 7, "macbook-air-m1": 9, "raspberry-pi-4-4gb": 5})
    assert _same(drawn(turned, dict(devices)), expected)
    names = [name for name, count in devices for _ in range(count)]
    assert _same(drawn(turned, names), drawn(turned, sorted(names)))  # a list of names has shares


def test_one_budget_does_not_move_another():
    alone = Fleet.draw(FleetOptions(budgets={"memory": "12..48 MiB"}), 50, seed=1)
    assert np.array_equal(alone.budgets["memory"], Fleet.draw(MIXED, 50, seed=1).budgets["memory"])


def test_a_share_of_the_device_is_of_its_ram_less_the_overhead():
    options = MIXED.model_copy(update={"budgets": BudgetOptions(memory="40% of device")})
    fleet = Fleet.draw(options, 30, seed=1)
    for client in range(30):
        one = fleet.device(client)
        expected = max(floor(0.4 * one.ram_bytes - one.runtime_overhead_bytes), 0)
        assert fleet.budgets["memory"][client] == expected
    ranged = Fleet.draw(MIXED.model_copy(update={"budgets": BudgetOptions(memory="40..80% of device")}), 30, seed=1)
    assert np.all(ranged.budgets["memory"] >= fleet.budgets["memory"])


def small_at(share, amount, budget="memory", clients=30, seed=1):
    """The clients that get ``amount`` of a mixture with this share of it; the others have no limit."""
    options = BudgetOptions.model_validate({budget: {amount: share, "unlimited": f"{100 - int(share[:-1])}%"}})
    fleet = Fleet.draw(MIXED.model_copy(update={"budgets": options}), clients, seed)
    memory = budget == "memory"
    free = fleet.available_memory_bytes if memory else np.full(clients, inf)
    drawn = fleet.budgets["memory" if memory else "bytes"]
    assert set(drawn[drawn != free]) <= {units.BYTES.parse(amount)}
    return set(np.flatnonzero(drawn != free).tolist())


def test_a_mixture_gives_exact_counts_to_clients_that_depend_on_its_shares_alone():
    shares = {share: small_at(share, "6 MiB") for share in ("0%", "10%", "30%", "70%", "100%")}
    assert [len(small) for small in shares.values()] == [0, 3, 9, 21, 30]
    nested = list(shares.values())
    assert all(fewer < more for fewer, more in pairwise(nested))
    assert small_at("70%", "11 MiB") == shares["70%"] != small_at("70%", "6 MiB", seed=2)
    # budgets are dealt out independently of each other
    assert small_at("70%", "6 MiB", budget="bytes_per_round") != shares["70%"]
    assert len(small_at("70%", "6 MiB", clients=10)) == 7


def test_a_mixture_of_ranges_and_shares_of_the_device_draws_what_each_alone_draws():
    written = {"1..2 MB": 4, "40..60% of device": 20, "3 MB": 6}
    mixed, *alone = (
        Fleet.draw(MIXED.model_copy(update={"budgets": BudgetOptions(memory=memory)}), 30, seed=1).budgets["memory"]
        for memory in (written, *written)
    )
    of = [sum(mixed[client] == one[client] for client in range(30)) for one in alone]
    assert of == [4, 20, 6]
    assert sum(any(mixed[client] == one[client] for one in alone) for client in range(30)) == 30


def test_a_mixture_in_every_budget_is_read_from_what_it_writes():
    stated = {
        "memory": {"6 MiB": "70%", "10..40% of device": "20%", "unlimited": "10%"},
        "flops_per_round": {"1e9..2e9": 0.25, 3e9: 0.75},
        "bytes_per_round": {"1..2 MB": "50%", "unlimited": "50%"},
        "energy_per_round": {"2 kJ": 3, "unlimited": 7},
        "seconds_per_round": {"0.1..1 s": "100%"},
        "energy_total": {"1 kJ": 3, "2 kJ": 7},
        "bytes_per_day": {"1..2 MB": "50%", "unlimited": "50%"},
        "energy_per_day": "1..2 kJ",
        "bytes_total": "20 MB",
        "power": {"5 W": 1, "5.5..6 W": 9},
    }
    options = BudgetOptions.model_validate(stated)
    plain = json.loads(options.model_dump_json())
    assert plain["memory"] == {"6291456": 0.7, "10..40% of device": 0.2, "unlimited": 0.1}
    assert plain["power"] == {"5.0": 1, "5.5..6.0": 9}
    again = BudgetOptions.model_validate(plain)
    assert again == options == BudgetOptions.model_validate(options.model_dump())
    one, other = (Fleet.draw(MIXED.model_copy(update={"budgets": each}), 10, seed=3) for each in (options, again))
    assert _same(one, other) and one.caps.amounts.keys() == other.caps.amounts.keys()
    assert all(np.array_equal(amounts, other.caps.amounts[name]) for name, amounts in one.caps.amounts.items())
    assert sorted(one.caps.amounts["energy_total"]) == [1000] * 3 + [2000] * 7
    assert plain["bytes_total"] == [20_000_000] * 2 and set(one.caps.amounts["bytes_total"]) == {20e6, inf}
    assert sorted(one.budgets["joules"]) == [2000] * 3 + [inf] * 7
    assert sum(one.budgets["power"] == 5) == 1 and sum(one.budgets["power"] > 5.5) == 9


def test_available_memory_is_what_the_system_and_the_runtime_leave():
    fleet = Fleet.draw(MIXED, 30, seed=1)
    one = fleet.device(0)
    expected = max(one.usable_memory_bytes - one.runtime_overhead_bytes, 0)
    assert fleet.available_memory_bytes[0] == expected


@given(st.integers(0, 2**32), st.integers(0, 100))
def test_jitter(seed, round_):
    fleet = Fleet.draw(MIXED, 40, seed=1)
    everybody = np.arange(40)
    factors = fleet.jitter(seed, round_, everybody)
    assert factors.shape == (3, 40) and np.all(factors > 0)
    download, compute, upload = factors
    assert not np.array_equal(download, upload)
    assert np.array_equal(factors, fleet.jitter(seed, round_, everybody))
    assert np.array_equal(fleet.jitter(seed, round_, [7, 3]), factors[:, [7, 3]])
    assert not np.array_equal(compute, fleet.jitter(seed, round_ + 1, everybody)[1])


def test_jitter_has_median_one_and_the_sigma_of_the_profile():
    fleet = Fleet.draw(FleetOptions(), 100_000, seed=1)
    logs = np.log(fleet.jitter(1, 1, np.arange(100_000))[0])
    assert abs(np.median(logs)) < 0.005
    assert np.std(logs) == pytest.approx(fleet.links[0].jitter, rel=0.02)


def test_a_million_clients_are_drawn_at_once():
    fleet = Fleet.draw(MIXED, 1_000_000, seed=1)
    assert calls(lambda: Fleet.draw(MIXED, 1_000_000, seed=1)) == calls(lambda: Fleet.draw(MIXED, 1000, seed=1))
    assert np.bincount(fleet.device_index).tolist() == [200_000, 400_000, 400_000]


@pytest.mark.slow(smaller="test_a_million_clients_are_drawn_at_once")
def test_ten_million_clients_are_drawn_in_little_memory():
    tracemalloc.start()
    try:
        fleet = Fleet.draw(MIXED, 10_000_000, seed=1)
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 400e6
    # two budgets of 8 bytes; two indices and whose the memory budget is of 1 byte
    assert kept < 2 * 80e6 + 3 * 10e6 + 1e6
    assert len(fleet) == 10_000_000


def test_arrays_are_small():
    fleet = Fleet.draw(MIXED, 1000, seed=1)
    assert fleet.device_index.dtype == fleet.link_index.dtype == np.uint8
    alike = Fleet.draw(FleetOptions(), 1000, seed=1)
    shared = fleet.budgets["flops"], alike.memory_of_device
    for array in (alike.device_index, alike.link_index, *alike.budgets.values(), *shared):
        assert array.shape == (1000,)
        assert array.strides == (0,)


PI, ZERO = load_device("raspberry-pi-3b-plus"), load_device("raspberry-pi-zero-2w")
LEFT = PI.usable_memory_bytes - PI.runtime_overhead_bytes
"""What a Raspberry Pi 3B+ can give beside PyTorch: 800 - 360 MiB."""


@pytest.mark.parametrize(
    ("granted", "budget", "of_device"),
    [
        ("12 MiB", 12 * 2**20, False),  # the owner grants less than the device has
        (LEFT - 1, LEFT - 1, False),
        (LEFT, LEFT, False),  # equal: the owner's word is enough
        (LEFT + 1, LEFT, True),
        ("600 MiB", LEFT, True),  # the device has less than is granted
        (None, LEFT, True),
        ("40% of device", int(0.4 * PI.ram_bytes) - PI.runtime_overhead_bytes, False),
        ("90% of device", LEFT, True),  # 90 % of the RAM is more than the system leaves
        ("20% of device", 0, False),  # less than PyTorch takes: nothing is granted
    ],
)
def test_a_memory_budget_is_what_the_owner_grants_and_never_more_than_the_device_has(granted, budget, of_device):
    assert LEFT == 440 * 2**20
    fleet = Fleet.draw(FleetOptions(devices=PI.name, budgets={"memory": granted} if granted else {}), 3, seed=1)
    assert fleet.budgets["memory"].tolist() == [budget] * 3
    assert fleet.memory_of_device.tolist() == [of_device] * 3


def test_a_device_without_memory_beside_pytorch_has_a_budget_of_0_and_a_lean_runtime_leaves_some():
    def drawn(**fields):
        options = FleetOptions(devices=ZERO.name, budgets={"memory": "12 MiB"}, **fields)
        fleet = Fleet.draw(options, 2, seed=1)
        return fleet.budgets["memory"].tolist(), fleet.memory_of_device.tolist(), fleet.available_memory_bytes.tolist()

    assert drawn() == drawn(runtime="pytorch") == ([0, 0], [True, True], [0, 0])
    assert drawn(runtime="executorch") == ([12 * 2**20] * 2, [False] * 2, [330 * 2**20 - 16_000_000] * 2)
    assert drawn(runtime="324 MiB") == ([6 * 2**20] * 2, [True] * 2, [6 * 2**20] * 2)
    assert drawn(runtime=0)[2] == [330 * 2**20] * 2


def test_a_budget_may_ignore_the_device():
    options = {"memory": "100..600 MiB", "within_device": False}
    fleet = Fleet.draw(FleetOptions(devices=ZERO.name, budgets=options), 300, seed=1)
    assert fleet.budgets["memory"].min() >= 100 * 2**20 and not fleet.memory_of_device.any()
    free = Fleet.draw(FleetOptions(budgets={"within_device": False}), 3, seed=1)
    assert free.budgets["memory"].tolist() == [inf] * 3 and not free.memory_of_device.any()


@settings(deadline=None)
@given(
    st.one_of(
        st.none(),
        st.tuples(st.integers(1, 2**40), st.integers(1, 2**40)).map(lambda p: f"{min(p)}..{max(p)} B"),
        st.tuples(st.integers(1, 100), st.integers(1, 100)).map(lambda p: f"{min(p)}..{max(p)}% of device"),
    ),
    st.sampled_from(["pytorch", "executorch", "onnxruntime", "mnn", 0, "100 MB", "512 MiB"]),
    st.lists(st.sampled_from(device_names()), min_size=1, max_size=4, unique=True),
    st.integers(0, 2**32),
)
def test_no_budget_is_above_what_the_device_has(granted, runtime, devices, seed):
    options = FleetOptions(
        devices=dict.fromkeys(devices, 5), runtime=runtime, budgets={} if granted is None else {"memory": granted}
    )
    fleet = Fleet.draw(options, 5 * len(devices), seed=seed)
    alone = BudgetOptions(memory=granted, within_device=False)
    owners = Fleet.draw(options.model_copy(update={"budgets": alone}), len(fleet), seed=seed).budgets["memory"]
    for client in range(len(fleet)):
        device, budget = load_device(fleet.device(client).name), fleet.budgets["memory"][client]
        overhead = {"pytorch": device.runtime_overhead_bytes, "executorch": 16e6, "onnxruntime": 27e6, "mnn": 3.2e6,
                    0: 0, "100 MB": 1e8, "512 MiB": 2**29}[runtime]  # fmt: skip
        has = max(device.usable_memory_bytes - overhead, 0)
        assert budget == min(owners[client], has) <= has
        assert fleet.memory_of_device[client] == (owners[client] > has)


def test_numbers_of_some_clients():
    fleet = Fleet.draw(MIXED, 300, seed=1)
    some = [7, 250, 3]
    assert np.array_equal(fleet.of_devices("ram_bytes", some), fleet.of_devices("ram_bytes")[some])
    assert np.array_equal(fleet.of_links("jitter", some), fleet.of_links("jitter")[some])


def test_what_a_fleet_has_beside_its_clients():
    plain = Fleet.draw(FleetOptions(), 3, seed=1)
    assert (plain.battery, plain.throttling, plain.server_link) == (None, False, None)
    assert plain.failures.is_inactive
    assert plain.availability.available([0, 1, 2], 0).all()
    written = {
        "server_link": {"download": "1 Gbit/s", "upload": "unlimited", "sharing": "fifo"},
        "availability": {"markov": {"on": "2 h", "off": "10 h"}},
        "failures": {"training": "5%"},
        "battery": {"capacity": "15 Wh"},
        "throttling": True,
    }
    fleet = Fleet.draw(FleetOptions.model_validate(written), 1000, seed=1)
    assert fleet.server_link.download == 1e9
    assert fleet.server_link.upload is None
    assert fleet.availability.available(np.arange(1000), 0).mean() == pytest.approx(1 / 6, abs=0.06)
    assert fleet.failures.training == 0.05
    assert fleet.battery.level([5], 0).tolist() == [54_000]
    assert fleet.throttling


def _profile(folder, text):
    (folder / "ours.yaml").write_text(
        "title: ours\nconfidence: estimated\n"
        "source: {title: a note, date: 2026-01-01, quote: so many of each, read: false}\n" + text
    )
    return str(folder / "ours.yaml")


def test_a_fleet_like_another(tmp_path):
    like = _profile(
        tmp_path,
        "fleet:\n  devices: {raspberry-pi-5-8gb: 30%, n100-mini-pc: 70%}\n  links: lte\n"
        "  budgets: {memory: 1 GiB, flops_per_round: 2 TFLOP}\n",
    )
    options = FleetOptions.model_validate({"like": like, "budgets": {"memory": "5 MiB"}, "throttling": True})
    assert options.devices == {"raspberry-pi-5-8gb": 0.3, "n100-mini-pc": 0.7}
    assert options.links == {"lte": 1.0}
    assert options.budgets == BudgetOptions(memory="5 MiB")  # a key that is written replaces the whole key
    assert options.throttling
    assert FleetOptions.model_validate(json.loads(options.model_dump_json())) == options
    with pytest.raises(ValidationError) as caught:
        FleetOptions.model_validate({"like": "no-such-fleet"})
    assert [error["loc"] for error in caught.value.errors()] == [("like",)]
    wrong = _profile(tmp_path, "fleet: {links: ltee}\n")
    with pytest.raises(ValidationError, match="did you mean 'lte'"):
        FleetOptions.model_validate({"like": wrong})


def test_an_empty_fleet():
    assert len(Fleet.draw(MIXED, 0, seed=1)) == 0
    with pytest.raises(DeviceError):
        Fleet.draw(MIXED, -1, seed=1)


def test_counts():
    options = FleetOptions(devices={"raspberry-pi-5-8gb": 2, "n100-mini-pc": 3}, links="lte")
    assert np.bincount(Fleet.draw(options, 5, seed=1).device_index).tolist() == [3, 2]
    with pytest.raises(DeviceError, match=r"fleet\.devices: .*add up to 5, but there are 6 clients"):
        Fleet.draw(options, 6, seed=1)


def test_options_round_trip_through_json():
    for budgets in ({}, {"memory": "40% of device"}, {"memory": "12..48 MiB", "seconds_per_round": "10 min"}):
        options = FleetOptions(devices={"raspberry-pi-5-8gb": "30%", "n100-mini-pc": "70%"}, budgets=budgets)
        again = FleetOptions.model_validate(json.loads(options.model_dump_json()))
        assert again == options
        assert _same(Fleet.draw(options, 20, seed=3), Fleet.draw(again, 20, seed=3))
    assert FleetOptions.model_json_schema()["properties"]["devices"]["anyOf"]


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"devices": {"raspbery-pi-4-4gb": "100%"}}, "did you mean 'raspberry-pi-4-4gb'"),
        ({"links": {"wifi5": 3}}, "did you mean 'wifi-5'"),
        ({"server": "server-a500"}, "did you mean 'server-a5000'"),
        ({"devices": {"raspberry-pi-5-8gb": "60%", "n100-mini-pc": "60%"}}, "add up to 120 %, not to 100 %"),
        ({"devices": {"raspberry-pi-5-8gb": "60%", "n100-mini-pc": 4}}, "mixes shares"),
        ({"devices": {"raspberry-pi-5-8gb": -2}}, "negative"),
        ({"links": {"a\nb": -1}}, r"a\nb: a count can't be negative: -1"),
        ({"links": {"a\nb": "x"}}, r"a\nb: 'x' is not"),
        ({"devices": {"raspberry-pi-5-8gb": True}}, "True"),
        ({"devices": {"raspberry-pi-5-8gb": 0}}, "add up to 0"),
        ({"devices": {}}, "at least one"),
        ({"devices": []}, "no name, list of names, or mapping"),
        ({"devices": ["phone-mid", "phone-midd"]}, "unknown device 'phone-midd'; did you mean 'phone-mid'"),
        ({"devices": 3}, "3 is no name, list of names, or mapping"),
        ({"budgets": {"memory": 0}}, "must be positive, not 0"),
        ({"budgets": {"memory": "0% of device"}}, "must be positive, not 0% of device"),
        ({"budgets": {"memory": "0..48 MiB"}}, "must be positive"),
        ({"budgets": {"memory": "-3 MiB"}}, "negative"),
        ({"budgets": {"memory": "140% of device"}}, "between 0 and 1"),
        ({"budgets": {"flops_per_round": "0 TFLOP"}}, "must be positive"),
        ({"budgets": {"bytes_per_round": 0}}, "must be positive"),
        ({"budgets": {"energy_per_round": "2 kg"}}, "unknown unit 'kg'"),
        ({"budgets": {"seconds_per_round": "0 s"}}, "must be positive"),
        ({"budgets": {"memory": {"6 MiB": "70%", "unlimited": "20%"}}}, "the shares add up to 90 %, not to 100 %"),
        ({"budgets": {"memory": {"6 MiB": "70%", "unlimited": 3}}}, "mixes shares"),
        ({"budgets": {"memory": {"6 MiB": "50%", 6291456: "50%"}}}, "6291456 stands twice"),
        ({"budgets": {"memory": {"6 MIB": "100%"}}}, "did you mean 'MiB'?"),
        ({"budgets": {"memory": {"0 MiB": "50%", "unlimited": "50%"}}}, "must be positive, not 0"),
        ({"budgets": {"memory": {}}}, "is empty; give at least one amount with a share"),
        ({"budgets": {"power": {"5 W": "50%", "much": "50%"}}}, "'much' is not a number of watts"),
        ({"budgets": {"energy_total": {"2 kJ": "50%"}}}, "the shares add up to 50 %"),
        ({"budgets": {"memroy": "3 MiB"}}, "unknown key 'memroy'; did you mean 'memory'?"),
        ({"budgets": {"within_device": "unlimited"}}, "valid boolean"),
        ({"runtime": "executorhc"}, "unknown runtime 'executorhc'; did you mean 'executorch'?"),
        ({"runtime": "pytroch"}, "did you mean 'pytorch'?"),
        ({"runtime": "none/such.yaml"}, "none/such.yaml: can't be read"),
        ({"runtime": "-5 MB"}, "'-5 MB' is negative"),
        ({"runtime": -5}, "-5 is negative"),
        ({"runtime": "5 apples"}, "unknown unit 'apples'"),
        ({"runtime": True}, "or name a runtime: pytorch, executorch, mnn, onnxruntime"),
        ({"runtime": "1.1 TiB"}, "1.1 TiB is more than the RAM of raspberry-pi-4-4gb, 4 GiB"),
        ({"server_link": {"download": "0 bit/s"}}, "a rate must be more than 0 bit/s"),
        ({"server_link": {"upload": 0}}, "a rate must be more than 0 bit/s"),
        ({"server_link": {"download": "10 MiB"}}, "unknown unit 'MiB'"),
        ({"server_link": {"sharing": "fairly"}}, "'fair' or 'fifo'"),
        ({"server_link": {"background": {"flows": 1}}}, "it takes nothing from an unlimited link; give download"),
        (
            {"server_link": {"upload": "1 Mbit/s", "sharing": "fifo", "background": {"flows": 1}}},
            "traffic that never ends has a place with sharing: fair only",
        ),
        ({"server_link": {"upload": "1 Mbit/s", "background": {"flows": 0}}}, "greater than or equal to 1"),
        (
            {"server_link": {"upload": "1 Mbit/s", "background": {"flows": 1, "rate": 0}}},
            "a rate must be more than 0 bit/s",
        ),
        ({"throttling": "hot"}, "valid boolean"),
    ],
)
def test_what_a_person_is_told(given_, said):
    with pytest.raises(ValidationError) as caught:
        FleetOptions.model_validate(given_)
    assert any(said in error["msg"] for error in caught.value.errors())
    assert caught.value.errors()[0]["loc"][0] in given_


def test_unlimited_can_be_said():
    assert BudgetOptions(memory="unlimited") == BudgetOptions()


def test_a_list_of_devices_has_equal_shares() -> None:
    listed = FleetOptions.model_validate({"devices": ["phone-mid", "phone-entry", "phone-mid"]})
    assert listed.devices == {"phone-mid": 2 / 3, "phone-entry": 1 / 3}
    fleet = Fleet.draw(listed, 9, 1)
    assert sorted(fleet.device(client).name for client in range(9)) == ["phone-entry"] * 3 + ["phone-mid"] * 6
