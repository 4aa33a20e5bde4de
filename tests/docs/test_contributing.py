"""The example package of the how-to pages does what they say: each part, and all of them in one scenario."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pages
import pytest
import torch
from torch import Tensor

import edgefl
from edgefl import devices, registry
from edgefl.errors import UnknownName
from edgefl.methods import ServerState, Update
from edgefl.runs import Run

PARTS = ("own-device", "own-data", "own-model", "own-method", "own-schedule")


@pytest.fixture(scope="module")
def run(mylab: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The scenario of CONTRIBUTING, with a data cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEFL_CACHE", str(tmp_path_factory.mktemp("cache")))
        return edgefl.run(mylab / "scenario.yaml", output=tmp_path_factory.mktemp("run") / "run")


def test_every_part_has_a_page_with_an_example():
    text = (pages.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text[text.index("## Add a part") : text.index("## Pinned versions")]
    assert re.findall(r"\(docs/how-to/([\w-]+)\.md\)", section) == list(PARTS)
    for page in PARTS:
        assert any(str(block.file).startswith("mylab/") for block in pages.blocks(f"docs/how-to/{page}.md"))


def test_the_device_is_found_and_computes(run):
    assert "my-board" in devices.device_names()
    assert devices.load_device("my-board").ram_bytes == 2**30
    assert {client["device"] for client in run.records("clients")} == {"my-board"}
    with pytest.raises(UnknownName, match="did you mean 'my-board'"):
        devices.load_device("my-bord")


def test_the_data_set_is_served_and_scored(run):
    assert run.result["metrics"]["image"].keys() >= {"accuracy"}
    assert run.model("image").image.head.out_features == 2


def test_the_tower_is_built_and_measured_as_predicted(run):
    assert type(run.model("image").image).__name__ == "MixerTower"
    measured = [c for c in run.records("clients") if c["measured_peak_memory_bytes"] is not None]
    assert {c["stage"] for c in measured} == {1, 2}
    assert all(abs(c["measured_peak_memory_bytes"] - c["peak_memory_bytes"]) <= 4096 for c in measured)


def test_the_schedule_freezes_and_thaws(run):
    first, second = ([c for c in run.records("clients") if c["round"] == round] for round in (1, 2))
    assert {c["stage"] for c in first} == {1} and {c["stage"] for c in second} == {2}
    assert max(c["upload_bytes"] for c in first) < min(c["upload_bytes"] for c in second)
    assert max(c["backward_flops"] for c in first) < min(c["backward_flops"] for c in second)


def test_the_selection_chooses_and_the_policy_ends_the_round(run):
    clients = run.records("clients")
    # four clients of as many samples: the first is spared, the next two are asked, and the faster one is enough
    assert {c["client"] for c in clients} == {1, 2}
    assert [sorted(c["outcome"] for c in clients if c["round"] == round) for round in (1, 2)] == [
        ["finished", "late"]
    ] * 2


def test_the_method_takes_part_of_the_way(mylab, tmp_path):
    """From the same start in one round, a rate of 1/2 moves each weight half as far as a rate of 1."""
    weights = {
        rate: edgefl.run(
            mylab / "scenario.yaml",
            output=tmp_path / str(rate),
            overrides=[f"method.rate={rate}", "schedule={name: thaw, warm_up: 0, rounds: 1}"],
        ).weights()
        for rate in (1.0, 0.5, 0.25)
    }
    for name, whole in weights[1.0].items():
        torch.testing.assert_close(whole - weights[0.5][name], 2 * (weights[0.5][name] - weights[0.25][name]))


@pytest.mark.slow
def test_the_method_keeps_the_contract_under_the_new_schedule(mylab):
    report = edgefl.check_method("damped", schedules=["thaw"], kinds=["image"], rate=0.3)
    assert report.ok, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["damped", "my-nova"])
def test_the_methods_keep_the_contract_under_every_schedule(mylab, method):
    report = edgefl.check_method(method)
    assert report.ok, str(report)
    assert "thaw" not in report.refused


def test_fednova_is_the_papers_sum_on_what_clients_really_sent(mylab, tmp_path, monkeypatch):
    """w+ = w - tau_eff sum_i p_i d_i / tau_i (Wang et al. 2020), with steps counted from the data's sizes alone."""
    seen: list[tuple[ServerState, Sequence[Update], ServerState]] = []
    method = registry.get("method", "my-nova")
    aggregate = method.aggregate

    def spied(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        after = aggregate(self, state, updates)
        seen.append((state, updates, after))
        return after

    monkeypatch.setattr(method, "aggregate", spied)
    epochs, batch = 2, 8
    edgefl.run(
        mylab / "fednova.yaml",
        output=tmp_path / "run",
        overrides=["compare=null", "method=my-nova", f"training.epochs={epochs}", "schedule.rounds=1"],
    )
    ((state, updates, after),) = seen
    samples = {update.client: update.total for update in updates}
    assert len(set(samples.values())) > 3, "clients of one size take equal numbers of steps"
    steps = {client: epochs * (n // min(batch, n)) for client, n in samples.items()}
    share = {client: n / sum(samples.values()) for client, n in samples.items()}
    effective = sum(share[client] * steps[client] for client in samples)
    changed = 0
    for address, w in state.tensors.items():
        expected = w.double()
        for update in updates:
            sent: dict[str, Tensor] = dict(update.sent())
            expected = expected - effective * share[update.client] / steps[update.client] * (w - sent[address]).double()
        torch.testing.assert_close(after.tensors[address].double(), expected, rtol=1e-5, atol=1e-6)
        changed += not torch.equal(after.tensors[address], w)
    assert changed == len(state.tensors)
