"""A frozen prefix: what it computes is computed once, against training without keeping and torch's own counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import edgefl
from edgefl.errors import EdgeflError
from edgefl.scenario import load
from edgefl.setup.compose import compose

Tiny = Callable[..., dict[str, Any]]
TOWER = {"blocks": 3, "width": 16, "heads": 2}
TEXT = {**TOWER, "tokens": 12}
IMAGES = {"source": "glyphs", "clients": {"image": 3}, "samples": 40, "size": 16, "validation": 40, "test": 40}
SGD = {"optimizer": "sgd", "lr": 0.05, "batch": 40, "epochs": 2}
CONFIG = {"model_type": "gpt2", "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 16, "resid_pdrop": 0.0,
          "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # fmt: skip


def prefixed(tiny: Tiny, keep: bool = True, **more: Any) -> dict[str, Any]:
    schedule = {"name": "frozen-prefix", "blocks": 2, "rounds": 3, "keep": keep}
    sections = {"data": IMAGES, "model": {"image": TOWER, "text": TEXT}, "training": SGD, "schedule": schedule}
    return tiny(**{**sections, **more})


@pytest.mark.parametrize(
    ("more", "loosely"),
    [
        ({}, 1e-5),
        ({"adapter": {"name": "lora", "rank": 2}}, 1e-5),
        ({"data": {**IMAGES, "clients": {"image-text": 3}}}, 1e-4),
        ({"data": {"source": "names", "clients": {"text": 3}, "samples": 40, "tasks": {"text": "next-token"},
                   "validation": 40, "test": 40},
          "model": {"text": {"tower": "hf-causal", "config": CONFIG, "tokens": 12}}}, 1e-4),
        ({"data": {"source": "names", "clients": {"text": 3}, "samples": 40, "validation": 40, "test": 40},
          "model": {"text": {"tower": "bert", **TEXT, "dropout": 0}}}, 1e-4),
    ],
    ids=["image", "lora", "pairs", "causal", "bert"],
)  # fmt: skip
def test_kept_activations_train_as_computed_ones(tiny: Tiny, more: dict[str, Any], loosely: float) -> None:
    """With one batch of all samples, whose order then changes nothing but rounding."""
    kept, computed = (edgefl.run(prefixed(tiny, keep, **more)) for keep in (True, False))
    first = compose(load(prefixed(tiny, **more))).method.initial(3).tensors
    after, again = kept.weights(), computed.weights()
    trained = {a for a in after if not torch.equal(after[a], first[a])}
    assert trained
    for address in trained:
        assert torch.allclose(after[address], again[address], rtol=0, atol=loosely), address
    if "adapter" not in more:
        assert trained == {
            a for a in after if not any(part in a for part in (".blocks.0.", ".blocks.1.", ".embedding."))
        }


def test_the_prefix_is_computed_once(tiny: Tiny) -> None:
    run = edgefl.run(prefixed(tiny))
    setup = compose(load(prefixed(tiny)))
    module: Any = edgefl.models.build(setup.method.setting.kinds["image"].model)
    # torch has no formula for the CPU's flash attention
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        module.tower("image").run(torch.zeros(40, 1, 16, 16), until=2)
    prefix = counter.get_total_flops()
    for client in range(3):
        rows = run.clients[run.clients["client"] == client]
        flops = [int(n) for n in rows["forward_flops"]]
        assert len(flops) == 3 and flops[1] == flops[2]
        assert flops[0] - flops[1] == prefix


def test_what_is_frozen_never_travels(tiny: Tiny) -> None:
    run = edgefl.run(prefixed(tiny))
    first = compose(load(prefixed(tiny))).method.initial(3).tensors
    changed = sum(t.numel() * 4 for a, t in run.weights().items() if not torch.equal(t, first[a]))
    assert set(run.clients["upload_bytes"]) == set(run.clients["download_bytes"]) == {changed}


def test_the_peak_is_the_allocators(tiny: Tiny) -> None:
    run = edgefl.run(prefixed(tiny, training={**SGD, "batch": 8}, executor={"name": "inline", "device": "cpu"}))
    measured = run.clients.dropna(subset="measured_peak_memory_bytes")
    assert len(measured)
    assert (abs(measured["measured_peak_memory_bytes"] - measured["peak_memory_bytes"]) <= 4096).all()


def test_profile_and_run_agree_on_who_takes_part_in_every_round(tiny: Tiny) -> None:
    scenario = prefixed(tiny)
    run, total = edgefl.run(scenario), edgefl.profile(scenario)["totals"][0]
    rows = run.clients[run.clients["client"] == 0]
    assert int(rows["forward_flops"].sum()) == total["forward_flops"]
    assert int(rows["backward_flops"].sum()) == total["backward_flops"]


@pytest.mark.slow(smaller="test_kept_activations_train_as_computed_ones")
def test_workers_and_a_resumed_run_give_the_same_bytes(tiny: Tiny, tmp_path: Path) -> None:
    scenario = prefixed(tiny, training={**SGD, "batch": 8})
    whole = edgefl.run(scenario, out=tmp_path / "whole")
    workers = edgefl.run({**scenario, "executor": {"name": "processes", "workers": 2, "device": "cpu"}})

    def stop(event: str, data: Any) -> None:
        if event == "round" and data["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        edgefl.run(scenario, out=tmp_path / "cut", on_progress=stop)
    resumed = edgefl.run(resume=tmp_path / "cut")
    for other in (workers, resumed):
        assert all(torch.equal(t, other.weights()[a]) for a, t in whole.weights().items())
        assert [int(n) for n in other.clients["forward_flops"]] == [int(n) for n in whole.clients["forward_flops"]]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"schedule": {"name": "frozen-prefix", "blocks": 3}}, "3 frozen blocks leave none to train of the 3 of"),
        ({"schedule": {"name": "frozen-prefix", "blocks": {"audio": 1}}}, "no tower 'audio'; it has image, text"),
        (
            {
                "method": {"name": "creamfl", "steps": "joint"},
                "data": {**IMAGES, "clients": {"image-text": 3}, "public": 24},
            },
            "schedule.keep: false",
        ),
    ],
)
def test_what_cannot_be_is_refused(tiny: Tiny, more: dict[str, Any], message: str) -> None:
    with pytest.raises(EdgeflError, match=message):
        compose(load(prefixed(tiny, **more)))
