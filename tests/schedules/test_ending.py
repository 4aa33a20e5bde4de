"""Stages that end by a metric or by converged blocks, against loops by hand, resumed, priced, and refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from edgefl_games import TABLES, Games
from edgefl_toys import CopyingMemory
from tensors import assert_equal_tensors
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

import edgefl
from edgefl import models
from edgefl.commands.profile.rounds_table import print_profile
from edgefl.commands.sweep.table import print_sweep
from edgefl.errors import EdgeflError, MethodError
from edgefl.scenario import load
from edgefl.schedules import EndedRound, Layerwise, Pace, PaceOptions, ProFL, Progressive, SmartFreeze, UntilOptions
from edgefl.setup.compose import compose
from edgefl.work import Pass

Tiny = Callable[..., dict[str, Any]]
Weights = dict[str, Tensor]
LR, EPOCHS, CLIENTS, ROUNDS = 0.3, 2, 3, 20
DATA = {
    "source": "glyphs", "clients": {"image": CLIENTS}, "partition": {"quantity": 2.0}, "size": 8, "samples": 20,
    "validation": 40, "test": 20,
}  # fmt: skip
PACE = {"window": 2, "fit": 2, "patience": 1, "slope": 0.1}


def scenario(
    tiny: Tiny, rounds: int = ROUNDS, evaluation: Any = None, lr: float = LR, **schedule: Any
) -> dict[str, Any]:
    """Each client's samples are one batch, so that no order of samples matters."""
    return tiny(
        data=DATA,
        model={"image": {"blocks": 3, "width": 8, "heads": 2, "patch": 4}},
        schedule={"stages": 3, "rounds": rounds, **schedule},
        training={"batch": 500, "epochs": EPOCHS, "optimizer": "sgd", "lr": lr, "implementation": "for-loop"},
        evaluation=evaluation or {},
    )


# loops by hand --------------------------------------------------------------------------------------------------------


class Loop:
    """FedAvg over one block after another, in plain torch, whose stages end when ``ends`` says so.

    ``blocks`` has the first and the last block that trains in each stage, ``planned`` the rounds of each.
    """

    def __init__(self, given: Mapping[str, Any], blocks: list[tuple[int, int]], planned: list[int]):
        self.lr = given["training"]["lr"]
        setup = compose(load({"edgefl": 1, **given}))
        model = setup.method.setting.kinds["image"].model
        self.modules = {depth: models.build(models.at_depth(model, {"image": depth})) for depth in (1, 2, 3)}
        for module in self.modules.values():
            module.forward = lambda x, module=module: module.logits("image", x)  # type: ignore[method-assign]
        self.weights = {
            a.removeprefix("image/"): t
            for a, t in setup.method.initial(setup.seed).tensors.items()
            if a.startswith("image/")
        }
        whole = Pass("classify", "private", ("image",), 1, False)
        self.batches = []
        for client in range(CLIENTS):
            source = setup.clients.client(client)
            every = Pass("classify", "private", ("image",), source.size(whole), False)
            self.batches.append(next(iter(source.batches(every, 0)))[1])
        server = setup.clients.server()  # type: ignore[attr-defined]
        scored = Pass("classify", "validation", ("image",), 1, False)
        scored = Pass("classify", "validation", ("image",), server.size(scored), False)
        self.scored = next(iter(server.batches(scored, 0)))[1]
        self.blocks, self.planned = blocks, planned
        self.stages: list[int] = []
        self.history: list[tuple[float, float]] = []

    def trains(self, name: str, stage: int) -> bool:
        first, last = self.blocks[stage]
        part = name.split(".")[1]
        if part == "blocks":
            return first <= int(name.split(".")[2]) <= last
        return first == 0 or part not in ("embedding", "pooler")

    def scores(self, weights: Weights, stage: int, batch: Mapping[str, Tensor]) -> Tensor:
        depth = self.blocks[stage][1] + 1
        there = {n: t for n, t in weights.items() if n.split(".")[1] != "blocks" or int(n.split(".")[2]) < depth}
        return functional_call(self.modules[depth], there, (batch["image"],), tie_weights=False)

    def one_round(self, stage: int) -> tuple[Weights, float]:
        """The weights after a round, and the mean loss."""
        sums, total, losses = {}, 0, 0.0
        for batch in self.batches:
            own = {n: t.clone().requires_grad_(self.trains(n, stage)) for n, t in self.weights.items()}
            learnt = [n for n in own if self.trains(n, stage)]
            for _ in range(EPOCHS):
                loss = F.cross_entropy(self.scores(own, stage, batch), batch["label"])
                slopes = torch.autograd.grad(loss, [own[n] for n in learnt], allow_unused=True)
                losses += float(loss.detach()) * len(batch["label"]) / EPOCHS
                for name, slope in zip(learnt, slopes, strict=True):
                    if slope is not None:
                        own[name] = (own[name].detach() - self.lr * slope).requires_grad_()
            for name in learnt:
                sums[name] = sums.get(name, 0) + own[name].detach() * len(batch["label"])
            total += len(batch["label"])
        return {n: sums[n] / total if n in sums else t for n, t in self.weights.items()}, losses / total

    def play(self, ends: Callable[[Loop, int, list[np.ndarray]], bool]) -> None:
        """All rounds.  ``ends`` gets the stage and what its blocks have moved by in each of its rounds so far."""
        for stage, most in enumerate(self.planned):
            moved: list[np.ndarray] = []
            for _ in range(most):
                before = self.weights
                self.weights, loss = self.one_round(stage)
                right = self.scores(self.weights, stage, self.scored).argmax(1) == self.scored["label"]
                self.history.append((float(right.double().mean()), loss))
                self.stages.append(stage + 1)
                names = [n for n in before if self.trains(n, stage) and n.split(".")[1] in ("blocks", "embedding")]
                moved.append(np.concatenate([(self.weights[n] - before[n]).double().flatten().numpy() for n in names]))
                if stage < len(self.planned) - 1 and ends(self, stage, moved):
                    break


