"""FedHKD's two terms and its class means against closed forms; what travels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from edgefl_toys import CPU, FACTS, Toy
from torch import Tensor

from edgefl import models
from edgefl.methods import Kind, Setting
from edgefl.methods.prototypes.fedhkd import FedHKD
from edgefl.methods.prototypes.losses import ClassMeans, prediction_distance, representation_distance
from edgefl.models.multiway import MultiwayOptions, describe_multiway
from edgefl.testing import check_part
from edgefl.work import Context, Pass, Work
from edgefl.work.training_options import TrainingOptions

CLASSES, DIM = 5, 16
SMALL = {"blocks": 1, "width": DIM, "heads": 2, "patch": 8, "tokens": 6, "positions": 10, "drop_path": 0.0}
MODEL = describe_multiway(MultiwayOptions(**SMALL), ("image", "text"), "classify", FACTS)


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def built() -> Any:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return models.build(MODEL).eval()


def test_the_terms_have_their_closed_forms() -> None:
    model, fused, label = built(), draw(3, DIM, seed=1), torch.tensor([4, 0, 4])
    table, predicted = draw(CLASSES, DIM, seed=2), draw(CLASSES, CLASSES, seed=3).softmax(1)
    table[2] = 0  # a class that nobody had is in neither mean
    soft = (model.scores(table) / 0.5).softmax(1)
    expected = sum((soft[j] - predicted[j]).norm() for j in (0, 1, 3, 4)) / 4
    torch.testing.assert_close(prediction_distance(model, table, predicted, 0.5), expected)
    expected = sum((fused[b] - table[y]).norm() for b, y in enumerate(label.tolist())) / 3
    torch.testing.assert_close(representation_distance(fused, table, label), expected)
    nothing = torch.zeros(CLASSES, DIM)
    assert prediction_distance(model, nothing, predicted, 0.5) == representation_distance(fused, nothing, label) == 0


@pytest.mark.parametrize("soft", [False, True])
def test_class_means_of_features_and_of_soft_predictions(soft: bool) -> None:
    shapes = {"fused": (CLASSES, DIM), "predicted": (CLASSES, CLASSES)}
    ctx = Context(
        Work("any", {}, (), ()), built(), Toy(), CPU, {f"prototypes.{n}": torch.zeros(s) for n, s in shapes.items()}
    )
    args = {"tables": list(shapes), "of": list(shapes), "made": list(shapes), "first": True, "last": True}
    pass_ = Pass("class-means", "private", ("image-text",), 4, False,
                 {**args, "absent": "zero", "mask": "random", "softening": 0.5})  # fmt: skip
    batch = {
        "image": draw(4, 1, 16, 16, seed=5),
        "text": torch.arange(24).view(4, 6),
        "label": torch.tensor([3, 0, 3, -1]),
    }
    worth = torch.zeros(4, CLASSES)
    worth[[0, 1, 2], batch["label"][:3]] = 1.0
    if soft:
        worth[:3] = worth[:3] * 0.9 + 0.3 * (worth[:3].roll(1, 1))
        batch["target"] = worth.clone()
        batch["target"][3] = 1.0  # of a sample that fills the batch: left out
    model: Any = ctx.model
    with torch.no_grad():
        ClassMeans().start(ctx, pass_)
        ClassMeans().loss(ctx, batch, "image-text", pass_)
        ClassMeans().finish(ctx, pass_)
        h = model.features({m: batch[m] for m in ("image", "text")})
        fused = model.fuse(h["image"], h["text"])
        made = {"fused": fused, "predicted": (model.scores(fused) / 0.5).softmax(1)}
    for table, rows in made.items():
        total = worth.sum(0)[:, None]
        expected = torch.where(total > 0, worth.T @ rows / total.clamp_min(1e-9), torch.zeros(()))
        torch.testing.assert_close(ctx.outputs[f"prototypes.{table}"], expected)


def test_features_and_predictions_travel() -> None:
    """K x d + K x K floats, each way."""
    kinds = {n: Kind(n, tuple(n.split("-")), "classify", MODEL) for n in ("image", "image-text")}
    fedhkd = FedHKD(FedHKD.Options(), Setting(kinds, TrainingOptions(batch=8)))
    for kind in kinds:
        work = fedhkd.work(kind, 2)
        for side in (work.down, work.up):
            assert side[1].tensor_bytes == 4 * (CLASSES * DIM + CLASSES * CLASSES)
        assert (work.passes[0].args["predictions"], work.passes[0].args["representations"]) == (0.05, 0.05)
        assert fedhkd.work(kind, 1).passes[0].args["predictions"] == 0
    alone = FedHKD(FedHKD.Options(predictions=0), fedhkd.setting)
    assert alone.work("image", 2).up[1].tensor_bytes == 4 * CLASSES * DIM
    assert not fedhkd.initial(1).tensors["table/prototypes.fused"].any()


@pytest.mark.slow(smaller="test_a_method_keeps_the_contract")
@pytest.mark.parametrize("options", [{"prototypes_of": "all"}, {"mask": "zero", "answers": "scores"}])
def test_every_form_keeps_the_contract(options: dict[str, Any]) -> None:
    report = check_part("method", "fedhkd", runs=False, schedules=["end-to-end", "layerwise"], **options)
    assert report.ok, str(report)
