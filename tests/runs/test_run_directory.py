from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from records_of_tests import ENVIRONMENT, blank
from tensors import assert_equal_tensors

from edgefl.errors import RunError, UnknownName
from edgefl.models import ModelOptions, build, describe
from edgefl.records.eligibility import VerdictRecord
from edgefl.records.rounds import Round
from edgefl.records.run import EvaluationFacts, FinalSummary
from edgefl.runs import (
    Run,
    RunDirectory,
    checkpoints,
    comparison,
    create_comparison,
    is_comparison,
    read_run,
    tables,
)
from edgefl.runs.durable import wait_until_free
from edgefl.runs.environment import environment

MODELS = {"image": {"width": 4}}


def new(path: Path) -> RunDirectory:
    return RunDirectory.create(path, scenario_yaml="name: a\nseed: 1\n", environment=ENVIRONMENT, models=MODELS)


@contextmanager
def nobody():
    """Read-only folders don't stop root; another user is stopped."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_run_comes_back_as_written(tmp_path):
    run = new(tmp_path / "deep" / "run")
    run.append(blank(Round, round=1, clients={"image": np.int64(3)}, losses={"image": np.float32(0.5)}))
    run.append(blank(Round, round=2, clients={"image": 2}))
    verdict = blank(VerdictRecord, round=1, margins={"memory": float("inf"), "flops": -1.0})
    run.append(verdict)
    assert read_run(run.path).evaluation == EvaluationFacts(samples={}, chance={}), "a folder of before edgefl wrote it"
    chance = {"test": {"image": {"accuracy": 1 / 3}}}
    run.write_evaluation(EvaluationFacts(samples={"test": {"image": np.int64(4)}}, chance=chance))
    run.finish(
        {"image/a.weight": torch.ones(2, 3)}, blank(FinalSummary, metrics={"image": {"accuracy": np.float64(0.25)}})
    )
    back = read_run(run.path)
    assert back.evaluation == EvaluationFacts(samples={"test": {"image": 4}}, chance=chance)
    assert back.scenario == {"name": "a", "seed": 1}
    assert back.models == MODELS
    assert back.rounds["clients.image"].tolist() == [3, 2]
    assert list(back.rounds.columns)[:3] == ["method", "schedule", "seed"]
    assert back.rounds["losses.image"].tolist()[0] == 0.5 and len(back.rounds) == 2
    assert back.records("eligibility") == [{**verdict.to_data(), "margins": {"memory": None, "flops": -1.0}}]
    (again,) = back.read(VerdictRecord)
    assert again == replace(verdict, margins={"memory": None, "flops": -1.0})
    assert back.clients.empty and back.host.empty
    assert back.is_finished and back.result["metrics"] == {"image": {"accuracy": 0.25}}
    assert_equal_tensors(back.weights()["image/a.weight"], torch.ones(2, 3))
    assert back.tokenizer_path is None


def test_records_are_refused_rather_than_changed(tmp_path):
    run = new(tmp_path / "run")
    with pytest.raises(TypeError, match="Tensor"):
        run.append(blank(Round, round=1, losses={"image": torch.ones(1)}))
    with pytest.raises(TypeError, match="keys of a checkpoint.s state must be strings"):
        run.checkpoint(1, {}, {"versions": {3: "a"}})
    with pytest.raises(KeyError):  # it has no table
        run.append(blank(FinalSummary))
    assert read_run(run.path).records("rounds") == []
    with pytest.raises(UnknownName, match="unknown table 'round'; did you mean 'rounds'"):
        read_run(run.path).records("round")
    assert run.latest() is None


def test_checkpoint_keeps_values_sharing_the_last_two_and_the_one_that_was_synced(tmp_path):
    run = new(tmp_path / "run")
    assert run.latest() is None
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    tensors = {
        "old/w": base, "new/w": base, "column": base[:, 1], "transposed": base.T, "half": torch.ones(3).bfloat16(),
        "scalar": torch.tensor(7), "empty": torch.empty(0, 4), "trained": torch.nn.Parameter(torch.ones(2)),
    }  # fmt: skip
    state = {"clock": 0.1 + 0.2, "in_flight": [{"client": 3, "ends": float("inf")}], "name": "ü"}
    for round in (1, 2, 3):
        run.checkpoint(round, tensors, {**state, "round": round})
    names = sorted(p.name for p in (run.path / "checkpoints").iterdir())
    assert names == ["round-000001", "round-000002", "round-000003"]  # the first was synced to the disk
    round, loaded, back = RunDirectory.open(run.path).latest()
    assert round == 3 and back == {**state, "round": 3}
    assert_equal_tensors(loaded, tensors)
    assert loaded["old/w"] is loaded["new/w"]
    run.checkpoint(3, {}, {"again": True})
    assert run.latest() == (3, {}, {"again": True})


@pytest.mark.parametrize("victim", ["state.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "empty"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, victim, damage):
    run = new(tmp_path / "run")
    for round in (4, 5):
        run.append(blank(Round, round=round))
        run.checkpoint(round, {"w": torch.full((50,), float(round))}, {"clock": 123456.0 + round})
    file = run.path / "checkpoints" / "round-000005" / victim
    content = file.read_bytes()
    if damage == "flip":
        at = content.index(b"12346") if victim == "state.json" else len(content) - 30
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    elif damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "gone":
        file.unlink()
    else:
        file.write_bytes(b"")
    with pytest.warns(RuntimeWarning, match="round-000005 is damaged"):
        round, tensors, state = run.latest()
    assert (round, state["clock"], tensors["w"][0].item()) == (4, 123460.0, 4.0)
    run.rewind(round)
    assert [record.round for record in read_run(run.path).read(Round)] == [4]
    assert run.latest()[0] == 4  # and without a warning: the damaged one is gone
    manifest = json.loads((run.path / "checkpoints" / "round-000004" / "state.json").read_text())
    manifest["records"]["rounds"]["bytes"] = [1]
    (run.path / "checkpoints" / "round-000004" / "state.json").write_text(json.dumps(manifest))
    with pytest.warns(RuntimeWarning, match="its digest of rounds isn't one"), pytest.raises(RunError, match="damaged"):
        run.latest()
    (run.path / "checkpoints" / "round-000004" / "state.json").write_text("{}")
    with pytest.warns(RuntimeWarning), pytest.raises(RunError, match=r"every checkpoint .* is damaged \(rounds 4\)"):
        run.latest()


def test_folders_that_are_no_place_for_a_run(tmp_path):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match="already holds files"):
        new(taken)
    assert [p.name for p in taken.iterdir()] == ["thesis.tex"]
    with pytest.raises(RunError, match="is a file"):
        new(taken / "thesis.tex")
    with pytest.raises(RunError, match="can't write"):
        new(taken / "thesis.tex" / "run")
    run = new(tmp_path / "run")
    with pytest.raises(RunError, match="already holds a run; continue it with --resume"):
        new(run.path)
    empty = tmp_path / "empty"
    empty.mkdir()
    new(empty)
    for path, why in [(tmp_path / "nowhere", "no run at"), (taken, "not the folder of a run: it has no scenario.yaml")]:
        with pytest.raises(RunError, match=why):
            RunDirectory.open(path)
        with pytest.raises(RunError, match=why):
            read_run(path)


@pytest.mark.skipif(os.name != "posix", reason="permissions work otherwise there")
def test_a_read_only_folder(tmp_path):
    for parent in [tmp_path, *tmp_path.parents]:
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    with nobody():
        for path in (locked, locked / "run"):
            with pytest.raises(RunError, match=r"can't write .*locked.*: Permission denied"):
                new(path)
    assert list(locked.iterdir()) == []


def test_a_folder_that_becomes_unwritable_is_a_run_error(tmp_path):
    run = new(tmp_path / "run")
    (run.path / "rounds.jsonl").unlink()
    (run.path / "rounds.jsonl").mkdir()
    with pytest.raises(RunError, match=r"can't write .*rounds\.jsonl"):
        run.append(blank(Round, round=1))
    (run.path / "checkpoints").write_text("a file in the way")
    (run.path / "rounds.jsonl").rmdir()
    with pytest.raises(RunError, match="can't write .*checkpoints"):
        run.checkpoint(1, {}, {})


def test_a_power_cut_loses_no_more_than_the_rounds_since_the_last_sync(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("edgefl.files.os.fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
    run = new(tmp_path / "run")
    for round in range(1, 6):
        synced.clear()
        run.append(blank(Round, round=round))
        run.checkpoint(round, {"w": torch.full((3,), float(round))}, {"round": round})
        assert bool(synced) == (round == 1)
    run.close()
    table, folder = tmp_path / "run" / "rounds.jsonl", tmp_path / "run" / "checkpoints"
    assert checkpoints.rounds(folder) == [1, 4, 5]
    lines = table.read_bytes().splitlines(keepends=True)
    table.write_bytes(b"".join(lines[:4]))
    with RunDirectory.open(tmp_path / "run") as again:
        assert again.latest()[0] == 5  # somebody else took the record: the machine was never down
    monkeypatch.setattr("edgefl.runs.directory.boot", lambda: "another")
    for left, latest in ((5, 5), (4, 4), (1, 1)):  # what the system had not written yet is gone
        table.write_bytes(b"".join(lines[:left]))
        with RunDirectory.open(tmp_path / "run") as again, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            round, tensors, _ = again.latest()
        assert round == latest and tensors["w"].tolist() == [float(latest)] * 3
        assert len(caught) == [1, 4, 5][::-1].index(latest)
        assert all("lacks records" in str(warning.message) for warning in caught)
    with RunDirectory.open(tmp_path / "run") as again:
        again.rewind(1)
        monkeypatch.setattr("edgefl.runs.directory.SYNC_SECONDS", 0.0)
        synced.clear()
        again.checkpoint(2, {}, {})
    assert any("rounds.jsonl" in path for path in synced) and any("state.safetensors" in path for path in synced)


def test_a_second_writer_is_kept_out(tmp_path):
    pytest.importorskip("fcntl")
    run = new(tmp_path / "run")
    code = (
        "import sys; from edgefl.runs import RunDirectory; from edgefl.errors import RunError\n"
        "for _ in sys.stdin:\n"
        "    try: RunDirectory.open(sys.argv[1]).close(); print('opened', flush=True)\n"
        "    except RunError as error: print(error, flush=True)"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen([sys.executable, "-c", code, run.path], **pipes) as other:
        other.stdin.write("while it is open\n")
        assert "another process is writing" in other.stdout.readline()
        run.close()
        other.stdin.write("now it is closed\n")
        assert other.stdout.readline() == "opened\n"
        other.stdin.close()
    assert other.returncode == 0


@pytest.mark.slow(smaller="test_a_second_writer_is_kept_out")
def test_the_end_of_another_writer_is_waited_for(tmp_path):
    pytest.importorskip("fcntl")
    new(tmp_path / "run").close()
    code = (
        "import sys; from edgefl.runs import RunDirectory; kept = RunDirectory.open(sys.argv[1]); "
        "print('open', flush=True); sys.stdin.readline()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code, tmp_path / "run"], **pipes) as other:
        assert other.stdout.readline() == "open\n"
        wait_until_free(tmp_path / "run", 0.3)
        with pytest.raises(RunError, match="another process is writing"):
            RunDirectory.open(tmp_path / "run")
        threading.Timer(0.5, other.stdin.close).start()
        wait_until_free(tmp_path / "run", 60.0)
        RunDirectory.open(tmp_path / "run").close()
    wait_until_free(tmp_path / "none", 60.0)


def test_finish_is_undone_by_rewind(tmp_path):
    run = new(tmp_path / "run")
    shared = torch.ones(2)
    run.finish({"image/a": shared, "text/a": shared}, blank(FinalSummary, rounds=3))
    assert run.is_finished and set(read_run(run.path).weights()) == {"image/a", "text/a"}
    run.rewind(1)
    assert not run.is_finished
    for asked in (Run.weights, lambda run: run.result, lambda run: run.best, lambda run: run.early_stop):
        with pytest.raises(RunError, match="isn't finished; continue it with --resume"):
            asked(read_run(run.path))


def test_the_result_is_the_last_file_of_a_run(tmp_path):
    """So that a kill before it is followed by another end, and one after it leaves nothing to do."""
    run = new(tmp_path / "run")
    for round in (1, 2, 3):
        run.checkpoint(round, {"image/a": torch.full((2,), float(round))}, {})
    (run.path / "result.json").mkdir()
    (run.path / "result.json" / "a").touch()  # a folder that isn't empty can't be replaced
    with pytest.raises(RunError, match=r"can't write .*result.json"):
        run.finish({"image/a": torch.ones(2)}, blank(FinalSummary, rounds=3))
    assert [path.name for path in (run.path / "checkpoints").iterdir()] == ["round-000003"]


def encoded(rows: list[dict[str, object]]) -> list[bytes]:
    return [json.dumps(row).encode() + b"\n" for row in rows]


records = st.lists(st.tuples(st.integers(1, 6), st.text(max_size=8)), max_size=20)


@settings(max_examples=60, deadline=None)
@given(records, st.integers(0, 7), st.data())
def test_rewind_keeps_exactly_the_earlier_rounds(tmp_path_factory, written, to, data):
    """Whatever the order of the rounds and wherever the last write was cut."""
    path = tmp_path_factory.mktemp("table") / "clients.jsonl"
    rows = [{"round": round, "text": text} for round, text in written]
    tables.append_lines(path, encoded(rows))
    tables.append_lines(path, encoded([{"round": 1, "text": "the last, cut short"}]))
    content = path.read_bytes()
    last = content.rfind(b"\n", 0, -1) + 1
    cut = data.draw(st.integers(last, len(content) - 1))
    path.write_bytes(content[:cut])
    assert list(tables.each(path)) == rows
    tables.rewind(path, to)
    assert list(tables.each(path)) == [row for row in rows if row["round"] <= to]
    tables.append_lines(path, encoded([{"round": 9}]))
    assert list(tables.each(path)) == [*(row for row in rows if row["round"] <= to), {"round": 9}]


@settings(max_examples=40, deadline=None)
@given(records, st.binary(max_size=30).filter(lambda tail: b"\n" not in tail))
def test_opening_mends_the_end(tmp_path_factory, written, tail):
    path = tmp_path_factory.mktemp("table") / "clients.jsonl"
    rows = [{"round": round, "text": text * 9000} for round, text in written]
    tables.append_lines(path, encoded(rows))
    path.touch()
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    tables.mend(path)
    assert path.read_bytes() == whole


def test_damage_in_the_middle_is_an_error_with_its_line(tmp_path):
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"round": 1}\n{"rou\n{"round": 3}\n')
    with pytest.raises(RunError, match=r"rounds\.jsonl:2: this line is damaged"):
        list(tables.each(path))
    with pytest.raises(RunError, match=r"rounds\.jsonl:2"):
        tables.rewind(path, 1)


WRITER = """
import os, sys, itertools, torch
from edgefl.records.clients import FlightRecord
from edgefl.records.rounds import Round
from edgefl.runs import RunDirectory
for _ in sys.stdin:  # what is imported once serves each writer
    if not (child := os.fork()):
        break
    print(child, flush=True)
    os.waitpid(child, 0)
    print("ended", flush=True)