def no_better(column: int, sign: int, patience: int) -> Callable[[Loop, int, list[np.ndarray]], bool]:
    def ends(loop: Loop, stage: int, moved: list[np.ndarray]) -> bool:
        values = [sign * each[column] for each in loop.history[-len(moved) :]]
        return len(values) > patience and max(values[:-patience]) >= max(values[-patience:])

    return ends


def flat(power: int, window: int, smooth: int, fit: int, slope: float, patience: int) -> Callable[..., bool]:
    """All slopes of the last ``patience`` rounds are flat, computed from the start of the stage each time."""

    def ends(loop: object, stage: int, moved: list[np.ndarray]) -> bool:
        ratios = []
        for last in range(window, len(moved) + 1):
            updates = np.stack(moved[last - window : last])
            ratios.append(
                np.linalg.norm(updates.sum(0), ord=power) / sum(np.linalg.norm(u, ord=power) for u in updates)
            )
        means = np.convolve(ratios, np.full(smooth, 1 / smooth), "valid") if len(ratios) >= smooth else np.zeros(0)
        slopes = [np.polyfit(np.arange(fit), means[i : i + fit], 1)[0] for i in range(len(means) - fit + 1)]
        return len(slopes) >= patience and max(abs(each) for each in slopes[-patience:]) < slope

    return ends


LAYERS = [(0, 0), (1, 1), (2, 2)]
CASES: dict[str, tuple[dict[str, Any], list[tuple[int, int]], list[int], Callable[..., bool]]] = {
    "accuracy": (
        {"name": "layerwise", "until": {"metric": "image.accuracy", "patience": 2}}, LAYERS, [6, 7, 7],
        no_better(0, 1, 2),
    ),
    "loss": (
        {"name": "progressive", "until": {"metric": "image.loss", "patience": 1}, "lr": 2.0},
        [(0, 0), (0, 1), (0, 2)], [6, 7, 7],
        no_better(1, -1, 1),
    ),
    "smartfreeze": (
        {"name": "smartfreeze", "smooth": 2, "window": 2, "fit": 2, "patience": 2, "slope": 0.06},
        LAYERS, [6, 7, 7], flat(2, 2, 2, 2, 0.06, 2),
    ),
    "profl": (
        {"name": "profl", **PACE, "allocation": [4, 4, 4, 4, 4], "rounds": 20},
        [(2, 2), (1, 1), *LAYERS], [4] * 5, flat(1, 2, 1, 2, 0.1, 1),
    ),
    "short": (
        {"name": "profl", **PACE, "slope": 0.5, "stages": [1, 2], "allocation": [4, 4, 2], "rounds": 10},
        [(1, 2), (0, 0), (1, 2)], [4, 4, 2], flat(1, 2, 1, 2, 0.5, 1),
    ),
}  # fmt: skip


