"""A method from a package beside edgefl, with its own step, edit, tables, kept state and server work.

It trains, gates, profiles, runs in worker processes and resumes without a line changed in edgefl.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tensors import assert_equal_tensors

import edgefl
from edgefl import registry
from edgefl.cost.predict import work_key
from edgefl.methods import ServerState
from edgefl.runs import Run
from edgefl.testing import check_part
from edgefl.work import Item, Payload, Work

PLUGIN = Path(__file__).parent / "plugin"

END_TO_END = {"name": "end-to-end", "rounds": 3}
LAYERWISE = {"name": "layerwise", "stages": 2, "rounds": 3}
CLASSES, DIM = 12, 16


@pytest.fixture(scope="module", autouse=True)
def _installed(install: Callable[[Path], None]) -> None:
    install(PLUGIN)


def scenario(schedule: dict[str, Any], **sections: Any) -> dict[str, Any]:
    tower = {"blocks": 2, "width": DIM, "heads": 2}
    return {
        "name": "prototypes",
        "seed": 5,
        "data": {
            "source": "glyphs",
            "clients": {"image": 3, "text": 3, "image-text": 1},
            "samples": {"image": 40, "text": 24},
            "size": 16,
            "validation": 24,
            "test": 24,
            "public": 24,
        },
        "model": {"image": tower, "text": {**tower, "tokens": 8}},
        "method": {"name": "prototypes", "rank": 2},
        "schedule": schedule,
        "training": {"batch": 8},
        "fleet": {"budgets": {"memory": "150..450 KiB"}},
        "round": {"cohort": 1.0},
        "evaluation": {"every": 3},
        "executor": {"name": "inline", "device": "cpu"},
        **sections,
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("prototypes")
    return {s["name"]: edgefl.run(scenario(s), out=folder / s["name"]) for s in (END_TO_END, LAYERWISE)}


def records(folder: Path) -> dict[str, str]:
    """Everything that must be equal: all tables but the one of the host."""
    return {name: (folder / f"{name}.jsonl").read_text() for name in ("rounds", "clients", "eligibility")}


def assert_equal(one: Path, other: Path) -> None:
    assert records(one) == records(other)
    first, second = load_file(one / "weights.safetensors"), load_file(other / "weights.safetensors")
    assert_equal_tensors(first, second)
    assert json.loads((one / "result.json").read_text()) == json.loads((other / "result.json").read_text())


@pytest.mark.parametrize("name", ["end-to-end", "layerwise"])
def test_it_trains_and_its_tables_fill(runs, name):
    run = runs[name]
    rounds = run.records("rounds")
    assert [r["outcome"] for r in rounds] == ["completed"] * 3
    assert rounds[-1]["losses"]["image"] < rounds[0]["losses"]["image"]
    prototypes, seen = (run.weights()[f"table/{n}.image"] for n in ("prototypes", "seen"))
    assert prototypes.shape == (CLASSES, DIM)
    assert seen.sum() == sum(c["samples"] for c in run.records("clients") if c["round"] == 3 and c["kind"] == "image")
    # features come from a LayerNorm without a trained scale to speak of: their length is near the root of their width
    lengths = prototypes[seen > 0].norm(dim=1)
    assert ((lengths > 0) & (lengths < 2 * DIM**0.5)).all()


def test_clients_of_a_kind_that_it_leaves_out_never_take_part(runs):
    for run in runs.values():
        assert {c["kind"] for c in run.records("clients")} <= {"image", "text"}
        assert "image-text" not in run.records("rounds")[0]["eligible"]
        assert run.result["metrics"].keys() == {"image", "text", "image-text"}


def test_budgets_refuse_some_clients_and_fewer_under_layerwise(runs):
    refused = {
        name: {e["client"] for e in run.records("eligibility") if not e["eligible"]} for name, run in runs.items()
    }
    assert refused["layerwise"] < refused["end-to-end"]
    assert all(e["binding"] == "memory" for e in runs["end-to-end"].records("eligibility") if not e["eligible"])


def test_the_measured_cost_is_the_predicted_one(runs):
    for run in runs.values():
        clients = [c for c in run.records("clients") if c["measured_peak_memory_bytes"] is not None]
        server = [w for r in run.records("rounds") for w in r["server_works"] if w["measured_peak_memory_bytes"]]
        assert {tuple(w["steps"]) for w in server} >= {("classify",), ("score-classify",)}
        for record in [*clients, *server]:
            assert abs(record["measured_peak_memory_bytes"] - record["peak_memory_bytes"]) <= 4096
            assert record["measured_forward_flops"] == record["forward_flops"]
            assert record["measured_backward_flops"] == record["backward_flops"]


def test_tables_are_charged_as_they_travel(runs):
    """Half precision down, full precision and one count a class up; what a client keeps is never sent."""
    for run in runs.values():
        for client in run.records("clients"):
            assert client["download_bytes_by_payload"]["prototypes"] == CLASSES * DIM * 2
            assert client["upload_bytes_by_payload"]["prototypes"] == CLASSES * DIM * 4 + CLASSES * 4
            assert "own" not in client["download_bytes_by_payload"]


@pytest.mark.slow(smaller="test_it_trains_and_its_tables_fill")
def test_the_server_trains_the_classifier_and_nothing_else(runs, tmp_path):
    """Without the server's work only the heads differ after one round."""
    one = {"name": "end-to-end", "rounds": 1}
    without = scenario(one, method={"name": "prototypes", "rank": 2, "calibrate": False})
    a = edgefl.run(scenario(one), out=tmp_path / "with").weights()
    b = edgefl.run(without, out=tmp_path / "without").weights()
    different = {name for name in a if not torch.equal(a[name], b[name])}
    assert different == {name for name in a if ".head." in name}


