from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import pytest
import yaml

import edgefl
from edgefl.commands.fit.allowances import allowances_of
from edgefl.commands.fit.answer import BudgetLimit
from edgefl.commands.fit.bounds import FitQuestion, Pricer
from edgefl.commands.fit.changes import FitAxis, FitChange, Levels, axes_of, candidates, sets_of, steps_of, within
from edgefl.commands.fit.search import FitSearch, worst
from edgefl.console import main
from edgefl.cost.price import price_rounds
from edgefl.devices import load_device, load_link
from edgefl.devices.budgets import BUDGETS, amounts
from edgefl.errors import EdgeflError, ScenarioError, UnitError, UnknownName
from edgefl.planning.eligibility import Verdict, gate
from edgefl.scenario import load
from edgefl.schedules import Stage
from edgefl.setup.compose import compose, planner_of, predictor_of

Tiny = Callable[..., dict[str, Any]]
Costs = dict[str, float]
Turns = list[list[Costs]]
"""What the parts cost that a client may train, by the rounds in which they are offered; any of them is enough."""
Trials = tuple[list[FitAxis], dict[Levels, Turns]]

PI, WIFI = "raspberry-pi-4-4gb", "wifi-5"
SHAPES = {"image": {"channels": 1, "size": 32, "classes": 12}, "text": {"vocabulary": 200}}
TEXTS = {"source": "declared", "clients": {"text": 2}, "samples": 40, "shapes": {"text": {"vocabulary": 200}}}
THREE = {"source": "declared", "clients": {"image": 2, "text": 2, "image-text": 1}, "samples": 40, "shapes": SHAPES}


REFUSED = ("optimizer mezo", "step_in_backward frees", "optimizer adamw-8bit has no step in precision float16",
           "split: the server answers", "split: a scaled loss")  # fmt: skip
"""What errors say of changes that can't go together."""


@pytest.fixture(scope="module")
def texts(tiny: Tiny) -> dict[str, Any]:
    """Two text clients of 40 samples: nothing compares samples, so a batch in parts is the same update."""
    return tiny(data=TEXTS, model={"text": {"blocks": 2, "width": 16, "heads": 2, "tokens": 12}})


@pytest.fixture(scope="module")
def few(texts: dict[str, Any]) -> dict[str, Any]:
    """The same with a small lattice: a batch to halve once, payloads and two stages."""
    return texts | {"training": {"batch": 2, "checkpointing": True, "precision": "float16"}}


@pytest.fixture(scope="module")
def trials(few: dict[str, Any]) -> Trials:
    return lattice(few)


@pytest.fixture(scope="module")
def causal(tiny: Tiny) -> dict[str, Any]:
    """A GPT-2 of two blocks, which adapters can be proposed for; its payloads are as small as they get."""
    config = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    return tiny(
        data=TEXTS | {"tasks": {"text": "next-token"}},
        model={"text": {"tower": "hf-causal", "config": config, "tokens": 12}},
        training={"batch": 2, "precision": "float16"},
        payload={"down": "int8", "up": "int8"},
    )


def lattice(scenario: dict[str, Any]) -> Trials:
    """What every combination of changes costs a text client by stage, one by one and without the search's pricing."""
    whole = load(scenario)
    setup = compose(whole)
    axes = axes_of(whole, setup, "text", 40, growing=False, epochs=False)
    found = {}
    for levels in candidates(axes):
        try:
            found[levels] = costs_of(scenario, sets_of(steps_of(axes, levels)))
        except EdgeflError as error:
            assert any(text in str(error) for text in REFUSED)
    return axes, found


def costs_of(scenario: dict[str, Any], sets: list[str], kind: str = "text") -> Turns:
    """What each stage costs a client of a kind that has old copies of everything frozen."""
    planner = planner_of(load(scenario, sets))
    setup = planner.setup
    client = int(setup.of_kind(kind)[0])

    def costs(first: int, stage: Stage) -> Costs:
        work, base = planner.work(kind, first, stage)
        frozen = tuple(i.source for p in work.down for i in p.items if not stage.is_active(i.name) and not i.fixed)
        _, _, computed = planner.compute(work.form, work.scalars, base, client)
        _, moved = planner.downloads_and_traffic(work, base, stage, frozen)
        price = price_rounds([(computed, moved)], load_device(PI), load_link(WIFI))
        return {name: values.item() for name, values in amounts(BUDGETS, price).items()}

    turns = [(offered, rounds[0]) for s in setup.schedule.stages for offered, rounds in setup.schedule.turns(s)]
    return [[costs(first, stage) for stage in offered] for offered, first in turns]


def fitting(turns: Turns, allowed: Mapping[str, float]) -> list[Costs]:
    """What the first part costs that fits, of each turn that has one."""
    able = [[c for c in offered if gate(c, allowed)[0].eligible] for offered in turns]
    return [offered[0] for offered in able if offered]