def check_by_hand(tiny: Tiny, case: str, out: Path) -> None:
    schedule, blocks, planned, ends = CASES[case]
    given = scenario(tiny, **schedule)
    loop = Loop(given, blocks, planned)
    first = loop.weights
    near = 2e-4 if loop.lr > LR else 1e-5  # steps so long that the loss stalls carry roundings further
    loop.play(ends)
    run = edgefl.run(given, out=out)
    records = run.records("rounds")
    assert [record["stage"] for record in records] == loop.stages
    assert len(loop.stages) < sum(planned), "no stage ended sooner"
    assert [record["metrics"]["image"]["accuracy"] for record in records[:-1]] == pytest.approx(
        [accuracy for accuracy, _ in loop.history[:-1]]
    )
    assert [record["losses"]["image"] for record in records] == pytest.approx([loss for _, loss in loop.history], 1e-4)
    last = {a.removeprefix("image/"): t for a, t in run.weights().items() if a.startswith("image/")}
    assert max(float((last[n] - first[n]).abs().max()) for n in first) > 1e-2  # far more than the tolerance
    for name, value in loop.weights.items():
        torch.testing.assert_close(last[name], value, rtol=1e-4, atol=near, msg=lambda m, n=name: f"{n}: {m}")


def test_a_short_profl_is_a_loop_by_hand(tiny: Tiny, tmp_path: Path) -> None:
    check_by_hand(tiny, "short", tmp_path / "run")


@pytest.mark.slow(smaller="test_a_short_profl_is_a_loop_by_hand")
@pytest.mark.parametrize("case", ["accuracy", "loss", "smartfreeze", "profl"])
def test_a_run_is_a_loop_by_hand(tiny: Tiny, tmp_path: Path, case: str) -> None:
    check_by_hand(tiny, case, tmp_path / "run")


@pytest.mark.parametrize(("power", "smooth"), [(1, 1), (2, 3)])
def test_the_pace_is_that_of_numpy(power: Any, smooth: int) -> None:
    """Over walks that first go one way and then round in circles, of parameters in two dtypes."""
    draw, stage = np.random.default_rng(power), SmartFreeze(SmartFreeze.Options(stages=2), {"image": 2}).stages[0]
    found = set()
    for _ in range(12):
        pace = Pace(PaceOptions(window=3, fit=4, slope=0.03, patience=2), power, smooth)
        by_hand = flat(power, 3, smooth, 4, 0.03, 2)
        moved: list[np.ndarray] = []
        held = {
            "image/image.blocks.0.w": torch.zeros(5, dtype=torch.float64), "image/image.head.w": torch.zeros(2),
            "image/image.blocks.1.w": torch.zeros(2), "table/x": torch.zeros(2),
        }  # fmt: skip
        drift = draw.normal(size=5)
        for round in range(1, 25):
            step = drift * draw.uniform(0.5, 0.9) ** round + 0.2 * draw.normal(size=5)
            after = {a: t + draw.normal() for a, t in held.items()}
            after["image/image.blocks.0.w"] = held["image/image.blocks.0.w"] + torch.from_numpy(step)
            moved.append(step)
            ended = pace.sees(EndedRound(round, {}, {}, held, after), stage)
            assert ended == by_hand(None, 1, moved)
            # a round in which the block stays is none for the pace
            assert not pace.sees(EndedRound(round, {}, {}, after, after), stage)
            held = after
            if ended:
                break
        found.add(round)
    assert len(found) > 2


# a checkpoint ---------------------------------------------------------------------------------------------------------


def check_resumes(tiny: Tiny, schedule: Mapping[str, Any]) -> None:
    """From every checkpoint on, records, weights and what the schedule remembers are those of the whole run."""
    games = Games(tiny)
    setup = compose(load({"edgefl": 1, **scenario(tiny, **schedule)}))
    _, whole = games.real(setup, journal=CopyingMemory())
    last = max(whole.states)
    assert last < setup.schedule.rounds, "no stage ended sooner"
    for round, since in whole.states.items():
        _, again = games.real(setup, since=(round, *since), journal=CopyingMemory())
        for table in TABLES:
            assert again.tables.get(table, []) == [r for r in whole.tables[table] if r["round"] > round]
        if round < last:
            assert_equal_tensors(again.states[last][0], whole.states[last][0])
            assert again.states[last][1] == whole.states[last][1]


