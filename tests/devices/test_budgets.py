"""Budgets as registered parts: power by hand from the profiles, and one that a stranger registers, everywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweeps import check_of, fleet_page

import edgefl
from edgefl import registry, units
from edgefl.commands.fit.answer import BudgetLimit
from edgefl.cost.client_cost import ComputeCost, Traffic
from edgefl.cost.price import price_rounds
from edgefl.devices import Budget, Price, load_device, load_link
from edgefl.devices.budgets import BUDGETS, amounts, show_binding
from edgefl.devices.options import BudgetOptions
from edgefl.drawing.charts import charts_of, records_of
from edgefl.drawing.sliders.slider_page import view_of
from edgefl.errors import DeviceError, PluginError, ScenarioError
from edgefl.operator_classes import OperatorClass
from edgefl.records.answer import RoundVerdict
from edgefl.registry.registered import PARTS
from edgefl.results.verify import verify
from edgefl.scenario import json_schema, load
from edgefl.simulation import Selection
from edgefl.simulation.selection import Chosen

Tiny = Callable[..., dict[str, Any]]
NAMES = ("raspberry-pi-4-4gb", "phone-mid", "macbook-air-m1")
FLEET = {"devices": {NAMES[0]: 2, NAMES[1]: 2, NAMES[2]: 2}, "links": {"wifi-5": "50%", "lte": "50%"}}


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    PARTS.clear()
    registry.forget()


@pytest.fixture
def six(tiny: Tiny) -> Callable[..., dict[str, Any]]:
    """Six clients with images on three devices, without training."""

    def make(budgets: dict[str, Any], **sections: Any) -> dict[str, Any]:
        data = {"source": "declared", "clients": {"image": 6}, "samples": "5..30",
                "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}}}  # fmt: skip
        model = {"image": {"blocks": 2, "width": 16, "heads": 2}}
        fleet = {**FLEET, "budgets": budgets}
        schedule = {"name": "end-to-end", "rounds": 1}
        return tiny(data=data, model=model, training="none", schedule=schedule, fleet=fleet, **sections)

    return make


def watts_by_hand(device: str, link: str) -> float:
    """The most that a client's round draws that downloads, computes and uploads."""
    at, over = load_device(device), load_link(link)
    return max(at.compute_watts, at.idle_watts + over.download_watts, at.idle_watts + over.upload_watts)


@given(st.sampled_from(NAMES), st.sampled_from(["wifi-5", "lte"]), *[st.sampled_from([0, 10**6])] * 3)
def test_power_is_that_of_the_phases_that_take_time(device: str, link: str, flops: int, down: int, up: int) -> None:
    at, over = load_device(device), load_link(link)
    compute = ComputeCost(5, {}, flops, 0, 0.0, np.array([[flops, 0.0, 1.0 if flops else 0.0, OperatorClass.PRODUCT]]))
    price = price_rounds([(compute, Traffic({}, {}, {}, {}, down, up))], at, over)
    drawn = [at.compute_watts] * bool(flops)
    drawn += [at.idle_watts + over.download_watts] * bool(down) + [at.idle_watts + over.upload_watts] * bool(up)
    assert amounts(["power"], price) == {"power": max(drawn, default=0.0)}


@pytest.mark.slow(smaller="test_power_is_that_of_the_phases_that_take_time")
def test_power_refuses_the_devices_that_draw_more(six: Callable[..., Any], tmp_path: Path) -> None:
    run = edgefl.run(six({"power": "7.5 W"}, round={"cohort": 6}), out=tmp_path / "run")
    verdicts = run.records("eligibility")
    assert len(verdicts) == 6
    for verdict in verdicts:
        watts = watts_by_hand(verdict["device"], verdict["link"])
        assert list(verdict["costs"]) == list(verdict["margins"]) == [*BUDGETS, "power"]
        assert verdict["costs"]["power"] == watts and verdict["margins"]["power"] == 7.5 - watts
        assert verdict["eligible"] == (watts <= 7.5)
        if not verdict["eligible"]:
            assert verdict["binding"] == "power"
            assert verdict["reason"] == f"not eligible: needs power of {units.show_watts(watts)} where 7.5 W is allowed"
    assert {v["eligible"] for v in verdicts} == {True, False}
    asked = {client["client"] for client in run.records("clients")}
    assert asked == {verdict["client"] for verdict in verdicts if verdict["eligible"]}
    assert verify(run.path)["valid"]


