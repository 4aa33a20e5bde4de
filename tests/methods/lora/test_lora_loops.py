"""FFA-LoRA, RoLoRA, FedEx-LoRA and FLoRA against loops of their published definitions, written by hand.

The loops share no code with the methods or the adapters: a layer's weight is W + scale B A, and autograd differentiates
through that sum.  Each client's samples are one batch, so that no order of samples matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import edgefl
from edgefl import models, seeds
from edgefl.methods import ServerState, Update
from edgefl.methods.lora.lora_method import plus_product
from edgefl.models import adapters
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.work import Pass

Tiny = Callable[..., dict[str, Any]]
Weights = dict[str, Tensor]
LR, EPOCHS, ROUNDS, CLIENTS, COHORT, RANK, SCALE = 0.2, 3, 4, 4, 3, 2, 2.0
SIDES = {"attn.qkv": (8, 24), "mlp.fc1": (8, 32)}
"""Inputs and outputs of the layers with factors."""
LAYERS = [f"image.blocks.{block}.{layer}" for block in (0, 1) for layer in SIDES]
HEAD = ("image.head.weight", "image.head.bias")


def scenario_of(tiny: Tiny, method: Any, **more: Any) -> dict[str, Any]:
    sections = {
        "data": {
            "source": "glyphs", "clients": {"image": CLIENTS}, "partition": {"quantity": 2.0}, "size": 8,
            "samples": 20, "validation": 20, "test": 20,
        },
        "model": {"image": {"blocks": 2, "width": 8, "heads": 2, "patch": 4}},
        "adapter": {"name": "lora", "rank": RANK, "alpha": SCALE * RANK, "parts": [*SIDES], "also": ["head"]},
        "method": method,
        "schedule": {"name": "end-to-end", "rounds": ROUNDS},
        "training": {"batch": 500, "epochs": EPOCHS, "optimizer": "sgd", "lr": LR, "implementation": "for-loop"},
        "round": {"cohort": COHORT},
    }  # fmt: skip
    return tiny(**{**sections, **more})


@dataclass
class Federation:
    """A tiny run and what a loop needs: its first weights, each client's only batch, and each round's clients."""

    run: Any
    first: Weights
    module: nn.Module
    batches: list[Any]
    cohorts: list[list[int]]
    seed: int

    def train(self, weights: Weights, client: int, trained: list[str]) -> Weights:
        """Plain gradient steps on these tensors of W, A, B and the head."""
        own = dict(weights)
        for _ in range(EPOCHS):
            leaves = {n: own[n].clone().requires_grad_() for n in trained}
            scores = functional_call(self.module, whole(own | leaves), ("image", self.batches[client]["image"]))
            loss = F.cross_entropy(scores, self.batches[client]["label"])
            gradients = torch.autograd.grad(loss, list(leaves.values()))
            own |= {n: (leaves[n] - LR * g).detach() for (n, g) in zip(leaves, gradients, strict=True)}
        return own

    def rounds(self) -> Iterator[tuple[int, list[int], list[float]]]:
        """Each round with its clients and their shares of the samples."""
        for number, cohort in enumerate(self.cohorts, start=1):
            counts = [len(self.batches[i]["label"]) for i in cohort]
            yield number, cohort, [n / sum(counts) for n in counts]

    def check(self, expected: Weights) -> None:
        found = {a.removeprefix("image/"): t for a, t in self.run.weights().items() if a.startswith("image/")}
        for name in (*HEAD, *(f"{layer}.lora_b" for layer in LAYERS)):
            assert float((expected[name] - self.first[name]).abs().max()) > 1e-3  # far more than the tolerance
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=2e-6, msg=name)
        model = self.run.model("image").state_dict()
        for name, value in whole(expected).items():
            torch.testing.assert_close(model[name], value, rtol=1e-4, atol=4e-6, msg=name)


def whole(weights: Weights) -> Weights:
    """The weights of the plain model: W + scale B A."""
    plain = {n: w for n, w in weights.items() if ".lora_" not in n}
    for layer in LAYERS:
        product = weights[f"{layer}.lora_b"] @ weights[f"{layer}.lora_a"]
        plain[f"{layer}.weight"] = plain[f"{layer}.weight"] + SCALE * product
    return plain


def named(*factors: str) -> list[str]:
    return [*HEAD, *(f"{layer}.lora_{factor}" for layer in LAYERS for factor in factors)]


def mean(models_: list[Weights], shares: list[float], names: list[str]) -> Weights:
    return {n: torch.stack([s * m[n] for s, m in zip(shares, models_, strict=True)]).sum(0) for n in names}


@pytest.fixture
def federation(tiny: Tiny, tmp_path: Path) -> Callable[..., Federation]:
    def make(method: str, **more: Any) -> Federation:
        scenario = scenario_of(tiny, method, **more)
        run = edgefl.run(scenario, out=tmp_path / method)
        setup = compose(load({"edgefl": 1, **scenario}))
        kind = setup.method.setting.kinds["image"]
        initial = setup.method.initial(setup.seed).tensors
        first = {a.removeprefix("image/"): t for a, t in initial.items() if a.startswith("image/")}
        module: Any = models.build(adapters.without(kind.model))
        module.forward = lambda modality, x: module.logits(modality, x)
        batches = []
        for client in range(CLIENTS):
            source, every = setup.clients.client(client), Pass("classify", "private", ("image",), 500, False)
            every = Pass("classify", "private", ("image",), source.size(every), False)
            batches.append(next(iter(source.batches(every, 0)))[1])
        table = run.clients
        cohorts = [sorted(table[table["round"] == r]["client"].tolist()) for r in range(1, ROUNDS + 1)]
        assert {len(cohort) for cohort in cohorts} == {COHORT} and len(set(map(tuple, cohorts))) > 1
        return Federation(run, first, module, batches, cohorts, setup.seed)

    return make


@pytest.mark.slow(smaller="test_rolora")
def test_ffa_lora(federation: Callable[..., Federation]) -> None:
    """Sun, Li, Li and Ding 2024: A is never trained."""
    fed = federation("ffa-lora")
    x = fed.first
    for _, cohort, shares in fed.rounds():
        x = x | mean([fed.train(x, i, named("b")) for i in cohort], shares, named("b"))
    fed.check(x)


def test_rolora(federation: Callable[..., Federation]) -> None:
    """Chen, Guo et al. 2025: B in odd rounds, A in even ones."""
    fed = federation("rolora")
    x = fed.first
    for number, cohort, shares in fed.rounds():
        names = named("b" if number % 2 else "a")
        x = x | mean([fed.train(x, i, names) for i in cohort], shares, names)
    fed.check(x)


@pytest.mark.slow(smaller="test_fedex_lora_takes_changes_of_products_where_updates_began_apart")
def test_fedex_lora(federation: Callable[..., Federation]) -> None:
    """Singhal, Ponkshe and Vepakomma 2024: the mean of products is that of the global model."""
    fed = federation("fedex-lora")
    x = fed.first
    for _, cohort, shares in fed.rounds():
        sent = [fed.train(x, i, named("a", "b")) for i in cohort]
        x = x | mean(sent, shares, named("a", "b"))
        for layer in LAYERS:
            a, b = f"{layer}.lora_a", f"{layer}.lora_b"
            ideal = sum(s * (m[b] @ m[a]) for s, m in zip(shares, sent, strict=True))
            x[f"{layer}.weight"] = x[f"{layer}.weight"] + SCALE * (ideal - x[b] @ x[a])
    fed.check(x)
    moved = max(float((x[f"{n}.weight"] - fed.first[f"{n}.weight"]).abs().max()) for n in LAYERS)
    assert moved > 1e-3  # the residual is no rounding


def test_flora(federation: Callable[..., Federation]) -> None:
    """Wang, Shen et al. 2024: W takes in the sum of all products, and each client draws its A anew."""
    fed = federation("flora")
    x, stacks = fed.first, dict[str, tuple[Tensor, Tensor]]()
    for number, cohort, shares in fed.rounds():
        for layer, (first, second) in stacks.items():
            x = x | {f"{layer}.weight": x[f"{layer}.weight"] + SCALE * second @ first}
        sent = []
        for client in cohort:
            own = dict(x)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seeds.key(fed.seed, "training", client, number))
                for layer in LAYERS:
                    inputs = SIDES[".".join(layer.split(".")[-2:])][0]
                    own[f"{layer}.lora_a"] = nn.init.kaiming_uniform_(torch.empty(RANK, inputs), a=math.sqrt(5))
            sent.append(fed.train(own, client, named("a", "b")))
        x = x | mean(sent, shares, [*HEAD])
        for layer in LAYERS:
            first = torch.cat([s * m[f"{layer}.lora_a"] for s, m in zip(shares, sent, strict=True)])
            second = torch.cat([m[f"{layer}.lora_b"] for m in sent], dim=1)
            assert first.shape[0] == second.shape[1] == COHORT * RANK
            stacks[layer] = first, second
    found = fed.run.weights()
    for name, value in x.items():
        torch.testing.assert_close(found[f"image/{name}"], value, rtol=1e-4, atol=2e-6)
    for layer, (first, second) in stacks.items():
        for factor, value in (("a", first), ("b", second)):
            torch.testing.assert_close(found[f"table/stack/image/{layer}.lora_{factor}"], value, rtol=1e-4, atol=2e-6)
        final = x[f"{layer}.weight"] + SCALE * second @ first
        assert float((final - fed.first[f"{layer}.weight"]).abs().max()) > 1e-2
        torch.testing.assert_close(fed.run.model("image").state_dict()[f"{layer}.weight"], final, rtol=1e-4, atol=4e-6)


def test_fedex_lora_takes_changes_of_products_where_updates_began_apart(tiny: Tiny) -> None:
    """W + scale B A moves by the mean change of the clients' products, though one began with older factors."""
    method = compose(load({"edgefl": 1, **scenario_of(tiny, "fedex-lora")})).method
    work, state = method.client_work("image", 1), method.initial(1)
    generator = torch.Generator().manual_seed(1)

    def noisy(tensors: Weights) -> Weights:
        drawn = {a: torch.randn(t.shape, generator=generator) if ".lora_" in a else t for a, t in tensors.items()}
        return {a: t + 0.3 * drawn[a] if ".lora_" in a else t for a, t in tensors.items()}

    old, new = (ServerState(noisy(dict(state.tensors)), state.versions) for _ in range(2))
    updates, samples = [], (10, 30)
    for client, base in enumerate((old, new)):
        start = base.base(work)
        trained = noisy(dict(start))
        sent = {item.name: trained[item.source] for item in work.up[0].items}
        updates.append(Update(client, "image", {"image": samples[client]}, work, {"model": sent}, start))
    after = method.aggregate(new, updates)

    def product(tensors: Weights, layer: str) -> Tensor:
        return tensors[f"image/{layer}.lora_b"].double() @ tensors[f"image/{layer}.lora_a"].double()

    for layer in LAYERS:
        moved = sum(
            n / 40 * (product(dict(u.uploaded_tensors()), layer) - product(dict(u.base), layer))
            for n, u in zip(samples, updates, strict=True)
        )
        name = f"image/{layer}.weight"
        change = after.tensors[name].double() - new.tensors[name].double()
        change += SCALE * (product(dict(after.tensors), layer) - product(dict(new.tensors), layer))
        torch.testing.assert_close(change, SCALE * moved, rtol=0, atol=2e-6)


def test_a_product_is_added_to_a_weight_the_other_way_round() -> None:
    first, second = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[10.0], [20.0]])
    expected = torch.tensor([[5.0, 10.0, 15.0], [10.0, 20.0, 30.0]])
    assert torch.equal(plus_product(torch.zeros(2, 3), first, second, 0.5, False), expected)
    assert torch.equal(plus_product(torch.ones(3, 2).bfloat16(), first, second, 0.5, True), (expected.T + 1).bfloat16())