def test_a_resumed_smartfreeze_is_the_whole_run(tiny: Tiny) -> None:
    check_resumes(
        tiny,
        {"name": "smartfreeze", **PACE, "smooth": 1, "slope": 9, "allocation": [4, 1], "rounds": 5, "stages": [1, 2]},
    )


@pytest.mark.slow(smaller="test_a_resumed_smartfreeze_is_the_whole_run")
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_is_the_whole_run(tiny: Tiny, case: str) -> None:
    check_resumes(tiny, CASES[case][0])


@pytest.mark.slow(smaller="test_a_resumed_smartfreeze_is_the_whole_run")
def test_the_whole_run_in_processes_is_that_inline(tiny: Tiny) -> None:
    given = scenario(tiny, name="smartfreeze", smooth=1, **PACE, rounds=8)
    inline = edgefl.run(given)
    workers = edgefl.run({**given, "executor": {"name": "processes", "workers": 2, "device": "cpu"}})
    assert inline.records("rounds") == workers.records("rounds")
    assert_equal_tensors(inline.weights(), workers.weights())


# stages and what they cost --------------------------------------------------------------------------------------------


def test_profl_shrinks_and_grows() -> None:
    schedule = ProFL(ProFL.Options(stages=[1, 2, 1], rounds=50), {"image": 4})
    assert [(s.first["image"], s.depth["image"], "embedding" in s.parts, s.rounds) for s in schedule.stages] == [
        (3, 4, False, 10), (1, 3, False, 10), (0, 1, True, 10), (1, 3, False, 10), (3, 4, False, 10)
    ]  # fmt: skip
    assert len(ProFL(ProFL.Options(stages=1), {"image": 4}).stages) == 1
    with pytest.raises(ValueError, match="4 rounds are too few for 5 stages"):
        ProFL.Options(stages=3, rounds=4)


def shortest(schedule: Any, every: int = 1) -> list[int]:
    return [stage.rounds for stage in schedule.shortest(every).stages]


def test_the_fewest_rounds() -> None:
    """As counted on the fingers: a window of 3, two more ratios for a mean of 3, one more for a line, one to wait."""
    options = SmartFreeze.Options(stages=3, rounds=30, window=3, smooth=3, fit=2, patience=2)
    assert shortest(SmartFreeze(options, {"image": 3})) == [7, 7, 10]
    assert shortest(ProFL(ProFL.Options(stages=2, rounds=30, window=4, fit=3, patience=1), {"image": 2})) == [6, 6, 10]
    by_metric = Layerwise(
        Layerwise.Options(stages=3, rounds=30, until=UntilOptions(metric="image.accuracy", patience=2)), {"image": 3}
    )
    assert shortest(by_metric) == [3, 3, 10]
    assert shortest(by_metric, 2) == [6, 6, 10]  # evaluated in rounds 2, 4, 6 | 8, 10, 12
    assert shortest(by_metric, 3) == [9, 9, 10]
    assert shortest(by_metric, 4) == [10, 10, 10]  # as planned
    late = Progressive(
        Progressive.Options(stages=4, rounds=16, allocation="late", until={"metric": "image.loss", "patience": 2}),
        {"image": 4},
    )
    assert shortest(late, 7) == [0, 0, 3, 12]


