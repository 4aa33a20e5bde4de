"""What a run is a function of: not of training, not of where it was cut off, not of who computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from edgefl_games import TABLES, Games, broken_rules, changed
from edgefl_toys import CopyingMemory, Memory, declared
from tensors import assert_equal_tensors

import edgefl
from edgefl import registry
from edgefl.errors import MethodError
from edgefl.planning.setup import Setup
from edgefl.scenario import load
from edgefl.simulation import Simulation
from edgefl.training import ExecutorOptions, make_executor

POLICIES = ("synchronous", "asynchronous", "buffered", "semi-synchronous")
METHODS = ("fedavg", "fedprox", "fedcola", "fedcola-mat", "creamfl", "pmcmfl")
END, PROGRESSIVE = {"name": "end-to-end", "rounds": 3}, {"name": "progressive", "stages": 2, "rounds": 4}
LAYERWISE = {"name": "layerwise", "stages": 2, "rounds": 4}
DELIVERED = {**LAYERWISE, "deliver_final": True}
SCHEDULES = {"end-to-end": END, "layerwise": LAYERWISE, "delivered": DELIVERED, "progressive": PROGRESSIVE}
TROUBLE = {
    "failures": {
        "download": "5%",
        "training": "5%",
        "corrupted": "5%",
        "slow_down": {"share": "20%", "factor": "2..4"},
    },
    "availability": {"markov": {"on": 1.0, "off": 0.05}},
    "battery": {"capacity": "1 Wh", "initial": "0.05..10%"},
    "server_link": {"download": "40 Mbit/s", "upload": "20 Mbit/s"},
}
"""A fleet with everything that a checkpoint has to know of."""


@pytest.fixture(scope="module")
def games(tiny: Callable[..., dict[str, Any]]) -> Games:
    return Games(tiny)


def sections(games: Games, method: str = "fedavg", **clients: int) -> dict[str, Any]:
    """Sections of a small federation that the method can work with."""
    base = games.tiny()
    data = {**base["data"], "clients": clients or base["data"]["clients"], "samples": 16}
    needs = registry.get("method", method).needs
    data |= {**needs.get("data", {}), "public": 24}
    return {"data": data, "method": method, **{k: v for k, v in needs.items() if k != "data"}}


def rounds_of(policy: str, **more: Any) -> dict[str, Any]:
    return {"policy": policy, "cohort": 4, "buffer": 3, "window": 0.1, "retry": 0.05, "concurrency": None, **more}


# training or none -----------------------------------------------------------------------------------------------------

LEARNT = ("loss", "losses", "metrics")


def untrained(value: Any) -> Any:
    """A record without what only training tells."""
    if isinstance(value, Mapping):
        told = {k: v for k, v in value.items() if k not in LEARNT and not k.startswith("measured_")}
        return {k: untrained(v) for k, v in told.items() if k != "memory_error"}
    return [untrained(v) for v in value] if isinstance(value, list) else value


def assert_alike_but_for_training(games: Games, setup: Setup) -> Memory:
    (trained, real), (_, none) = games.real(setup), games.none(setup)
    assert broken_rules(setup, real) == [] == broken_rules(setup, none)
    for table in TABLES:
        assert real.tables.keys() >= none.tables.keys() - {"host"}
        for a, b in zip(real.tables.get(table, []), none.tables.get(table, []), strict=True):
            assert a.keys() == b.keys()
            assert untrained(a) == untrained(b)
    assert trained.state.versions == _.state.versions
    shapes = {a: (t.shape, t.dtype) for a, t in trained.state.tensors.items()}
    assert {a: (t.shape, t.dtype) for a, t in _.state.tensors.items()} == shapes
    return real


QUICK = {("layerwise", "asynchronous"), ("delivered", "semi-synchronous")}


@pytest.mark.parametrize(
    ("schedule", "policy"),
    [
        pytest.param(schedule, policy, marks=() if (schedule, policy) in QUICK else pytest.mark.slow)
        for schedule in SCHEDULES
        for policy in POLICIES
    ],
)
def test_without_training_the_records_are_those_with_it(games: Games, schedule: str, policy: str) -> None:
    made = games.setup(**sections(games, "fedavg", image=3, text=2), schedule=SCHEDULES[schedule])
    setup = changed(changed(made, rounds_of(policy), TROUBLE), jitter=0.3)
    real = assert_alike_but_for_training(games, setup)
    assert any(c["loss"] is not None for c in real.tables["clients"])


@pytest.mark.slow(smaller="test_without_training_the_records_are_those_with_it")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("method", [m for m in METHODS if m != "fedavg"])
def test_every_method_does_without_training(games: Games, method: str, schedule: str, policy: str) -> None:
    made = games.setup(**sections(games, method), schedule=SCHEDULES[schedule])
    assert_alike_but_for_training(games, changed(changed(made, rounds_of(policy)), jitter=0.3))


class Values(registry.get("method", "fedavg")):  # type: ignore[misc]
    """FedAvg that looks at values while it aggregates."""

    def aggregate(self, state: Any, updates: Any) -> Any:
        """Only what is not all zeros counts."""
        if all(float(value.abs().sum()) == 0 for update in updates for _, value in update.uploaded_tensors()):
            return state
        return super().aggregate(state, updates)


def test_a_method_that_needs_values_is_told_so(games: Games) -> None:
    setup = games.setup(**declared(sections(games, "fedavg", image=2)), schedule=END)
    broken = replace(setup, method=Values(setup.method.options, setup.method.setting))
    with pytest.raises(MethodError, match=r"training: none: aggregate\(\) of Values must work with tensors on the"):
        games.none(broken)


class Given(registry.get("method", "fedavg")):  # type: ignore[misc]
    """FedAvg whose first state has a table with values, whatever device it is asked for."""

    def initial(self, seed: int) -> Any:
        """A table on the CPU."""
        return super().initial(seed).with_tensors({"table/seen": torch.zeros(1, device="cpu")})

    def aggregate(self, state: Any, updates: Any) -> Any:
        """It counts what was sent."""
        sent = [value for update in updates for _, value in update.uploaded_tensors()]
        return (
            super().aggregate(state, updates).with_tensors({"table/seen": state.tensors["table/seen"] + sent[0].sum()})
        )


def test_values_of_the_first_state_are_not_blamed_on_the_aggregation(games: Games) -> None:
    setup = games.setup(**declared(sections(games, "fedavg", image=2)), schedule=END)
    broken = replace(setup, method=Given(setup.method.options, setup.method.setting))
    with pytest.raises(
        MethodError, match=r"test_checkpoint.py:\d+\)\): initial\(\) of Given makes 'table/seen' on the device cpu"
    ):
        games.none(broken)


# from a checkpoint ----------------------------------------------------------------------------------------------------


def assert_resumes(play: Callable[..., tuple[Simulation, Memory]], setup: Setup, **options: Any) -> Memory:
    """From every checkpoint on, the records, the state and the result are those of the run that wasn't cut off."""
    whole, told = play(setup, journal=CopyingMemory(), **options)
    assert broken_rules(setup, told) == [] and sorted(told.states) == list(range(1, setup.schedule.rounds + 1))
    for round, (tensors, state) in told.states.items():
        again, journal = play(setup, since=(round, tensors, state), journal=CopyingMemory(), **options)
        for table in TABLES:
            assert journal.tables.get(table, []) == [r for r in told.tables.get(table, []) if r["round"] > round]
        assert journal.result == told.result  # type: ignore[attr-defined]
        assert_equal_tensors(again.state.tensors, whole.state.tensors)
        assert again.state.versions == whole.state.versions
        if journal.states and round == 1:  # and once more from where the run that went on was
            later = max(journal.states) - 1
            _, last = play(setup, since=(later, *journal.states[later]), journal=CopyingMemory(), **options)
            for table in TABLES:
                assert last.tables.get(table, []) == [r for r in told.tables.get(table, []) if r["round"] > later]
    return told