def minimal(axes: list[FitAxis], costs: Mapping[Levels, Turns], allowed: Mapping[str, float]) -> list[Levels]:
    """By trying all: what fits in every stage and contains nothing else that does."""
    able = [levels for levels, turns in costs.items() if len(fitting(turns, allowed)) == len(turns)]
    return [one for one in able if not any(within(axes, other, one) and other != one for other in able)]


def answers(scenario: dict[str, Any], allowed: Mapping[str, float], **more: Any) -> dict[str, Any]:
    """What ``fit`` says of the text clients."""
    of_bytes = ("memory", "bytes")
    budgets = {n: f"{v} B" if n in of_bytes else v for n, v in allowed.items() if v != inf}
    asked = {"kind": "text", "answers": 0, **more}
    found: dict[str, Any] = edgefl.fit(scenario, device=PI, link=WIFI, **budgets, **asked)["kinds"]["text"]
    return found


def grid(costs: Mapping[Levels, Turns], names: tuple[str, ...], shares: tuple[float, ...]) -> Iterator[Costs]:
    """Budgets from what the lattice takes least to what the scenario takes as it is."""
    worst = {
        levels: {n: max(min(c[n] for c in offered) for offered in turns) for n in names}
        for levels, turns in costs.items()
    }
    least = {n: min(each[n] for each in worst.values()) for n in names}
    now = next(iter(worst.values()))
    for at in product(shares, repeat=len(names)):
        between = {n: least[n] + share * (now[n] - least[n]) for n, share in zip(names, at, strict=True)}
        yield {n: float(int(value)) if n in ("memory", "bytes") else value for n, value in between.items()}


# --- against trying all ----------------------------------------------------------------------------------------------


@pytest.mark.slow(smaller="test_a_larger_budget_never_needs_more")
@pytest.mark.parametrize(
    ("names", "shares"),
    [
        (("memory", "bytes"), (0.0, 0.5)),
        pytest.param(("memory", "bytes"), (-0.1, 0.2, 0.7), marks=pytest.mark.slow),
        pytest.param(("memory", "joules"), (-0.1, 0.1, 0.6), marks=pytest.mark.slow),
        pytest.param(("seconds",), (-0.1, 0.02, 0.5), marks=pytest.mark.slow),
        pytest.param(("flops",), (-0.1, 0.0, 0.5), marks=pytest.mark.slow),
    ],
)
def test_the_answers_are_all_the_minimal_ones(
    few: dict[str, Any], trials: Trials, names: tuple[str, ...], shares: tuple[float, ...]
) -> None:
    axes, costs = trials
    assert len(costs) == 3 * 3 * 3 * 4
    for allowed in grid(costs, names, shares):
        expected = minimal(axes, costs, allowed)
        found = answers(few, allowed)
        assert found["complete"] and found["looked_at"] == len(costs)
        assert [s["sets"] for s in found["solutions"]] == [sets_of(steps_of(axes, levels)) for levels in expected]
        for one in found["solutions"]:
            turns = costs_of(few, one["sets"])  # what can be pasted, through the same gate as a run's
            again = fitting(turns, allowed)
            assert len(again) == len(turns)
            assert one["costs"] == {n: max(c[n] for c in again) for n in one["costs"]}
            assert one["peak_memory_bytes"] == max(c["memory"] for c in again) <= allowed.get("memory", inf)
        if not expected:
            assert found["nearest"]["excess"] == pytest.approx(nearest(costs, allowed))
            unmet = [
                n for n in allowed
                if all(any(min(c[n] for c in parts) > allowed[n] for parts in turns) for turns in costs.values())
            ]  # fmt: skip
            # what a budget refuses isn't asked about another
            assert set(found["unmet"]) <= set(unmet) and (len(names) > 1 or found["unmet"] == unmet)


SINGLE = {"batch": 1, "precision": "float16"}
"""Training whose batch can't be made smaller: half of the combinations."""


@pytest.mark.slow(smaller="test_a_larger_budget_never_needs_more")
@pytest.mark.parametrize(
    ("names", "training"),
    [
        (("memory", "bytes"), SINGLE),
        pytest.param(("memory", "bytes"), None, marks=pytest.mark.slow),
        pytest.param(("seconds",), None, marks=pytest.mark.slow),
    ],
)
def test_the_minimal_ones_among_adapters(
    causal: dict[str, Any], names: tuple[str, ...], training: dict[str, Any] | None
) -> None:
    causal = causal if training is None else {**causal, "training": training}
    axes, costs = lattice(causal)
    changed = {"checkpointing", "loss", "schedule", "adapter", "optimizer"} | ({"batch"} if training is None else set())
    assert {a.name for a in axes if a.steps} == changed
    said = set()
    for allowed in grid(costs, names, (0.0, 0.1, 0.5)):
        found = answers(causal, allowed)
        expected = minimal(axes, costs, allowed)
        assert [s["sets"] for s in found["solutions"]] == [sets_of(steps_of(axes, levels)) for levels in expected]
        assert found["complete"]
        said |= {text for s in found["solutions"] for text in s["sets"]}
    assert "adapter={name: bitfit}" in said and ("seconds" in names or "adapter={name: lora, rank: 8}" in said)


