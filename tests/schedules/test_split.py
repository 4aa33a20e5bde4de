"""Split training: the weights of end-to-end training, and costs and times added up by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import edgefl
from edgefl.devices import load_device, load_link
from edgefl.errors import EdgeflError
from edgefl.results.verify import verify
from edgefl.scenario import load
from edgefl.setup.compose import compose

Tiny = Callable[..., dict[str, Any]]
TOWER = {"tower": "vit", "blocks": 3, "width": 16, "heads": 2, "patch": 8}
TEXT = {"blocks": 3, "width": 16, "heads": 2, "tokens": 12}
DATA = {"source": "glyphs", "clients": {"image": 3}, "samples": 40, "size": 16, "partition": "iid",
        "validation": 40, "test": 40}  # fmt: skip
NAMES = {"source": "names", "clients": {"text": 2}, "samples": 40, "validation": 40, "test": 40}
GPT2 = {"model_type": "gpt2", "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 16, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # fmt: skip
VIT = {"model_type": "vit", "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2,
       "intermediate_size": 32, "patch_size": 8}  # fmt: skip
TRAINING = {"optimizer": "adamw", "lr": 1e-3, "batch": 8}
FLEET = {"devices": {"raspberry-pi-4-4gb": "100%"}, "links": {"lte": "100%"}}


def split(tiny: Tiny, after: Any = 1, **more: Any) -> dict[str, Any]:
    sections = {
        "data": DATA, "model": {"image": TOWER, "text": TEXT}, "training": TRAINING, "fleet": FLEET,
        "schedule": {"name": "split", "after": after, "rounds": 2},
    }  # fmt: skip
    return tiny(**{**sections, **more})


def whole(scenario: dict[str, Any]) -> dict[str, Any]:
    return {**scenario, "schedule": {"name": "end-to-end", "rounds": 2}}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"model": {"image": {**TOWER, "drop_path": 0.2}}},
        {"training": {**TRAINING, "precision": "bfloat16", "checkpointing": True}},
        {"adapter": {"name": "lora", "rank": 2}},
        {"data": {**DATA, "clients": {"image-text": 2}}},
        {"data": {**NAMES, "tasks": {"text": "next-token"}}, "adapter": {"name": "lora", "rank": 2},
         "model": {"text": {"tower": "hf-causal", "config": GPT2, "tokens": 12}}},
    ],
    ids=["image", "dropout", "bfloat16", "lora", "pairs", "causal"],
)  # fmt: skip
def test_it_gives_the_weights_of_end_to_end_training(tiny: Tiny, tmp_path: Path, more: dict[str, Any]) -> None:
    """To the bit, over clients and two rounds of averages: FedAvg's."""
    scenario = split(tiny, 2, **more)
    runs = [edgefl.run(each, out=tmp_path / str(i)) for i, each in enumerate((scenario, whole(scenario)))]
    weights, expected = (run.weights() for run in runs)
    first = compose(load(scenario)).method.initial(3).tensors
    assert any(not torch.equal(expected[a], first[a]) for a in expected if a in first)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[address], expected[address]) for address in weights)
    checked = verify(tmp_path / "0")
    assert checked.valid
    (only,) = checked.runs.values()
    exchanged = next(rule for rule in only.checks if rule.name == "exchanges")
    assert exchanged.records == len(runs[0].clients) and not exchanged.broken


def test_halves_of_other_cuts_have_prices_of_their_own(tiny: Tiny) -> None:
    peaks = [edgefl.profile(split(tiny, after))["rows"][0]["peak_memory_bytes"] for after in (1, 2)]
    run = edgefl.run(split(tiny, 1)).records("clients")[0]
    assert run["measured_peak_memory_bytes"] == peaks[0] < peaks[1]


