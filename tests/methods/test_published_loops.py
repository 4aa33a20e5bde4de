"""SCAFFOLD, FedDyn, FedNova, q-FedAvg, Ditto and FedPer against loops of their published definitions, written by hand.

The loops share no code with the methods: they take gradients with autograd and keep every client's tensors in lists.
Each client's samples are one batch, so that no order of samples matters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

import edgefl
from edgefl import seeds
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.work import Pass

Tiny = Callable[..., dict[str, Any]]
Weights = dict[str, Tensor]
LR, EPOCHS, ROUNDS, CLIENTS = 0.05, 3, 3, 4


@dataclass
class Federation:
    """A tiny run and what a loop needs: the first weights, each client's only batch, its size, and who took part."""

    run: Any
    first: Weights
    loss: Callable[[Weights, int], Tensor]
    samples: list[int]
    cohorts: list[list[int]]

    def gradient(self, weights: Weights, client: int, extra: Callable[[Weights], Tensor] | None = None) -> Weights:
        own = {n: w.clone().requires_grad_() for n, w in weights.items()}
        loss = self.loss(own, client) + (extra(own) if extra else 0.0)
        return dict(zip(own, torch.autograd.grad(loss, list(own.values()), allow_unused=False), strict=True))

    @property
    def last(self) -> Weights:
        return {a.removeprefix("image/"): t for a, t in self.run.weights().items() if a.startswith("image/")}

    def check(self, expected: Weights) -> None:
        moved = max(float((expected[n] - self.first[n]).abs().max()) for n in self.first)
        assert moved > 1e-2  # far more than the tolerance
        for name, value in expected.items():
            torch.testing.assert_close(self.last[name], value, rtol=1e-4, atol=2e-6, msg=lambda m, n=name: f"{n}: {m}")


@pytest.fixture
def federation(tiny: Tiny, tmp_path: Path) -> Callable[..., Federation]:
    def make(method: dict[str, Any], **more: Any) -> Federation:
        scenario = tiny(
            data={
                "source": "glyphs", "clients": {"image": CLIENTS}, "partition": {"quantity": 2.0}, "size": 8,
                "samples": 20, "validation": 20, "test": 20,
            },
            model={"image": {"blocks": 1, "width": 8, "heads": 2, "patch": 4}},
            method=method,
            schedule={"name": "end-to-end", "rounds": ROUNDS},
            training={"batch": 500, "epochs": EPOCHS, "optimizer": "sgd", "lr": LR, "implementation": "for-loop"},
            round={"cohort": 3},
            **more,
        )  # fmt: skip
        run = edgefl.run(scenario, out=tmp_path / "run")
        setup = compose(load({"edgefl": 1, **scenario}))
        kind = setup.method.setting.kinds["image"]
        first = {a.removeprefix("image/"): t for a, t in setup.method.initial(setup.seed).tensors.items()
                 if a.startswith("image/")}  # fmt: skip
        module = edgefl.models.build(kind.model)
        batches = []
        for client in range(CLIENTS):
            source = setup.clients.client(client)
            every = Pass(
                "classify", "private", ("image",), source.size(Pass("classify", "private", ("image",), 1)), False
            )
            batches.append(next(iter(source.batches(every, 0)))[1])

        def loss(weights: Weights, client: int) -> Tensor:
            scores = functional_call(module, weights, ("image", batches[client]["image"]), tie_weights=False)
            return F.cross_entropy(scores, batches[client]["label"])

        module.forward = lambda modality, x: module.logits(modality, x)
        clients = run.clients
        cohorts = [sorted(clients[clients["round"] == r]["client"].tolist()) for r in range(1, ROUNDS + 1)]
        return Federation(run, first, loss, [len(b["label"]) for b in batches], cohorts)

    return make


def mean(values: list[Weights], shares: list[float]) -> Weights:
    return {n: sum(s * v[n] for s, v in zip(shares, values, strict=True)) / sum(shares) for n in values[0]}