def test_an_eighth_of_the_tokens_is_proposed_where_they_are_predicted(
    causal: dict[str, Any], texts: dict[str, Any]
) -> None:
    """Two texts of twelve tokens; not again if the scenario has so few at a time."""

    def proposed(scenario: dict[str, Any]) -> list[list[str]]:
        whole = load(scenario)
        axes = axes_of(whole, compose(whole), "text", 40, growing=False, epochs=False)
        return [sets_of([step]) for axis in axes if axis.name == "loss" for step in axis.steps]

    assert proposed(causal) == [["training.loss_chunk=3"]]
    assert proposed(causal | {"training": {"batch": 2, "loss_chunk": 3}}) == []
    assert proposed(texts) == []


def nearest(costs: Mapping[Levels, Turns], allowed: Mapping[str, float]) -> float:
    """The least that any candidate exceeds its tightest budget by."""
    return min(
        max(min(max(c[n] / allowed[n] for n in allowed) for c in offered) for offered in turns)
        for turns in costs.values()
    )


@pytest.mark.slow(smaller="test_a_larger_budget_never_needs_more")
def test_all_computations_of_a_scenario(texts: dict[str, Any]) -> None:
    """Payloads are as small as they get: the small lattice has theirs."""
    texts = texts | {"training": {"batch": 2}, "payload": {"down": "int8", "up": "int8"}}
    axes, costs = lattice(texts)
    # no batch in parts and no float16 beside a step in the backward pass, no float16 with 8-bit states
    # under split no batch in parts, no float16 and no step in the backward pass either
    assert len(costs) == 2 * (3 * (3 + 2) + 2 * (2 + 2)) * 4 + 2 * 2 * 2 * 2 == 200
    predictions = []
    for allowed in [*grid(costs, ("memory",), (0.0, 0.1, 0.3, 0.5, 0.8, 0.95)),
                    *grid(costs, ("memory", "seconds"), (0.2, 0.5, 0.9))]:  # fmt: skip
        found = answers(texts, allowed, most=10_000)
        expected = [sets_of(steps_of(axes, levels)) for levels in minimal(axes, costs, allowed)]
        assert [s["sets"] for s in found["solutions"]] == expected
        predictions.append(found["predictions"])
    # some have two stages or parts
    assert max(predictions) <= 220 and min(predictions) <= 20


@pytest.mark.slow(smaller="test_a_larger_budget_never_needs_more")
@pytest.mark.parametrize("samples", [40, 13])
def test_no_bound_is_above_what_it_bounds(texts: dict[str, Any], samples: int) -> None:
    """Whatever was predicted before: of any two candidates (of a fifth of all) one may be priced first."""
    whole = load(texts | {"data": TEXTS | {"samples": samples}, "training": {"batch": 8, "epochs": 2}})
    setup, predictor = compose(whole), predictor_of(whole)
    axes = axes_of(whole, setup, "text", samples, growing=True, epochs=True)
    payloads = [i for i, axis in enumerate(axes) if not axis.computes]
    cells = [
        c for c in candidates(axes)
        if not any(c[i] for i in payloads) and is_valid(whole, sets_of(steps_of(axes, c)))
    ][::5]  # fmt: skip

    question = FitQuestion(
        whole,
        setup,
        predictor,
        load_device(PI),
        load_link(WIFI),
        dict.fromkeys(BUDGETS, inf),
        False,
        any_stage=True,
        epochs=True,
        most=10**6,
        first=1,
    )

    def pricer() -> Pricer:
        return Pricer(question, axes, "text", 0, lambda *_: None)

    exact, true = pricer(), dict[tuple[Levels, int], Costs]()
    for levels in cells:
        try:
            true |= {(levels, span.first): exact.cost(levels, span, span.stages[0]) for span in exact.spans(levels)}
        except EdgeflError as error:  # of a schedule that can't be composed with the other changes
            assert any(text in str(error) for text in REFUSED)
    cells = [levels for levels in cells if any(levels == known for known, _ in true)]
    bounded = 0
    for known in cells[::9]:
        some = pricer()
        for span in some.spans(known):
            some.cost(known, span, span.stages[0])
        for levels in cells:
            for span in some.spans(levels):
                of_traffic = some.least_of_traffic(levels, span, span.stages[0])
                assert all(bound <= true[levels, span.first][name] * (1 + 1e-12) for name, bound in of_traffic.items())
                least = some.at_least(levels, span, span.stages[0])
                costs = true[levels, span.first]
                assert all(least[name] <= costs[name] * (1 + 1e-12) for name in costs), (known, levels)
                bounded += levels != known and least["memory"] > some.floor(levels, span, span.stages[0])
    assert bounded


