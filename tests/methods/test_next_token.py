"""The task next-token: a round by hand, perplexity by hand, schedules, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import edgefl
from edgefl import models, seeds
from edgefl.errors import EdgeflError, ScenarioError
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.training import Assignment, Inline
from edgefl.work.description import Pass

CONFIG = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "tie_word_embeddings": True,
}
DATA = {"source": "names", "clients": {"text": 3}, "tasks": {"text": "next-token"}, "vocabulary": 100, "samples": 40}
Tiny = Callable[..., dict[str, Any]]


def predicting(tiny: Tiny, **more: Any) -> dict[str, Any]:
    model = {"text": {"tower": "hf-causal", "config": CONFIG, "tokens": 12}}
    return tiny(data=DATA | more.pop("data", {}), model=model, **more)


def loss_of(model: Any, tokens: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Token by token: minus the logarithm of the probability of each token that isn't padding, 0, or the first."""
    lost = [
        -F.log_softmax(model.next_tokens("text", row[None])[0, place], -1)[int(row[place + 1])]
        for row in tokens
        for place in range(len(row) - 1)
        if row[place + 1] != 0
    ]
    total = torch.stack(lost)
    return total.mean() if reduction == "mean" else total


@pytest.mark.slow(smaller="test_it_trains_under_every_schedule_it_fits")
def test_a_client_trains_as_a_loop_by_hand_does(tiny: Tiny) -> None:
    scenario = load(predicting(tiny, training={"optimizer": "sgd", "lr": 0.1, "batch": 8}))
    setup = compose(scenario)
    work = setup.method.work("text", 1).limit_batches(setup.clients.client(0).size)
    tensors = setup.method.initial(setup.seed).tensors
    inputs = {i.name: tensors[i.source] for p in work.down for i in p.items}
    seed = seeds.key(setup.seed, "training", 0, 1)
    report = Inline(setup.clients, "cpu").submit(Assignment(work.form, work.scalars, inputs, 0, seed)).result()  # type: ignore[arg-type]

    model = models.build(work.model)
    model.load_state_dict({name: value.clone() for name, value in inputs.items()})
    for _, batch in setup.clients.client(0).batches(work.passes[0], seeds.key(seed, "shuffle", 0, 0)):  # type: ignore[attr-defined]
        loss = loss_of(model, batch["text"])
        parameters = list(model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data -= 0.1 * gradient
    sent = report.payloads["model"]
    assert all(torch.allclose(value, sent[name], atol=1e-6) for name, value in model.state_dict().items())
    table = "text.embedding.embed_tokens.weight"
    assert not torch.allclose(sent[table], inputs[table], atol=1e-4)


@pytest.mark.slow(smaller="test_it_trains_under_every_schedule_it_fits")
def test_perplexity_falls_and_is_that_of_a_sum_by_hand(tiny: Tiny, tmp_path: Path) -> None:
    scenario = predicting(
        tiny,
        schedule={"name": "end-to-end", "rounds": 6},
        training={"optimizer": "adamw", "lr": 5e-3, "batch": 8},
        evaluation={"every": 1, "split": "test"},
    )
    run = edgefl.run(scenario, out=tmp_path / "run")
    scores = [row["metrics"]["text"] for row in run.records("rounds") if row["metrics"]]
    assert scores[-1]["perplexity"] < 0.7 * scores[0]["perplexity"] < 100

    setup = compose(load(scenario))
    model = run.model("text").eval()
    whole = Pass("score-next-token", "test", ("text",), 1, False, {"fields": ["text", "label", "next"]})
    with torch.no_grad():
        lost = torch.cat(
            [loss_of(model, batch["text"], "none") for _, batch in setup.clients.server().batches(whole, 0)]  # type: ignore[attr-defined]
        )
    assert math.isclose(float(lost.mean().exp()), scores[-1]["perplexity"], rel_tol=1e-4)
    assert run.evaluation["chance"]["test"]["text"]["perplexity"] == model.text.embedding.embed_tokens.num_embeddings


@pytest.mark.parametrize("schedule", ["layerwise", "progressive", "elastic", "heterofl"])
def test_it_trains_under_every_schedule_it_fits(tiny: Tiny, tmp_path: Path, schedule: str) -> None:
    scenario = predicting(tiny, schedule={"name": schedule, "rounds": 2})
    if schedule == "heterofl":
        with pytest.raises(EdgeflError, match="hf-causal"):
            edgefl.run(scenario, out=tmp_path / "run")
        return
    run = edgefl.run(scenario, out=tmp_path / "run")
    errors = [row["memory_error"] for row in run.records("clients") if row.get("memory_error") is not None]
    assert run.is_finished and errors and max(map(abs, errors)) < 1e-3


def test_what_can_not_predict_is_refused(tiny: Tiny) -> None:
    with pytest.raises(ScenarioError, match=r"next-token needs a tower .* transformer isn't one: set model.text"):
        edgefl.profile(tiny(data=DATA, model={"text": {"blocks": 1, "width": 16, "heads": 2}}))
    with pytest.raises(ScenarioError, match="image clients can't predict the next token"):
        edgefl.validate(tiny(data={"tasks": {"image": "next-token"}}))
    with pytest.raises(EdgeflError, match="depthfl can't train text clients for next-token"):
        edgefl.profile(predicting(tiny, method="depthfl"))