@pytest.mark.parametrize("schedule", [END_TO_END, LAYERWISE], ids=lambda s: s["name"])
def test_it_profiles(schedule):
    rows = {(row["kind"], row["stage"]): row for row in edgefl.profile(scenario(schedule))["rows"]}
    stages = 1 if schedule is END_TO_END else 2
    assert {stage for _, stage in rows} == set(range(1, stages + 1))
    for kind in ("image", "text"):
        row = rows[kind, stages]
        assert row["download_bytes_by_payload"]["prototypes"] == CLASSES * DIM * 2
        # both copies of the prototypes stay in memory as received
        assert row["memory_bytes"]["received"] == CLASSES * DIM * (2 + 4)


@pytest.mark.slow(smaller="test_inline_and_processes_give_the_same_reports")
def test_worker_processes_give_the_same_bits(runs, tmp_path):
    workers = {"name": "processes", "workers": 1, "device": "cpu"}
    edgefl.run(scenario(LAYERWISE, executor=workers), out=tmp_path / "run")
    assert_equal(tmp_path / "run", runs["layerwise"].path)


CUT = """
import json, os, signal, sys
import edgefl

def observe(event, facts):
    if event == "client" and facts["round"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)

edgefl.run(json.loads(sys.argv[1]), out=sys.argv[2], on_progress=observe)
"""


@pytest.mark.slow(smaller="test_a_killed_run_ends_as_an_uninterrupted_one")
def test_a_killed_run_resumes_to_the_same_end(runs, tmp_path):
    """Killed while updates of the last round come in: kept prototypes and tables come back from the checkpoint."""
    folder = tmp_path / "run"
    command = [sys.executable, "-W", "error", "-c", CUT, json.dumps(scenario(LAYERWISE)), str(folder)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert not edgefl.read_run(folder).is_finished
    assert edgefl.run(resume=folder).is_finished
    assert_equal(folder, runs["layerwise"].path)


def test_a_client_starts_from_what_it_kept(runs, tmp_path):
    """The checkpoint holds one table for each client that took part, and they differ."""
    held = runs["end-to-end"].client_tensors()
    kept = {f"kept:{client}:{name}": t for client, named in held.items() for name, t in named.items()}
    took_part = {c["client"] for c in runs["end-to-end"].records("clients")}
    assert set(kept) == {f"kept:{client}:prototypes.own" for client in took_part}
    assert len({t.numpy().tobytes() for t in kept.values()}) == len(kept)


def test_tables_of_two_shapes_never_share_a_cost():
    """Not even where they travel under one name both ways."""

    def work(classes: int) -> Work:
        table = Payload("table", (Item("table", (classes, 4), "float32", "table/t"),))
        return Work("image", {"name": "towers", "towers": {}}, (), (), (table,), (table,))

    assert work_key(work(3).form) == work_key(work(3).form) != work_key(work(30).form)


def test_a_changed_step_is_predicted_anew(install, tmp_path):
    """The memo of costs on disk knows the code of a plug-in, whose version an author seldom raises."""
    (tmp_path / "edgefl_changing.py").write_text("A = 1")
    install(tmp_path)
    before = registry.package_digest("edgefl_changing")
    (tmp_path / "edgefl_changing.py").write_text("A = 2")
    registry.forget()
    assert registry.package_digest("edgefl_changing") != before
    assert registry.fingerprint("step", "align") == registry.package_digest("edgefl_prototypes")


def test_what_travels_in_half_precision_is_rounded_before_the_difference_is_taken():
    state = ServerState.from_tensors({"image/w": torch.tensor([1.0001, 0.1])})
    work = Work("image", {}, (), (), (Payload("model", (Item("w", (2,), "float16", "image/w"),)),))
    assert state.inputs(work)["w"].dtype == torch.float16
    base = state.base(work)["image/w"]
    assert base.dtype == torch.float32
    assert base.tolist() == [1.0, 0.0999755859375]


@pytest.mark.slow(smaller="test_a_method_keeps_the_contract")
def test_it_keeps_the_contract():
    report = check_part("method", "prototypes", runs=False, schedules=["layerwise"], kinds=["image"], rank=3)
    assert report.ok, str(report)


@pytest.mark.slow(smaller="test_a_method_keeps_the_contract")
def test_it_keeps_the_contract_under_every_schedule_and_in_worker_processes():
    report = check_part("method", "prototypes", runs=False, processes=True)
    assert report.ok, str(report)
    assert report.checks["a worker process gives the same bits"]