def test_combinations_that_move_too_much_are_not_composed_one_by_one(texts: dict[str, Any]) -> None:
    """A scenario is composed for each combination of what changes traffic, for rounds and for the nearest ones."""
    whole = load(texts | {"training": {"batch": 2, "checkpointing": True}, "payload": {"down": "int8"}})
    setup, predictor = compose(whole), predictor_of(whole)
    axes = axes_of(whole, setup, "text", 40, growing=False, epochs=False)
    allowed = dict.fromkeys(BUDGETS, inf) | {"bytes": 10.0}
    question = FitQuestion(
        whole, setup, predictor, load_device(PI), load_link(WIFI), allowed, False, any_stage=False, epochs=False,
        most=99, first=1,
    )  # fmt: skip
    pricer = Pricer(question, axes, "text", 0, lambda *_: None)
    found = FitSearch(pricer).find(lambda _: None, lambda: None)
    every = candidates(axes)
    assert found.unmet == ("bytes",) and found.nearest and found.looked_at == len(every)
    moving = {pricer.moving_levels(levels) for levels in every}
    assert 4 * len(moving) < len(every) and len(pricer._setups) <= 2 * len(moving)


def test_gradients_are_alive_together_or_one_at_a_time(texts: dict[str, Any]) -> None:
    """Under every peak; with a step in the backward pass a peak may be lower than all gradients."""
    whole = load(texts | {"training": {"batch": 1, "optimizer": "sgd"}})
    setup, predictor = compose(whole), predictor_of(whole)
    axes = axes_of(whole, setup, "text", 40, growing=False, epochs=False)
    question = FitQuestion(
        whole, setup, predictor, load_device(PI), load_link(WIFI), dict.fromkeys(BUDGETS, inf), False, any_stage=True,
        epochs=False, most=9, first=1,
    )  # fmt: skip
    pricer = Pricer(question, axes, "text", 0, lambda *_: None)
    sizes = [spec.bytes for spec in setup.method.setting.kinds["text"].parameters().values()]
    unchanged = (0,) * len(axes)
    alone = tuple(int(axis.name == "step") for axis in axes)
    for levels, gradients in ((unchanged, sum(sizes)), (alone, max(sizes))):
        (span,) = pricer.spans(levels)
        floor = pricer.floor(levels, span, span.stages[0])
        assert floor == sum(sizes) + gradients
        peak = pricer.cost(levels, span, span.stages[0])["memory"]
        assert floor <= peak
    assert peak < 2 * sum(sizes)


def is_valid(scenario: Any, sets: list[str]) -> bool:
    try:
        load(scenario.to_data(), sets)
    except ScenarioError as error:
        assert any(text in str(error) for text in REFUSED)
        return False
    return True


# --- what an answer says ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bytes", *(pytest.param(n, marks=pytest.mark.slow) for n in ("memory", "seconds"))])
def test_a_larger_budget_never_needs_more(few: dict[str, Any], trials: Trials, name: str) -> None:
    axes, costs = trials
    order = [sets_of(steps_of(axes, levels)) for levels in candidates(axes)]
    places = []
    for allowed in grid(costs, (name,), (0.0, 0.25, 0.5, 0.75, 1.0)):
        found = answers(few, allowed, answers=1)
        least = [] if found["fits"] else next((s["sets"] for s in found["solutions"]), None)
        places.append(len(order) if least is None else order.index(least))
    assert places == sorted(places, reverse=True) and places[-1] == 0 < places[0]


def test_what_fits_is_left_as_it_is(tiny: Tiny) -> None:
    found = edgefl.fit(tiny(data=THREE), device=PI)
    assert found["device"] == PI and found["link"] == WIFI and found["sets"] == []
    assert list(found["kinds"]) == ["image", "text", "image-text"]
    has = load_device(PI).usable_memory_bytes - load_device(PI).runtime_overhead_bytes
    assert found["budgets"]["memory"]["allowed"] == has and PI in found["budgets"]["memory"]["source"]
    assert found.budgets["joules"] == BudgetLimit(allowed=None, source="unlimited")
    rows = {row["kind"]: row for row in edgefl.profile(tiny(data=THREE), device=PI)["rows"]}
    for kind, one in found["kinds"].items():
        assert one["fits"] and one["solutions"] == [] and one["predictions"] == 1
        now, row = one["as_it_stands"], rows[kind]
        assert now["peak_memory_bytes"] == row["peak_memory_bytes"]
        assert now["seconds_per_round"] == row["virtual_seconds"] and now["seconds_ratio"] == 1
        assert now["binding"] == "memory" and now["margins"]["memory"] == has - row["peak_memory_bytes"]
        assert now["margins"]["seconds"] is None
    json.dumps(found.to_data(), allow_nan=False)