def zeros(like: Weights) -> Weights:
    return {n: torch.zeros_like(w) for n, w in like.items()}


@pytest.mark.slow(smaller="test_feddyn")
def test_scaffold(federation: Callable[..., Federation]) -> None:
    """Karimireddy et al. 2020, algorithm 1 with option II."""
    fed = federation({"name": "scaffold"})
    x, c, own = fed.first, zeros(fed.first), [zeros(fed.first) for _ in range(CLIENTS)]
    for cohort in fed.cohorts:
        models, changes = [], []
        for i in cohort:
            y = dict(x)
            for _ in range(EPOCHS):
                g = fed.gradient(y, i)
                y = {n: y[n] - LR * (g[n] - own[i][n] + c[n]) for n in y}
            new = {n: own[i][n] - c[n] + (x[n] - y[n]) / (EPOCHS * LR) for n in y}
            changes.append({n: new[n] - own[i][n] for n in y})
            models.append(y)
            own[i] = new
        x = mean(models, [fed.samples[i] for i in cohort])
        c = {n: c[n] + sum(change[n] for change in changes) / CLIENTS for n in c}
    fed.check(x)


def test_feddyn(federation: Callable[..., Federation]) -> None:
    """Acar et al. 2021, algorithm 1."""
    alpha = 0.1
    fed = federation({"name": "feddyn", "alpha": alpha})
    x, h, own = fed.first, zeros(fed.first), [zeros(fed.first) for _ in range(CLIENTS)]
    for cohort in fed.cohorts:
        models = []
        for i in cohort:
            y = dict(x)
            for _ in range(EPOCHS):
                g = fed.gradient(y, i)
                y = {n: y[n] - LR * (g[n] - own[i][n] + alpha * (y[n] - x[n])) for n in y}
            own[i] = {n: own[i][n] - alpha * (y[n] - x[n]) for n in y}
            models.append(y)
        h = {n: h[n] - alpha / CLIENTS * sum(y[n] - x[n] for y in models) for n in h}
        x = {n: v - h[n] / alpha for n, v in mean(models, [1.0] * len(models)).items()}
    fed.check(x)


@pytest.mark.parametrize("q", [0.0, 1.0, 2.5])
def test_qfedavg(federation: Callable[..., Federation], q: float) -> None:
    """Li et al. 2020, algorithm 2, with L = 1 / learning rate."""
    fed = federation({"name": "qfedavg", "q": q})
    w = fed.first
    for cohort in fed.cohorts:
        deltas, hs = [], []
        for i in cohort:
            loss, y = float(fed.loss(w, i)), dict(w)
            for _ in range(EPOCHS):
                g = fed.gradient(y, i)
                y = {n: y[n] - LR * g[n] for n in y}
            change = {n: (w[n] - y[n]) / LR for n in w}
            deltas.append({n: loss**q * change[n] for n in w})
            norm = sum(float(c.square().sum()) for c in change.values())
            hs.append(q * loss ** (q - 1) * norm + loss**q / LR)
        w = {n: w[n] - sum(d[n] for d in deltas) / sum(hs) for n in w}
    fed.check(w)


@pytest.mark.slow(smaller="test_fedper")
def test_ditto(federation: Callable[..., Federation]) -> None:
    """Li et al. 2021, algorithm 1: the global model is FedAvg's, and every client's own is in its kept values."""
    strength = 0.7
    fed = federation({"name": "ditto", "strength": strength})
    w, own = fed.first, [None] * CLIENTS
    for cohort in fed.cohorts:
        models = []
        for i in cohort:
            y, v = dict(w), own[i] or dict(w)
            for _ in range(EPOCHS):
                g = fed.gradient(y, i)
                y = {n: y[n] - LR * g[n] for n in y}
            for _ in range(EPOCHS):
                g = fed.gradient(v, i)
                v = {n: v[n] - LR * (g[n] + strength * (v[n] - w[n])) for n in v}
            own[i] = v
            models.append(y)
        w = mean(models, [fed.samples[i] for i in cohort])
    fed.check(w)


