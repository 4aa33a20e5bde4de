"""Metrics against brute force, hand counts and scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from edgefl_toys import CPU, Toy, described, do, inputs_of, make_work, scoring_pass
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from edgefl import models
from edgefl.cost.predict import predict
from edgefl.models.client import ClientModel
from edgefl.work import Context, Meter, Pass, TensorSpec, Work, run
from edgefl.work.metrics import top_k_hits
from edgefl.work.scoring import BLOCK, RECALLS, ScoreClassify, ScoreRetrieve, recall_chances

Array = np.ndarray[Any, Any]


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
    precision = {c: sum(t == p == c for t, p in pairs) / max(sum(p == c for _, p in pairs), 1) for c in true}
    f1 = {
        c: 2 * sum(t == p == c for t, p in pairs) / (sum(t == c for t, _ in pairs) + sum(p == c for _, p in pairs))
        for c in true
    }
    assert metrics == pytest.approx(
        {
            "accuracy": sum(t == p for t, p in pairs) / samples,
            "balanced_accuracy": sum(recall.values()) / len(true),
            "macro_precision": sum(precision.values()) / len(true),
            "macro_recall": sum(recall.values()) / len(true),
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


@dataclass(frozen=True)
class Told:
    """A source of samples whose scores, labels and targets are given by pattern, in batches of ``batch``."""

    samples: Mapping[str, Mapping[str, Tensor]]

    def spec(self, pass_: Pass, pattern: str) -> dict[str, TensorSpec]:
        return {name: TensorSpec.from_tensor(x[: pass_.batch]) for name, x in self.samples[pattern].items()}

    def counts(self, pass_: Pass) -> dict[str, int]:
        return {p: -(-len(self.samples[p]["label"]) // pass_.batch) for p in pass_.patterns}

    def size(self, pass_: Pass) -> int:
        return sum(len(self.samples[p]["label"]) for p in pass_.patterns)

    def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
        for pattern, count in self.counts(pass_).items():
            held = self.samples[pattern]
            for index in range(count):
                rows = torch.arange(index * pass_.batch, (index + 1) * pass_.batch)
                real = rows < len(held["label"])
                batch = {name: x[rows.clamp_max(len(x) - 1)] for name, x in held.items()}
                yield pattern, batch | {"label": torch.where(real, batch["label"], -1)}


class Oracle(ClientModel):
    """A model that says what its batch tells it to."""

    def __init__(self, classes: int):
        nn.Module.__init__(self)  # no towers
        self.count = classes

    def classes(self, pattern: str) -> int:
        return self.count

    def classify(self, pattern: str, batch: Mapping[str, Tensor], mask: str) -> Tensor:
        return batch["scores"]


def told(samples: Mapping[str, Mapping[str, Tensor]], classes: int, batch: int = 7, **args: Any) -> dict[str, float]:
    """ScoreClassify's metrics of given scores."""
    source, pass_ = Told(samples), Pass("score-classify", "validation", tuple(samples), batch, False, args)
    ctx, step = Context(make_work(), Oracle(classes), source, CPU), ScoreClassify()
    step.start(ctx, pass_)
    for pattern, one in source.batches(pass_, 0):
        step.loss(ctx, one, pattern, pass_)
    step.finish(ctx, pass_)
    return {name: float(value) for name, value in ctx.metrics.items()}


def drawn(count: int, classes: int, draw: torch.Generator) -> dict[str, Tensor]:
    """Scores [count, classes] of few different values, and labels of some of the classes."""
    label = torch.randint(0, max(classes - 2, 1), (count,), generator=draw)
    scores = torch.randint(0, 30, (count, classes), generator=draw).float()
    scores[torch.arange(count), label] += torch.randint(0, 20, (count,), generator=draw)
    return {"scores": scores, "label": label, "target": torch.rand(count, classes, generator=draw)}


def by_scikit(samples: Mapping[str, Tensor]) -> dict[str, float]:
    metrics = pytest.importorskip("sklearn.metrics")
    true, predicted = samples["label"].numpy(), samples["scores"].argmax(-1).numpy()
    there = np.unique(true)
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(
        true, predicted, labels=there, average="macro", zero_division=0
    )
    return {
        "accuracy": metrics.accuracy_score(true, predicted),
        "balanced_accuracy": metrics.recall_score(true, predicted, labels=there, average="macro"),
        "macro_precision": precision,
        "macro_recall": recall,
        "macro_f1": f1,
    }


def counted(samples: Mapping[str, Tensor]) -> dict[str, float]:
    """The same by hand."""
    true, predicted = samples["label"].tolist(), samples["scores"].argmax(-1).tolist()
    there = set(true)
    hit = {c: sum(t == p == c for t, p in zip(true, predicted, strict=True)) for c in there}
    recall = sum(hit[c] / true.count(c) for c in there) / len(there)
    return {
        "accuracy": sum(hit.values()) / len(true),
        "balanced_accuracy": recall,
        "macro_precision": sum(hit[c] / max(predicted.count(c), 1) for c in there) / len(there),
        "macro_recall": recall,
        "macro_f1": sum(2 * hit[c] / (true.count(c) + predicted.count(c)) for c in there) / len(there),
    }


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 60), st.integers(2, 9), st.integers(0, 2**32))
def test_metrics_are_those_counted_by_hand(count: int, classes: int, seed: int) -> None:
    samples = drawn(count, classes, torch.Generator().manual_seed(seed))
    found = told({"image": samples}, classes)
    top = found.pop("top5_accuracy", None)
    assert found == pytest.approx(counted(samples))
    assert (top is None) == (classes <= 5)


