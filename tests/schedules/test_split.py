"""Split training: the weights of end-to-end training, and costs and times added up by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import simpy
import torch
from torch.nn import functional as F

import edgefl
from edgefl import models, seeds
from edgefl.devices import load_device, load_link
from edgefl.errors import EdgeflError, MethodError
from edgefl.planning.planner import Planner
from edgefl.results.verify import verify
from edgefl.scenario import load
from edgefl.setup.compose import compose, predictor_of, scenario_of

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


SHARED = {"name": "split", "after": 1, "server": "shared", "rounds": 1}
SGD = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "batch": 8}


def test_one_half_for_all_of_one_client_is_its_own(tiny: Tiny) -> None:
    scenario = split(tiny, data={**DATA, "clients": {"image": 1}}, training=SGD, schedule={**SHARED, "rounds": 2})
    weights, expected = (edgefl.run(each).weights() for each in (scenario, whole(scenario)))
    for address in expected:  # a mean of one update is that update, but for rounding
        torch.testing.assert_close(weights[address].float(), expected[address].float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("fleet", [FLEET, {**FLEET, "failures": {"upload": "40%", "training": "20%"}}])
def test_one_half_for_all_is_trained_in_turn_as_by_hand(tiny: Tiny, fleet: dict[str, Any]) -> None:
    """A loop of plain torch over clients in the order in which the records say that they computed.

    It has the half of every client that computed to its end, and the mean of the updates that arrived.
    """
    data = {**DATA, "clients": {"image": 5}}
    scenario = split(tiny, seed=8, data=data, training=SGD, fleet=fleet, schedule=SHARED)
    run, setup = edgefl.run(scenario), compose(load(scenario))
    rows = [row for row in run.records("clients") if row["phase"] in ("upload", None)]
    ended = {row["client"]: row["ended_virtual_seconds"] - row["upload_seconds"] for row in rows}
    arrived = {row["client"]: setup.clients.client_samples[row["client"]] for row in rows if row["phase"] is None}
    assert len(arrived) > 1 and (len(rows) > len(arrived)) == ("failures" in fleet)

    work = setup.method.client_work("image", 1)
    state = {name: t.clone() for name, t in setup.method.at_start(8).inputs(work).items()}
    client_half = lambda name: "embedding" in name or ".blocks.0." in name  # noqa: E731
    mean = dict.fromkeys((name for name in state if client_half(name)), 0.0)
    server = {name: t for name, t in state.items() if not client_half(name)}
    model: Any = models.build(work.model).train()
    for client in sorted(ended, key=lambda each: ended[each]):
        model.load_state_dict({**state, **server})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seed = seeds.key(8, "training", client, 1)
        for _, batch in setup.clients.client(client).batches(work.passes[0], seeds.key(seed, "shuffle", 0, 0)):
            optimizer.zero_grad()
            hidden = model.image.embedding(batch["image"])
            for block in model.image.blocks:
                hidden = block(hidden)
            scores = model.image.head(model.image.norm(hidden)[:, 0])
            F.cross_entropy(scores, batch["label"], ignore_index=-1).backward()
            optimizer.step()
        trained = {name: t.detach().clone() for name, t in model.state_dict().items()}
        server = {name: trained[name] for name in server}
        weight = arrived.get(client, 0) / sum(arrived.values())
        mean = {name: total + weight * trained[name] for name, total in mean.items()}
    weights = run.weights()
    for name, tensor in {**mean, **server}.items():
        torch.testing.assert_close(weights[f"image/{name}"].float(), tensor, rtol=0, atol=1e-6)
    assert any(not torch.equal(state[name], server[name]) for name in server)


def test_whole_clients_visit_the_one_half_one_after_the_other(tiny: Tiny, tmp_path: Path) -> None:
    run = edgefl.run(split(tiny, data={**DATA, "clients": {"image": 5}}, schedule=SHARED), out=tmp_path / "run")
    spans = []
    for row in run.records("clients"):
        end = row["ended_virtual_seconds"] - row["upload_seconds"]
        spans.append((end - row["compute_seconds"] + row["server_wait_seconds"], end))
    spans.sort()
    assert all(begin == pytest.approx(end) for (_, end), (begin, _) in pairwise(spans))
    assert verify(tmp_path / "run").valid


def test_batches_wait_for_a_slow_server(tiny: Tiny, tmp_path: Path) -> None:
    """The records of a run, beside SimPy's own resource fed with what they say of each client."""
    fleet = {"devices": {"macbook-air-m1": "100%"}, "links": {"wifi-6": "100%"}, "server": "raspberry-pi-4-4gb"}
    run = edgefl.run(split(tiny, data={**DATA, "clients": {"image": 5}}, fleet=fleet), out=tmp_path / "run")
    env = simpy.Environment()
    server, waited = simpy.Resource(env), dict[int, float]()

    def client(row: dict[str, Any]) -> Any:
        trips, served = row["exchange"]["trips"], row["exchange"]["server_seconds"]
        own = row["compute_seconds"] - row["server_wait_seconds"] - served
        yield env.timeout(row["download_seconds"])
        for _ in range(trips):
            yield env.timeout(own / trips)
            with server.request() as turn:
                came = env.now
                yield turn
                waited[row["client"]] = waited.get(row["client"], 0.0) + env.now - came
                yield env.timeout(served / trips)

    rows = [row for row in run.records("clients") if row["round"] == 1]
    for row in rows:
        env.process(client(row))
    env.run()
    assert {row["client"]: row["server_wait_seconds"] for row in rows} == pytest.approx(waited, abs=1e-9)
    assert sum(waited.values()) > 0.001
    assert verify(tmp_path / "run").valid


@pytest.mark.slow(smaller="test_it_gives_the_weights_of_end_to_end_training")
@pytest.mark.parametrize("server", ["per-client", "shared"])
def test_workers_and_a_resumed_run_give_the_same_bytes(tiny: Tiny, tmp_path: Path, server: str) -> None:
    scenario = split(tiny, schedule={"name": "split", "after": 2, "server": server, "rounds": 3})
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


@pytest.mark.parametrize(
    ("room", "server", "message"),
    [
        (300_000, "per-client", "and 3 of the server's halves need .*: write round.cohort: 2 or less, schedule.server: "
                                "shared, a larger schedule.after, or another device"),
        (100_000, "shared", "and 1 of the server's halves need .*: write a larger schedule.after, or another device"),
    ],
)  # fmt: skip
def test_a_server_too_small_for_its_halves_is_refused(tiny: Tiny, room: int, server: str, message: str) -> None:
    scenario = split(tiny, schedule={**SHARED, "server": server})
    setup = compose(load(scenario))
    device = load_device("raspberry-pi-4-4gb")
    small = replace(device, usable_memory_bytes=room, runtime_overhead_bytes=0)
    setup = replace(setup, fleet=replace(setup.fleet, server=small))
    with pytest.raises(MethodError, match=f"fleet.server: raspberry-pi-4-4gb has .* for tensors, {message}"):
        Planner(setup, predictor_of(scenario_of(scenario))).demand(0, 1, setup.schedule.stage(1))


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
