"""Losses and metrics against closed forms and hand counts."""

from __future__ import annotations

from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from edgefl_toys import CPU, Toy, described, do, inputs_of, make_work, scoring_pass, training_pass
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from edgefl import models
from edgefl.work import Context, Pass, Work, run
from edgefl.work.steps import CLIP_SCALE, RECALLS, ScoreRetrieve, clip_loss, proximal


def evaluated(work: Work, source: Toy) -> tuple[Any, dict[str, float]]:
    module = models.build(work.model)
    return module, dict(do(work, source, module=module).metrics)


@pytest.mark.parametrize("samples", [16, 40, 41, 47])
def test_accuracies_are_those_of_a_hand_count(samples: int) -> None:
    source, pass_ = Toy(samples), scoring_pass()
    module, metrics = evaluated(make_work(passes=(pass_,)), source)
    pairs = []
    for pattern, batch in source.batches(pass_, 0):
        predicted = module.logits(pattern, batch[pattern]).argmax(-1)
        pairs += [(int(t), int(p)) for t, p in zip(batch["label"], predicted, strict=True) if t >= 0]
    assert len(pairs) == samples
    true = {t for t, _ in pairs}
    recall = {c: sum(t == p == c for t, p in pairs) / sum(t == c for t, _ in pairs) for c in true}
    f1 = {
        c: 2 * sum(t == p == c for t, p in pairs) / (sum(t == c for t, _ in pairs) + sum(p == c for _, p in pairs))
        for c in true
    }
    assert metrics == pytest.approx(
        {
            "accuracy": sum(t == p for t, p in pairs) / samples,
            "balanced_accuracy": sum(recall.values()) / len(true),
            "macro_f1": sum(f1.values()) / len(true),
        }
    )


def test_a_model_that_always_says_one_class() -> None:
    work = make_work(passes=(scoring_pass(),))
    inputs = inputs_of(work)
    inputs["image.head.weight"].zero_()
    inputs["image.head.bias"].copy_(torch.tensor([0.0, 0, 1, 0, 0]))
    source = Toy(50)
    labels = torch.cat([b["label"] for _, b in source.batches(scoring_pass(), 0)])
    result = run(work, inputs, source, module=models.build(work.model), device=CPU, seed=1)
    assert result.metrics["accuracy"] == pytest.approx((labels == 2).sum().item() / 50)
    assert result.metrics["balanced_accuracy"] == pytest.approx(1 / 5)


def brute_force(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], k: int) -> float:
    """Expected share of rows whose own partner is among the k best, equal scores in random order."""
    hits = 0.0
    for i in range(len(a)):
        scores = b @ a[i]
        better = int((scores > scores[i] + 1e-6).sum())
        equal = int((np.abs(scores - scores[i]) <= 1e-6).sum())
        hits += min(max((k - better) / equal, 0.0), 1.0)
    return hits / len(a)


