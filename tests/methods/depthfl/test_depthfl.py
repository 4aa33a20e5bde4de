"""DepthFL: its loss by brute force, exits that come and go with their blocks, averages over those who have them."""

from __future__ import annotations

from math import exp
from typing import Any

import pytest
import torch
from edgefl_toys import FACTS, TOWER_FACTS, Toy
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import assert_equal_tensors
from torch.nn import functional as F

import edgefl
from edgefl import models, registry
from edgefl.errors import MethodError
from edgefl.methods import Kind, Setting, Update
from edgefl.methods.depthfl.depthfl import DepthFL
from edgefl.methods.depthfl.steps import mutual
from edgefl.models import ModelOptions
from edgefl.models.exits import ExitModel
from edgefl.schedules import Stage
from edgefl.schedules.heterofl import NarrowStage
from edgefl.schedules.stages import PARTS
from edgefl.testing import check_part
from edgefl.work import run
from edgefl.work.training_options import TrainingOptions

PREFIX = Stage(2, {"image": 1, "text": 1}, {}, PARTS, 1)
TOP = Stage(2, {"image": 2, "text": 2}, {"image": 1, "text": 1}, PARTS[2:], 1)
WHOLE = Stage(1, {"image": 2, "text": 2}, {}, PARTS, 1)


def setting(pair: str = "retrieve", blocks: tuple[int, int] = (2, 2), **training: Any) -> Setting:
    model = ModelOptions(
        image={"blocks": blocks[0], "width": 16, "heads": 2, "patch": 4},
        text={"blocks": blocks[1], "width": 16, "heads": 2, "tokens": 6},
    )
    kinds = {}
    for name in ("image", "text", "image-text"):
        towers, task = tuple(name.split("-")), pair if "-" in name else "classify"
        kinds[name] = Kind(name, towers, task, models.describe(model, towers, task, FACTS))
    options = TrainingOptions(**{"batch": 40, "optimizer": "sgd", "lr": 0.5, "implementation": "for-loop", **training})
    return Setting(kinds, options, model=model, facts=FACTS)


def made(where: Setting | None = None, **options: Any) -> DepthFL:
    return DepthFL(DepthFL.Options(**options), where or setting())