@pytest.mark.parametrize("schedule", [pytest.param("end-to-end", marks=pytest.mark.slow), "delivered"])
@pytest.mark.parametrize("policy", POLICIES)
def test_without_training_a_run_goes_on_from_any_checkpoint(games: Games, policy: str, schedule: str) -> None:
    of = declared(sections(games, "fedavg", image=4, text=3))
    made = games.setup(**of, schedule={**SCHEDULES[schedule], "rounds": 6})
    rounds = rounds_of(policy, selection={"name": "oort", "proxy": "samples"})
    told = assert_resumes(games.none, changed(changed(made, rounds, TROUBLE), jitter=0.3))
    if policy != "synchronous":
        assert any(r["under_way"] for r in told.tables["rounds"][:-1])


def test_a_run_behind_relays_goes_on_from_any_checkpoint(games: Games) -> None:
    of = declared(sections(games, "fedavg", image=4, text=3))
    made = games.setup(**of, schedule={**SCHEDULES["delivered"], "rounds": 6})
    behind = {**TROUBLE, "server_link": None, "relays": {"count": 3, "failures": "30%"}}
    told = assert_resumes(games.none, changed(changed(made, rounds_of("synchronous"), behind), jitter=0.3))
    assert sum(r["relays_failed"] for r in told.tables["rounds"])


@pytest.mark.parametrize(
    "policy", ["asynchronous", *(pytest.param(p, marks=pytest.mark.slow) for p in POLICIES if p != "asynchronous")]
)
def test_a_fleet_of_equals_goes_on_from_any_checkpoint(games: Games, policy: str) -> None:
    """Everything happens at the same times there: no order of that matters, nor is any lost."""
    of = declared(sections(games, "fedavg", image=6))
    made = games.setup(**of, schedule={**END, "rounds": 5}, evaluation={"every": 2})
    rounds = rounds_of(policy, cohort=5, window=0.03, selection="round-robin")
    shared = {"download": "10 Mbit/s", "background": {"flows": 2, "rate": "1 Mbit/s"}}
    for link in (None, {"download": "10 Mbit/s"}, shared, {"upload": "10 Mbit/s", "sharing": "fifo"}):
        told = assert_resumes(games.none, changed(changed(made, rounds, {"server_link": link}), jitter=0.0))
        ends = [c["ended_virtual_seconds"] for c in told.tables["clients"]]
        assert link is not None or len(set(ends)) < len(ends) / 2


