"""The next-token loss in chunks of tokens: sums by hand, gradients of the whole loss, memory, runs, and refusals."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgefl
from edgefl import models, registry
from edgefl.errors import ScenarioError
from edgefl.methods import Method
from edgefl.registry.registered import PARTS
from edgefl.scenario import load
from edgefl.setup.compose import compose, planner_of
from edgefl.work import Context, Pass, Work
from edgefl.work.chunked_loss import summed_cross_entropy
from edgefl.work.steps import NextTokenStep

Make = Callable[..., dict[str, Any]]
TEXTS = {"source": "names", "clients": {"text": 2}, "samples": 20, "validation": 20, "test": 20, "vocabulary": 500,
         "tasks": {"text": "next-token"}}  # fmt: skip
LLAMA = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}  # fmt: skip
ROWS, WIDTH, WORDS = 23, 8, 50


def llama(tiny: Make, *, tied: bool = True, dtype: str = "float32", **more: Any) -> dict[str, Any]:
    config = {**LLAMA, "tie_word_embeddings": tied}
    training = {"batch": 8, "measure": "all", **more.pop("training", {})}
    text = {"tower": "hf-causal", "config": config, "tokens": 8, "dtype": dtype, "quantize": more.pop("quantize", None)}
    return tiny(data=TEXTS, model={"text": text}, training=training, **more)


# the loss -------------------------------------------------------------------------------------------------------------


class Factors(nn.Module):
    """A frozen layer, and trained factors beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WORDS, bias=False).requires_grad_(False)
        self.first, self.second = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WORDS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.second(self.first(x))


def heads() -> dict[str, nn.Module]:
    twice = nn.Linear(WIDTH, WIDTH, bias=False)
    return {
        "linear": nn.Linear(WIDTH, WORDS, bias=False),
        "bias": nn.Linear(WIDTH, WORDS),
        "frozen": nn.Linear(WIDTH, WORDS).requires_grad_(False),
        "factors": Factors(),
        "a layer that is read twice": nn.Sequential(twice, nn.Tanh(), twice, nn.Linear(WIDTH, WORDS)),
    }


def gradients(loss: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, tensors))


@pytest.mark.parametrize("name", list(heads()))
def test_loss_and_gradients_are_those_of_a_sum_by_hand(name: str) -> None:
    """Token by token: minus the logarithm of a probability, by which autograd alone has nothing to add up."""
    torch.manual_seed(0)
    head = heads()[name].double()
    hidden = torch.randn(ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
    target = torch.randint(-1, WORDS, (ROWS,))
    trained = [parameter for parameter in head.parameters() if parameter.requires_grad]
    tensors = [hidden, *trained]
    real = [(row, int(word)) for row, word in enumerate(target) if word >= 0]
    by_hand = -sum((head(hidden[row]).softmax(-1)[word].log() for row, word in real), torch.zeros(()))
    expected = gradients(3 * by_hand / len(real), tensors)
    for chunk in (1, 5, ROWS, 100):
        total = summed_cross_entropy(head, hidden, target, chunk, trained, torch.float64)
        assert abs(float((total - by_hand).detach())) < 1e-12
        found = gradients(3 * total / len(real), tensors)
        assert all((a - b).abs().max() < 1e-12 for a, b in zip(found, expected, strict=True))
        with torch.no_grad():
            assert abs(summed_cross_entropy(head, hidden, target, chunk, [], torch.float64) - total.detach()) < 1e-12


@pytest.mark.parametrize(("dtype", "autocast"), [(torch.bfloat16, False), (torch.float32, True)])
def test_half_precisions_are_as_near_to_float64_as_the_whole_loss(dtype: torch.dtype, autocast: bool) -> None:
    torch.manual_seed(0)
    head, hidden = nn.Linear(WIDTH, WORDS).to(dtype), torch.randn(64, WIDTH).to(dtype).requires_grad_()
    target, tensors = torch.randint(0, WORDS, (64,)), [hidden, *head.parameters()]
    exact_head, exact = nn.Linear(WIDTH, WORDS).double(), hidden.detach().double().requires_grad_()
    exact_head.load_state_dict(head.state_dict())
    wanted = gradients(F.cross_entropy(exact_head(exact), target), [exact, *exact_head.parameters()])

    def errors(loss: Callable[[], Tensor]) -> list[float]:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            lost = loss()
        found = gradients(lost, tensors)
        assert [each.dtype for each in found] == [dtype] * 3
        return [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True)]

    whole = errors(lambda: F.cross_entropy(head(hidden).float(), target))
    parts = errors(lambda: summed_cross_entropy(head, hidden, target, 4, list(head.parameters()), torch.float32) / 64)
    assert all(part < 3 * one + 1e-3 for part, one in zip(parts, whole, strict=True))


# works ----------------------------------------------------------------------------------------------------------------

VARIED: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tied": False},
    "checkpointing": {"training": {"checkpointing": True, "accumulation": 2}},
    "LoRA": {"adapter": {"name": "lora", "rank": 2}},
    "LoRA on the head": {"adapter": {"name": "lora", "rank": 2, "parts": ["head"], "also": ["norm"]}, "tied": False},
    "embedding beside LoRA": {"adapter": {"name": "lora", "rank": 2, "also": ["embedding"]}, "dtype": "bfloat16"},
    "bfloat16": {"dtype": "bfloat16", "training": {"implementation": "foreach"}},
    "autocast": {"training": {"precision": "bfloat16"}},
    "float16": {"training": {"precision": "float16"}},
    "step in backward": {"training": {"step_in_backward": True, "implementation": "for-loop"}},
    "nf4 under LoRA": {"quantize": "nf4", "adapter": {"name": "lora", "rank": 2}},
    "layer-wise": {"schedule": {"name": "layerwise", "stages": 2, "rounds": 2}},
    "FedProx": {"method": {"name": "fedprox", "mu": 0.1}},
    "MeZO": {"training": {"optimizer": "mezo", "lr": 1e-4}},
}


