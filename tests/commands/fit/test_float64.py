"""Training in float64: values, states, bytes and costs, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import edgefl
from edgefl import models, seeds
from edgefl.commands.fit.changes import axes_of
from edgefl.errors import ScenarioError
from edgefl.scenario import load
from edgefl.setup.compose import compose, federation_of
from edgefl.work.description import Pass

Make = Callable[..., dict[str, Any]]
PUBLIC = {"source": "glyphs", "clients": {"image": 1, "text": 1, "image-text": 1}, "samples": 16, "validation": 20,
          "test": 20, "public": 24}  # fmt: skip
EQUAL = {"image": {"width": 16, "heads": 2}, "text": {"width": 16, "heads": 2}, "dimension": 8, "dimension_for": "all"}


def sgd(**more: Any) -> dict[str, Any]:
    return {"batch": 8, "optimizer": "sgd", "lr": 0.1, **more}


def records(run: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


@pytest.mark.parametrize("method", ["fedavg", {"name": "fedprox", "mu": 0.1}, "scaffold"])
def test_everything_is_in_float64_and_costs_follow(tiny: Make, tmp_path: Path, method: Any) -> None:
    found = {}
    for precision in ("float64", "float32"):
        run = tmp_path / precision
        training, clients = sgd(precision=precision, measure="all"), {"image": 1, "image-text": 1}
        scenario = tiny(method=method, training=training, data={**tiny()["data"], "clients": clients})
        edgefl.run(scenario, out=run, overrides=["executor.checkpoints=2"])
        state = safetensors.torch.load_file(run / "checkpoints" / "round-000001" / "state.safetensors")
        assert {t.dtype for t in state.values() if t.is_floating_point()} == {getattr(torch, precision)}
        found[precision] = records(run, "clients.jsonl"), safetensors.torch.load_file(run / "weights.safetensors")
    (double, weights), (single, rounded) = found["float64"], found["float32"]
    for ours, theirs in zip(double, single, strict=True):
        assert ours["client"] == theirs["client"]
        for name in ("download_bytes", "upload_bytes"):
            assert ours[name] == 2 * theirs[name] > 0
        # where kernels take scratch, the peak is at another moment, with other gradients
        same_moment = not any(each["memory_bytes"]["scratch"] for each in (ours, theirs))
        for part in ("parameters", *["gradients"] * same_moment, "reference", "received"):
            assert ours["memory_bytes"][part] == 2 * theirs["memory_bytes"][part]
        assert ours["forward_flops"] == theirs["forward_flops"]
        assert ours["measured_peak_memory_bytes"] == pytest.approx(ours["peak_memory_bytes"], abs=16)
    # the same training but for rounding, and more than float32 in the result
    for name, value in weights.items():
        torch.testing.assert_close(value, rounded[name].double(), rtol=1e-3, atol=1e-5)
    assert any(not torch.equal(value, value.float().double()) for value in weights.values())


def test_a_loop_by_hand_has_the_same_weights_and_scores(tiny: Make, tmp_path: Path) -> None:
    data = {"source": "glyphs", "clients": {"image": 2}, "samples": 24, "validation": 20, "test": 20}
    model = {"image": {"blocks": 2, "width": 16, "heads": 2}}
    scenario = load(tiny(data=data, model=model, training=sgd(precision="float64"), evaluation={"every": 2}))
    setup, federation = compose(scenario), federation_of(scenario, str)
    edgefl.run(scenario, out=tmp_path / "run")
    module = models.build(setup.method.setting.kinds["image"].model)
    first = setup.method.at_start(setup.seed).tensors
    server = {name: first[f"image/{name}"] for name, _ in module.named_parameters()}
    assert {value.dtype for value in server.values()} == {torch.float64}
    pass_ = Pass("classify", "private", ("image",), 8, True, {})
    for round in (1, 2):
        total = {name: torch.zeros_like(value) for name, value in server.items()}
        counts = [int(n) for n in federation.client_samples]
        for client, samples in enumerate(counts):
            module.load_state_dict(server)
            key = seeds.key(seeds.key(setup.seed, "training", client, round), "shuffle", 0, 0)
            for _, batch in federation.client(client).batches(pass_, key):
                scores = module.classify("image", {"image": batch["image"].double()}, "zero")
                torch.nn.functional.cross_entropy(scores, batch["label"]).backward()
                with torch.no_grad():
                    for parameter in module.parameters():
                        parameter.sub_(parameter.grad, alpha=0.1)
                        parameter.grad = None
            for name, value in module.named_parameters():
                total[name] += value.detach() * (samples / sum(counts))
        server = total
    found = safetensors.torch.load_file(tmp_path / "run" / "weights.safetensors")
    for name, value in server.items():
        torch.testing.assert_close(found[f"image/{name}"], value, rtol=0, atol=1e-13)
    # accuracy on the test split, a count over a count, to the last digit of float64
    part = federation.public_part("image")
    rows = part.arrays["test.image"]
    fields = part.load("image", rows, ("image",))
    module.load_state_dict(server)
    module.eval()
    with torch.no_grad():
        hits = module.classify("image", {"image": fields["image"].double()}, "zero").argmax(-1) == fields["label"]
    told = [r["metrics"] for r in records(tmp_path / "run", "rounds.jsonl") if r.get("metrics")][-1]
    assert told["image"]["accuracy"] == int(hits.sum()) / len(rows)


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"method": "fedmd", "data": PUBLIC, "model": EQUAL}, "fedmd sends .* in float32, so it can't train in"),
        ({"training": {"batch": 8, "optimizer": "mezo", "precision": "float64"}}, "mezo draws and sends float32"),
        ({"training": {"batch": 8, "precision": "float128"}}, "float64"),
    ],
)
def test_what_cannot_be_in_float64_is_refused_in_a_line(tiny: Make, sections: Any, told: str) -> None:
    with pytest.raises(ScenarioError, match=told) as refused:
        compose(load(tiny(**{"training": sgd(precision="float64"), **sections})))
    assert "\n" not in str(refused.value)


def test_pretrained_towers_are_taken_in_float64(tiny: Make) -> None:
    data = {"source": "names", "clients": {"text": 2}, "samples": 20, "validation": 20, "test": 20, "public": 32}
    model = {"text": {"blocks": 1, "width": 8, "heads": 2, "tokens": 8}}
    pretrain = {"text": {"epochs": 1, "batch": 16}}
    both = [
        compose(load(tiny(data=data, model=model, pretrain=pretrain, training={"batch": 8, "precision": p})))
        for p in ("float64", "float32")
    ]
    double, single = (setup.method.initial(setup.seed).tensors for setup in both)
    assert {t.dtype for t in double.values()} == {torch.float64}
    for name, value in single.items():
        assert torch.equal(double[name], value.double())


def test_fit_offers_narrower_precisions_than_float64(tiny: Make) -> None:
    fleet = {"devices": {"raspberry-pi-zero-2w": "100%"}, "budgets": {"memory": "300 KiB"}}
    scenario = load(tiny(training=sgd(precision="float64"), fleet=fleet))
    setup = compose(scenario, trains=False)
    axes = {axis.name: axis for axis in axes_of(scenario, setup, "image", 40, growing=False, epochs=False)}
    assert [step.sets["training.precision"] for step in axes["precision"].steps] == ["float32", "bfloat16", "float16"]