def test_a_scenario_without_power_has_none_in_its_records(six: Callable[..., Any], tmp_path: Path) -> None:
    for name, budgets in (("left out", {}), ("unlimited", {"power": "unlimited"})):
        run = edgefl.run(six(budgets), out=tmp_path / name)
        assert {tuple(v["costs"]) for v in run.records("eligibility")} == {BUDGETS}
        assert "power" not in (run.path / "scenario.yaml").read_text(encoding="utf-8")
    resolved = load(six({"power": "5..10 W"})).to_data()["fleet"]["budgets"]
    assert resolved["power"] == [5.0, 10.0]
    assert BudgetOptions.model_validate(resolved).limits()["power"] == (5, 10)


@pytest.mark.slow(smaller="test_a_mixture_is_judged_shown_and_fitted")
def test_power_in_sweep_profile_and_fit(six: Callable[..., Any]) -> None:
    rows = edgefl.sweep(six({}), ["fleet.budgets.power=1W,7.5W,1kW"])["rows"]
    clients = edgefl.profile(six({"power": "7.5 W"}), clients=True)["clients"]
    few = [client for client in clients if watts_by_hand(client["device"], client["link"]) <= 7.5]
    assert [row["eligible_share"] for row in rows] == [0, len(few) / 6, 1]
    assert [row["refused_by"] for row in rows] == [{"power": 6}, {"power": 6 - len(few)}, {}]
    assert {client["client"] for client in clients if client["eligible"]} == {client["client"] for client in few}
    assert {client["binding"] for client in clients if not client["eligible"]} == {"power"}
    checked = check_of(six({"power": "7.5 W"}), NAMES, link="wifi-5").rows
    assert {row["device"]: row["eligible"] for row in checked} == {n: watts_by_hand(n, "wifi-5") <= 7.5 for n in NAMES}
    for most, fits in (("30 W", True), ("2 W", False)):
        found = edgefl.fit(six({}), device=NAMES[0], link="wifi-5", power=most, answers=1, most=3)
        kind = found["kinds"]["image"]
        assert kind["fits"] == fits
        assert kind["as_it_stands"]["costs"]["power"] == watts_by_hand(NAMES[0], "wifi-5")
    assert kind["unmet"] == ["power"] and found["budgets"]["power"] == BudgetLimit(allowed=2.0, source="as asked")