def test_the_stages_that_fit(few: dict[str, Any]) -> None:
    """The stages of a schedule each for itself, and how few changes one stage needs."""
    staged = few | {"schedule": {"name": "progressive", "stages": 2, "rounds": 2}}
    (first,), (second,) = costs_of(staged, [])
    between = (first["memory"] + second["memory"]) // 2
    whole = answers(staged, {"memory": between})
    assert not whole["fits"]
    assert [s["eligible"] for s in whole["as_it_stands"]["stages"]] == [True, False]
    assert "memory of" in whole["as_it_stands"]["stages"][1]["reason"]
    some = answers(staged, {"memory": between}, any_stage=True)
    assert some["fits"] and some["solutions"] == []
    grown = answers(few, {"memory": between}, any_stage=True)["solutions"]
    assert ["schedule={name: progressive, stages: 2, rounds: 2}"] in [s["sets"] for s in grown]
    growing = next(s for s in grown if "progressive" in s["sets"][0])
    assert [s["eligible"] for s in growing["stages"]] == [True, False]
    assert growing["peak_memory_bytes"] == first["memory"]


@pytest.mark.slow(smaller="test_other_changes")
def test_few_predictions_where_few_decide(few: dict[str, Any]) -> None:
    now = costs_of(few, [])[0][0]
    travels = answers(few, {"bytes": now["bytes"] * 0.8})
    assert ["payload.up=float16"] in [s["sets"] for s in travels["solutions"]]
    assert travels["predictions"] <= 4  # this computation, layer-wise in two stages, and a part of elastic's
    assert answers(few, {"bytes": 10}, most=2)["unmet"] == ["bytes"]


@pytest.mark.slow(smaller="test_other_changes")
def test_few_predictions_of_many(texts: dict[str, Any]) -> None:
    now = costs_of(texts, [])[0][0]
    nothing = answers(texts, {"memory": 1000})
    assert nothing["solutions"] == [] and nothing["unmet"] == ["memory"] and nothing["predictions"] <= 13
    stopped = answers(texts, {"memory": now["memory"] / 3}, most=3)
    assert not stopped["complete"] and stopped["predictions"] == 3
    heard: list[str] = []
    answers(texts, {"memory": now["memory"] * 0.9}, answers=1, on_progress=lambda _, facts: heard.append(facts["what"]))
    assert any("checkpointing" in what or "batch 4" in what for what in heard)


def test_what_the_scenario_compares_is_left_aside(few: dict[str, Any]) -> None:
    compared = few | {"compare": {"training.batch": [2, 1]}}
    now = costs_of(few, [])[0][0]["bytes"]
    found = edgefl.fit(compared, device=PI, bytes=f"{now * 0.9} B", answers=1)
    assert found["sets"] == ["compare=null"]
    (one,) = found["kinds"]["text"]["solutions"]
    assert load(compared, [*found["sets"], *one["sets"]]).compare == {}


@pytest.mark.slow(smaller="test_a_run_and_fit_agree_on_each_device_of_the_quickstart")
def test_a_run_with_the_answer_lets_everyone_in(tiny: Tiny) -> None:
    """To the byte: with a byte less a client that comes late to a stage is refused."""
    asked = tiny(schedule={"name": "end-to-end", "rounds": 8}, round={"cohort": 1, "stratify": False})
    sizes = edgefl.fit(asked, device=PI)["kinds"]
    peaks = {kind: one["as_it_stands"]["costs"]["memory"] for kind, one in sizes.items()}
    budget = int(0.8 * peaks["text"])
    found = edgefl.fit(asked, device=PI, kind="text", memory=f"{budget} B", answers=0)["kinds"]["text"]
    layerwise = next(s for s in found["solutions"] if "layerwise" in s["sets"][0])
    for one, less in ((found["solutions"][0], 0), (layerwise, 0), (layerwise, 1)):
        budgets = {"memory": f"{budget} B", "bytes_per_round": f"{int(one['costs']['bytes']) - less} B"}
        scenario = asked | {"fleet": {"devices": {PI: "100%"}, "budgets": budgets}}
        done = run_of(scenario, one["sets"])
        able = [row["eligible"]["text"] == row["clients"]["text"] for row in done]
        assert all(able) != bool(less)


def run_of(scenario: dict[str, Any], sets: list[str]) -> list[dict[str, Any]]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return list(edgefl.run(scenario, out=Path(folder) / "run", overrides=sets).records("rounds"))


# --- what may be changed ---------------------------------------------------------------------------------------------


def axes(scenario: dict[str, Any], kind: str, samples: int = 40, **more: bool) -> dict[str, list[FitChange]]:
    whole = load(scenario)
    asked = {"growing": False, "epochs": False, **more}
    return {a.name: list(a.steps) for a in axes_of(whole, compose(whole), kind, samples, **asked)}


def tried(steps: list[FitChange]) -> list[list[str]]:
    return [sets_of([step]) for step in steps]