@pytest.mark.parametrize(
    ("method", "schedule", "policy"),
    [
        ("fedavg", "layerwise", "buffered"),
        *(
            pytest.param(method, schedule, policy, marks=pytest.mark.slow)
            for method, schedule in (("fedcola", "delivered"), ("creamfl", "end-to-end"), ("pmcmfl", "end-to-end"))
            for policy in POLICIES
        ),
        *(pytest.param("fedavg", "progressive", policy, marks=pytest.mark.slow) for policy in POLICIES),
    ],
)
def test_a_run_that_trains_goes_on_from_any_checkpoint(games: Games, method: str, schedule: str, policy: str) -> None:
    clients = {"image": 3, "text": 2} if method == "fedavg" else {}
    made = games.setup(**sections(games, method, **clients), schedule=SCHEDULES[schedule])
    selection = {"name": "power-of-choice"} if method == "fedavg" else "random"
    fleet = None if method == "fedcola" else TROUBLE
    setup = changed(changed(made, rounds_of(policy, selection=selection), fleet), jitter=0.3)
    assert_resumes(games.real, setup)


@pytest.mark.slow(smaller="test_without_training_the_records_are_those_with_it")
@pytest.mark.parametrize("policy", POLICIES)
def test_who_computes_it_changes_no_record(games: Games, policy: str) -> None:
    """Inline, one worker or three; and a run that was cut off in the one goes on in the other."""
    scenario = sections(games, "fedavg", image=4, text=3)
    made = games.setup(**scenario, schedule={**LAYERWISE, "rounds": 4})
    setup = changed(changed(made, rounds_of(policy, deadline=0.4), TROUBLE), jitter=0.3)
    whole, told = games.real(setup, journal=CopyingMemory())
    options = load(games.tiny(**scenario))
    for workers in (1, 3):
        asked = ExecutorOptions.model_validate({"name": "processes", "workers": workers, "device": "cpu"})
        tokens = options.model.tokens
        with make_executor(asked, setup.clients, options.data, options.seed, tokens, None) as executor:  # type: ignore[arg-type]
            simulation, journal = games.real(setup, executor, journal=CopyingMemory())
            for table in TABLES:
                assert journal.tables[table] == told.tables[table]
            assert_equal_tensors(simulation.state.tensors, whole.state.tensors)
            tensors, state = told.states[2]
            simulation, journal = games.real(setup, executor, journal=CopyingMemory(), since=(2, tensors, state))
            for table in TABLES:
                assert journal.tables.get(table, []) == [r for r in told.tables[table] if r["round"] > 2]
            assert_equal_tensors(simulation.state.tensors, whole.state.tensors)


# through a run's folder -----------------------------------------------------------------------------------------------


class Stopped(Exception):
    """The user has had enough."""


@pytest.mark.filterwarnings("ignore:.* has no checkpoint:RuntimeWarning")
@pytest.mark.parametrize(
    ("mode", "seconds", "policy", "stops"),
    [
        ("none", 0.0, "buffered", 4),
        ("none", 3600.0, "asynchronous", 4),  # no checkpoint by then: it begins again
        pytest.param("real", 0.0, "asynchronous", 3, marks=pytest.mark.slow),
        pytest.param("real", 0.0, "semi-synchronous", 3, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_was_stopped_leaves_the_files_of_one_that_was_not(
    games: Games, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, seconds: float, policy: str, stops: int
) -> None:
    monkeypatch.setattr("edgefl.simulation.simulation.UNTRAINED_SECONDS", seconds)
    base = sections(games, "fedavg", image=4, text=3)
    base = declared(base) if mode == "none" else base
    schedule = {**DELIVERED, "rounds": 5 if mode == "none" else 4}
    scenario = games.tiny(**base, schedule=schedule, round=rounds_of(policy), fleet=TROUBLE)
    scenario["training"] = {**scenario["training"], "mode": mode}
    whole = edgefl.run(scenario, out=tmp_path / "whole")

    def stop(event: str, facts: Mapping[str, Any]) -> None:
        if event == "record" and facts["round"] == stops:
            raise Stopped

    with pytest.raises(Stopped):
        edgefl.run(scenario, out=tmp_path / "cut", on_progress=stop)
    began: list[int] = []
    resumed = edgefl.run(
        resume=tmp_path / "cut", on_progress=lambda event, facts: event == "start" and began.append(facts["round"])
    )
    assert began == [0 if seconds else stops - 1]
    for table in TABLES:
        assert (whole.path / f"{table}.jsonl").read_bytes() == (resumed.path / f"{table}.jsonl").read_bytes()
    assert (
        whole.result == resumed.result
        and (whole.path / "weights.safetensors").read_bytes() == (resumed.path / "weights.safetensors").read_bytes()
    )