@pytest.mark.slow(smaller="test_it_gives_the_weights_of_end_to_end_training")
def test_a_network_of_convolutions_is_split_too(tiny: Tiny) -> None:
    """With BatchNorm's statistics in both halves."""
    scenario = split(tiny, 2, model={"image": {"tower": "resnet"}}, training={**TRAINING, "steps": 2})
    weights, expected = (edgefl.run(each).weights() for each in (scenario, whole(scenario)))
    assert all(torch.equal(weights[address], expected[address]) for address in expected)


def test_the_time_and_the_energy_of_a_round_by_hand(tiny: Tiny) -> None:
    row = edgefl.profile(split(tiny))["rows"][0]
    device, link, exchange = load_device("raspberry-pi-4-4gb"), load_link("lte"), row["exchange"]
    up, down = (exchange[f"serialised_{way}_bytes"] for way in ("upload", "download"))
    model = row["serialised_download_bytes"] - down
    assert row["download_seconds"] == pytest.approx(link.latency_seconds + 8 * model / link.download_goodput)
    receiving = exchange["trips"] * link.latency_seconds + 8 * down / link.download_goodput
    sending = exchange["trips"] * link.latency_seconds + 8 * up / link.upload_goodput
    own = row["compute_seconds"] - receiving - sending - exchange["server_seconds"]
    assert own == pytest.approx(sum(row["compute_seconds_by_class"].values()))
    joules = (
        (row["download_seconds"] + receiving) * (device.idle_watts + link.download_watts)
        + (row["upload_seconds"] + sending) * (device.idle_watts + link.upload_watts)
        + own * device.compute_watts
        + exchange["server_seconds"] * device.idle_watts
    )
    assert row["energy_joules"] == pytest.approx(joules)
    assert exchange["trips"] == 5


def test_the_server_half_never_travels(tiny: Tiny) -> None:
    row = edgefl.run(split(tiny, 1, adapter={"name": "lora", "rank": 2})).records("clients")[-1]
    parts = row["upload_bytes_by_part"]
    # factors of rank 2 of the four linear layers of one block of width 16
    assert parts["blocks"] == 4 * 2 * ((16 + 48) + (16 + 16) + (16 + 64) + (64 + 16))
    assert parts["head"] == 0


def test_profile_and_run_agree(tiny: Tiny) -> None:
    scenario = split(tiny)
    row, total = edgefl.run(scenario).records("clients")[0], edgefl.profile(scenario)["rows"][0]
    for name in ("peak_memory_bytes", "forward_flops", "upload_bytes", "serialised_download_bytes", "exchange"):
        assert row[name] == getattr(total[name], "to_data", lambda name=name: total[name])(), name
    assert row["measured_peak_memory_bytes"] == row["peak_memory_bytes"]


def test_figures_and_measurements_are_of_the_clients_half(tiny: Tiny, tmp_path: Path) -> None:
    scenario = split(tiny)
    found = edgefl.profile(scenario, timeline=tmp_path / "peak.html")
    assert found["timeline"]["peak_memory_bytes"] == found["rows"][0]["live_memory_bytes"]
    noted = edgefl.run(split(tiny, 1, training={**TRAINING, "note_gradients": True})).records("clients")[0]
    assert set(noted["metrics"]) == {f"gradient[image.blocks.{index}]" for index in range(3)}
    path = tmp_path / "split.json"
    path.write_text(json.dumps({"edgefl": 1, **scenario}))
    with pytest.raises(EdgeflError, match="the server computes a part of it|ExecuTorch"):
        edgefl.export(str(path), "executorch", tmp_path / "out")


def test_budgets_count_what_is_exchanged(tiny: Tiny) -> None:
    spent = edgefl.profile(split(tiny))["rows"][0]
    moved = spent["serialised_upload_bytes"] + spent["serialised_download_bytes"]
    for allowed, eligible in ((moved, 3), (moved - 1, 0)):
        run = edgefl.run(split(tiny, fleet={**FLEET, "budgets": {"bytes_per_round": f"{allowed} B"}}))
        assert sum(row["eligible"] for row in run.records("eligibility") if row["round"] == 1) == eligible