@pytest.mark.slow(smaller="test_metrics_are_those_counted_by_hand")
def test_metrics_are_those_of_scikit_learn() -> None:
    for seed in range(40):
        samples = drawn(50, 3 + seed % 9, torch.Generator().manual_seed(seed))
        assert counted(samples) == pytest.approx(by_scikit(samples))


def test_each_pattern_has_its_own_metrics_and_all_have_one() -> None:
    draw = torch.Generator().manual_seed(3)
    parts = {"image-text": drawn(30, 8, draw), "image": drawn(11, 8, draw), "text": drawn(0, 8, draw)}
    found = told(parts, 8, fields=("scores", "label", "target"))
    everything = {name: torch.cat([part[name] for part in parts.values()]) for name in parts["image"]}
    for of, samples in (("", everything), ("[image-text]", parts["image-text"]), ("[image]", parts["image"])):
        expected = counted(samples)
        assert {name: found[f"{name}{of}"] for name in expected} == pytest.approx(expected)
        best = samples["scores"].argmax(-1).numpy()
        soft = samples["target"].numpy()[np.arange(len(best)), best].mean()
        assert found[f"soft_score{of}"] == pytest.approx(float(soft))
        top = top_k_hits(samples["scores"], samples["label"], 5).mean()
        assert found[f"top5_accuracy{of}"] == pytest.approx(float(top))
    assert not [name for name in found if "[text]" in name], "no samples, no metrics"


def test_equal_scores_share_their_places() -> None:
    scores = torch.tensor([[3.0, 2, 2, 2, 1], [0, 0, 0, 0, 0], [9, 8, 7, 6, 5]])
    label = torch.tensor([2, 4, 4])
    assert top_k_hits(scores, label, 2).tolist() == pytest.approx([1 / 3, 2 / 5, 0])
    assert top_k_hits(scores, label, 4).tolist() == pytest.approx([1, 4 / 5, 0])


def brute_force(a: Array, b: Array, k: int) -> float:
    """Expected share of rows whose own partner is among the k best, equal scores in random order."""
    hits = 0.0
    for i in range(len(a)):
        scores = b @ a[i]
        better = int((scores > scores[i] + 1e-6).sum())
        equal = int((np.abs(scores - scores[i]) <= 1e-6).sum())
        hits += min(max((k - better) / equal, 0.0), 1.0)
    return hits / len(a)


def ranked(a: Tensor, b: Tensor, group: Tensor | None = None, fold: int = 0) -> dict[str, float]:
    """ScoreRetrieve's metrics of given embeddings."""
    fields = {"fields": ("image", "text", "group")} if group is not None else {}
    pass_ = Pass("score-retrieve", "validation", ("image-text",), len(a), False, {"fold": fold, **fields})
    model = described(("image", "text"))
    ctx = Context(make_work(("image", "text"), (pass_,)), models.build(model), Toy(len(a)), CPU)
    ctx.outputs |= {"embedding.image": a, "embedding.text": b} | ({"group": group} if group is not None else {})
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
    assert found["r@1_both"] == pytest.approx(found["image_to_text_r@1"] + found["text_to_image_r@1"])


@pytest.mark.parametrize("pairs", [7, 120, 500])
def test_a_constant_model_scores_chance(pairs: int) -> None:
    same = torch.nn.functional.normalize(torch.ones(pairs, 16), dim=-1)
    found = ranked(same, same)
    for k in RECALLS:
        assert found[f"r@{k}"] == pytest.approx(min(k / pairs, 1))


def test_a_perfect_model_scores_one() -> None:
    found = ranked(torch.eye(60), torch.eye(60))
    assert all(found[f"r@{k}"] == 1 for k in RECALLS) and found["r@1_both"] == 2


def test_retrieval_leaves_padding_out_and_embeds_with_the_model() -> None:
    source, pass_ = Toy(21), scoring_pass(("image", "text"), 8)
    module, metrics = evaluated(make_work(("image", "text"), (pass_,)), source)
    rows = [(module.embed("image", b["image"]), module.embed("text", b["text"])) for _, b in source.batches(pass_, 0)]
    a, b = (torch.cat(list(side))[:21].detach().numpy() for side in zip(*rows, strict=True))
    assert metrics["image_to_text_r@5"] == pytest.approx(brute_force(a, b, 5), abs=1e-5)
    assert metrics["text_to_image_r@1"] == pytest.approx(brute_force(b, a, 1), abs=1e-5)


