"""Works of a round and their costs: what is planned anew, and what only has other scalars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from edgefl_games import Games
from edgefl_toys import Toy, do, make_work, training_pass

from edgefl.cost.predict import Predictor
from edgefl.methods.fedavg import FedAvg
from edgefl.planning.planner import Planner
from edgefl.planning.setup import Setup
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.training import Inline
from edgefl.work import Work

PULLS = [0.0, 0.5, 0.25, 2.0, 0.0]


class PulledFedAvg(FedAvg):
    """A plug-in's method whose loss has a weight of its own in each round."""

    def work(self, kind: str, round: int) -> Work:
        work = super().work(kind, round)
        passes = tuple(replace(p, step="toy-pulled") for p in work.passes)
        return replace(work, passes=passes, scalars={**work.scalars, "pull": PULLS[round - 1]})


@pytest.fixture(scope="module")
def pulled(tiny: Callable[..., dict[str, Any]]) -> Setup:
    data = {"source": "glyphs", "clients": {"image": 2}, "samples": 16, "validation": 20, "test": 20}
    rates = {"lr_decay": 0.5, "rates": {"head": [0.1, 0.2]}}
    setup = compose(
        load(tiny(data=data, schedule={"name": "layerwise", "stages": 2, "rounds": 5}, training={"batch": 8, **rates}))
    )
    return replace(setup, method=PulledFedAvg(setup.method.options, setup.method.setting))


def test_a_weight_that_differs_in_every_round_is_predicted_once_and_once_where_it_is_zero(pulled: Setup) -> None:
    predictor = Predictor()
    planner = Planner(pulled, predictor)
    stage = pulled.schedule.stage(1)
    seen = []
    for round in range(1, len(PULLS) + 1):
        plan = planner.plan(0, 0, 0, round, stage, ())
        seen.append((predictor.predicted, plan.key))
    counts, keys = zip(*seen, strict=True)
    assert counts == (1, 2, 2, 2, 2)
    assert len(set(keys)) == 2 and keys[0] == keys[4] and keys[1] == keys[2] == keys[3]
    assert planner.revisions["image", None, 1] == 3  # zero, not zero, zero again


def test_each_round_has_its_own_scalars_of_its_stage(pulled: Setup) -> None:
    planner = Planner(pulled, Predictor())
    for round in range(1, len(PULLS) + 1):
        stage = pulled.schedule.stage(round)
        scalars = planner.work("image", round, stage)[0].scalars
        factor = 0.5 ** (round - 1)
        assert scalars["pull"] == PULLS[round - 1] and scalars["lr"] == 1e-3 * factor
        assert scalars["rates"]["head"]["lr"] == [0.1, 0.2][stage.index - 1] * factor


def test_clients_train_with_the_scalars_of_their_round(tiny: Callable[..., dict[str, Any]], pulled: Setup) -> None:
    sent: list[Any] = []

    class Watching(Inline):
        def submit(self, task: Any) -> Any:
            sent.append(task.work)
            return super().submit(task)

    with Watching(pulled.clients, "cpu") as inline:  # type: ignore[arg-type]
        Games(tiny).real(pulled, inline)
    trained = [work for work in sent if any(p.train for p in work.passes)]
    assert [work.scalars["pull"] for work in trained] == [pull for pull in PULLS for _ in range(2)]
    assert [work.scalars["lr"] for work in trained] == [1e-3 * 0.5**r for r in range(5) for _ in range(2)]


def test_a_step_reads_the_weight() -> None:
    def sent(pull: float) -> Any:
        work = make_work(passes=(replace(training_pass(), step="toy-pulled"),), scalars={"lr": 0.1, "pull": pull})
        return do(work, Toy()).payloads["model"]["image.head.weight"]

    assert not sent(0.0).equal(sent(1.0)) and sent(1.0).equal(sent(1.0))


class LightRounds(FedAvg):
    """A plug-in's method that exchanges everything but the head in even rounds."""

    def work(self, kind: str, round: int) -> Work:
        work = super().work(kind, round)
        if round % 2:
            return work
        body = [tuple(p.only(lambda item: "head" not in item.name) for p in side) for side in (work.down, work.up)]
        return replace(work, down=body[0], up=body[1])


def test_each_round_is_charged_for_what_it_sends(tiny: Callable[..., dict[str, Any]]) -> None:
    data = {"source": "glyphs", "clients": {"image": 2}, "samples": 16, "validation": 20, "test": 20}
    setup = compose(load(tiny(data=data, schedule={"name": "end-to-end", "rounds": 4})))
    method = LightRounds(setup.method.options, setup.method.setting)
    planner = Planner(replace(setup, method=method), Predictor())
    stage = setup.schedule.stage(1)
    works = [planner.work("image", round, stage) for round in (1, 2)]
    # the works of several rounds are priced after all of them are known
    sent = [planner.downloads_and_traffic(work, base, stage, ())[1].upload_bytes for work, base in works]
    assert sent == [sum(p.tensor_bytes for p in method.work("image", round).up) for round in (1, 2)]
    assert works[0][1] == works[1][1] and sent[1] < sent[0]