def test_batches_in_parts_and_smaller_ones(tiny: Tiny, texts: dict[str, Any]) -> None:
    alone = axes(texts, "text")["batch"]
    assert tried(alone)[:2] == [["training.batch=4", "training.accumulation=2"],
                                ["training.batch=2", "training.accumulation=4"]]  # fmt: skip
    assert tried(alone)[3:] == [["training.batch=4"], ["training.batch=2"], ["training.batch=1"]]
    assert [s.tier for s in alone] == [0, 0, 0, 6, 6, 6]
    # image-text clients compare pictures with texts, of which a batch must hold two
    beside = axes(tiny(data=THREE), "text")["batch"]
    assert [s.tier for s in beside] == [5, 5, 6, 6, 6] and beside[1].sets["training.accumulation"] == 4
    assert tried(beside)[2] == ["training.batch={image: 8, text: 4, image-text: 8}"]
    listed = tiny(data=THREE, training={"batch": {"image": 8, "text": 6, "image-text": 4}, "accumulation": 2})
    parts = axes(listed, "image")["batch"]
    assert tried(parts)[0] == ["training.batch={image: 4, text: 3, image-text: 2}", "training.accumulation=4"]
    assert tried(parts)[1] == ["training.batch={image: 4, text: 6, image-text: 4}"]  # 3 can't be halved
    # a client with fewer samples than a batch makes one update of what it has
    assert next(s.tier for s in axes(texts, "text", samples=7)["batch"]) == 6
    most = axes(texts | {"training": {"batch": 8, "accumulation": 32}}, "text")["batch"]
    assert [s.sets.get("training.accumulation") for s in most] == [64, None, None, None]


def test_other_changes(texts: dict[str, Any]) -> None:
    found = axes(texts, "text", epochs=True)
    assert tried(found["checkpointing"]) == [["training.checkpointing=true"]]
    assert tried(found["optimizer"]) == [["training.optimizer=adamw-8bit"]]
    assert axes(texts | {"training": {"batch": 8, "optimizer": "sgd"}}, "text")["optimizer"] == []
    assert tried(found["step"]) == [["training.step_in_backward=true"]]
    assert axes(texts | {"training": {"batch": 8, "accumulation": 2}}, "text")["step"] == []
    assert tried(found["precision"]) == [["training.precision=bfloat16"], ["training.precision=float16"]]
    assert tried(found["upload"]) == [["payload.up=float16"], ["payload.up=int8"]]
    assert tried(found["schedule"]) == [
        ["schedule={name: layerwise, stages: 2, rounds: 2}"],
        ["schedule={name: heterofl, rounds: 2}"],
        ["schedule={name: elastic, stages: 2, rounds: 2}"],
        ["schedule={name: split, after: 1, rounds: 2}"],
    ]
    assert found["epochs"] == []
    grown = axes(texts, "text", growing=True)["schedule"]
    assert [s.sets["schedule"]["name"] for s in grown] == [
        "progressive", "layerwise", "heterofl", "elastic", "split",
    ]  # fmt: skip
    unscaled = texts | {"training": {"batch": 8, "implementation": "foreach", "epochs": 5}}
    assert tried(axes(unscaled, "text")["precision"]) == [["training.precision=bfloat16"]]
    assert tried(axes(unscaled, "text", epochs=True)["epochs"]) == [["training.epochs=2"], ["training.epochs=1"]]
    sparse = texts | {"payload": {"down": "bfloat16", "up": {"top_k": "10%"}}}
    assert tried(axes(sparse, "text")["download"]) == [["payload.down=int8"]]
    assert tried(axes(sparse, "text")["upload"])[0] == ["payload.up.dtype=float16"]
    deep = texts | {"model": {"text": {"blocks": 6, "width": 16, "heads": 2, "tokens": 12}}}
    staged = deep | {"schedule": {"name": "layerwise", "stages": [1, 5], "rounds": 6, "allocation": "late",
                                  "deliver_final": True}}  # fmt: skip
    assert tried(axes(staged, "text", growing=True)["schedule"]) == [
        [f"schedule={{name: layerwise, stages: {n}, rounds: 6, allocation: late, deliver_final: true}}"] for n in (3, 6)
    ] + [["schedule={name: heterofl, rounds: 6}"],
         *([f"schedule={{name: elastic, stages: {n}, rounds: 6}}"] for n in (2, 3))]  # fmt: skip
    few_rounds = [s.sets["schedule"] for s in axes(deep, "text")["schedule"]]
    assert [s["stages"] for s in few_rounds if s["name"] == "layerwise"] == [2]  # too few rounds for three stages
    narrowed = axes(texts | {"schedule": {"name": "heterofl", "rounds": 2}}, "text")["schedule"]
    assert "elastic" not in [s.sets["schedule"]["name"] for s in narrowed]
    parts = axes(deep | {"schedule": {"name": "elastic", "stages": 2, "rounds": 2}}, "text")["schedule"]
    assert [s.sets["schedule"]["stages"] for s in parts if s.family == "elastic"] == [3]