def test_a_mixture_is_judged_shown_and_fitted(six: Callable[..., Any], tmp_path: Path) -> None:
    stated = {"memory": {"1 KiB": "50%", "50% of device": "50%"}, "bytes_per_round": {"1..2 GB": 2, "unlimited": 4}}
    scenario = six(stated, round={"cohort": 6})
    run = edgefl.run(scenario, out=tmp_path / "run")
    verdicts = run.records("eligibility")
    small = {v["client"] for v in verdicts if not v["eligible"]}
    assert len(small) == 3 and {v["binding"] for v in verdicts if v["client"] in small} == {"memory"}
    assert all(v["costs"]["memory"] + v["margins"]["memory"] == 1024 for v in verdicts if v["client"] in small)
    assert sum(v["margins"]["bytes"] is None for v in verdicts) == 4
    assert {flight["client"] for flight in run.records("clients")} == set(range(6)) - small
    assert verify(run.path)["valid"]
    assert {c.client for c in edgefl.profile(scenario, clients=True).clients if not c.eligible} == small
    axis = "fleet.budgets.memory={1 KiB: 50%, unlimited: 50%},{2 KiB: 50%, unlimited: 50%},{1 KiB: 5, unlimited: 1}"
    assert [row.refused_by for row in edgefl.sweep(scenario, [axis]).rows] == [{"memory": n} for n in (3, 3, 5)]
    allowed = edgefl.fit(scenario, device=NAMES[0], answers=1, most=1).budgets
    assert allowed["memory"] == BudgetLimit(
        allowed=1024, source="fleet.budgets.memory (50 % of the clients)", limit="owner"
    )
    assert allowed["bytes"] == BudgetLimit(allowed=1e9, source="fleet.budgets.bytes_per_round (2 of the clients)")
    with pytest.raises(DeviceError, match=r"fleet.budgets.memory: the counts \(1024: 5, unlimited: 2\) add up to 7"):
        edgefl.profile(six({"memory": {"1 KiB": 5, "unlimited": 2}}), clients=True)
    with pytest.raises(ScenarioError, match="fleet.budgets.memory: the shares add up to 90 %, not to 100 %"):
        load(six({"memory": {"1 KiB": "50%", "unlimited": "40%"}}))


# a stranger's ---------------------------------------------------------------------------------------------------------


class Charge(Budget):
    """Most of its battery that a round may take; devices on mains power have all that they want."""

    noun, quantity, colour = "charge", units.SHARE, "#3355aa"
    summary = "Most of its battery that a round takes."

    def round_amounts(self, price: Price) -> Any:
        return price.energy_joules / (price.device.battery_joules or np.inf)


@pytest.mark.parametrize(
    ("need", "words"),
    [(90, "memory 90 %"), (102, "memory 102 %"), (100.2, "memory lacks 205 KiB"), (1e6, "memory lacks 976 GiB")],
)
def test_a_verdict_that_rounds_to_all_of_a_budget_says_what_lacks(need: float, words: str) -> None:
    mib = 2**20
    row = RoundVerdict(
        eligible=need <= 100, binding="memory", reason="", virtual_seconds=1.0, energy_joules=1.0, memory_limit="owner",
        margin=(100 - need) * mib, budget=100.0 * mib,
    )  # fmt: skip
    assert show_binding(row) == words


def test_a_budget_of_ones_own_is_judged_everywhere(six: Callable[..., Any], tmp_path: Path) -> None:
    edgefl.register("budget", "charge")(Charge)
    free = edgefl.profile(six({}), clients=True)["clients"]
    held = {name: load_device(name).battery_joules or np.inf for name in NAMES}
    takes = {row["client"]: row["energy_joules"] / held[row["device"]] for row in free}
    largest = sorted(takes.values())[-1]
    limit = sorted(set(takes.values()))[-2]  # which refuses the client that takes most of its battery
    assert 0 in takes.values() and 0 < limit < largest
    scenario = six({"charge": limit}, round={"cohort": 6})
    run = edgefl.run(scenario, out=tmp_path / "run")
    for verdict in run.records("eligibility"):
        share = takes[verdict["client"]]
        assert verdict["costs"]["charge"] == share
        assert (verdict["eligible"], verdict["margins"]["charge"]) == (share <= limit, limit - share)
        if share > limit:
            words = f"charge of {units.show_share(share)} where {units.show_share(limit)} is allowed"
            assert verdict["reason"] == f"not eligible: needs {words}"
    refused = [client for client, share in takes.items() if share > limit]
    assert [c["client"] for c in edgefl.profile(scenario, clients=True)["clients"] if not c["eligible"]] == refused
    row = edgefl.sweep(six({}), [f"fleet.budgets.charge={limit}"])["rows"][0]
    assert row["refused_by"] == {"charge": len(refused)}
    assert "charge" in json_schema()["$defs"]["fleet.BudgetOptions"]["properties"]
    mixed = edgefl.profile(six({"charge": {"1e-9": 4, "unlimited": 2}}), clients=True)["clients"]
    assert 0 < sum(client["binding"] == "charge" for client in mixed if not client["eligible"]) <= 4
    found = edgefl.fit(scenario, device="phone-mid", link="wifi-5", answers=1, most=3)
    assert found.budgets["charge"] == BudgetLimit(allowed=limit, source="fleet.budgets.charge")
    assert found["kinds"]["image"]["as_it_stands"]["costs"]["charge"] <= largest
    [who] = [chart for chart in charts_of(run, records_of(run)) if chart.name == "eligible"]
    assert {series.colour for series in who.panels[0].series if series.name == "refused by charge"} == {Charge.colour}
    shown = view_of(fleet_page(scenario, ["training.batch=8"]))
    assert json.loads(shown.shown)["budgets"]["charge"] == Charge.colour
    assert json.loads(shown.units)[Charge.quantity.unit] == json.loads(json.dumps(units.SHARE.to_page()))


