from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edgefl
from edgefl.commands.sweep.answer import Change, Sweep
from edgefl.commands.sweep.perturbed_fleets import LARGER_IS_BETTER, numbers_of, scale_fleet
from edgefl.commands.sweep.sensitivity import FIGURES, Errors, _signs, factor_of, tau_of_signs
from edgefl.devices import Fleet, FleetOptions, load_device, load_link
from edgefl.devices.browsing import seconds_within
from edgefl.errors import ScenarioError, UnitError

Tiny = Callable[..., dict[str, Any]]

DECLARED = {"source": "declared", "clients": {"image": 4}, "samples": 40,
            "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}}}  # fmt: skip


def test_a_factor_is_written_with_an_x() -> None:
    assert factor_of("2x") == 2.0 and factor_of(" 1.5X ") == 1.5
    for text, message in (
        ("3", "write the factor as 3x"),
        ("x", "write the factor as 2x"),
        ("1x", "must be more than 1x"),
        ("0.5x", "must be more than 1x"),
        ("-2x", "write the factor"),
        ("infx", "write the factor"),
    ):
        with pytest.raises(UnitError, match=message):
            factor_of(text)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=9))
def test_tau_counts_pairs(values: list[tuple[int, int]]) -> None:
    one, other = (np.array([v[i] for v in values], dtype=float) for i in (0, 1))
    pairs = [(i, j) for i in range(len(values)) for j in range(i)]
    order = [np.sign(one[i] - one[j]) * np.sign(other[i] - other[j]) for i, j in pairs]
    apart = [sum(x[i] != x[j] for i, j in pairs) for x in (one, other)]
    tau = tau_of_signs(_signs(one, "round_seconds"), _signs(other, "round_seconds"))
    if all(apart):
        assert tau == pytest.approx(sum(order) / np.sqrt(apart[0] * apart[1]))
        assert tau_of_signs(_signs(one, "round_seconds"), _signs(-other, "round_seconds")) == pytest.approx(-tau)
    else:
        assert tau == 1.0 if apart[0] == apart[1] else np.isnan(tau)


def test_nobody_is_the_worst_and_sums_in_another_order_are_level() -> None:
    signs = _signs(np.array([np.nan, 3.0, 3.0 * (1 + 1e-12), np.nan]), "round_seconds")
    assert signs[0].tolist() == [0, 1, 1, 0] and signs[1].tolist() == [-1, 0, 0, -1]
    assert (_signs(np.array([0.2, 0.4]), "eligible_share") == np.array([[0, 1], [-1, 0]])).all()


def test_every_number_that_costs_time_or_energy_is_tried() -> None:
    tried = set(LARGER_IS_BETTER)
    for profile in (load_device("raspberry-pi-4-4gb"), load_device("server-a5000"), load_link("lte")):
        held = {name for name, fact in profile.facts.items() if fact.value}
        # data sheets' peaks, tf32 (in which nothing trains), the spread of a round and a battery are in no round's cost
        others = {name for name in held if name.startswith(("peak_", "tf32_"))}
        assert held - tried <= others | {"jitter", "battery_joules"}
        assert set(numbers_of(profile)) <= tried


def test_a_scaled_fleet_keeps_who_has_what_and_draws_budgets_of_its_memory() -> None:
    options = FleetOptions.model_validate(
        {
            "devices": {"raspberry-pi-4-4gb": "50%", "jetson-orin-nano-8gb": "50%"},
            "budgets": {"memory": "10%..40% of device"},
        }
    )
    fleet = Fleet.draw(options, 40, 7)
    other = scale_fleet(fleet, {("raspberry-pi-4-4gb", "ram_bytes"): 2.0}, options, 7)
    assert (other.device_index == fleet.device_index).all()
    pi = np.array([fleet.device(c).name == "raspberry-pi-4-4gb" for c in range(40)])
    assert (other.budgets["memory"][~pi] == fleet.budgets["memory"][~pi]).all()
    overhead = load_device("raspberry-pi-4-4gb").runtime_overhead_bytes
    able = pi & (fleet.budgets["memory"] > 0)
    assert other.budgets["memory"][able] == pytest.approx(
        2 * (fleet.budgets["memory"][able] + overhead) - overhead, abs=3
    )
    # where no budget asks a device for its memory, its memory decides nothing
    free = FleetOptions.model_validate({"devices": "raspberry-pi-4-4gb"})
    fleet = Fleet.draw(free, 3, 7)
    assert scale_fleet(fleet, {("raspberry-pi-4-4gb", "ram_bytes"): 2.0}, free, 7) is fleet
    assert scale_fleet(fleet, {("raspberry-pi-4-4gb", "compute_watts"): 2.0}, free, 7) is not fleet