def test_micro_batches_are_proposed_for_private_gradients(texts: dict[str, Any]) -> None:
    private = texts | {"training": {"batch": 16, "private": {"clip": 1.0, "noise": 1.0}}}
    found = axes(private, "text")
    assert tried(found["micro-batch"]) == [[f"training.private.micro_batch={size}"] for size in (4, 1)]
    assert {s.tier for s in found["micro-batch"]} == {0}
    assert all("training.accumulation" not in s.sets for s in found["batch"])  # each batch has noise of its own
    assert found["checkpointing"] == found["step"] == []
    one = {"training": {"batch": 16, "private": {"clip": 1.0, "micro_batch": 1}}}
    assert axes(texts | one, "text")["micro-batch"] == axes(texts, "text")["micro-batch"] == []
    assert tried(axes(texts | one, "text")["checkpointing"]) == [["training.checkpointing=true"]]


def test_layers_in_4_bits_are_proposed_where_there_are_some(causal: dict[str, Any]) -> None:
    lora = "adapter={name: lora, rank: 8}"
    assert tried(axes(causal, "text")["adapter"])[-1] == [lora, "model.text.quantize=nf4"]
    adapted = {**causal, "adapter": {"name": "bitfit"}}
    assert tried(axes(adapted, "text")["adapter"]) == [["model.text.quantize=nf4"]]
    held = {"text": {**causal["model"]["text"], "quantize": "int8"}}
    assert axes({**adapted, "model": held}, "text")["adapter"] == []
    recurrent = {"text": {"tower": "gru", "tokens": 12}}
    assert axes({**adapted, "model": recurrent, "data": TEXTS}, "text")["adapter"] == []


def test_of_equally_tight_rounds_the_one_with_the_largest_peak_is_told() -> None:
    def verdict(memory: float, binding: str) -> Verdict:
        return Verdict(False, binding, {"memory": -memory, "seconds": -memory}, {"memory": memory, "seconds": memory},
                       {"memory": 0.0, "seconds": 0.0}, "owner")  # fmt: skip

    rows = [(None, None, verdict(6.0, "seconds")), (None, None, verdict(11.0, "memory"))]
    assert worst(rows).binding == worst(rows[::-1]).binding == "memory"


def test_gravest_last() -> None:
    def axis(name: str, *tiers: int) -> FitAxis:
        return FitAxis(name, tuple(FitChange(f"{name}{i}", tier, i + 1, {name: i}) for i, tier in enumerate(tiers)))

    steps = [axis("a", 0, 0), axis("b", 2), axis("c", 0, 5)]
    order = candidates(steps)
    assert order[0] == (0, 0, 0) and order[-1] == (2, 1, 2) and len(order) == 18
    assert order.index((2, 0, 1)) < order.index((0, 1, 0)) < order.index((0, 0, 2))
    assert all(order.index(a) <= order.index(b) for a in order for b in order if within(steps, a, b))


# --- what the device may use -----------------------------------------------------------------------------------------


def allowed(texts: dict[str, Any], given: Mapping[str, object] | None = None, **sections: Any) -> dict[str, float]:
    return {
        n: each.allowed
        for n, each in allowances_of(load(texts | sections), load_device(PI), load_link("lte"), given or {}).items()
    }


def test_the_tightest_of_what_is_said(texts: dict[str, Any]) -> None:
    one = load_device(PI)
    has = one.usable_memory_bytes - one.runtime_overhead_bytes
    assert allowed(texts) == {"memory": has, "flops": inf, "bytes": inf, "seconds": inf, "joules": inf}
    budgets = {"memory": "12..48 MiB", "flops_per_round": "2..3 TFLOP", "bytes_per_round": "20 MB",
               "energy_per_round": "2 kJ", "seconds_per_round": "1..2 min"}  # fmt: skip
    said = allowed(texts, fleet={"budgets": budgets}, round={"deadline": "30 s"})
    assert said == {"memory": 12 * 2**20, "flops": 2e12, "bytes": 20e6, "seconds": 30, "joules": 2000}
    assert allowed(texts, fleet={"budgets": budgets}, round={"deadline": "2 min"})["seconds"] == 60
    share = allowed(texts, fleet={"budgets": {"memory": "25..50% of device"}})["memory"]
    assert share == int(0.25 * one.ram_bytes - one.runtime_overhead_bytes)
    assert allowed(texts, fleet={"budgets": {"memory": "1 TiB"}})["memory"] == has
    assert allowed(texts, {"memory": "1 TiB"})["memory"] == has
    ignoring = {"budgets": {"memory": "1 TiB", "within_device": False}}
    assert allowed(texts, fleet=ignoring)["memory"] == 2**40
    given = {"memory": "64MiB", "seconds": "2 min", "joules": 5, "bytes": None}
    other = allowed(texts, given, fleet={"budgets": budgets}, round={"deadline": "30 s"})
    assert other == said | {"memory": 64 * 2**20, "seconds": 120, "joules": 5}


