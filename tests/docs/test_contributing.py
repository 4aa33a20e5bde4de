"""The example package of the how-to pages does what they say: each part, and all of them in one scenario."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import edgefl
from edgefl import devices, registry
from edgefl.errors import UnknownName
from edgefl.registry import registered
from edgefl.runs import Run
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.testing import check_part
from tools.pages import running

PARTS = ("describe-a-device", "own-data", "own-model", "own-method", "own-schedule", "own-aggregation", "own-parts")


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A data cache of its own: the example's data set may have changed since the one that lies in another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEFL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def run(mylab: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The scenario of CONTRIBUTING."""
    return edgefl.run(mylab / "scenario.yaml", out=tmp_path_factory.mktemp("run") / "run")


def test_every_part_has_a_page_with_an_example():
    text = (running.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text[text.index("| to add | where | how |") : text.index("| `tools/` | for |")]
    assert re.findall(r"\(docs/guides/([\w-]+)\.md\)", section) == list(PARTS)
    told = " ".join(re.findall(r"^\| (an? .*?) \|", section, re.MULTILINE))
    kinds = set(re.findall(r"\ban? ((?:data |server |rate |round |aggregation )?\w+)", told)) - {"another"}
    library = {"device", "link", "fleet"}  # of a profile library
    others = {"command", "record", "field", "page"}  # no parts
    said = {"aggregation": "aggregation rule"}
    assert kinds == {said.get(noun, noun) for noun in registry.GROUPS if noun != "profile library"} | library | others
    for page in PARTS[:-1]:  # the last registers within a program
        assert any(str(block.file).startswith("mylab/") for block in running.blocks(f"docs/guides/{page}.md"))


def test_the_device_is_found_and_computes(run):
    assert "my-board" in devices.device_names()
    assert devices.load_device("my-board").ram_bytes == 2**30
    assert {client["device"] for client in run.records("clients")} == {"my-board"}
    with pytest.raises(UnknownName, match="did you mean 'my-board'"):
        devices.load_device("my-bord")


def test_the_budget_counts_what_is_written(run):
    first = {client["client"]: client for client in run.records("clients") if client["round"] == 1}
    verdicts = {v["client"]: v for v in run.records("eligibility") if v["round"] == 1}
    for number, client in first.items():
        written = client["serialised_download_bytes"] + client["memory_bytes"]["parameters"]
        assert verdicts[number]["costs"]["flash"] == written > 0
        assert verdicts[number]["margins"]["flash"] == 10**6 - written


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


def test_the_hook_leaves_the_largest_entries_of_every_gradient(mylab, tmp_path):
    """One update of one client by SGD: of the entries that FedAvg moves, the largest moved, by as much."""
    moved = {}
    for share in (1.0, 0.25):
        scenario = mylab / "scenario.yaml"
        training = "training={optimizer: sgd, lr: 0.5, batch: 16}"
        changes = [f"method.share={share}", training, "schedule={name: thaw, warm_up: 0, rounds: 1}"]
        done = edgefl.run(scenario, out=tmp_path / str(share), overrides=changes)
        (client,) = (c for c in done.records("clients") if c["outcome"] == "finished")
        assert client["samples"] == 16
        setup = compose(load(scenario, overrides=changes))
        first = setup.method.initial(setup.seed).tensors
        moved[share] = {name: value - first[name] for name, value in done.weights().items()}
    assert max(float(change.abs().max()) for change in moved[0.25].values()) > 1e-2
    for name, whole in moved[1.0].items():
        part, count = moved[0.25][name], max(1, int(0.25 * whole.numel()))
        smallest = whole.abs().flatten().topk(count).values[-1]
        torch.testing.assert_close(part, whole * (whole.abs() >= smallest), rtol=0, atol=1e-6)
        equal = torch.isclose(whole.abs(), smallest, rtol=0, atol=1e-6).sum()  # both entries of a bias of two classes
        assert int(part.count_nonzero()) < count + int(equal) or not smallest


@pytest.mark.slow(smaller="test_the_hook_leaves_the_largest_entries_of_every_gradient")
def test_a_share_of_all_is_fedavg(mylab, tmp_path):
    scenario = mylab / "scenario.yaml"
    runs = [edgefl.run(scenario, out=tmp_path / str(i), overrides=[f"method={m}"]).weights()
            for i, m in enumerate(("{name: fedavg}", "{name: sparse, share: 1}"))]  # fmt: skip
    assert all(torch.equal(value, runs[1][name]) for name, value in runs[0].items())


def test_the_personal_head_is_the_option_of_every_method(mylab):
    """The option's bytes, and one default more than FedAvg."""
    runpy.run_path(str(mylab / "own_head.py"))
    try:
        rows = [
            edgefl.profile(mylab / "scaffold.yaml", overrides=["compare=null", f"method={method}"])["rows"]
            for method in ("own-head", "{name: fedavg, personal: [head]}", "fedavg")
        ]
    finally:
        registered.PARTS.clear()
        registry.forget()
    own, option, fedavg = ([(row["download_bytes"], row["upload_bytes"]) for row in each] for each in rows)
    head = 4 * (16 * 12 + 12)  # weights and biases of 12 classes
    assert own == option == [(down - head, up - head) for down, up in fedavg]


@pytest.mark.slow(smaller="test_the_schedule_freezes_and_thaws")
def test_the_method_keeps_the_contract_under_the_new_schedule(mylab):
    report = check_part("method", "sparse", runs=False, schedules=["thaw"], kinds=["image"], share=0.3)
    assert report.ok, str(report)


@pytest.mark.slow(smaller="test_a_method_keeps_the_contract")
@pytest.mark.parametrize("method", ["sparse", "my-scaffold"])
def test_the_methods_keep_the_contract_under_every_schedule(mylab, method):
    report = check_part("method", method, runs=False)
    assert report.ok, str(report)
    assert "thaw" not in report.refused


@pytest.mark.slow(smaller="test_scaffold_moves_twice_what_fedavg_moves_at_every_stage_and_width")
def test_the_pages_scaffold_is_the_packages(mylab, tmp_path):
    """Which tests/methods/test_published_loops.py holds against the paper: the same bits of model, c and c_i, some
    clients out of every round, clients of different numbers of steps."""
    changes = [
        "compare=null",
        "schedule.rounds=3",
        "training.epochs=2",
        "round.cohort=6",
        "data.partition={quantity: 1}",
    ]
    page, package = (
        edgefl.run(mylab / "scaffold.yaml", out=tmp_path / method, overrides=[*changes, f"method={method}"])
        for method in ("my-scaffold", "scaffold")
    )
    theirs = {address.replace("table/control/", "table/c/"): value for address, value in package.weights().items()}
    assert page.weights().keys() == theirs.keys() and any(name.startswith("table/c/") for name in theirs)
    assert all(torch.equal(value, theirs[name]) for name, value in page.weights().items())
    kept, others = page.client_tensors(), package.client_tensors()
    assert kept.keys() == others.keys() and len({float(own["own.image.head.bias"].norm()) for own in kept.values()}) > 3
    assert all(torch.equal(value, others[client][name]) for client, own in kept.items() for name, value in own.items())