def test_what_a_budget_of_ones_own_gets_wrong_is_named(six: Callable[..., Any]) -> None:
    with pytest.raises(PluginError, match="has no noun, quantity, summary, round_amounts, grows, colour"):
        edgefl.register("budget", "nothing")(object)
    for name, taken, error, message in (
        ("one", 3.0, PluginError, r"the budget 'one' .* gives 3.0; it must be \[rounds\], \[6\]"),
        ("two", np.ones(7), PluginError, r"the budget 'two' .* gives an array of shape \[7\]"),
        ("less", np.full(6, -1.0), DeviceError, "a cost of less is negative or not a number"),
    ):
        wrong = type("Wrong", (Charge,), {"round_amounts": lambda self, price, taken=taken: taken})
        edgefl.register("budget", name)(wrong)
        with pytest.raises(error, match=message):
            edgefl.profile(six({name: "50%"}), clients=True)
    with pytest.raises(ScenarioError, match=r"fleet.budgets.charg: unknown key 'charg'; allowed: "):
        load(six({"charg": "50%"}))
    with pytest.raises(ScenarioError, match="fleet.budgets.power: 'much' is not a number of watts"):
        load(six({"power": "much"}))
    with pytest.raises(ScenarioError, match="fleet.budgets.power: a budget must be positive, not 0"):
        load(six({"power": 0}))


def test_amounts_of_a_quantity_of_ones_own_have_its_base_unit_or_the_units_that_it_names() -> None:
    factors = {"": units.Fraction(1), "g": units.Fraction(1), "kg": units.Fraction(1000)}
    assert units.Quantity("mass", "3 g", factors).show(2345.6) == "2346 g"
    assert units.Quantity("mass", "3 g", factors, shown={"g": 1.0, "kg": 1000.0}).show(2345.6) == "2.35 kg"


# what a selection is told -------------------------------------------------------------------------------------------


class Frugal(Selection):
    """The candidates whose rounds draw least."""

    def pick(self, share: Any) -> Chosen:
        """The clients of the lowest power, and of one kind of device."""
        watts, devices = share.candidates.watts(share.clients), share.candidates.devices(share.clients)
        assert [watts_by_hand(d.name, "wifi-5") for d in devices] == watts.tolist()
        return Chosen(share.clients[np.argsort(watts, kind="stable")][: share.count], len(share.clients), 0)


def test_a_selection_knows_devices_and_watts(six: Callable[..., Any], tmp_path: Path) -> None:
    edgefl.register("selection", "frugal")(Frugal)
    scenario = six({}, round={"cohort": 2, "selection": "frugal"})
    scenario["fleet"]["links"] = "wifi-5"
    run = edgefl.run(scenario, out=tmp_path / "run")
    least = min(NAMES, key=lambda name: watts_by_hand(name, "wifi-5"))
    assert [client["device"] for client in run.records("clients")] == [least] * 2
