"""Schedules: who trains what when, and the part of a method's work that a stage does."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from edgefl_toys import FACTS, make_work, skeleton
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from edgefl import models
from edgefl.cost.predict import Predictor
from edgefl.errors import MethodError
from edgefl.methods import Kind, Setting
from edgefl.methods.fedcola.fedcola import FedCola
from edgefl.models import ModelOptions
from edgefl.planning.planner import Planner
from edgefl.scenario import load
from edgefl.schedules import EndToEnd, Layerwise, Progressive, Schedule, Stage, allocate, part_of
from edgefl.setup.compose import compose
from edgefl.work import Item, Payload, Work
from edgefl.work.training_options import TrainingOptions


def layerwise(blocks: dict[str, int], **options: Any) -> Layerwise:
    return Layerwise(Layerwise.Options(**options), blocks)


def progressive(blocks: dict[str, int], **options: Any) -> Progressive:
    return Progressive(Progressive.Options(**options), blocks)


# rounds -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allocation", "stages", "rounds", "expected"),
    [
        ("late", 6, 90, [0, 0, 0, 10, 30, 50]),  # LW-FedMML's
        ("uniform", 6, 90, [15] * 6),
        ("uniform", 3, 10, [3, 3, 4]),
        ("late", 2, 16, [0, 16]),
        ("late", 3, 8, [0, 2, 6]),
        ("late", 1, 5, [5]),
        ([6, 10], 2, 16, [6, 10]),
    ],
)
def test_allocation(allocation: Any, stages: int, rounds: int, expected: list[int]) -> None:
    assert allocate(allocation, stages, rounds) == expected


@given(st.sampled_from(["uniform", "late"]), st.integers(1, 24), st.integers(1, 500))
def test_allocations_add_up_and_never_shrink_by_more_than_a_round(allocation: str, stages: int, rounds: int) -> None:
    given_rounds = allocate(allocation, stages, rounds)
    assert len(given_rounds) == stages and sum(given_rounds) == rounds
    assert all(after >= before - 1 >= -1 for before, after in itertools.pairwise(given_rounds))


def test_a_million_rounds_take_no_memory_of_their_own() -> None:
    schedule = layerwise({"image": 4}, stages=2, rounds=1_000_000, allocation="uniform")
    first, second = schedule.stages
    assert schedule.turns(first) == [((first,), range(1, 500_001))]
    assert schedule.rounds_of(second) == range(500_001, 1_000_001)


def test_rounds_belong_to_stages() -> None:
    schedule = layerwise({"image": 6}, stages=6, rounds=90, allocation="late")
    assert schedule.rounds == 90
    assert [schedule.stage(r).index for r in (1, 10, 11, 40, 41, 90)] == [4, 4, 5, 5, 6, 6]
    ends = {r: schedule.ends(r) for r in range(1, 91)}
    assert {r: s.index for r, s in ends.items() if s} == {10: 4, 40: 5, 90: 6}
    assert schedule.candidates(11) == (schedule.stages[4],)
    for outside in (0, 91):
        with pytest.raises(MethodError, match=f"round {outside} is outside the schedule of 90 rounds"):
            schedule.stage(outside)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": 3, "allocation": [1, 2]}, "lists 2 stages, but there are 3"),
        ({"stages": 2, "allocation": [0, 0]}, "gives no stage a round"),
        ({"stages": 2, "allocation": [1, 2], "rounds": 4}, "adds up to 3 rounds, but rounds is 4"),
        ({"stages": 4, "rounds": 3}, "too few for 4 stages"),
        ({"stages": []}, "at least 1 item"),
        ({"stages": 0}, "greater than 0"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Layerwise.Options(**options)


def test_stages_that_do_not_fit_the_towers() -> None:
    with pytest.raises(MethodError, match="4 stages are more than the 2 blocks of the text tower"):
        layerwise({"image": 4, "text": 2}, stages=4)
    with pytest.raises(MethodError, match=r"stages \[1, 2\] add up to 3 blocks, but the text tower has 2"):
        layerwise({"image": 3, "text": 2}, stages=[1, 2])


# stages -------------------------------------------------------------------------------------------------------------


def test_the_parts_of_a_name() -> None:
    assert part_of("image.blocks.3.norm1.bias") == ("image", "blocks", 3)
    assert part_of("image.embedding.proj.weight") == ("image", "embedding", None)
    assert part_of("joint.norm.weight") == ("joint", "norm", None)
    assert part_of("prototypes") == ("prototypes", "", None)


def test_end_to_end_trains_everything() -> None:
    (stage,) = EndToEnd(EndToEnd.Options(rounds=7), {"image": 4}).stages
    assert stage.rounds == 7 and stage.depth == {"image": 4}
    assert all(stage.is_active(n) and stage.is_attached(n) for n in make_work().trainable)


def test_layer_wise_trains_a_stages_blocks_and_embeddings_only_at_first() -> None:
    first, second = layerwise({"image": 4, "text": 4}, stages=2).stages
    assert [first.is_active(f"image.blocks.{i}.x") for i in range(4)] == [True, True, False, False]
    assert [second.is_active(f"text.blocks.{i}.x") for i in range(4)] == [False, False, True, True]
    assert [first.is_attached(f"image.blocks.{i}.x") for i in range(4)] == [True, True, False, False]
    assert first.is_active("image.embedding.pos") and not second.is_active("image.embedding.pos")
    assert second.is_attached("image.embedding.pos")
    for part in ("image.norm.weight", "image.rep.weight", "text.head.bias", "joint.norm.weight", "joint.fusion.w"):
        assert first.is_active(part) and second.is_active(part)


def test_progressive_trains_all_that_is_attached() -> None:
    first, second = progressive({"image": 4}, stages=[1, 3]).stages
    assert [first.is_active(f"image.blocks.{i}.x") for i in range(4)] == [True, False, False, False]
    assert [second.is_active(f"image.blocks.{i}.x") for i in range(4)] == [True] * 4
    assert second.is_active("image.embedding.pos")


BLOCKS = st.dictionaries(st.sampled_from(["image", "text", "audio"]), st.integers(1, 16), min_size=1)


@given(BLOCKS, st.data())
def test_every_block_is_active_in_exactly_one_layer_wise_stage(blocks: dict[str, int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, min(blocks.values())))
    schedule = layerwise(blocks, stages=stages, rounds=stages)
    names = [f"{tower}.blocks.{i}.attn.qkv.weight" for tower, n in blocks.items() for i in range(n)]
    active = Counter(name for stage in schedule.stages for name in names if stage.is_active(name))
    assert active == Counter(names)
    for stage in schedule.stages:
        assert all(stage.is_attached(name) for name in names if stage.is_active(name))
        assert all(any(stage.is_active(n) for n in names if n.startswith(tower)) for tower in blocks)
    assert schedule.stages[-1].depth == blocks


@given(BLOCKS, st.data())
def test_a_progressive_model_only_grows(blocks: dict[str, int], data: st.DataObject) -> None:
    stages = progressive(blocks, stages=data.draw(st.integers(1, min(blocks.values()))), rounds=16).stages
    names = [f"{tower}.blocks.{i}.norm1.bias" for tower, n in blocks.items() for i in range(n)]
    grown = [{n for n in names if stage.is_active(n)} for stage in stages]
    assert all(a < b for a, b in itertools.pairwise(grown)) and grown[-1] == set(names)


# cut ----------------------------------------------------------------------------------------------------------------


def fedcola(image: int = 4, text: int = 4, **options: Any) -> FedCola:
    model = ModelOptions(
        image={"blocks": image, "width": 16, "heads": 2, "patch": 4},
        text={"blocks": text, "width": 16, "heads": 2, "tokens": 6},
    )
    kinds = {}
    for name in ("image", "text", "image-text"):
        towers, task = tuple(name.split("-")), "retrieve" if "-" in name else "classify"
        kinds[name] = Kind(name, towers, task, models.describe(model, towers, task, FACTS))
    return FedCola(FedCola.Options(**options), Setting(kinds, TrainingOptions()))


def sent(payloads: tuple[Payload, ...]) -> dict[str, set[str]]:
    return {payload.name: {item.name for item in payload.items} for payload in payloads}


def block(name: str) -> int | None:
    return part_of(name)[2]


def check_consistent(work: Work) -> None:
    """The work can be run: what it trains and sends is there, in the shape that is said."""
    there = dict(skeleton(work.model).named_parameters())
    received = {i.name: i for p in work.down for i in p.items}
    added = set()
    for edit in work.edits:
        for layer in edit.args["layers"]:
            assert received[f"{layer}.partner"].shape == tuple(there[f"{layer}.weight"].shape)
            added |= {f"{layer}.partner", f"{layer}.gate"}
    assert set(work.trainable) <= there.keys() | added
    for item in (i for p in (*work.up, work.down[0]) for i in p.items):
        assert item.shape == tuple(there[item.name].shape)
    assert there.keys() == {i.name for i in work.down[0].items}


@pytest.mark.parametrize("schedule", [layerwise, progressive])
def test_only_active_blocks_get_partners_and_gates_and_travel_up(schedule: Any) -> None:
    method = fedcola(complementary="blocks")
    for stage in schedule({"image": 4, "text": 4}, stages=2).stages:
        for kind in ("image", "text", "image-text"):
            work = stage.restrict_work(method.work(kind, 1))
            check_consistent(work)
            active = {i for i in range(4) if stage.is_active(f"{next(iter(work.model['towers']))}.blocks.{i}.x")}
            down, up = sent(work.down), sent(work.up)
            assert {block(n) for n in up["model"]} - {None} == active
            assert {block(n) for n in work.trainable} - {None} == active
            if kind == "image-text":
                assert not work.edits
                continue
            assert {block(n) for n in down["partner"]} == active
            (edit,) = work.edits
            assert {block(f"{layer}.x") for layer in edit.args["layers"]} == active
            assert len(edit.args["layers"]) == 4 * len(active)


def test_frozen_embeddings_stay_at_the_server() -> None:
    work = layerwise({"image": 4, "text": 4}, stages=2).stages[1].restrict_work(fedcola().work("image", 1))
    assert any("embedding" in n for n in sent(work.down)["model"])
    assert not any("embedding" in n for n in sent(work.up)["model"])
    assert not any("embedding" in n for n in work.trainable)


def test_a_partner_that_is_not_attached_yet_is_left_out_with_its_gate() -> None:
    """Four image blocks and two text blocks in two stages: image block 1 would need text block 1, of stage 2."""
    method, stages = fedcola(4, 2), layerwise({"image": 4, "text": 2}, stages=2).stages
    first = stages[0].restrict_work(method.work("image", 1))
    check_consistent(first)
    assert {block(f"{layer}.x") for layer in first.edits[0].args["layers"]} == {0}
    assert {block(n) for n in first.trainable} - {None} == {0, 1}
    assert not any(n.endswith((".gate", ".partner")) for n in first.trainable if block(n) == 1)
    second = stages[1].restrict_work(method.work("image", 1))
    check_consistent(second)
    assert not second.edits and not sent(second.down)["partner"]
    text = stages[1].restrict_work(method.work("text", 1))
    assert {block(f"{layer}.x") for layer in text.edits[0].args["layers"]} == {1}


def test_at_full_depth_nothing_is_lost() -> None:
    work = fedcola().work("image", 1)
    (stage,) = EndToEnd(EndToEnd.Options(), {"image": 4, "text": 4}).stages
    assert stage.restrict_work(work) == work


def test_cutting_twice_is_cutting_once() -> None:
    for stage in layerwise({"image": 4, "text": 4}, stages=4, rounds=8).stages:
        once = stage.restrict_work(fedcola().work("text", 1))
        assert stage.restrict_work(once) == once


def test_tables_are_untouched() -> None:
    table = Payload("prototypes", (Item("prototypes", (5, 16), "float32", "table/prototypes"),))
    work = make_work()
    work = Work(**{**work.__dict__, "down": (*work.down, table), "up": (*work.up, table), "keep": ("prototypes",)})
    restricted = layerwise({"image": 2}, stages=2).stages[1].restrict_work(work)
    assert table in restricted.down and table in restricted.up and restricted.keep == ("prototypes",)


def test_kept_names_follow_the_depth() -> None:
    work = Work(**{**make_work().__dict__, "keep": ("image.blocks.0.norm1.bias", "image.blocks.1.norm1.bias")})
    assert layerwise({"image": 2}, stages=2).stages[0].restrict_work(work).keep == ("image.blocks.0.norm1.bias",)


@dataclass(frozen=True)
class SmallBatches(Stage):
    """A stage of a plug-in's: its clients train in smaller batches."""

    batch: int = 1

    def restrict_work(self, work: Work) -> Work:
        work = super().restrict_work(work)
        return replace(work, passes=tuple(replace(p, batch=min(p.batch, self.batch)) for p in work.passes))