@pytest.mark.parametrize("device", [*load("quickstart").fleet.devices, "raspberry-pi-zero-2w"])
def test_a_run_and_fit_agree_on_each_device_of_the_quickstart(device: str, tmp_path: Path) -> None:
    """A run of the quickstart's schedules on one device, priced without training, against what fit says of it."""
    sets = ["compare=null", f"fleet.devices={device}", "fleet.links=wifi-5", "fleet.budgets.memory=12 MiB"]
    limit = "device" if device == "raspberry-pi-zero-2w" else "owner"
    # only what has no solution is searched for one: each setting that is tried is priced
    found = edgefl.fit("quickstart", sets, device=device, most=60 if limit == "device" else 1, answers=1)
    run = edgefl.run("quickstart", overrides=[*sets, "training.mode=none", "executor.name=inline"], out=tmp_path / "r")
    verdicts = run.records("eligibility")
    assert found["budgets"]["memory"]["limit"] == limit
    for kind, one in found["kinds"].items():
        largest = next(v["client"] for v in verdicts if v["kind"] == kind and v["samples"] == one["samples"])
        by_stage = {v["stage"]: v for v in verdicts if v["client"] == largest}
        assert len(by_stage) == len(one["as_it_stands"]["stages"]) == 3
        for stage in one["as_it_stands"]["stages"]:
            said = by_stage[stage["stage"]]
            assert (stage["eligible"], stage["binding"]) == (said["eligible"], said["binding"])
            assert stage["memory_limit"] == said["memory_limit"] == limit
            assert stage["margins"]["memory"] == said["margins"]["memory"]
        if limit == "device":
            assert not one["fits"] and one["solutions"] == [] and one["unmet"] == ["memory"]
            assert not any(v["eligible"] for v in by_stage.values())


def test_bad_input(texts: dict[str, Any]) -> None:
    with pytest.raises(UnknownName, match="unknown device 'raspbery-pi-4-4gb'; did you mean 'raspberry-pi-4-4gb'"):
        edgefl.fit(texts, device="raspbery-pi-4-4gb")
    with pytest.raises(UnknownName, match="did you mean 'wifi-5'"):
        edgefl.fit(texts, device=PI, link="wifi5")
    with pytest.raises(UnknownName, match="unknown client kind 'image'; allowed: text"):
        edgefl.fit(texts, device=PI, kind="image")
    with pytest.raises(UnitError, match=r"^memory: '60 s': unknown unit 's' of a number of bytes"):
        edgefl.fit(texts, device=PI, memory="60 s")
    with pytest.raises(UnitError, match=r"^joules: a budget must be positive, not 0 J"):
        edgefl.fit(texts, device=PI, joules="0 J")
    with pytest.raises(ScenarioError, match="most must be at least 1, not 0"):
        edgefl.fit(texts, device=PI, most=0)


def test_the_command(
    few: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "few.yaml"
    path.write_text(yaml.safe_dump({"edgefl": 1, **few}))

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["fit", str(path), "--device", PI, *words])
        return int(ended.value.code or 0), *capsys.readouterr()

    code, out, _ = call()
    assert code == 0 and "text clients, of which the largest has 40 samples: fit without changes" in out
    now = costs_of(few, [])[0][0]
    code, out, err = call("--bytes", f"{int(now['bytes'] * 0.8)} B", "--answers", "2")
    assert code == 0 and "1: --set payload.up=float16\n" in out and "tightest" in out
    assert "text: work 1, 0 of 2 solutions: as it stands, stage 1" in err
    assert "0 solutions so far: as it stands" in call("--bytes", "1kB", "--most", "1", "--answers", "0")[2]
    assert all(len(line) <= 100 for line in out.splitlines() if "--set" not in line)
    monkeypatch.setattr("edgefl.commands.fit.one_kind.PAUSE", 0.0)
    code, out, err = call("--bytes", "1kB", "--most", "2")
    assert code == 1 and "No solution: no change meets the traffic budget of 1000 B." in out
    assert "Nearest combination, at" in out
    told = [line.removeprefix("text: combination ") for line in err.splitlines() if "combination" in line]
    (every,) = {int(words.split(" of ")[1].replace(",", "")) for words in told}
    assert [int(words.split(" of ")[0].replace(",", "")) for words in told] == list(range(1, every + 1))
    code, out, _ = call("--bytes", "1kB", "--most", "2", "--as", "json")
    assert code == 1 and json.loads(out)["kinds"]["text"]["unmet"] == ["bytes"]
    assert call("--memory", "2")[0::2] == (2, "edgefl: error: memory: '2' has no unit: write 2 B or 2 MiB\n")
    code, _, err = call("--memory", "60s")
    assert code == 2 and err.startswith("edgefl: error: memory: '60s': unknown unit 's'")