QUICK = ("tied", "embedding beside LoRA")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in VARIED])
def test_a_run_learns_what_it_learns_without_chunks_at_the_predicted_peak(
    tiny: Make, tmp_path: Path, name: str
) -> None:
    scores, peaks = [], []
    for chunk in (None, 5):
        scenario = llama(tiny, **VARIED[name])
        scenario["training"] |= {"loss_chunk": chunk}
        run = edgefl.run(scenario, out=tmp_path / str(chunk))
        scores.append(run.records("rounds")[-1]["metrics"]["text"]["perplexity"])
        rows = [json.loads(line) for line in (tmp_path / str(chunk) / "clients.jsonl").read_text().splitlines()]
        for row in rows:
            assert row["measured_peak_memory_bytes"] == pytest.approx(row["peak_memory_bytes"], rel=1e-3, abs=64)
            assert row["measured_backward_flops"] == row["backward_flops"]
        peaks.append((max(r["peak_memory_bytes"] for r in rows), rows[0]["forward_flops"], rows[0]["backward_flops"]))
    near = (
        1e-5
        if name in ("tied", "untied", "checkpointing", "LoRA", "step in backward", "layer-wise", "FedProx")
        else 3e-2
    )
    assert math.isclose(*scores, rel_tol=near)
    (whole, *flops), (parts, *flops_of_parts) = peaks
    assert parts <= whole and flops == flops_of_parts  # nothing is computed twice


def test_memory_falls_by_the_scores_of_the_tokens_that_wait(tiny: Make) -> None:
    """Three copies of a token's scores are alive at a time: log-probabilities, and two gradients of them."""
    peaks = {}
    for chunk in (None, 32, 24):
        scenario = llama(tiny, adapter={"name": "lora", "rank": 2}, training={"loss_chunk": chunk})
        planner = planner_of(load(scenario))
        work, _ = planner.work("text", 1, planner.setup.schedule.offered[0])
        source = planner.setup.clients.client(0)
        peaks[chunk] = planner.predictor.trace(work.limit_batches(source.size), source).live_memory_bytes
    token = 3 * 4 * 500
    assert peaks[32] - peaks[24] == pytest.approx(8 * token, rel=0.01) and peaks[None] - peaks[32] > 24 * token


def test_evaluation_in_chunks_gives_the_same_scores_in_less_memory(tiny: Make) -> None:
    traces, works = [], []
    for chunk in (None, 8):
        scenario = llama(tiny, training={"loss_chunk": chunk})
        planner = planner_of(load(scenario))
        works.append(planner.setup.method.evaluate("text", "test"))
        traces.append(planner.predictor.trace(works[-1], planner.setup.clients.server()))
    assert "chunk" not in works[0].passes[0].args and works[1].passes[0].args["chunk"] == 8
    assert traces[1].peak_memory_bytes < traces[0].peak_memory_bytes - 4 * 500 * 100


def test_a_work_without_chunks_says_nothing_of_them(tiny: Make) -> None:
    assert "chunk" not in compose(load(llama(tiny))).method.work("text", 1).passes[0].args


# refusals -------------------------------------------------------------------------------------------------------------


def test_losses_without_chunks_are_refused(tiny: Make) -> None:
    with pytest.raises(ScenarioError, match=r"loss_chunk: image clients train by the step 'classify', whose loss is c"):
        edgefl.validate(tiny(training={"loss_chunk": 8}))
    with pytest.raises(ScenarioError, match="loss_chunk: must be greater than 0"):
        edgefl.validate(llama(tiny, training={"loss_chunk": 0}))


class Halved(NextTokenStep):
    """A loss of one's own, which says nothing of chunks."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        return super().loss(ctx, batch, pattern, pass_) / 2


class Own(Method):
    """Trains text clients by ``halved``."""

    def work(self, kind: str, round: int) -> Work:
        work = super().work(kind, round)
        return replace(work, passes=tuple(replace(each, step="halved") for each in work.passes))


def test_a_loss_of_ones_own_is_refused_until_it_says_that_it_takes_chunks(tiny: Make) -> None:
    edgefl.register("step", "halved")(Halved)
    edgefl.register("method", "own")(Own)
    scenario = llama(tiny, method="own", training={"loss_chunk": 8})
    try:
        with pytest.raises(ScenarioError, match=r"text clients train by the step 'halved' .*, whose loss is computed"):
            edgefl.validate(scenario)
        Halved.chunks = True
        edgefl.validate(scenario)
    finally:
        PARTS.clear()
        registry.forget()


def test_one_kind_of_clients_may_predict_tokens_beside_others(tiny: Make) -> None:
    data = {**TEXTS, "source": {"text": "names", "image": "glyphs"}, "clients": {"text": 2, "image": 2}}
    scenario = llama(tiny, training={"loss_chunk": 8})
    scenario["data"] = data
    scenario["model"]["image"] = {"blocks": 1, "width": 16, "heads": 2}
    method = compose(load(scenario)).method
    assert "chunk" in method.work("text", 1).passes[0].args and "chunk" not in method.work("image", 1).passes[0].args


def test_the_head_of_a_model_reads_what_the_tower_gives(tiny: Make) -> None:
    description = compose(load(llama(tiny))).method.setting.kinds["text"].model
    model, x = models.build(description).eval(), torch.randint(0, 500, (3, 8))
    scores = model.text.vocabulary_scores(model.tokens("text", x))  # type: ignore[attr-defined,union-attr,operator]
    assert torch.equal(scores, model.next_tokens("text", x))  # type: ignore[attr-defined,operator]
