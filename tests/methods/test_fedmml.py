"""FedMML: FedAvg but for the temperature; rates by stage under the schedules that make it LW- and Prog-FedMML."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from edgefl_toys import FACTS, Toy
from tensors import assert_equal_tensors

import edgefl
from edgefl import models, registry
from edgefl.data.samples import Samples
from edgefl.methods import Kind, Setting, Update
from edgefl.models import ModelOptions
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.work import TensorSpec, run
from edgefl.work.steps import clip_loss
from edgefl.work.training_options import TrainingOptions

REP: Any = {"hidden": [24, 24], "batch_norm": True, "dropout": 0.0}


def setting(task: str = "retrieve", **training: Any) -> Setting:
    tower = {"blocks": 2, "width": 16, "heads": 2}
    model = ModelOptions(
        image={**tower, "patch": 4}, text={**tower, "tokens": 6}, dimension=8, projection=REP, fusion={"hidden": [8]}
    )
    described = models.describe(model, ("image", "text"), task, FACTS)
    kind = Kind("image-text", ("image", "text"), task, described)
    return Setting({"image-text": kind}, TrainingOptions(batch=8, epochs=1, **training), model=model, facts=FACTS)


def made(name: str, where: Setting, **options: Any) -> Any:
    kind = registry.get("method", name)
    return kind(kind.Options(**options), where)


def trained(method: Any) -> Any:
    work = method.work("image-text", 1)
    inputs = method.initial(3).inputs(work)
    return run(work, inputs, Toy(), module=models.build(work.model), device=torch.device("cpu"), seed=5)


def test_supervised_it_is_fedavg_bit_for_bit() -> None:
    one, other = (made(name, setting("classify")) for name in ("fedmml", "fedavg"))
    assert one.work("image-text", 3) == other.work("image-text", 3)
    a, b = trained(one), trained(other)
    assert a.loss == b.loss
    assert_equal_tensors(a.payloads["model"], b.payloads["model"])


def test_the_contrast_has_the_papers_temperature() -> None:
    method = made("fedmml", setting())
    work = method.work("image-text", 1)
    assert [p.args["scale"] for p in work.passes] == [20.0]
    assert replace(work, passes=()) == replace(made("fedavg", setting()).work("image-text", 1), passes=())
    assert made("fedmml", setting(), temperature=0.5).work("image-text", 1).passes[0].args["scale"] == 2.0


def test_the_loss_is_two_cross_entropies_of_cosines_over_the_temperature() -> None:
    draw = torch.Generator().manual_seed(1)
    a, b = (torch.nn.functional.normalize(torch.randn(5, 8, generator=draw), dim=-1) for _ in range(2))
    by_hand = 0.0
    for i in range(5):
        for rows in (a[i] @ b.T / 0.05, b[i] @ a.T / 0.05):
            by_hand += float(rows.logsumexp(0) - rows[i]) / 10
    assert float(clip_loss(a, b, 20.0)) == pytest.approx(by_hand, rel=1e-5)


def test_batch_statistics_travel_and_are_averaged() -> None:
    method = made("fedmml", setting())
    work = method.work("image-text", 1)
    name = "image.rep.1.running_mean"
    assert name in {i.name for i in work.up[0].items}
    state = method.initial(3)
    result = trained(method)
    assert result.payloads["model"][name].any()
    updates = [
        Update(i, "image-text", {"image-text": n}, work, result.payloads, state.base(work))
        for i, n in enumerate((1, 3))
    ]
    after = method.aggregate(state, updates).tensors[f"image-text/{name}"]
    torch.testing.assert_close(after, result.payloads["model"][name])


@pytest.mark.parametrize("name", ["lw-fedmml-coco", "prog-fedmml-coco", "lw-fedmml-advance", "prog-fedmml-advance"])
def test_the_papers_rates_by_stage(name: str) -> None:
    """LW-FedMML: towers by stage, heads at one rate with a decay of 1e-6, all for a batch of 256."""
    setup = compose(load(f"papers/{name}"))
    (kind,) = setup.clients.kinds
    full = setup.method.work(kind, 1)
    found = [stage.restrict_work(full).scalars["rates"] for stage in setup.schedule.stages]
    coco = name.endswith("coco")
    scale = 1 if coco else 16 / 256
    image = [1e-7, 1e-7, 1e-7, *([5e-6, 3e-5, 5e-5] if coco else [5e-7, 1e-6, 5e-6])]
    other = [1e-7, 1e-7, 1e-7, 1e-5, 3e-5, 5e-5] if coco else [1e-5] * 5 + [3e-5]
    assert [r["image"]["lr"] for r in found] == pytest.approx([lr * scale for lr in image])
    assert [r["text" if coco else "audio"]["lr"] for r in found] == pytest.approx([lr * scale for lr in other])
    for head in ("rep",) if coco else ("rep", "head"):
        assert found[0][head] == pytest.approx({"lr": (3e-4 if coco else 1e-4) * scale, "weight_decay": 1e-6})
    assert full.scalars["weight_decay"] == 0.01


def test_one_random_caption_of_an_image_stands_in_an_epoch() -> None:
    group = np.arange(24) // 3

    def fields(data: str, whole: str, pattern: str, rows: Any, names: Any) -> dict[str, torch.Tensor]:
        found = {"text": rows[:, None], "group": group[rows], "label": np.zeros(len(rows), np.int64)}
        return {name: torch.from_numpy(value) for name, value in found.items()}

    specs = {"image-text": {"text": TensorSpec((1,), "int64")}}
    source = Samples("captions", specs, lambda data, pattern: np.arange(24), fields)
    described = replace(setting().kinds["image-text"], extras=("group",))
    method = made("fedmml", replace(setting(), kinds={"image-text": described}))
    (pass_,) = method.work("image-text", 1).passes
    pass_ = replace(pass_, batch=4)
    assert source.counts(pass_) == {"image-text": 2} and source.size(pass_) == 8
    seen = set()
    for seed in range(20):
        rows = torch.cat([batch["text"][:, 0] for _, batch in source.batches(pass_, seed)])
        assert sorted(group[rows]) == list(range(8))
        seen |= set(rows.tolist())
    assert len(seen) == 24  # every caption has its turn
    ordered = torch.cat([batch["text"][:, 0] for _, batch in source.batches(replace(pass_, train=False), 1)])
    assert ordered.tolist() == list(range(0, 24, 3))
    everything = made("fedmml", replace(setting(), kinds={"image-text": described}), captions="all")
    (whole,) = everything.work("image-text", 1).passes
    assert source.size(whole) == 24


@pytest.mark.slow(smaller="test_the_papers_rates_by_stage")
def test_a_layer_wise_run_trains_each_stage_at_its_own_rate(tiny: Any, tmp_path: Any) -> None:
    """Where the second stage's rate is next to nothing, its blocks stay where they were."""
    sections = {
        "method": "fedmml",
        "schedule": {"name": "layerwise", "stages": 2, "rounds": 2},
        "training": {"batch": 8, "optimizer": "sgd", "lr": 0.1, "rates": {"image": [0.1, 1e-30], "head": 1e-30}},
        "data": {"source": "glyphs", "clients": {"image": 2}, "samples": 16, "validation": 8, "test": 8},
    }
    scenario = tiny(**sections)
    last = edgefl.read_run(edgefl.run(scenario, out=tmp_path / "run").path).weights()
    first = compose(load({"edgefl": 1, **scenario})).method.initial(scenario["seed"]).tensors
    moved = {name for name, value in last.items() if (value - first[name]).abs().max() > 1e-20}
    assert any(".blocks.0." in name for name in moved)
    assert not any(".blocks.1." in name or ".head." in name for name in moved)
