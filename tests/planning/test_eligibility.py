"""The gate: each budget as the one that binds, margins, reasons, and that more is never less."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
from calls import calls
from hypothesis import given
from hypothesis import strategies as st

from edgefl.devices.budgets import BUDGETS
from edgefl.errors import DeviceError
from edgefl.planning.eligibility import gate

COSTS = {"memory": 30 * 2**20, "flops": 1e12, "bytes": 10e6, "seconds": 60.0, "joules": 500.0}
TWICE = {key: 2 * cost for key, cost in COSTS.items()}
SAID = {
    "memory": "memory of 30 MiB where 15 MiB is allowed",
    "flops": "computation of 1 TFLOP where 500 GFLOP is allowed",
    "bytes": "traffic of 9.54 MiB where 4.77 MiB is allowed",
    "seconds": "time of 60 s where 30 s is allowed",
    "joules": "energy of 500 J where 250 J is allowed",
}


@pytest.mark.parametrize("key", BUDGETS)
def test_each_budget_can_bind_and_exclude(key):
    verdict = gate(COSTS, TWICE | {key: COSTS[key] / 2})[0]
    assert not verdict.eligible
    assert verdict.binding == key
    assert verdict.margins[key] == -COSTS[key] / 2
    assert verdict.reason == f"not eligible: needs {SAID[key]}"


@pytest.mark.parametrize("key", BUDGETS)
def test_each_budget_can_bind_and_admit(key):
    verdict = gate(COSTS, TWICE | {key: COSTS[key] * 1.25})[0]
    assert verdict.eligible
    assert verdict.binding == key
    assert verdict.margins == {k: COSTS[k] * (0.25 if k == key else 1.0) for k in BUDGETS}
    assert verdict.reason.startswith("eligible: ")
    assert "(80 %)" in verdict.reason


def test_a_cost_equal_to_its_budget_is_eligible():
    verdicts = gate(COSTS, COSTS)
    assert verdicts.eligible.all()
    assert verdicts[0].binding == "memory"
    assert set(verdicts[0].margins.values()) == {0.0}


def test_unlimited():
    for budgets in ({}, dict.fromkeys(BUDGETS, inf)):
        verdict = gate(COSTS, budgets)[0]
        assert verdict.eligible
        assert verdict.binding is None
        assert set(verdict.margins.values()) == {inf}
        assert verdict.reason == "eligible: no budget limits it"
    assert gate(COSTS, {}).binding.tolist() == [-1]
    assert gate(COSTS | {"seconds": inf}, {})[0].eligible
    assert not gate(COSTS | {"seconds": inf}, {"seconds": 1.0})[0].eligible


def test_a_verdict_says_whose_word_the_memory_budget_is():
    memory = np.array([20.0, 20.0, inf, 0.0]) * 2**20
    owner, device, unlimited, none = gate(COSTS, TWICE | {"memory": memory}, [False, True, False, True])
    assert [v.memory_limit for v in (owner, device, unlimited, none)] == ["owner", "device", None, "device"]
    assert owner.reason == "not eligible: needs memory of 30 MiB where 20 MiB is allowed"
    assert device.reason == "not eligible: needs memory of 30 MiB where 20 MiB is left on the device"
    assert none.reason == "not eligible: needs memory of 30 MiB where none is left on the device"
    assert unlimited.eligible and unlimited.binding == "flops"
    fits = gate(COSTS, {"memory": 40 * 2**20}, True)[0]
    assert fits.reason == "eligible: memory is the tightest budget, 30 MiB of 40 MiB (75 %) of the device"


def test_a_verdict_says_which_bytes_of_a_gpu_decide():
    memory = np.array([20.0, 40.0, 40.0]) * 2**20
    refused, fits, equal = gate(COSTS, {"memory": memory}, peak_memory=np.array([14.0, 14.0, 30.0]) * 2**20)
    reserved = "(reserved by a GPU's allocator for a peak of 14 MiB)"
    assert refused.reason == f"not eligible: needs memory of 30 MiB {reserved} where 20 MiB is allowed"
    assert fits.reason == f"eligible: memory is the tightest budget, 30 MiB of 40 MiB (75 %) {reserved}"
    assert equal.reason == "eligible: memory is the tightest budget, 30 MiB of 40 MiB (75 %)"
    assert [verdict.peak_memory for verdict in (refused, fits, equal)] == [14 * 2**20, 14 * 2**20, None]


def test_a_budget_of_nothing_excludes_all_that_costs():
    verdicts = gate(COSTS | {"memory": [0.0, 1.0]}, {"memory": 0.0, "flops": 5e11})
    assert verdicts.eligible.tolist() == [False, False]
    assert verdicts[0].binding == "flops"
    assert verdicts[1].binding == "memory"
    assert "memory of 1 B where none is allowed" in verdicts[1].reason


def test_several_budgets_exceeded_are_all_named_the_binding_one_first():
    verdict = gate(COSTS, TWICE | {"memory": COSTS["memory"] / 1.5, "joules": 250.0})[0]
    assert verdict.binding == "joules"
    assert verdict.reason == (
        "not eligible: needs energy of 500 J where 250 J is allowed, and memory of 30 MiB where 20 MiB is allowed"
    )


def test_arrays():
    verdicts = gate(COSTS | {"memory": np.array([10.0, 20.0, 30.0])}, {"memory": np.array([20.0, 20.0, 20.0])})
    assert verdicts.eligible.tolist() == [True, True, False]
    assert verdicts.binding.tolist() == [0, 0, 0]
    assert verdicts.margins["memory"].tolist() == [10.0, 0.0, -10.0]
    assert [verdict.eligible for verdict in verdicts] == [True, True, False]
    assert len(verdicts) == 3


def test_refuses_what_is_no_cost():
    with pytest.raises(DeviceError, match="no cost is given for the budget 'joules', only for memory, flops"):
        gate({key: 1.0 for key in BUDGETS if key != "joules"}, TWICE)
    with pytest.raises(DeviceError, match="cost of flops"):
        gate(COSTS | {"flops": nan}, {})
    with pytest.raises(DeviceError, match="budget of flops"):
        gate(COSTS, {"flops": -1.0})
    with pytest.raises(DeviceError, match="no cost is given for the budget 'memroy'"):
        gate(COSTS, {"memroy": 1.0})


amount = st.one_of(st.floats(0, 1e15), st.just(inf))
several = st.fixed_dictionaries({key: st.lists(amount, min_size=3, max_size=3) for key in BUDGETS})
finite = st.fixed_dictionaries({key: st.lists(st.floats(0, 1e15), min_size=3, max_size=3) for key in BUDGETS})


@given(finite, several, st.sampled_from(BUDGETS), st.floats(1, 10), st.floats(0, 1e12))
def test_loosening_a_budget_never_makes_a_client_ineligible(costs, budgets, key, factor, more):
    before = gate(costs, budgets)
    after = gate(costs, budgets | {key: np.array(budgets[key]) * factor + more})
    assert np.all(after.eligible >= before.eligible)
    assert np.all(after.margins[key] >= before.margins[key])


@given(finite, several)
def test_a_verdict_agrees_with_its_margins(costs, budgets):
    for verdict in gate(costs, budgets):
        assert verdict.eligible == all(margin >= 0 for margin in verdict.margins.values())
        if verdict.binding is None:
            assert verdict.eligible
        elif not verdict.eligible:
            assert verdict.margins[verdict.binding] < 0
        assert verdict.reason.startswith("eligible" if verdict.eligible else "not eligible")


def test_a_million_clients_are_judged_at_once():
    rng = np.random.default_rng(1)
    costs, budgets = ({key: rng.random(1_000_000) for key in BUDGETS} for _ in range(2))
    assert 0.02 < gate(costs, budgets).eligible.mean() < 0.05  # 1/2 for each of five
    few = [{key: values[:1000] for key, values in each.items()} for each in (costs, budgets)]
    assert calls(lambda: gate(costs, budgets)) == calls(lambda: gate(*few))