def test_fedper(federation: Callable[..., Federation]) -> None:
    """Arivazhagan et al. 2019: the heads are never averaged."""
    fed = federation({"name": "fedper"})
    w, heads = fed.first, [None] * CLIENTS
    for cohort in fed.cohorts:
        models = []
        for i in cohort:
            y = {**w, **(heads[i] or {})}
            for _ in range(EPOCHS):
                g = fed.gradient(y, i)
                y = {n: y[n] - LR * g[n] for n in y}
            heads[i] = {n: y[n] for n in y if ".head." in n}
            models.append(y)
        shared = mean(models, [fed.samples[i] for i in cohort])
        w = {n: w[n] if ".head." in n else shared[n] for n in w}
    fed.check(w)
    assert any(".head." in name for name in w)


@pytest.mark.slow(smaller="test_feddyn")
def test_fednova(tiny: Tiny, tmp_path: Path) -> None:
    """Wang et al. 2020, eq. 9 with plain SGD: clients of one pass each make different numbers of steps.

    Only the order of a client's samples is taken from edgefl.
    """
    scenario = tiny(
        data={"source": "glyphs", "clients": {"image": 400}, "partition": {"quantity": 0.5}, "size": 8,
              "samples": 80, "validation": 20, "test": 20},
        model={"image": {"blocks": 1, "width": 8, "heads": 2, "patch": 4}},
        method="fednova",
        schedule={"name": "end-to-end", "rounds": 2},
        training={"batch": 8, "epochs": 1, "optimizer": "sgd", "lr": LR, "implementation": "for-loop"},
        round={"cohort": 5},
    )  # fmt: skip
    run = edgefl.run(scenario, out=tmp_path / "run")
    setup = compose(load({"edgefl": 1, **scenario}))
    kind = setup.method.setting.kinds["image"]
    module = edgefl.models.build(kind.model)
    module.forward = lambda modality, x: module.logits(modality, x)
    first = setup.method.initial(setup.seed).tensors
    x = {n: first[f"image/{n}"] for n in kind.trainable()}
    taken, clients = set(), run.clients
    for round in (1, 2):
        changes, steps, sizes = [], [], []
        for client in sorted(clients[clients["round"] == round]["client"].tolist()):
            source, w = setup.clients.client(client), dict(x)
            size = source.size(Pass("classify", "private", ("image",), 1))
            pass_ = Pass("classify", "private", ("image",), min(8, size))
            seed = seeds.key(setup.seed, "training", client, round)
            batches = list(source.batches(pass_, seeds.key(seed, "shuffle", 0, 0)))
            for _, batch in batches:
                own = {n: t.clone().requires_grad_() for n, t in w.items()}
                scores = functional_call(module, own, ("image", batch["image"]), tie_weights=False)
                loss = F.cross_entropy(scores, batch["label"])
                g = dict(zip(own, torch.autograd.grad(loss, list(own.values())), strict=True))
                w = {n: w[n] - LR * g[n] for n in w}
            changes.append({n: w[n] - x[n] for n in x})
            steps.append(len(batches))
            sizes.append(size)
        taken |= set(steps)
        shares = [size / sum(sizes) for size in sizes]
        effective = sum(p * tau for p, tau in zip(shares, steps, strict=True))
        x = {
            n: x[n] + effective * sum(p / tau * d[n] for p, tau, d in zip(shares, steps, changes, strict=True))
            for n in x
        }
    assert len(taken) >= 3
    last = run.weights()
    for name, value in x.items():
        assert float((value - first[f"image/{name}"]).abs().max()) > 1e-4
        torch.testing.assert_close(last[f"image/{name}"], value, rtol=1e-4, atol=2e-6)