@pytest.fixture(scope="module")
def found(tiny: Tiny) -> Sweep:
    """Cells that compute longer and cells that send more: which of them are faster, the numbers decide."""
    scenario = tiny(
        data=DECLARED,
        model={"image": {"blocks": 2, "width": 16, "heads": 2}},
        fleet={"devices": "raspberry-pi-4-4gb", "links": "lte"},
    )
    return edgefl.sweep(scenario, ["payload.up=float32,int8", "training.epochs=1,3"], sensitivity="2x")


def test_residuals_give_the_seconds_of_a_device_their_own_factor(tiny: Tiny) -> None:
    scenario = tiny(data=DECLARED, fleet={"devices": {"raspberry-pi-4-4gb": 0.5, "phone-mid": 0.5}, "links": "lte"})
    axes = ["payload.up=float32,int8", "training.epochs=1,3"]
    found = edgefl.sweep(scenario, axes, sensitivity="residuals")["sensitivity"]
    residuals = seconds_within(["raspberry-pi-4-4gb", "phone-mid"])
    assert (found["factor"], found["residuals"]) == (2.0, residuals)
    errors = Errors(2.0, residuals)
    for name, factor in residuals.items():
        for number in ("flops_per_second", "memory_bytes_per_second", "seconds_per_operator"):
            assert errors.factor_for(name, number) == factor
        assert errors.factor_for(name, "compute_watts") == 2.0
    assert errors.largest((name, "flops_per_second") for name in residuals) == max(residuals.values())
    changes = [by for flip in found["flips"] for by in flip["by"]]
    assert changes and all(by["factor"] in (2.0, 0.5) for by in changes if by["number"].endswith("_watts"))


def test_only_numbers_that_can_reorder_do(found: Sweep) -> None:
    sensitivity = found["sensitivity"]
    for name in FIGURES:
        facts = sensitivity["figures"][name]
        assert facts["survives"] == (facts["pairs_that_flip"] == 0 and facts["drawn_unchanged_share"] == 1.0)
        assert (facts["lowest_tau"] is None) == (name == "eligible_share") or facts["lowest_tau"] <= 1.0
        flipped = {(f["better"], f["worse"]) for f in sensitivity["flips"] if f["figure"] == name}
        assert len(flipped) == facts["pairs_that_flip"]
    # everyone is eligible whatever the numbers
    assert sensitivity["figures"]["eligible_share"]["pairs_that_flip"] == 0
    # one round in float32 and three in int8 take about as long: half the uplink turns them round
    rows = {row["label"]: row["round_seconds"] for row in found["rows"]}
    assert rows["up=float32,epochs=1"] < rows["up=int8,epochs=3"]
    (flip,) = (f for f in sensitivity["flips"] if f["figure"] == "round_seconds")
    assert (flip["better"], flip["worse"]) == ("up=float32,epochs=1", "up=int8,epochs=3")
    assert Change(number="upload_bits_per_second", where="everywhere", factor=0.5) in flip["by"]
    assert Change(number="upload_bits_per_second", where="everywhere", factor=2.0) not in flip["by"]
    assert not any(change["number"] == "compute_watts" for change in flip["by"])  # which are in no round's seconds


def test_the_order_is_that_of_a_sweep_with_the_wrong_numbers(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgefl.devices import fleet as drawing

    scenario = tiny(data=DECLARED, fleet={"devices": "raspberry-pi-4-4gb", "links": "lte"})
    axes = ["payload.up=float32,int8", "training.epochs=1,3"]
    honest = edgefl.sweep(scenario, axes, sensitivity="2x")
    slow = replace(
        load_device("raspberry-pi-4-4gb"),
        seconds_per_operator=2 * load_device("raspberry-pi-4-4gb").seconds_per_operator,
    )
    monkeypatch.setattr(drawing, "load_device", lambda name: slow if name == slow.name else load_device(name))
    wrong = edgefl.sweep(scenario, axes)
    labels = [row["label"] for row in honest["rows"]]
    slower = Change(number="seconds_per_operator", where="everywhere", factor=2.0)
    found_flips = {
        (flip["figure"], frozenset((flip["better"], flip["worse"])))
        for flip in honest["sensitivity"]["flips"]
        if slower in flip["by"]
    }
    expected = set()
    for name in FIGURES:
        before, after = (np.array([row[name] for row in found["rows"]]) for found in (honest, wrong))
        turned = np.triu(_signs(before, name) * _signs(after, name)) < 0
        expected |= {(name, frozenset((labels[i], labels[j]))) for i, j in np.argwhere(turned)}
    assert found_flips == expected


def test_too_many_cells_are_refused(tiny: Tiny) -> None:
    scenario = tiny(data=DECLARED)
    values = ",".join(map(str, range(1, 2002)))
    with pytest.raises(ScenarioError, match="2001 of seed = 2,001 cells are more than 2,000"):
        edgefl.sweep(scenario, [f"seed={values}"], sensitivity="2x")
