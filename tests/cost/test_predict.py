"""Predictions: which works share one, and how it is remembered."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import torch
from edgefl_toys import Toy, described, make_work, scoring_pass, training_pass
from torch import nn

import edgefl
from edgefl import registry
from edgefl.cost.predict import ROOMS, Predictor, cost_key, predict, replace_tensors, shorten_passes
from edgefl.cost.scratch import ScratchTable
from edgefl.memo import recall
from edgefl.plain_data import from_data
from edgefl.work import Inside, Item, LiveCall, Payload, StepTrace, Work

BASE = make_work()
ADAM = {**BASE.optimizer, **BASE.scalars}


def variant(**change: Any) -> Work:
    return replace(BASE, **change)


def renamed() -> Work:
    model = Payload("model", tuple(Item(i.name, i.shape, i.dtype, f"other/{i.name}") for i in BASE.up[0].items))
    return variant(down=(model,), up=(model,))


SAME = {
    "learning rate": (variant(optimizer={**ADAM, "lr": 0.5}), Toy()),
    "third epoch": (variant(passes=BASE.passes * 2), Toy()),
    "addresses": (renamed(), Toy()),
    "more batches": (BASE, Toy(400)),
    "kind": (variant(kind="other"), Toy()),
}
OTHER = {
    "batch": (make_work(passes=(training_pass(batch=4),) * 2), Toy()),
    "depth": (make_work(model=described(blocks=3)), Toy()),
    "optimizer": (variant(optimizer={**ADAM, "name": "adam"}), Toy()),
    "implementation": (variant(optimizer={**ADAM, "implementation": "foreach"}), Toy()),
    "clip": (variant(optimizer={**ADAM, "clip": 1.0}), Toy()),
    "any decay": (variant(optimizer={**ADAM, "weight_decay": 0.1}), Toy()),
    "trainable": (variant(trainable=BASE.trainable[4:]), Toy()),
    "precision": (variant(precision="bfloat16"), Toy()),
    "reference": (variant(reference=True), Toy()),
    "gates": (make_work(gate="frozen"), Toy()),
    "a step": (variant(passes=(*BASE.passes, scoring_pass())), Toy()),
    "one epoch": (variant(passes=BASE.passes[:1]), Toy()),
    "one batch": (BASE, Toy(8)),
    "checkpointing": (make_work(model=described(checkpointing=True)), Toy()),
    "a received table": (
        variant(down=(*BASE.down, Payload("p", (Item("p", (5, 16), "float32", "table/p"),)))),
        Toy(),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_what_costs_the_same_has_one_key(name: str) -> None:
    assert cost_key(*SAME[name]) == cost_key(BASE, Toy())


@pytest.mark.parametrize("name", OTHER)
def test_what_costs_otherwise_has_another(name: str) -> None:
    assert cost_key(*OTHER[name]) != cost_key(BASE, Toy())


def test_of_a_loss_weight_the_key_sees_whether_it_is_zero() -> None:
    def key(pull: Any) -> str:
        return cost_key(variant(scalars={**BASE.scalars, "pull": pull}), Toy())

    assert key(0.25) == key(4.0) != key(0.0)
    assert key([0.5, 0.25]) == key([1.0, 2.0]) != key([0.5, 0.0]) != key([0.0, 0.5])
    assert key({"image": 0.0}) != key({"image": 1.0}) == key({"image": 2.0})


def test_the_key_knows_the_device_and_the_size_of_an_evaluation() -> None:
    assert cost_key(BASE, Toy(), "cuda") != cost_key(BASE, Toy())
    scoring = make_work(("image", "text"), (scoring_pass(("image", "text")),))
    assert cost_key(scoring, Toy(400)) != cost_key(scoring, Toy(384))


def test_equal_keys_mean_equal_traces() -> None:
    expected = predict(BASE, Toy())
    for name in ("third epoch", "more batches"):
        assert predict(*SAME[name]) == expected


def test_a_work_is_shortened_to_two_places_of_each_pass() -> None:
    a, b = training_pass(), scoring_pass()
    assert shorten_passes(make_work(passes=(a, b, a, b, a, a, b))).passes == (a, b, a, b)


def test_a_prediction_is_made_once() -> None:
    predictor = Predictor()
    assert predictor.trace(BASE, Toy()) is predictor.trace(variant(passes=BASE.passes * 2), Toy(80))
    assert predictor.predicted == len(predictor.keys) == 1


def test_a_prediction_is_remembered_on_disk(tmp_path: Path) -> None:
    first, second = Predictor(tmp_path / "costs"), Predictor(tmp_path / "costs")
    assert first.trace(BASE, Toy()) == second.trace(BASE, Toy())
    assert (first.predicted, second.predicted) == (1, 0)
    assert [path.suffix for path in (tmp_path / "costs").iterdir()] == [".sealed"]


def test_of_many_traces_the_oldest_leaves_memory_and_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgefl.cost.predict.MOST_TRACES", 2)
    predictor, works = Predictor(tmp_path), [variant(precision=name) for name in ("float32", "bfloat16", "float16")]
    traces = [predictor.trace(work, Toy()) for work in works]
    assert predictor.trace(works[2], Toy()) is traces[2]
    again = predictor.trace(works[0], Toy())
    assert again is not traces[0] and again == traces[0] and predictor.predicted == 3


@pytest.mark.parametrize("damage", ["", "null", '{"peak": 1, "memory": {}, "steps": [1]}'])
def test_a_damaged_file_is_predicted_anew_with_a_warning(tmp_path: Path, damage: str) -> None:
    expected = Predictor(tmp_path).trace(BASE, Toy())
    (path,) = tmp_path.iterdir()
    path.write_text(damage)
    predictor = Predictor(tmp_path)
    with pytest.warns(UserWarning, match=path.name):
        assert predictor.trace(BASE, Toy()) == expected
    assert predictor.predicted == 1
    assert recall(tmp_path, path.stem, partial(from_data, StepTrace), "costs") == expected


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert Predictor(blocked / "costs").trace(BASE, Toy()).peak_memory_bytes > 0


def test_a_gpu_prediction_rounds_as_its_allocator(tmp_path: Path) -> None:
    cpu, cuda = predict(BASE, Toy()), predict(BASE, Toy(), "cuda")
    assert cuda.peak_memory_bytes > cpu.peak_memory_bytes
    assert cuda.memory_bytes["parameters"] % 512 == 0


def test_a_memo_that_cannot_be_read_costs_time_and_a_warning(tmp_path: Path) -> None:
    expected = Predictor(tmp_path).trace(BASE, Toy())
    (path,) = tmp_path.iterdir()
    path.unlink()
    path.mkdir()  # a test may be run by somebody who may read every file
    with pytest.warns(UserWarning, match="can't be read"):
        assert Predictor(tmp_path).trace(BASE, Toy()) == expected


def test_a_tensor_at_two_places_stays_one() -> None:
    with torch.device("meta"):
        first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    module = replace_tensors(nn.Sequential(first, second), lambda old: torch.zeros_like(old, device="cpu"))
    assert first.weight is second.weight
    assert [p.device.type for p in module.parameters()] == ["cpu"] * 3


def test_a_cost_lasts_through_a_change_of_what_does_not_price(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = Path(edgefl.__file__).parent
    copy = tmp_path / "edgefl"
    for path in sources.rglob("*.py"):
        (to := copy / path.relative_to(sources)).parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(path.read_bytes())
    spec = ModuleSpec("edgefl", None, is_package=True)
    spec.submodule_search_locations = [str(copy)]
    monkeypatch.setattr(registry, "find_spec", lambda _: spec)

    probed: list[int] = []

    def probe(calls: Sequence[LiveCall]) -> list[Inside]:
        probed.append(len(calls))
        return [Inside(each.outputs) for each in calls]

    def predicted() -> int:
        registry.package_digest.cache_clear()
        probed.clear()
        predictor = Predictor(tmp_path / "costs", scratch=ScratchTable("here", probe))
        predictor.trace(BASE, Toy())
        return predictor.predicted

    def edited(path: str) -> int:
        (copy / path).write_text((copy / path).read_text() + "\n# another comment\n")
        return predicted()

    try:
        assert (predicted(), predicted()) == (1, 0)
        for priced in ("work/steps.py", "cost/fake_tensors.py", "models/towers/vit.py", "operator_classes.py"):
            assert edited(priced) == 1
        for other in ("drawing/figures.py", "console/app.py", "setup/compose.py", "devices/fleet.py", "memo.py"):
            assert edited(other) == 0 and not probed
        assert edited("machine/kernel_scratch.py") == 0 and probed  # another rule: scratch is measured again
    finally:
        registry.package_digest.cache_clear()


def test_the_code_that_prices_lies_in_the_rooms_that_name_a_cost() -> None:
    """The files of all functions that a prediction calls: the interpreter, steps and edits, towers, optimizers."""
    package = Path(edgefl.__file__).parent
    called: set[str] = set()
    pair, small = ("image", "text"), described(blocks=1)
    works = [
        make_work(pair, (training_pass(pair), scoring_pass(pair)), gate="frozen", model=described(pair, blocks=1)),
        make_work(passes=(training_pass(proximal=0.1),), reference=True, model=small, optimizer={**ADAM, "clip": 1.0}),
        make_work(optimizer={"name": "mezo", "lr": 1e-3, "epsilon": 1e-3}, model=small),
    ]
    predict(BASE, Toy())  # imports
    sys.setprofile(lambda frame, event, _: called.add(frame.f_code.co_filename) if event == "call" else None)
    try:
        for work in works:
            predict(work, Toy())
    finally:
        sys.setprofile(None)
    own = [Path(file).relative_to(package) for file in called if Path(file).is_relative_to(package)]
    assert len(own) > 15 and {path.parts[0] for path in own} >= {"methods", "models", "work"}
    assert {path.with_suffix("").parts[0] for path in own} <= set(ROOMS)