def test_a_round_that_is_cut_short_keeps_the_books(tiny: Tiny, tmp_path: Path) -> None:
    """Clients that fail while they compute have exchanged a part."""
    fleet = {**FLEET, "failures": {"training": "60%"}}
    scenario = split(tiny, fleet=fleet, schedule={"name": "split", "rounds": 4})
    rows = edgefl.run(scenario, out=tmp_path / "run").records("clients")
    assert verify(tmp_path / "run").valid
    cut = [row for row in rows if row["phase"] == "compute"]
    assert cut and any(row["carried_upload_bytes"] > 0 for row in cut)
    assert all(row["carried_upload_bytes"] == row["lost_upload_bytes"] for row in cut)


@pytest.mark.slow(smaller="test_it_gives_the_weights_of_end_to_end_training")
def test_workers_and_a_resumed_run_give_the_same_bytes(tiny: Tiny, tmp_path: Path) -> None:
    scenario = split(tiny, schedule={"name": "split", "after": 2, "rounds": 3})
    expected = edgefl.run(scenario, out=tmp_path / "whole")
    workers = edgefl.run({**scenario, "executor": {"name": "processes", "workers": 2, "device": "cpu"}})

    def stop(event: str, data: Any) -> None:
        if event == "round" and data["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        edgefl.run(scenario, out=tmp_path / "cut", on_progress=stop)
    for other in (workers, edgefl.run(resume=tmp_path / "cut")):
        assert all(torch.equal(t, other.weights()[a]) for a, t in expected.weights().items())
        assert other.records("clients") == expected.records("clients")


ATTACK = {**FLEET, "failures": {"attack": {"share": "40%", "name": "sign-flip"}}}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"schedule": {"name": "split", "after": 3}}, "3 of the 3 blocks .* nothing; allowed: 1 to 2, or .*end-to"),
        ({"schedule": {"name": "split", "after": 0}}, "schedule.after"),
        ({"schedule": {"name": "split", "after": {"audio": 1}}}, "no tower 'audio'; it has image, text"),
        ({"model": {"image": {"tower": "hf", "config": VIT}, "text": TEXT}}, "a hf can't begin in the middle"),
        ({"method": "scaffold", "training": {**TRAINING, "optimizer": "sgd"}}, "exchange, keep or compute more"),
        ({"method": {"name": "fedprox", "mu": 0.1}}, "exchange, keep or compute more"),
        ({"training": {**TRAINING, "clip": 1.0}}, "known to neither half: leave training.clip out"),
        ({"training": {**TRAINING, "accumulation": 2}}, "set training.accumulation: 1"),
        ({"training": {**TRAINING, "step_in_backward": True}}, "leave out mezo and training.step_in_backward"),
        ({"training": {**TRAINING, "precision": "float16"}}, "set training.precision: bfloat16 or float32"),
        ({"round": {"policy": "asynchronous", "cohort": 2}}, "overlap: write policy: synchronous"),
        ({"fleet": {**FLEET, "server_link": {"download": "1 Mbit/s"}}}, "doesn't share the server's line"),
        ({"fleet": {**FLEET, "relays": {"count": 2}}}, "half of a split model would be behind it"),
        ({"fleet": {**FLEET, "links": {"lte-daily": "100%"}}}, "lte-daily has a trace"),
        ({"fleet": ATTACK}, "an attacker holds half of a split model"),
        ({"evaluation": {"clients": "50%"}}, "can't score itself with half of a split model"),
        ({"data": {**NAMES, "tasks": {"text": "next-token"}},
          "model": {"text": {"tower": "hf-causal", "config": GPT2, "tokens": 12}}}, "both halves would train .*untie"),
    ],
)  # fmt: skip
def test_what_cannot_be_split_is_refused(tiny: Tiny, more: dict[str, Any], message: str) -> None:
    with pytest.raises(EdgeflError, match=message):
        compose(load(split(tiny, **more)))
