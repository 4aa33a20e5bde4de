"""Rules and server optimizers of one's own: the page's, against Weiszfeld's iteration in numpy, with every method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from combining import combine
from numpy.typing import NDArray
from torch import Tensor

import edgefl
from edgefl import registry
from edgefl.errors import EdgeflError, MethodError, PluginError
from edgefl.methods import ByCoordinate, ByUpdate, ComparableUpdates, ServerOptimizer, Update
from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.methods.aggregation.rules import Mean, Rule
from edgefl.registry.registered import PARTS
from edgefl.scenario import load
from edgefl.testing.tiny_federation import tiny_scenario
from edgefl.work import Item, Payload, Work

SHAPES = {"k/a": (3, 2), "k/b": (4,)}
RULE = {"name": "geometric-median", "steps": 300}
pytestmark = pytest.mark.usefixtures("mylab")


@pytest.fixture(autouse=True)
def _own() -> Iterator[None]:
    yield
    if PARTS:
        PARTS.clear()
        registry.forget()


def own(address: str, cohort: object) -> dict[str, float]:
    return {address: 1.0}


def sent(client: int, vector: NDArray[np.float64], samples: int, **more: Any) -> Update:
    """An update of 10 numbers from a server whose values are all 1."""
    items = tuple(Item(a, shape, "float64", a) for a, shape in SHAPES.items())
    payload = Payload("model", items)
    values = {"k/a": torch.tensor(vector[:6]).view(3, 2) + 1, "k/b": torch.tensor(vector[6:]) + 1}
    base = {a: torch.ones(shape, dtype=torch.float64) for a, shape in SHAPES.items()}
    work = Work("k", {}, (), (), (payload,), (payload,))
    return Update(client, "k", {"k": samples}, work, {"model": values}, base, **more)


def moved(updates: Sequence[Update], **fields: Any) -> NDArray[np.float64]:
    tensors = {a: torch.ones(shape, dtype=torch.float64) for a, shape in SHAPES.items()}
    found = combine(tensors, updates, own, options=AggregationOptions.model_validate(fields))
    return np.concatenate([(found[a] - 1).numpy().ravel() for a in SHAPES])


def weiszfeld(vectors: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    point = np.average(vectors, axis=0, weights=weights)
    for _ in range(300):
        away = np.maximum(np.linalg.norm(vectors - point, axis=1), 1e-6)
        point = np.average(vectors, axis=0, weights=weights / away)
    return point


@pytest.mark.parametrize("seed", range(5))
def test_the_geometric_median_is_weiszfelds(seed: int) -> None:
    draw = np.random.default_rng(seed)
    vectors = draw.normal(size=(7, 10))
    vectors[0] *= 1000
    samples = draw.integers(1, 50, 7)
    samples[1:] += samples[0]  # the wild one has no majority
    found = moved([sent(i, v, int(n)) for i, (v, n) in enumerate(zip(vectors, samples, strict=True))], rule=RULE)
    expected = weiszfeld(vectors, samples)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)

    def total(point: NDArray[np.float64]) -> float:
        return float(samples @ np.linalg.norm(vectors - point, axis=1))

    # it is the minimum, whatever the iteration
    assert all(
        total(found) <= total(found + draw.normal(size=10) * step) for step in (1e-3, 0.1, 10) for _ in range(50)
    )


def test_clipping_and_discounts_come_first_and_the_other_fields_apply() -> None:
    draw = np.random.default_rng(9)
    vectors = draw.normal(size=(5, 10))
    updates = [sent(i, v, 3, weight_factor=0.5) for i, v in enumerate(vectors)]
    short = vectors * np.minimum(1, 2 / np.linalg.norm(vectors, axis=1))[:, None] / 2
    expected = weiszfeld(short, np.ones(5))
    np.testing.assert_allclose(moved(updates, rule=RULE, clip=2.0), expected, rtol=1e-5)
    np.testing.assert_allclose(moved(updates[::-1], rule=RULE, clip=2.0), expected, rtol=1e-5)


@pytest.mark.slow(smaller="test_what_an_optimizer_keeps_must_be_named")
def test_a_server_optimizer_of_ones_own_steps_and_keeps(mylab: Path, tmp_path: Path) -> None:
    """Every coordinate moves by the rate, or not at all where the change is zero; the mean is in the checkpoint."""
    scenario = mylab / "robust.yaml"
    changes = ["schedule.rounds=1", "aggregation.lr=0.25"]
    run = edgefl.run(scenario, out=tmp_path / "run", overrides=changes)
    plain = ["aggregation={rule: mean}", "training.lr=1e-30", "schedule.rounds=1"]
    start = edgefl.run(scenario, out=tmp_path / "start", overrides=plain)
    first, after = start.weights(), run.weights()
    steps = {float(x) for a, t in after.items() if a.startswith("image/") for x in (t - first[a]).unique()}
    assert all(min(abs(step), abs(abs(step) - 0.25)) < 1e-6 for step in steps) and len(steps) > 1
    assert {a for a in after if a.startswith("table/server-optimizer.mean/image/")}
    assert load(scenario).to_data()["aggregation"]["optimizer"] == {"name": "sign-step", "decay": 0.9}


METHODS = registry.names("method")
OWN_MODELS = {"fedmd", "fedet", "fedgems", "reamfl-mean", "reamfl-avg", "reamfl-iot"}
"""Methods whose clients keep their models to themselves: nothing is averaged."""
QUICK = {"fedavg", "fedmd", "mezo"}


@pytest.mark.parametrize("method", [pytest.param(m, marks=() if m in QUICK else pytest.mark.slow) for m in METHODS])
def test_a_rule_of_ones_own_goes_with_every_method(method: str, tmp_path: Path) -> None:
    asked: list[int] = []

    class Counting(ByUpdate):
        def shares(self, group: ComparableUpdates) -> list[float]:
            assert all(part.shape[0] == len(group) and part.isfinite().all() for part in group.parts())
            asked.append(len(group))
            return [0.0] * (len(group) - 1) + [1.0]  # all of the last client's

    edgefl.register("aggregation", "last")(Counting)
    part = registry.get("method", method)
    averaged = {"clients": "averaged"} if method == "creamfl" else {}
    needs = {**part.needs, "method": {"name": method, **averaged}}
    scenario = tiny_scenario(("image", "image-text"), {**needs, "schedule": {"name": "end-to-end", "rounds": 1}})
    data = {k: v for k, v in scenario.to_data().items() if k != "compare"}
    data = {**data, "round": {"cohort": 1.0}, "aggregation": {"rule": "last"}}
    if method in OWN_MODELS:
        with pytest.raises(EdgeflError, match="has no models to average"):
            edgefl.run(data, out=tmp_path / "run")
        return
    run = edgefl.run(data, out=tmp_path / "run")
    assert asked and all(t.isfinite().all() for t in run.weights().values() if t.is_floating_point())


class Wrong(ByUpdate):
    told: Any = ()

    def shares(self, group: ComparableUpdates) -> Any:
        return self.told


@pytest.mark.parametrize("told", [[], [1.0], [1.0, -1.0], [0.0, 0.0], [float("nan"), 1.0]], ids=str)
def test_shares_that_are_none_are_refused_with_the_rules_name(told: list[float]) -> None:
    edgefl.register("aggregation", "wrong")(type("Told", (Wrong,), {"told": told}))
    updates = [sent(i, np.ones(10), 1) for i in range(2)]
    with pytest.raises(MethodError, match=r"the aggregation 'wrong' .*shares\(\) of 2 updates returned"):
        moved(updates, rule="wrong")


def test_a_centre_of_another_shape_is_refused() -> None:
    @edgefl.register("aggregation", "flat")
    class Flat(ByCoordinate):
        def centre(self, changes: Tensor, weights: Tensor) -> Tensor:
            return changes.mean()

    with pytest.raises(MethodError, match=r"centre\(\) returned a tensor \[\] for \[2, 6\], not \[n\]"):
        moved([sent(i, np.ones(10), 1) for i in range(2)], rule="flat")


def test_a_weighted_rule_by_coordinate_gets_the_weights() -> None:
    @edgefl.register("aggregation", "weighed")
    class Weighed(ByCoordinate):
        def centre(self, changes: Tensor, weights: Tensor) -> Tensor:
            return (weights @ changes.double()) / weights.sum()

    draw = np.random.default_rng(3)
    vectors, samples = draw.normal(size=(4, 10)), [1, 5, 2, 9]
    updates = [sent(i, v, n) for i, (v, n) in enumerate(zip(vectors, samples, strict=True))]
    np.testing.assert_allclose(moved(updates, rule="weighed"), np.average(vectors, axis=0, weights=samples))


def test_what_is_no_rule_can_not_be_registered() -> None:
    with pytest.raises(PluginError, match="is no subclass of ByCoordinate or ByUpdate"):
        edgefl.register("aggregation", "odd")(Rule)
    with pytest.raises(PluginError, match=r"doesn't define shares\(\)"):
        edgefl.register("aggregation", "odd")(type("Lazy", (ByUpdate,), {}))
    with pytest.raises(PluginError, match="the name 'median' is taken by the aggregation of edgefl"):
        edgefl.register("aggregation", "median")(Mean)
    with pytest.raises(PluginError, match="has no along, keeps"):
        edgefl.register("server optimizer", "odd")(type("Odd", (), {"Options": ByUpdate.Options, "step": print}))


def test_what_an_optimizer_keeps_must_be_named() -> None:
    @edgefl.register("server optimizer", "hoarder")
    class Hoarder(ServerOptimizer):
        def step(self, value: Tensor, change: Tensor, kept: Any) -> Any:
            return value + change, {"more": change}

    from edgefl.methods.aggregation.combine import MixTerm
    from edgefl.methods.aggregation.server_optimizers import server_step

    options = AggregationOptions(optimizer="hoarder")
    with pytest.raises(
        MethodError, match=r"the server optimizer 'hoarder' .* kept \['more'\]; allowed: .*nothing \(keeps\)"
    ):
        server_step({"k/a": torch.ones(2)}, {"k/a": [MixTerm(1.0, torch.ones(2))]}, (), options)


def test_fields_stand_beside_the_name_and_are_checked(mylab: Path) -> None:
    base = mylab / "robust.yaml"
    assert load(base, ["aggregation=geometric-median"]).to_data()["aggregation"]["rule"] == {**RULE, "steps": 20}
    with pytest.warns(UserWarning, match="leaves out aggregation.rule.steps, which median doesn't take"):
        assert load(base, ["aggregation=median"]).to_data()["aggregation"]["rule"] == "median"
    assert load(base, ["aggregation.rule={name: krum}"]).to_data()["aggregation"]["rule"] == "krum"
    resolved = load(base).to_data()
    assert load({k: v for k, v in resolved.items() if k != "compare"}).to_data() == resolved
    for override, said in (
        ("aggregation.rule.step=3", "unknown key 'step'; did you mean 'steps'"),
        (
            "aggregation.rule=geometric-medain",
            "unknown aggregation 'geometric-medain'.*did you mean 'geometric-median'",
        ),
        ("aggregation.rule=3", "the aggregation is a name, or a mapping"),
        ("round={policy: asynchronous}", "geometric-median needs several updates"),
        ("aggregation.attackers=1", "attackers belongs to rule krum or multi-krum, not geometric-median"),
    ):
        with pytest.raises(EdgeflError, match=said):
            load(base, [override])
    compared = load(base, ["compare={aggregation.rule: [mean, {name: geometric-median, steps: 2}, geometric-median]}"])
    rules = [scenario.aggregation.rule_name for _, scenario in compared.combinations()]
    assert rules == ["mean", "geometric-median", "geometric-median"]