@dataclass(frozen=True)
class Biases(Stage):
    """A stage of a plug-in's: biases and heads alone train and travel up."""

    def is_active(self, name: str) -> bool:
        return super().is_active(name) and (name.endswith(".bias") or part_of(name)[1] == "head")


def test_a_stage_of_ones_own_is_planned(tiny: Callable[..., dict[str, Any]]) -> None:
    """What a plug-in's stages cut costs what a scenario or the model's own shapes say."""
    data = {"source": "glyphs", "clients": {"image": 2}, "samples": 16, "validation": 20, "test": 20}
    usual, small = (compose(load(tiny(data=data, training={"batch": batch}))) for batch in (8, 2))
    whole = usual.schedule.stage(1)
    fields = (dict(whole.depth), dict(whole.first), whole.parts)
    own = replace(usual, schedule=Schedule((SmallBatches(1, *fields, 1, batch=2), Biases(2, *fields, 1))))
    cut, biases = (Planner(own, Predictor()).plan(0, 0, 0, round, own.schedule.stage(round), ()) for round in (1, 2))
    plain, said = (Planner(setup, Predictor()).plan(0, 0, 0, 1, whole, ()) for setup in (usual, small))
    assert cut.form == said.form and cut.key == said.key != plain.key
    assert cut.compute.peak_memory_bytes < plain.compute.peak_memory_bytes
    shapes = {n: t.numel() for n, t in models.on_meta(usual.method.setting.kinds["image"].model).named_parameters()}
    sent = 4 * sum(count for name, count in shapes.items() if name.endswith(".bias") or ".head." in name)
    assert biases.traffic.upload_bytes == sent < plain.traffic.upload_bytes
    assert biases.compute.peak_memory_bytes < plain.compute.peak_memory_bytes


def test_a_schedule_is_made_of_stages() -> None:
    assert Schedule(layerwise({"image": 2}, stages=2, rounds=4).stages).rounds == 4