def ranked(a: Tensor, b: Tensor) -> dict[str, float]:
    """ScoreRetrieve's metrics of given embeddings."""

    class Pairs(Toy):
        pass

    pass_ = scoring_pass(("image", "text"), len(a))
    model = described(("image", "text"))
    ctx = Context(make_work(("image", "text"), (pass_,)), models.build(model), Pairs(len(a)), CPU)
    ctx.outputs |= {"embedding.image": a, "embedding.text": b}
    ScoreRetrieve().finish(ctx, pass_)
    return {name: float(value) for name, value in ctx.metrics.items()}


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 300), st.integers(0, 2**32), st.sampled_from([1, 2, 3, 8]))
def test_recalls_equal_brute_force_also_with_ties(pairs: int, seed: int, distinct: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    palette = torch.nn.functional.normalize(torch.randn(max(pairs // distinct, 1), 4, generator=draw), dim=-1)
    a, b = (palette[torch.randint(0, len(palette), (pairs,), generator=draw)] for _ in range(2))
    found = ranked(a, b)
    x, y = a.numpy(), b.numpy()
    for k in RECALLS:
        assert found[f"image_to_text_r@{k}"] == pytest.approx(brute_force(x, y, k), abs=1e-5)
        assert found[f"text_to_image_r@{k}"] == pytest.approx(brute_force(y, x, k), abs=1e-5)
        mean = (found[f"image_to_text_r@{k}"] + found[f"text_to_image_r@{k}"]) / 2
        assert found[f"r@{k}"] == pytest.approx(mean)
    assert found["r@1_sum"] == pytest.approx(found["image_to_text_r@1"] + found["text_to_image_r@1"])


@pytest.mark.parametrize("pairs", [7, 120, 500])
def test_a_constant_model_scores_chance(pairs: int) -> None:
    same = torch.nn.functional.normalize(torch.ones(pairs, 16), dim=-1)
    found = ranked(same, same)
    for k in RECALLS:
        assert found[f"r@{k}"] == pytest.approx(min(k / pairs, 1))


def test_a_perfect_model_scores_one() -> None:
    found = ranked(torch.eye(60), torch.eye(60))
    assert all(found[f"r@{k}"] == 1 for k in RECALLS) and found["r@1_sum"] == 2


def test_retrieval_leaves_padding_out_and_embeds_with_the_model() -> None:
    source, pass_ = Toy(21), scoring_pass(("image", "text"), 8)
    module, metrics = evaluated(make_work(("image", "text"), (pass_,)), source)
    rows = [(module.embed("image", b["image"]), module.embed("text", b["text"])) for _, b in source.batches(pass_, 0)]
    a, b = (torch.cat(list(side))[:21].detach().numpy() for side in zip(*rows, strict=True))
    assert metrics["image_to_text_r@5"] == pytest.approx(brute_force(a, b, 5), abs=1e-5)
    assert metrics["text_to_image_r@1"] == pytest.approx(brute_force(b, a, 1), abs=1e-5)


def test_clip_loss_of_two_pairs() -> None:
    pairs = torch.eye(2)
    assert float(clip_loss(pairs, pairs)) == pytest.approx(log(1 + exp(-CLIP_SCALE)), abs=1e-6)
    assert float(clip_loss(pairs, pairs.flip(0))) == pytest.approx(log(1 + exp(CLIP_SCALE)))
    assert float(clip_loss(pairs, pairs, scale=1.0)) == pytest.approx(log(1 + exp(-1)))


def test_clip_loss_averages_both_directions() -> None:
    """a_1 = a_2 = b_1, b_2 orthogonal: rows see (s, 0), columns see equal scores."""
    a, b = torch.tensor([[1.0, 0], [1, 0]]), torch.eye(2)
    rows = (log(1 + exp(-1)) + log(1 + exp(1))) / 2
    assert float(clip_loss(a, b, scale=1.0)) == pytest.approx((rows + log(2)) / 2)


@pytest.mark.parametrize("norm", ["squared", "tensor"])
def test_the_proximal_term(norm: str) -> None:
    module = models.build(described())
    for name, parameter in module.named_parameters():
        parameter.requires_grad_("head" in name)
    reference = {n: p.detach() - (2.0 if n.endswith("bias") else 1.0) for n, p in module.named_parameters()}
    pass_ = training_pass(proximal=0.5, proximal_norm=norm)
    with torch.no_grad():
        value = float(proximal(Context(make_work(), module, Toy(), CPU, {}, reference), pass_))
    weights, biases = 5 * 16, 5  # of the head, the only part that trains: distances 1 and 2
    squared = weights * 1.0 + biases * 4.0
    assert value == pytest.approx(0.25 * (squared if norm == "squared" else weights**0.5 + (biases * 4.0) ** 0.5))


def test_no_proximal_term_unless_asked() -> None:
    assert proximal(Context(make_work(), models.build(described()), Toy(), CPU), training_pass()) == 0


def test_the_proximal_pull_is_towards_what_was_received() -> None:
    """With a large mu the weights end nearer to where they began."""

    def moved(mu: float) -> float:
        work = make_work(
            passes=(training_pass(proximal=mu),) * 3,
            reference=True,
            optimizer={"name": "sgd", "lr": 0.05, "implementation": "for-loop"},
        )
        inputs, result = inputs_of(work), do(work)
        return sum(float((v - inputs[n]).square().sum()) for n, v in result.payloads["model"].items())

    assert moved(10.0) < 0.5 * moved(0.0)


def test_classification_loss_is_the_mean_cross_entropy() -> None:
    """A head of zeros says log(classes)."""
    work = make_work(passes=(training_pass(),), optimizer={"name": "sgd", "lr": 1e-30, "implementation": "for-loop"})
    inputs = inputs_of(work)
    inputs["image.head.weight"].zero_()
    inputs["image.head.bias"].zero_()
    result = run(work, inputs, Toy(), module=models.build(work.model), device=CPU, seed=1)
    assert result.loss == pytest.approx(log(5), abs=1e-6)


def test_a_scoring_pass_has_one_pattern() -> None:
    pass_ = Pass("score-classify", "validation", ("image", "text"), 8, False)
    with pytest.raises(ValueError, match="too many values"):
        do(make_work(passes=(pass_,)))