else:
    sys.exit()
run = RunDirectory.open(sys.argv[1])
found = run.latest()
first = found[0] + 1 if found else 1
run.rewind(first - 1)
for round in itertools.count(first):
    pad = b"x" * 3000
    run.append_lines(FlightRecord, [b'{"round":%d,"client":%d,"pad":"%s"}\\n' % (round, c, pad) for c in range(20)])
    run.append_lines(Round, [b'{"round":%d}\\n' % round])
    run.checkpoint(round, {f"w{i}": torch.full((100_000,), float(round)) for i in range(4)}, {"round": round})
    print(round, flush=True)
"""


def test_a_writer_killed_at_any_moment_loses_nothing_that_it_promised(tmp_path):
    """Killed three times with no chance to tidy up; each time everything up to the last checkpoint is there."""
    run = new(tmp_path / "run")
    run.close()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen([sys.executable, "-c", WRITER, run.path], **pipes) as parent:
        for attempt in range(3):
            parent.stdin.write("write\n")
            writer = int(parent.stdout.readline())
            for _ in range(2 + attempt):
                reached = int(parent.stdout.readline())
            time.sleep(0.004 * attempt)  # at another place of a round each time
            os.kill(writer, signal.SIGKILL)
            while (line := parent.stdout.readline()) != "ended\n":
                reached = int(line)
            with RunDirectory.open(run.path) as again:
                found = again.latest()
                assert found is not None
                round, tensors, state = found
                assert round >= reached and state == {"round": round}
                assert_equal_tensors(tensors, dict.fromkeys(tensors, torch.full((100_000,), float(round))))
                again.rewind(round)
            back = read_run(run.path)
            assert [r["round"] for r in back.records("rounds")] == list(range(1, round + 1))
            assert [(r["round"], r["client"]) for r in back.records("clients")] == [
                (r, c) for r in range(1, round + 1) for c in range(20)
            ]
    assert parent.returncode == 0


def test_a_comparison_shows_its_runs_side_by_side(tmp_path):
    folders = create_comparison(
        tmp_path / "both",
        scenario_yaml="compare: {}\n",
        runs={"schedule=end-to-end": {"schedule": "end-to-end"}, "a/b": {}, "a b": {}, "later": {}},
    )
    assert is_comparison(tmp_path / "both") and comparison(tmp_path / "both") == folders
    assert [folder.name for folder in folders.values()] == ["schedule=end-to-end", "a-b", "a-b-2", "later"]
    for number, label in enumerate(("schedule=end-to-end", "a/b", "a b")):
        run = new(folders[label])
        run.append(blank(Round, round=1, metrics={"image": {"accuracy": number / 10}}))
        run.finish({"image/w": torch.ones(1)}, blank(FinalSummary, rounds=number))
    both = read_run(tmp_path / "both")
    assert list(both.runs) == ["schedule=end-to-end", "a/b", "a b"]
    assert not both.is_finished
    assert both.rounds["run"].tolist() == list(both.runs)
    assert both.rounds["metrics.image.accuracy"].tolist() == [0.0, 0.1, 0.2]
    assert both.runs["a b"].result.rounds == 2
    for asked in (Run.weights, lambda run: run.result, lambda run: run.evaluation, lambda run: run.best):
        with pytest.raises(RunError, match=r"choose one: .runs\['schedule=end-to-end'\]"):
            asked(both)
    with pytest.raises(RunError, match="holds several runs .*give the folder of one of them"):
        RunDirectory.open(tmp_path / "both")


def test_a_folder_whose_beginning_was_cut_short_can_be_begun_again(tmp_path):
    run = new(tmp_path / "run")
    run.close()
    (run.path / "models.json").unlink()
    (run.path / ".partial-models.json").write_text('{"image')
    run = new(run.path)
    assert not list(run.path.glob(".partial-*"))
    assert run.scenario_yaml.startswith("name: a") and run.models == MODELS
    (tmp_path / "other").mkdir()
    for name in ("notes.txt", "scenario.yaml"):  # a scenario of the user's, beside which no start was
        (tmp_path / "other" / name).write_text("keep me")
        with pytest.raises(RunError, match="already holds files"):
            new(tmp_path / "other")
        assert [(tmp_path / "other" / name).read_text()] == [
            each.read_text() for each in (tmp_path / "other").iterdir()
        ]
        (tmp_path / "other" / name).unlink()


def test_environment_tells_versions_and_no_place_or_person():
    facts = environment().to_data()
    text = json.dumps(facts)
    assert facts["packages"]["torch"] == torch.__version__
    assert facts["gpu"] is None or torch.cuda.is_available()
    assert facts["ram_bytes"] > 2**28
    assert sys.prefix not in text and str(Path.home()) not in text and os.uname().nodename not in text


def test_the_trained_model_is_built_from_the_run(tmp_path):
    options = ModelOptions.model_validate({"image": {"tower": "vit", "blocks": 2, "width": 12, "heads": 3, "patch": 4}})
    facts = {"image": {"channels": 1, "size": 8, "classes": 5}}
    description = describe(options, ["image"], "classify", facts)
    trained = build(description)
    run = RunDirectory.create(
        tmp_path / "run", scenario_yaml="{}\n", environment=ENVIRONMENT, models={"image": description, "image-text": {}}
    )
    with pytest.raises(RunError, match="isn't finished"):
        read_run(run.path).model("image")
    weights = {f"image/{name}": parameter for name, parameter in trained.named_parameters()}
    run.finish({**weights, "image-text/image.w": torch.ones(2), "table/prototypes": torch.ones(2)}, blank(FinalSummary))
    model = read_run(run.path).model("image")
    x = torch.randn(3, 1, 8, 8)
    assert_equal_tensors(model.logits("image", x), trained.eval().logits("image", x))
    assert all(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(UnknownName, match="did you mean 'image'"):
        read_run(run.path).model("imag")
    run.finish({name: weight for name, weight in weights.items() if "head" not in name}, blank(FinalSummary))
    with pytest.raises(RunError, match=r"missing \['image.head.bias', 'image.head.weight'\]"):
        read_run(run.path).model("image")
    run.finish(
        {name: weight.new_ones(7) if "head" in name else weight for name, weight in weights.items()},
        blank(FinalSummary),
    )
    with pytest.raises(
        RunError,
        match=r"fit the model 'image': size mismatch for image.head.weight: .*\[7\].* is "
        r"torch.Size\(\[5, 12\]\)$",
    ):
        read_run(run.path).model("image")
    described = json.loads((run.path / "models.json").read_text())
    described["image"]["towers"]["image"]["channels"] = -1
    (run.path / "models.json").write_text(json.dumps(described))
    with pytest.raises(RunError, match=r"models.json doesn't describe a model of 'image': .*negative"):
        read_run(run.path).model("image")


def test_a_run_says_what_it_is(layerwise_run: Run, tmp_path: Path) -> None:
    assert repr(layerwise_run) == f"<Run {layerwise_run.path}: fedcola, layerwise, seed 3, 4 rounds>"
    shutil.copytree(layerwise_run.path, tmp_path / "half")
    (tmp_path / "half" / "result.json").unlink()
    assert repr(Run(tmp_path / "half")).endswith("layerwise, seed 3, not finished>")
    (tmp_path / "half" / "scenario.yaml").write_text("[")
    assert f"<Run {tmp_path / 'half'}: can't read" in repr(Run(tmp_path / "half"))
