"""Matching a sample with one modality against brute force; matching models against torch's own layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from edgefl_toys import CPU, FACTS, Toy
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import assert_equal_tensors
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl import models
from edgefl.methods.prototypes.matching import (
    MATCHED,
    Attach,
    Features,
    ScoreCompleted,
    TrainMatching,
    layers,
    mix_prototypes,
    model_scores,
    nearness,
    shapes,
    through,
)
from edgefl.models.multiway import MultiwayOptions, describe_multiway
from edgefl.work import Context, Edit, Pass, Work
from edgefl.work.steps import CLIP_SCALE

CLASSES, DIM = 5, 16
SMALL = {"blocks": 1, "width": DIM, "heads": 2, "patch": 8, "tokens": 6, "positions": 10, "drop_path": 0.0}


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=25)
@given(batch=st.integers(1, 4), classes=st.integers(1, 40), dim=st.integers(1, 6), seed=st.integers(0, 99))
def test_nearness_is_minus_the_distance(batch: int, classes: int, dim: int, seed: int) -> None:
    feature, prototypes = draw(batch, dim, seed=seed), draw(classes, dim, seed=seed + 1)
    l1, l2, cosine = (nearness(feature, prototypes, d) for d in ("l1", "l2", "cosine"))
    apart = feature[:, None] - prototypes[None]
    torch.testing.assert_close(l1, -apart.abs().sum(-1))
    torch.testing.assert_close(l2, -apart.norm(dim=-1), rtol=1e-3, atol=2e-3)
    torch.testing.assert_close(cosine, F.cosine_similarity(feature[:, None], prototypes[None], dim=-1))


@settings(deadline=None, max_examples=25)
@given(classes=st.integers(1, 6), k=st.integers(1, 8), seed=st.integers(0, 99))
def test_prototypes_of_the_best_classes_are_mixed(classes: int, k: int, seed: int) -> None:
    scores, prototypes = draw(3, classes, seed=seed), draw(classes, 4, seed=seed + 1)
    found = mix_prototypes(scores, prototypes, k)
    for b in range(3):
        best = sorted(range(classes), key=lambda c: -float(scores[b, c]))[:k]
        weights = torch.stack([scores[b, c].exp() for c in best])
        expected = sum(w * prototypes[c] for w, c in zip(weights / weights.sum(), best, strict=True))
        torch.testing.assert_close(found[b], expected)
    assert_equal_tensors(mix_prototypes(scores, prototypes, 1), prototypes[scores.argmax(1)])  # plain


def sequence(widths: Sequence[int], seed: int) -> tuple[nn.Sequential, dict[str, Tensor]]:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        parts: list[nn.Module] = []
        for into, out in pairwise(widths):
            parts += [nn.Linear(into, out), nn.GELU()]
    model = nn.Sequential(*parts[:-1])
    return model, {f"matching.image.{n}": p.detach() for n, p in model.named_parameters()}


def test_a_matching_model_is_linear_layers_and_gelus() -> None:
    model, named = sequence((4, 6, 8, 3), seed=1)
    assert {f"matching.image.{n}": s for n, s in shapes((4, 6, 8, 3)).items()} == {
        n: tuple(t.shape) for n, t in named.items()
    }
    x = draw(5, 4, seed=2)
    torch.testing.assert_close(through(x, layers(named, "matching.image.")), model(x))


def test_a_classifiers_shares_are_probabilities_and_an_ensemble_weighs_them_by_samples() -> None:
    prototypes, x = draw(3, 4, seed=1), draw(5, 4, seed=2)
    made = [sequence((4, 6, 3), seed=i) for i in (3, 4)]
    several = [layers(named, "matching.image.") for _, named in made]
    scores = model_scores(x, several, torch.tensor([30.0, 10.0]), prototypes, "classifier")
    probabilities = sum(w * model(x).softmax(1) for w, (model, _) in zip((0.75, 0.25), made, strict=True))
    torch.testing.assert_close(scores.exp(), probabilities)
    best = probabilities.topk(2, 1)  # what is mixed: the best probabilities, made to add up to 1
    shares = best.values / best.values.sum(1, keepdim=True)
    torch.testing.assert_close(
        mix_prototypes(scores, prototypes, 2), (shares[..., None] * prototypes[best.indices]).sum(1)
    )

    made = [sequence((4, 6, 4), seed=i) for i in (3, 4)]
    several = [layers(named, "matching.image.") for _, named in made]
    scores = model_scores(x, several, torch.tensor([30.0, 10.0]), prototypes, "prior")
    cosines = [F.cosine_similarity(model(x)[:, None], prototypes[None], dim=-1) for model, _ in made]
    torch.testing.assert_close(scores, CLIP_SCALE * (0.75 * cosines[0] + 0.25 * cosines[1]))


# steps --------------------------------------------------------------------------------------------------------------


def context(**more: Tensor) -> Context:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = models.build(describe_multiway(MultiwayOptions(**SMALL), ("image", "text"), "classify", FACTS)).eval()
    tables = {f"prototypes.{m}": draw(CLASSES, DIM, seed=i) for i, m in enumerate(("image", "text"))}
    return Context(Work("any", {}, (), ()), model, Toy(samples=22), CPU, {**tables, **more})


def scored(ctx: Context, inference: str, pattern: str, mix: int = 1, apart: bool = False) -> dict[str, Tensor]:
    args: dict[str, Any] = {"inference": inference, "mix": mix, "apart": apart}
    pass_, step = Pass("score-completed", "test", (pattern,), 8, False, args), ScoreCompleted()
    torch.manual_seed(5)
    with torch.no_grad():
        step.start(ctx, pass_)
        for _, batch in ctx.source.batches(pass_, 0):
            step.loss(ctx, batch, pattern, pass_)
        step.finish(ctx, pass_)
    return ctx.metrics


@pytest.mark.parametrize("inference", ["zero", "l1", "l2", "cosine", "classifier", "prior", "oracle"])
@pytest.mark.parametrize("pattern", ["image", "text"])
def test_what_is_missing_is_the_prototype_of_the_matched_class(inference: str, pattern: str) -> None:
    out = CLASSES if inference == "classifier" else DIM
    _, named = sequence((DIM, 8, out), seed=9)
    ctx = context(**{n.replace("image", pattern): t for n, t in named.items()}, **{f"matched.{pattern}": torch.ones(1)})
    model: Any = ctx.model
    other = "text" if pattern == "image" else "image"
    own, across = ctx.received[f"prototypes.{pattern}"], ctx.received[f"prototypes.{other}"]
    hits, total, among = 0, 0, dict.fromkeys(MATCHED, 0)
    pass_ = Pass("score-completed", "test", (pattern,), 8, False)
    for _, batch in ctx.source.batches(pass_, 0):
        for b in range(8):
            label = int(batch["label"][b])
            if label < 0:
                continue
            h = model.features({pattern: batch[pattern][b : b + 1]})[pattern]
            match inference:
                case "l1":
                    near = -(h - own).abs().sum(1)
                case "l2":
                    near = -(h - own).norm(dim=1)
                case "cosine":
                    near = F.cosine_similarity(h, own)
                case "classifier":
                    near = through(h, layers(named, "matching.image."))[0]
                case "prior":
                    near = F.cosine_similarity(through(h, layers(named, "matching.image.")), own)
                case _:
                    near = F.one_hot(torch.tensor(label), CLASSES).float()
            order = near.argsort(descending=True).tolist()
            missing = torch.zeros(1, DIM) if inference == "zero" else across[order[0]][None]
            pair = (h, missing) if pattern == "image" else (missing, h)
            hits += int(model.scores(model.fuse(*pair)).argmax()) == label
            total += 1
            for k in MATCHED:
                among[k] += label in order[:k]
    metrics = scored(ctx, inference, pattern)
    assert total == 22
    assert float(metrics["accuracy"]) == pytest.approx(hits / total)
    found = {k: float(metrics[f"matched@{k}[{pattern}]"]) for k in MATCHED if f"matched@{k}[{pattern}]" in metrics}
    if inference in ("zero", "oracle"):
        assert not found
    else:
        assert found == {k: pytest.approx(n / total) for k, n in among.items()}


def test_before_a_matching_model_is_trained_zeros_complete() -> None:
    _, named = sequence((DIM, 8, CLASSES), seed=9)
    untrained = context(**named, **{"matched.image": torch.zeros(1)})
    assert scored(untrained, "classifier", "image")["accuracy"] == scored(context(), "zero", "image")["accuracy"]


def test_an_ensemble_of_equal_models_is_one_of_them() -> None:
    _, named = sequence((DIM, 8, CLASSES), seed=9)
    alone = scored(context(**named, **{"matched.image": torch.ones(1)}), "classifier", "image", mix=2)
    stacked = {n: torch.stack([t, t, 0 * t]) for n, t in named.items()}
    several = context(**stacked, **{"matched.image": torch.tensor([7.0, 2.0, 0.0])})
    assert scored(several, "classifier", "image", mix=2) == alone


def test_the_same_samples_looked_at_in_another_way_have_metrics_of_their_own() -> None:
    ctx = context()
    whole = dict(scored(ctx, "l1", "image-text"))
    found = scored(ctx, "l1", "image", apart=True)
    assert {n: v for n, v in found.items() if "[" not in n} == whole
    assert {"accuracy[image]", "matched@1[image]"} <= set(found) and "accuracy" in whole


def test_matching_models_stand_beside_the_model_while_they_train() -> None:
    _, named = sequence((DIM, 8, CLASSES), seed=9)
    ctx = context(**named)
    before = {n: p.clone() for n, p in ctx.model.named_parameters()}
    edit = Edit("matching", {"names": list(named)})
    Attach.apply(edit, ctx.model, ctx.received)
    assert dict(ctx.model.named_parameters()).keys() - before.keys() == set(named) == Attach.names(edit)
    Attach.fold(edit, ctx.model)
    assert {n: p.shape for n, p in ctx.model.named_parameters()} == {n: p.shape for n, p in before.items()}


@pytest.mark.parametrize("loss", ["classes", "clip", "distance"])
def test_a_matching_model_learns_from_features_made_once(loss: str) -> None:
    _, named = sequence((DIM, 8, CLASSES if loss == "classes" else DIM), seed=9)
    ctx = context(**named)
    Attach.apply(Edit("matching", {"names": list(named)}), ctx.model, ctx.received)
    look = Pass("features", "private", ("image-text",), 8, False, {"modality": "image"})
    with torch.no_grad():
        Features().start(ctx, look)
        for _, batch in ctx.source.batches(look, 0):
            Features().loss(ctx, batch, "image-text", look)
    table = ctx.outputs["features.image-text.image"]
    model: Any = ctx.model
    images = torch.cat([batch["image"] for _, batch in ctx.source.batches(look, 0)])[:22]
    torch.testing.assert_close(table, model.features({"image": images})["image"])  # by itself, beside no text

    batch = {"index": torch.tensor([3, 21, 0]), "label": torch.tensor([1, 4, 1])}
    pass_ = Pass("match", "private", ("image-text",), 3, True, {"modality": "image", "loss": loss})
    found = TrainMatching().loss(ctx, batch, "image-text", pass_)
    made = through(table[[3, 21, 0]], layers(named, "matching.image."))
    near = ctx.received["prototypes.image"][batch["label"]]
    if loss == "classes":
        expected = F.cross_entropy(made, batch["label"])
    elif loss == "distance":
        expected = (made - near).square().mean()
    else:
        logits = CLIP_SCALE * F.normalize(made, dim=1) @ F.normalize(near, dim=1).T
        rows = torch.arange(3)
        expected = (F.cross_entropy(logits, rows) + F.cross_entropy(logits.T, rows)) / 2
    torch.testing.assert_close(found, expected)
    found.backward()
    with torch.no_grad():
        TrainMatching().finish(ctx, pass_)
    assert_equal_tensors({n: ctx.outputs[n] for n in named}, named)
    assert all(p.grad is None for n, p in ctx.model.named_parameters() if not n.startswith("matching."))