def test_the_chance_of_being_found_is_the_hypergeometric_one() -> None:
    above, own, tied = (x.flatten().float() for x in torch.meshgrid(*map(torch.arange, (12, 7, 60)), indexing="ij"))
    own += 1
    found = recall_chances(above, own, tied)
    for place, k in enumerate(RECALLS):
        for a, m, t, chance in zip(above.tolist(), own.tolist(), tied.tolist(), found[place].tolist(), strict=True):
            free = max(k - int(a), 0)
            if free <= t:
                expected = 1 - math.comb(int(t), free) / math.comb(int(t + m), free)
                assert chance == pytest.approx(expected, abs=2e-6)
            else:
                assert chance == pytest.approx(1, abs=2e-6)


def captions(a: Array, b: Array, group: Array) -> dict[str, float]:
    """Recalls where images have several captions, in random order where scores are equal; one picture of each image."""
    images = list(dict.fromkeys(group.tolist()))
    pictures = np.stack([a[group == g][0] for g in images])
    found = {}
    for k in RECALLS:
        to_text = []
        for g, picture in zip(images, pictures, strict=True):
            scores = b @ picture
            best = scores[group == g].max()
            others = scores[group != g]
            free = max(k - int((others > best + 1e-6).sum()), 0)
            tied = int((np.abs(others - best) <= 1e-6).sum())
            own = int((scores[group == g] >= best - 1e-6).sum())
            to_text.append(1 - math.comb(tied, free) / math.comb(tied + own, free) if free <= tied + own else 1)
        to_image = []
        for text, g in zip(b, group.tolist(), strict=True):
            scores = pictures @ text
            mine = scores[images.index(g)]
            free = max(k - int((scores > mine + 1e-6).sum()), 0)
            to_image.append(min(free / int((np.abs(scores - mine) <= 1e-6).sum()), 1))
        found |= {f"image_to_text_r@{k}": float(np.mean(to_text)), f"text_to_image_r@{k}": float(np.mean(to_image))}
    return found


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 40), st.integers(0, 2**32), st.sampled_from([2, 9, 30]), st.integers(1, 12))
def test_captions_of_an_image_and_folds_equal_brute_force(images: int, seed: int, distinct: int, fold: int) -> None:
    """Between one and four captions each, scattered; a fold is of so many images, and a rest is in none."""
    draw = torch.Generator().manual_seed(seed)
    group = torch.repeat_interleave(torch.arange(images) * 7, torch.randint(1, 5, (images,), generator=draw))
    group = group[torch.randperm(len(group), generator=draw)]
    palette = nn.functional.normalize(torch.randn(distinct, 4, generator=draw), dim=-1)
    of_image = torch.randint(0, distinct, (images,), generator=draw)
    a, b = palette[of_image[group // 7]], palette[torch.randint(0, distinct, (len(group),), generator=draw)]
    found = ranked(a, b, group, fold)
    x, y, g = a.numpy(), b.numpy(), group.numpy()
    whole = captions(x, y, g)
    assert {name: found[name] for name in whole} == pytest.approx(whole, abs=1e-5)
    if len(group) <= fold:
        assert "r@1_sum" not in found and not [name for name in found if "fold" in name]
        return
    order = list(dict.fromkeys(g.tolist()))
    parts = [order[i : i + fold] for i in range(0, images, fold)]
    parts = [p for p in parts if len(p) == fold] or parts[:1]
    each = [captions(*(z[np.isin(g, p)] for z in (x, y, g))) for p in parts]
    for name in whole:
        assert found[f"{name}_fold"] == pytest.approx(float(np.mean([one[name] for one in each])), abs=1e-5)
    first = [found[f"{d}_r@1{scope}"] for d in ("image_to_text", "text_to_image") for scope in ("", "_fold")]
    assert found["r@1_sum"] == pytest.approx(sum(first))


def test_folds_are_easier_than_the_whole() -> None:
    """A constant model: 1 in 100 in folds, 1 in 500 in all, in both directions."""
    same = nn.functional.normalize(torch.ones(500, 16), dim=-1)
    found = ranked(same, same, fold=100)
    assert found["image_to_text_r@1_fold"] == pytest.approx(0.01)
    assert found["r@1_both"] == pytest.approx(0.004) and found["r@1_sum"] == pytest.approx(0.024)
    assert ranked(same, same, fold=500).keys() == ranked(same, same).keys(), "one fold is the whole"


@pytest.mark.parametrize("pass_", [scoring_pass(), scoring_pass(("image", "text"))])
def test_scoring_takes_the_memory_that_is_predicted(pass_: Pass) -> None:
    work = make_work(pass_.patterns[0].split("-"), (Pass(**{**vars(pass_), "args": {"fold": 100}}),))
    source, meter = Toy(BLOCK + 60), Meter()
    do(work, source, meter=meter)
    assert predict(work, source).peak_memory_bytes == meter.trace().peak_memory_bytes


def test_retrieval_has_one_pattern() -> None:
    pass_ = Pass("score-retrieve", "validation", ("image-text", "text"), 8, False)
    with pytest.raises(ValueError, match="too many values"):
        do(make_work(("image", "text"), passes=(pass_,)))