def test_what_exits_learn_from_each_other_by_hand() -> None:
    draw = torch.Generator().manual_seed(2)
    scores = [torch.randn(4, 3, generator=draw, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    by_hand = torch.zeros((), dtype=torch.float64)
    for i in range(3):
        for j in range(3):
            for row in range(4):
                p, q = scores[j][row].softmax(0), scores[i][row].softmax(0)
                if i != j:
                    by_hand += sum(p[c] * (p[c].log() - q[c].log()) for c in range(3)) / 4 / 2
    torch.testing.assert_close(mutual(scores), by_hand)
    mutual(scores).backward()
    # towards the mean of its teachers, who stay where they are: sum_j (p_i - p_j) / (d - 1)
    probabilities = [z.detach().softmax(1) for z in scores]
    teachers = (probabilities[1] + probabilities[2]) / 2
    torch.testing.assert_close(scores[0].grad, (probabilities[0] - teachers) / 4)


@given(seed=st.integers(0, 2**31), exits=st.integers(2, 5))
@settings(max_examples=25, deadline=None)
def test_exits_that_agree_teach_nothing(seed: int, exits: int) -> None:
    scores = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
    assert float(mutual([scores + shift for shift in range(exits)])) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("kind", ["image", "image-text"])
def test_one_step_is_the_gradient_of_the_sum(kind: str) -> None:
    """SGD on the whole set in one batch: ``w - lr g`` of the loss written out over two exits."""
    method = made(setting("classify" if kind == "image" else "retrieve"), distillation=0.5, ramp=0)
    work = method.work(kind, 1)
    inputs = method.initial(1).inputs(work)

    class Same(Toy):
        def batches(self, pass_: Any, seed: int) -> Any:
            return super().batches(pass_, 0)

    sent = run(work, inputs, Same(), module=models.build(work.model), device=torch.device("cpu"), seed=1)
    model = models.build(work.model)
    assert isinstance(model, ExitModel)
    model.load_state_dict(inputs)
    ((_, batch),) = Toy().batches(work.passes[0], 0)
    features = {m: model.exit_features(m, batch[m], model.places) for m in kind.split("-")}
    if kind == "image":
        tables = [[model.head(place)(x) for place, x in zip(model.places, features["image"], strict=True)]]
        target = batch["label"]
    else:
        cosines = [
            F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T / 0.07
            for a, b in zip(features["image"], features["text"], strict=True)
        ]
        tables, target = [cosines, [c.T for c in cosines]], torch.arange(40)
    loss = torch.zeros(())
    for table in tables:
        loss = loss + sum(F.cross_entropy(z, target) for z in table) / len(tables)
        for student, teacher in (table, table[::-1]):
            p, q = teacher.detach().softmax(1), student.softmax(1)
            loss = loss + 0.5 * (p * (p.log() - q.log())).sum(1).mean() / len(tables)
    loss.backward()
    assert sent.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(sent.payloads["model"][name], inputs[name] - 0.5 * parameter.grad)


def test_the_weight_rises_as_in_the_public_code() -> None:
    method = made(ramp=300, distillation=2.0)
    assert method.weight(1) == pytest.approx(2 * exp(-5))
    assert method.weight(151) == pytest.approx(2 * exp(-1.25))
    assert method.weight(301) == method.weight(1000) == 2.0
    assert made(ramp=0).weight(1) == 1.0
    full = method.work("image", 1)
    assert full.scalars["distillation"] == method.weight(1) and full.form == method.work("image", 9).form


def test_an_exit_comes_trains_and_goes_with_its_block() -> None:
    method = made()
    full = method.work("image-text", 1)
    exits = {n for n in full.trainable if ".exit." in n}
    assert {n.split(".exit.")[0] for n in exits} == {f"{m}.blocks.{i}" for m in ("image", "text") for i in (0, 1)}
    assert not [n for n in full.trainable if n.split(".")[1] in ("norm", "rep", "head")]
    below = PREFIX.restrict_work(full)
    assert {n for n in below.trainable if ".exit." in n} == {n for n in exits if ".blocks.0." in n}
    top = TOP.restrict_work(full)
    assert {n for n in top.trainable if ".exit." in n} == {n for n in exits if ".blocks.1." in n}
    module = models.build(top.model)
    assert isinstance(module, ExitModel) and len(module.places) == 2
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in top.trainable)
    # the frozen exit has no say: neither a loss nor a lesson
    assert module.training_places() == module.places[1:]


def test_each_part_is_averaged_over_those_who_have_it() -> None:
    method = made()
    state = method.initial(1)
    updates = []
    for client, (samples, stage) in enumerate(((10, PREFIX), (30, WHOLE))):
        work = stage.restrict_work(method.work("image", 1))
        base = state.base(work)
        payloads = {"model": {i.name: base[i.source] + client + 1 for i in work.up[0].items}}
        updates.append(Update(client, "image", {"image": samples}, work, payloads, base))
    after = method.aggregate(state, updates).tensors
    for address, value in after.items():
        if address.startswith("image/"):
            moved = 2.0 if ".blocks.1." in address else (10 * 1 + 30 * 2) / 40
            torch.testing.assert_close(value, state.tensors[address] + moved)


def test_evaluation_reads_the_deepest_exit_or_all() -> None:
    deepest, all_ = (made(evaluate=which) for which in ("deepest", "ensemble"))
    images = torch.rand(3, 1, 16, 16)
    state = deepest.initial(4)
    found = {}
    for name, method in (("deepest", deepest), ("ensemble", all_)):
        work = method.evaluate("image", "test")
        module = models.build(work.model).eval()
        module.load_state_dict(state.inputs(work))
        assert isinstance(module, ExitModel)
        found[name] = module.classify("image", {"image": images})
        scores = module.exit_scores("image", {"image": images}, module.places)
    torch.testing.assert_close(found["deepest"], scores[1])
    torch.testing.assert_close(found["ensemble"], (scores[0] + scores[1]) / 2)


def test_a_model_with_one_exit_is_the_plain_model() -> None:
    """Embedding, blocks, norm and head of the same values compute the same scores."""
    where = setting()
    plain = models.build(where.kinds["image"].model).eval()
    one = models.build(made(where, exits=1).setting.kinds["image"].model).eval()
    spelt = {n.replace("image.blocks.1.exit.", "image."): n for n in one.state_dict()}
    one.load_state_dict({spelt[n]: t for n, t in plain.state_dict().items()})
    images = torch.rand(3, 1, 16, 16)
    assert_equal_tensors(plain.logits("image", images), one.logits("image", images))  # type: ignore[operator]


def test_exits_stand_where_stages_end() -> None:
    method = made(setting(blocks=(4, 2)))
    module = models.build(method.setting.kinds["image-text"].model)
    assert isinstance(module, ExitModel) and module.places == [{"image": 2, "text": 1}, {"image": 4, "text": 2}]
    assert len(models.build(method.setting.kinds["image"].model).places) == 4  # type: ignore[arg-type]


@pytest.mark.parametrize(("tower", "more"), [("resnet", {}), ("gru", {"blocks": 3}), ("distilbert", {"blocks": 3})])
def test_towers_of_libraries_have_exits(tower: str, more: dict[str, Any]) -> None:
    modality = "image" if tower == "resnet" else "text"
    small = {"resnet": {"stem": "small"}, "gru": {"hidden": 8}, "distilbert": {"width": 16, "heads": 2}}[tower]
    options = ModelOptions.model_validate({modality: {"tower": tower, **small, **more}})
    kind = Kind(modality, (modality,), "classify", models.describe(options, (modality,), "classify", TOWER_FACTS))
    described = DepthFL.with_exits(kind, "all")
    module = models.build(described)
    assert isinstance(module, ExitModel)
    x = torch.rand(2, 3, 32, 32) if modality == "image" else torch.randint(0, 60, (2, 40))
    scores = module.exit_scores(modality, {modality: x}, module.places)
    assert [s.shape for s in scores] == [(2, 5)] * (4 if tower == "resnet" else 3)
    shallow = models.build(models.at_depth(described, {modality: 2}))
    names = {n for n, _ in module.named_parameters() if ".blocks.2." not in n and ".blocks.3." not in n}
    assert {n for n, _ in shallow.named_parameters()} == names


def test_narrow_clients_have_the_leading_part_of_what_each_modality_tells_an_exit() -> None:
    work = NarrowStage(2, {}, {}, PARTS, 1, width=0.5, scaler=True).restrict_work(
        made(setting("classify")).work("image-text", 1)
    )
    head = next(i for i in work.up[0].items if i.name == "image.blocks.0.exit.head.0.weight")
    assert head.shape == (5, 16) and head.cut == (((0, 5),), ((0, 8), (16, 24)))
    (scale,) = work.edits
    assert scale.args["layers"] and not [n for n in scale.args["layers"] if ".exit." in n]


def test_what_can_not_be() -> None:
    with pytest.raises(MethodError, match="method.exits is 3, but the image tower has only 2 blocks"):
        made(exits=3)
    described = made(exits=1).setting.kinds["image"].model
    with pytest.raises(MethodError, match=r"no exit is within the first blocks \(1 of image\).*after 2 of image"):
        models.build(models.at_depth(described, {"image": 1}))
    multiway = Kind("image", ("image",), "classify", {**described, "name": "multiway"})
    with pytest.raises(MethodError, match="needs a model of towers; image clients have 'multiway'"):
        DepthFL.with_exits(multiway, "all")


@pytest.mark.slow(smaller="test_a_method_keeps_the_contract")
@pytest.mark.parametrize("options", [{"evaluate": "ensemble", "ramp": 0}, {"exits": 2, "distillation": 0}])
def test_the_contract(options: dict[str, Any]) -> None:
    report = check_part("method", "depthfl", runs=False, processes=True, **options)
    assert report.ok, str(report)


@pytest.mark.slow(smaller="test_evaluation_reads_the_deepest_exit_or_all")
def test_a_run_gives_its_models_back(tiny: Any, tmp_path: Any) -> None:
    schedule = {"name": "elastic", "parts": ["all", "progressive"], "rounds": 2}
    result = edgefl.run(tiny(method="depthfl", schedule=schedule), out=tmp_path / "run")
    assert isinstance(edgefl.read_run(result.path).model("image"), ExitModel)


def test_it_is_found_by_name() -> None:
    assert registry.get("method", "depthfl") is DepthFL