@pytest.mark.slow(smaller="test_the_fewest_rounds")
def test_no_run_is_shorter_than_the_shortest(tiny: Tiny) -> None:
    """A slope that everything is below ends each stage as soon as it may."""
    given = scenario(tiny, name="smartfreeze", rounds=24, slope=100)
    setup = compose(load({"edgefl": 1, **given}))
    assert setup.shortest is not None
    run = edgefl.run(given)
    stages = [record["stage"] for record in run.records("rounds")]
    assert [stages.count(stage) for stage in (1, 2, 3)] == shortest(setup.schedule)
    total = edgefl.profile(given)["totals"][0]
    assert total["fewest_rounds"] == len(stages) < total["rounds"] == 24
    one = run.clients[run.clients["client"] == 0]
    assert total["least_traffic_bytes"] == int(one["download_bytes"].sum() + one["upload_bytes"].sum())
    every = run.clients["download_bytes"].sum() + run.clients["upload_bytes"].sum()
    swept = edgefl.sweep(given, [])["rows"][0]
    # a sweep leaves out what a client has to fetch again: here the block before, once at the start of a stage
    again = sum(sum(t.numel() * 4 for n, t in run.weights().items() if f".blocks.{b}." in n) for b in (0, 1))
    again += sum(t.numel() * 4 for n, t in run.weights().items() if ".embedding." in n)
    assert swept["fewest_rounds"] == len(stages) and swept["least_schedule_bytes"] == int(every) - CLIENTS * again
    assert edgefl.validate(given)["combinations"][0]["fewest_rounds"] == len(stages)


def test_tables_show_both_bounds(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    given = scenario(tiny, name="layerwise", until={"metric": "image.accuracy", "patience": 2})
    print_profile(edgefl.profile(given))
    told = capsys.readouterr().out
    assert "3 to 6" in told and "3 to 7" in told and "in all at least: image 13 rounds," in told
    assert "layerwise ends its stages by what a run learns" in told
    print_sweep(edgefl.sweep(given, ["training.epochs=1,2"]), full=True)
    told = capsys.readouterr().out
    assert "13 to 20" in told and "In the fewest rounds: epochs=1 " in " ".join(told.split())
    plain = scenario(tiny, name="layerwise")
    assert "at_most" not in edgefl.profile(plain) and "fewest_rounds" not in edgefl.profile(plain)["totals"][0]


# what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "evaluation", "told"),
    [
        (
            {"metric": "image.acuracy"},
            {},
            r"until\.metric: the evaluation of image has no 'acuracy'; did you mean 'acc",
        ),
        ({"metric": "imag.accuracy"}, {}, r"until\.metric: there are no 'imag' clients .*; did you mean 'image'"),
        ({"metric": "accuracy"}, {}, r"until\.metric: a metric is written as kind and name, such as image\.accuracy"),
        ({}, {"every": 8}, r"until\.metric: image\.accuracy is known every 8 rounds, and a stage has 7 at most"),
        ({"patience": 7}, {}, r"until\.patience: 7 evaluations after a stage's first end none of at most 7 rounds"),
        (
            {},
            {"every": 4},
            r"until\.patience: 2 evaluations .* none of at most 7 rounds sooner: .* or evaluation\.every: 1",
        ),
        ({"patience": 0}, {}, r"until\.patience: must be greater than 0"),
        ({"patiense": 2}, {}, r"until\.patiense: unknown key 'patiense'; did you mean 'patience'"),
    ],
)
def test_a_metric_that_ends_no_stage_is_refused(tiny: Tiny, schedule: Any, evaluation: Any, told: str) -> None:
    until = {"metric": "image.accuracy", "patience": 2, **schedule}
    with pytest.raises(EdgeflError, match=told):
        edgefl.validate(scenario(tiny, name="layerwise", until=until, evaluation=evaluation))


@pytest.mark.parametrize("name", ["layerwise", "smartfreeze", "profl"])
def test_nothing_ends_without_training(tiny: Tiny, name: str) -> None:
    more = {"until": {"metric": "image.accuracy", "patience": 2}} if name == "layerwise" else {}
    given = {**scenario(tiny, name=name, **more), "training": {"mode": "none", "batch": 8}}
    with pytest.raises(EdgeflError) as caught:
        edgefl.validate(given)
    assert (
        str(caught.value) == f"schedule: {name} ends its stages by what a run learns, and training: none learns nothing"
    )


def test_other_misfits(tiny: Tiny) -> None:
    until = {"metric": "image.accuracy", "patience": 2}
    with pytest.raises(MethodError, match="deliver_final: a schedule that adapts knows .*: write false"):
        Layerwise(Layerwise.Options(until=until, deliver_final=True), {"image": 2})
    with pytest.raises(EdgeflError, match="no stage is followed by another one with rounds, and the last has all"):
        edgefl.validate(scenario(tiny, name="layerwise", stages=1, until=until))
