"""FlexLoRA: products averaged and cut by singular values, against numpy; what ranks cost; runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensors import assert_equal_tensors
from torch import Tensor

import edgefl
from edgefl import models
from edgefl.arrays import Floats
from edgefl.errors import EdgeflError
from edgefl.methods import Method, ServerState, Update
from edgefl.methods.aggregation.products import factor_product
from edgefl.models import adapters
from edgefl.scenario import load
from edgefl.schedules.flexlora import Ranked
from edgefl.setup.compose import compose

Tiny = Callable[..., dict[str, Any]]
TOWER = {"blocks": 2, "width": 16, "heads": 2, "patch": 8}
DATA = {"source": "glyphs", "clients": {"image": 6}, "samples": 40, "size": 16, "validation": 40, "test": 40}
LORA = {"name": "lora", "rank": 4, "parts": ["attn.qkv", "mlp.fc1"]}
RANKS = {"name": "flexlora", "ranks": [4, 2, 1], "rounds": 3}
LAYERS = {"attn.qkv": (16, 48), "mlp.fc1": (16, 64)}
"""Inputs and outputs of the layers with factors."""


def ranks(tiny: Tiny, **more: Any) -> dict[str, Any]:
    sections = {"data": DATA, "model": {"image": TOWER}, "adapter": LORA, "schedule": RANKS}
    return tiny(**{**sections, **more})


def works(tiny: Tiny, **more: Any) -> tuple[Method, ServerState, dict[int, Any]]:
    """The method, its first state with random B, and the works by rank."""
    setup = compose(load(ranks(tiny, **more)))
    state = setup.method.initial(3)
    torch.manual_seed(0)
    tensors = {a: torch.randn(t.shape) * 0.1 if ".lora_" in a else t for a, t in state.tensors.items()}
    state = ServerState(tensors, state.versions)
    full = setup.method.client_work("image", 1)
    return (
        setup.method,
        state,
        {stage.rank: stage.restrict_work(full) for stage in setup.schedule.offered if isinstance(stage, Ranked)},
    )


def update(state: ServerState, work: Any, client: int, samples: int) -> Update:
    generator = torch.Generator().manual_seed(client)
    base = state.base(work)
    moved = {a: value + 0.1 * torch.randn(value.shape, generator=generator) for a, value in base.items()}
    sent = {i.name: moved[i.source] for i in work.up[0].items}
    return Update(client, "image", {"image": samples}, work, {"model": sent}, base)


def products(tensors: Mapping[str, Tensor]) -> dict[str, Floats]:
    """B A of every layer, in float64."""
    names = [a.removesuffix(".lora_a") for a in tensors if a.endswith(".lora_a")]
    return {n: tensors[f"{n}.lora_b"].double().numpy() @ tensors[f"{n}.lora_a"].double().numpy() for n in names}


SENT = ((4, 30), (2, 50), (1, 20), (2, 10))
"""Rank and samples of the clients."""


def test_products_are_averaged_and_cut_as_numpy_does(tiny: Tiny) -> None:
    method, state, by_rank = works(tiny)
    updates = [update(state, by_rank[rank], client, n) for client, (rank, n) in enumerate(SENT)]
    after = method.aggregate(state, updates).tensors
    total = sum(n for _, n in SENT)
    own = [products(dict(u.uploaded_tensors())) for u in updates]
    assert len(own[0]) == 4
    for name, found in products(after).items():
        mean = sum(n / total * p[name] for (_, n), p in zip(SENT, own, strict=True))
        left, values, right = np.linalg.svd(mean)
        best = (left[:, :4] * values[:4]) @ right[:4]
        np.testing.assert_allclose(found, best, rtol=0, atol=1e-6)
        # the best of its rank: what is lost are the smaller singular values
        assert np.linalg.norm(found - mean) == pytest.approx(np.sqrt((values[4:] ** 2).sum()), rel=1e-4)
        # a client of rank 2 then has the best product of rank 2
        first, second = (after[f"{name}.lora_{x}"].double().numpy() for x in "ab")
        np.testing.assert_allclose(second[:, :2] @ first[:2], (left[:, :2] * values[:2]) @ right[:2], atol=1e-6)
    head = sum(
        n / total * dict(u.uploaded_tensors())["image/image.head.weight"]
        for (_, n), u in zip(SENT, updates, strict=True)
    )
    torch.testing.assert_close(after["image/image.head.weight"], head)


def test_the_order_of_updates_changes_nothing(tiny: Tiny) -> None:
    method, state, by_rank = works(tiny)
    updates = [update(state, by_rank[rank], client, n) for client, (rank, n) in enumerate(SENT)]
    one, other = (method.aggregate(state, order).tensors for order in (updates, updates[::-1]))
    for address, tensor in one.items():
        assert_equal_tensors(tensor, other[address])


def test_momentum_is_that_of_the_products(tiny: Tiny) -> None:
    method, state, by_rank = works(tiny, aggregation={"optimizer": "momentum", "momentum": 0.5, "lr": 1.0})
    plain, _, _ = works(tiny)
    sent = [update(state, by_rank[4], 1, 30)]
    once = method.aggregate(state, sent)
    for name, product in products(plain.aggregate(state, sent).tensors).items():  # m = 0.5 * 0 + change
        np.testing.assert_allclose(products(once.tensors)[name], product, atol=1e-6)
    again = method.aggregate(once, [update(once, by_rank[4], 2, 30)])
    for name, before in products(state.tensors).items():
        first = products(dict(sent[0].uploaded_tensors()))[name] - before
        middle = products(once.tensors)[name]
        second = products(dict(update(once, by_rank[4], 2, 30).uploaded_tensors()))[name] - middle
        left, values, right = np.linalg.svd(middle + 0.5 * first + second)
        np.testing.assert_allclose(
            products(again.tensors)[name], (left[:, :4] * values[:4]) @ right[:4], rtol=0, atol=1e-5
        )


def test_clipping_takes_the_norm_of_products(tiny: Tiny) -> None:
    method, state, by_rank = works(tiny, aggregation={"clip": 0.5})
    sent = update(state, by_rank[2], 1, 30)
    before, own = products(state.tensors), products(dict(sent.uploaded_tensors()))
    changes = [own[n] - before[n] for n in before]
    plain = [(v - sent.base[a]).double().numpy() for a, v in sent.uploaded_tensors() if ".lora_" not in a]
    norm = np.sqrt(sum((c**2).sum() for c in changes + plain))
    after = products(method.aggregate(state, [sent]).tensors)
    for name in before:
        left, values, right = np.linalg.svd(before[name] + min(1, 0.5 / norm) * (own[name] - before[name]))
        np.testing.assert_allclose(after[name], (left[:, :4] * values[:4]) @ right[:4], rtol=0, atol=1e-6)


def test_factors_have_one_sign_and_zero_products_can_still_learn() -> None:
    torch.manual_seed(1)
    product = torch.randn(12, 3) @ torch.randn(3, 9)
    first, second = factor_product(product, 5)
    torch.testing.assert_close(second @ first, product)
    torch.testing.assert_close(first @ first.T, torch.eye(5))
    assert all(row[row.abs().argmax()] > 0 for row in first)
    first, second = factor_product(torch.zeros(6, 8), 2)
    assert not second.any() and bool(first.any(1).all())


def test_a_client_computes_with_its_slices_at_the_servers_scale(tiny: Tiny) -> None:
    _, state, by_rank = works(tiny)
    work = by_rank[2]
    module = models.build(work.model).eval()
    module.load_state_dict(state.inputs(work), strict=False)
    name = "image.blocks.1.mlp.fc1"
    layer: Any = module.get_submodule(name)
    x = torch.randn(3, 16)
    first, second = (state.tensors[f"image/{name}.lora_{f}"] for f in "ab")
    expected = layer.weight @ x.T + layer.bias[:, None] + 16 / 4 * second[:, :2] @ (first[:2] @ x.T)
    torch.testing.assert_close(layer(x), expected.T)
    merged = adapters.merge(module, work.model["adapter"])[f"{name}.weight"]
    torch.testing.assert_close(merged, layer.weight + 4 * second[:, :2] @ first[:2])


def test_ranks_cost_what_they_send(tiny: Tiny) -> None:
    rows = {row["part"]: row for row in edgefl.profile(ranks(tiny))["rows"]}
    head = 4 * (16 * 12 + 12)
    for rank in (4, 2, 1):
        factors = 2 * sum(4 * rank * (inputs + outputs) for inputs, outputs in LAYERS.values())
        row = rows[f"rank {rank}"]
        assert row["upload_bytes"] == factors + head
        assert row["download_bytes"] == factors + head
    peaks = [rows[f"rank {rank}"]["peak_memory_bytes"] for rank in (4, 2, 1)]
    assert peaks == sorted(peaks, reverse=True) and len(set(peaks)) == 3


def apart(tiny: Tiny, **more: Any) -> dict[str, Any]:
    """Clients of budgets apart, so that all ranks are trained."""
    peaks = [row["peak_memory_bytes"] for row in edgefl.profile(ranks(tiny))["rows"]]
    return ranks(tiny, fleet={"budgets": {"memory": f"{min(peaks)}..{2 * max(peaks) - min(peaks)} B"}}, **more)


def files(run: edgefl.Run) -> dict[str, bytes]:
    names = ("rounds.jsonl", "clients.jsonl", "result.json", "weights.safetensors")
    return {name: (run.path / name).read_bytes() for name in names}


@pytest.mark.slow(smaller="test_ranks_cost_what_they_send")
def test_a_run_trains_the_ranks_that_fit_and_one_that_was_stopped_ends_alike(tiny: Tiny, tmp_path: Path) -> None:
    whole = edgefl.run(apart(tiny), out=tmp_path / "whole")
    trained = [row for row in whole.records("clients") if row["loss"] is not None]
    assert {row["part"] for row in trained} == {"rank 4", "rank 2", "rank 1"}
    for row in trained:
        error = row["measured_peak_memory_bytes"]
        assert error is None or abs(error - row["peak_memory_bytes"]) <= 4096
    base = [a for a in whole.weights() if ".lora_" not in a and "head" not in a]
    first = compose(load(apart(tiny))).method.initial(3).tensors
    assert base and all(torch.equal(whole.weights()[a], first[a]) for a in base)

    class Stop(Exception):
        pass

    def stop(event: str, facts: Mapping[str, Any]) -> None:
        if event == "record" and facts["round"] == 2:
            raise Stop

    workers = {"executor": {"name": "processes", "workers": 2, "device": "cpu"}}
    with pytest.raises(Stop):
        edgefl.run(apart(tiny, **workers), out=tmp_path / "cut", on_progress=stop)
    assert files(edgefl.run(resume=tmp_path / "cut")) == files(whole)


@pytest.mark.slow(smaller="test_ranks_cost_what_they_send")
@pytest.mark.parametrize("adapter", [{"name": "lora", "rank": 2}, {"name": "bitfit"}], ids=["lora", "bitfit"])
def test_a_run_with_an_adapter_that_was_stopped_ends_alike(tiny: Tiny, tmp_path: Path, adapter: Any) -> None:
    given = ranks(tiny, adapter=adapter, schedule={"name": "layerwise", "stages": 2, "rounds": 4})
    whole = edgefl.run(given, out=tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(event: str, facts: Mapping[str, Any]) -> None:
        if event == "record" and facts["round"] == 3:
            raise Stop

    with pytest.raises(Stop):
        edgefl.run(given, out=tmp_path / "cut", on_progress=stop)
    assert files(edgefl.run(resume=tmp_path / "cut")) == files(whole)


def test_fedcola_averages_rows_of_products(tiny: Tiny) -> None:
    data = {**DATA, "clients": {"image": 2, "text": 2}}
    model = {"image": TOWER, "text": {"blocks": 2, "width": 16, "heads": 2, "tokens": 8}}
    fedcola = {"name": "fedcola", "complementary": "none", "collaborate": "attention", "range": "all",
               "compensation": False}  # fmt: skip
    run = edgefl.run(ranks(tiny, data=data, model=model, method=fedcola))
    found = products(run.weights())
    for block in (0, 1):
        one, other = (found[f"{m}/{m}.blocks.{block}.attn.qkv"] for m in ("image", "text"))
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    assert np.abs(one).max() > 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"adapter": "none"}, r"flexlora offers ranks of LoRA's factors: set adapter: \{name: lora\}"),
        ({"adapter": "bitfit"}, r"flexlora offers ranks of LoRA's factors"),
        ({"schedule": {**RANKS, "ranks": [8, 2]}}, r"must go up to adapter.rank, 4, the server's: .*\[4, 2, 1\]"),
        ({"schedule": {**RANKS, "ranks": [2, 1]}}, r"must go up to adapter.rank, 4"),
        ({"schedule": {**RANKS, "ranks": [4, 4]}}, "has a value twice"),
        ({"aggregation": {"rule": "krum"}}, "krum compares factors, which flexlora doesn't average"),
        ({"method": {"name": "fedavg", "personal": ["image.blocks"]}}, "factors of two rounds don't belong together"),
    ],
)
def test_what_does_not_go_with_it_is_refused(tiny: Tiny, more: dict[str, Any], message: str) -> None:
    with pytest.raises(EdgeflError, match=message):
        edgefl.validate(ranks(tiny, **more))


def test_ranks_are_refused_outside(tiny: Tiny) -> None:
    _, _, by_rank = works(tiny)
    stage = Ranked(1, {"image": 2}, {"image": 0}, ("head",), 1, rank=9)
    with pytest.raises(EdgeflError, match="ranks: 9 is above adapter.rank, 4"):
        stage.restrict_work(by_rank[4])
