"""Cells on the nodes of a Ray cluster: the bytes of runs one after the other, whatever happens to jobs and nodes."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import psutil
import pytest
from cell_works import ends_itself, fails_at_two
from ray_nodes import QUIET, node_with_mounts, nodes_of
from small_grid import GRID, contents

import edgefl
from edgefl.cells import on_ray
from edgefl.cells.cells import Nodes, run_cells
from edgefl.cells.workers import Cell
from edgefl.errors import EdgeflError, RunError
from edgefl.runs import comparison, read_run
from edgefl.scenario import load

ray = pytest.importorskip("ray", reason="the extra ray isn't installed")
pytestmark = [*QUIET, pytest.mark.usefixtures("with_pictures")]  # workers draw theirs


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serial") / "run"
    edgefl.run(GRID, out=folder)
    return folder


@pytest.fixture(scope="module")
def head():
    """A cluster of one node, with two processors."""
    with nodes_of(2) as nodes:
        yield nodes


@pytest.fixture
def three():
    """A head without processors for jobs, and two nodes with two each."""
    with nodes_of(0, 2, 2) as nodes:
        yield nodes


def silent(event, facts):
    """No progress."""


@pytest.mark.slow(smaller="test_a_ray_of_its_own_gives_the_bytes_of_this_process_and_leaves_nothing")
def test_runs_on_ray_have_the_bytes_of_runs_one_after_the_other(serial, head, tmp_path):
    events = []
    edgefl.run(
        GRID, out=tmp_path / "run", jobs=2, address=head.address, on_progress=lambda *event: events.append(event)
    )
    assert contents(tmp_path / "run") == contents(serial)
    cells = [facts for event, facts in events if event == "cell"]
    assert [facts["done"] for facts in cells if facts["status"] == "done"] == [1, 2, 3, 4]
    assert {facts["status"] for facts in cells} >= {"round 1/2", "round 2/2"} and cells[-1]["share"] == 1.0
    hosts = [json.loads(line) for path in (tmp_path / "run").rglob("host.jsonl") for line in path.open()]
    assert {row["process"] for row in hosts if "process" in row}.isdisjoint({os.getpid()})
    assert not ray.is_initialized()


@pytest.mark.slow(smaller="test_an_error_ends_its_own_cell_only")
def test_an_error_ends_its_own_cell_and_a_killed_job_is_replaced(head, tmp_path, capfd):
    nodes = Nodes(head.address, [load(GRID)], [tmp_path / "new" / "folder"])
    outcomes = list(run_cells(fails_at_two, [Cell(str(n), n) for n in range(4)], 2, silent, nodes))
    assert [(o.label, o.answer, str(o.error or "")) for o in outcomes] == [
        ("0", 0, ""),
        ("1", 1, ""),
        ("2", None, "two is refused"),
        ("3", 3, ""),
    ]
    cells = [Cell("once", (str(tmp_path / "a"), 1)), Cell("always", (str(tmp_path / "b"), 99))]
    with pytest.warns(RuntimeWarning, match=r"its job on node .* was lost \(.*\); it is begun once more"):
        once, always = run_cells(ends_itself, cells, 2, silent, nodes)
    assert once.answer == "survived" and "was lost" in str(always.error) and "2 times" in str(always.error)
    assert isinstance(always.error, EdgeflError) and always.error.exit_code == 1
    assert not capfd.readouterr().out  # where results are printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]  # no file is left that nodes looked for


def refusal(tmp_path, address, scenario=GRID, jobs=2):
    with pytest.raises(RunError) as error:
        edgefl.run(scenario, out=tmp_path / "run", jobs=jobs, address=address)
    assert error.value.exit_code == 2 and "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()
    return str(error.value)


def test_an_address_that_cant_be_used_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{free.getsockname()[1]}"
    assert f"no Ray at {closed}" in refusal(tmp_path, closed)
    assert "write it as HOST:PORT" in refusal(tmp_path, "here")
    assert "run edgefl on a node" in refusal(tmp_path, "ray://127.0.0.1:10001")
    assert "--jobs N, 2 or more" in refusal(tmp_path, "auto", jobs=1)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install '.[ray]'" in refusal(tmp_path, closed)


def test_what_the_cluster_cant_do_is_refused(head, tmp_path):
    three = refusal(tmp_path, head.address, jobs=3)
    assert three == "3 jobs need 1 processor each, and the nodes of the Ray cluster have room for 2"
    processes = {**GRID, "executor": {"name": "processes", "workers": 2, "device": "cpu"}}
    assert "2 jobs need 2 processors each, and the nodes" in refusal(tmp_path, head.address, processes)
    assert "asks for workers on Ray itself" in refusal(
        tmp_path, head.address, {**GRID, "executor": {"name": "ray", "device": "cpu"}}
    )


@pytest.mark.parametrize(
    ("executor", "share", "places"),
    [
        ({"name": "inline", "device": "cpu"}, "1 processor", 8),
        ({"name": "processes", "workers": 3, "device": "cpu"}, "3 processors", 2),
        ({"name": "inline", "device": "cuda"}, "1 processor and 1 GPU", 3),
        ({"name": "processes", "workers": 2, "device": ["cuda:0", "cuda:1"]}, "2 processors and 2 GPUs", 1),
    ],
)
def test_a_job_takes_what_its_cells_use(executor, share, places):
    found = on_ray._Share.from_nodes(Nodes("auto", [load(GRID), load({**GRID, "executor": executor})], []))
    assert str(found) == share
    assert found.places({"Resources": {"CPU": 8.0, "GPU": 3.0}}) == places
    assert found.places({"Resources": {}}) == 0


@pytest.mark.slow(smaller="test_rows_of_a_sweep_are_equal_side_by_side_and_in_shards")
@pytest.mark.parametrize("train", [False, True])
def test_rows_of_a_sweep_and_an_analysis_are_equal_on_ray(head, train, tmp_path):
    plain = edgefl.sweep(GRID, out=tmp_path / "a", train=train)
    beside = edgefl.sweep(GRID, out=tmp_path / "b", train=train, jobs=2, address=head.address)
    assert plain == beside and contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.slow(smaller="test_rows_of_a_sweep_are_equal_side_by_side_and_in_shards")
def test_an_analysis_is_equal_on_ray(head, tmp_path):
    scenario = {**GRID, "compare": {}, "data": {**GRID["data"], "clients": {"image": 2, "text": 2}}}
    scenario["model"] = {"image": GRID["model"]["image"], "text": {"blocks": 1, "width": 8, "heads": 2, "tokens": 12}}
    plain = edgefl.analyse(scenario, only=["shapley"], out=tmp_path / "a")
    beside = edgefl.analyse(scenario, only=["shapley"], out=tmp_path / "b", jobs=2, address=head.address)
    assert plain["shapley"] == beside["shapley"]
    assert {name: raw for name, raw in contents(tmp_path / "a").items() if name != "analysis.json"} == {
        name: raw for name, raw in contents(tmp_path / "b").items() if name != "analysis.json"
    }


LONG = {**GRID, "schedule": {"name": "end-to-end", "rounds": 30}, "compare": {"seed": [1, 2, 3]}}
SAME = ("rounds.jsonl", "clients.jsonl", "eligibility.jsonl", "weights.safetensors")


def jobs_under_way():
    """The processes of jobs, which Ray names after their class and method."""
    return [each for each in psutil.Process().children(recursive=True) if each.name().startswith("ray::Actor")]


def assert_same_runs(folder, other):
    for label, path in comparison(other).items():
        for name in SAME:
            assert (comparison(folder)[label] / name).read_bytes() == (path / name).read_bytes()


@pytest.mark.slow(smaller="test_a_cell_whose_worker_was_killed_is_begun_once_more")
@pytest.mark.parametrize("what", ["a job", "a node"])
def test_cells_of_a_lost_job_or_node_are_begun_once_more(three, tmp_path, what):
    edgefl.run(LONG, out=tmp_path / "serial")
    lost = []

    def observe(event, facts):
        if event == "cell" and facts["status"] == "round 3/30" and not lost:
            lost.append(facts["label"])
            if what == "a node":
                three.remove_node(three.others[0], allow_graceful=False)
            else:
                next(process for process in jobs_under_way() if "run" in process.name()).kill()

    jobs = 3 if what == "a node" else 2  # of three, one is on each node at least
    with pytest.warns(RuntimeWarning, match="was lost .* it is begun once more"):
        edgefl.run(LONG, out=tmp_path / "run", jobs=jobs, address=three.address, on_progress=observe)
    assert lost and read_run(tmp_path / "run").is_finished
    assert_same_runs(tmp_path / "run", tmp_path / "serial")


@pytest.mark.slow(smaller="test_an_address_that_cant_be_used_is_refused_before_anything_is_written")
def test_a_run_without_nodes_ends_and_can_be_continued(three, tmp_path, monkeypatch):
    monkeypatch.setattr(on_ray, "START_SECONDS", 5.0)
    removed = []

    def observe(event, facts):
        if event == "cell" and facts["status"] == "round 3/30" and not removed:
            removed.extend(three.others)
            for node in removed:
                three.remove_node(node, allow_graceful=False)

    ended = pytest.raises(RunError, match="has had room .* --resume")
    with pytest.warns(RuntimeWarning, match="was lost"), ended as error:
        edgefl.run(LONG, out=tmp_path / "run", jobs=2, address=three.address, on_progress=observe)
    assert error.value.exit_code == 1
    assert edgefl.run(resume=tmp_path / "run").is_finished
    edgefl.run(LONG, out=tmp_path / "serial")
    assert_same_runs(tmp_path / "run", tmp_path / "serial")


@pytest.mark.slow(smaller="test_kept_workers_that_are_killed_are_replaced")
def test_a_killed_command_leaves_no_job_and_can_be_continued(three, tmp_path):
    (tmp_path / "grid.yaml").write_text(json.dumps(LONG))
    folder = tmp_path / "run"
    words = f"-m edgefl run grid.yaml -o {folder} --jobs 2 --address {three.address}"
    with subprocess.Popen(
        [sys.executable, *shlex.split(words)], stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as command:
        for line in command.stderr:
            if "round 3/30" in line:
                break
        jobs = jobs_under_way()
        command.send_signal(signal.SIGKILL)
        command.communicate(timeout=3000)
    _, alive = psutil.wait_procs(jobs, timeout=300)
    assert len(jobs) == 2 and not alive
    assert not read_run(folder).is_finished
    assert edgefl.run(resume=folder, jobs=2, address=three.address).is_finished
    edgefl.run(LONG, out=tmp_path / "serial")
    assert_same_runs(folder, tmp_path / "serial")
    assert not list(tmp_path.rglob(".edgefl-*"))


@pytest.mark.slow(smaller="test_what_the_cluster_cant_do_is_refused")
def test_a_node_that_doesnt_see_the_folder_or_a_file_is_named(tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "trace.csv").write_text("client,start,end\n0,0,1000000\n")
    monkeypatch.chdir(tmp_path)
    host = socket.gethostname()
    with nodes_of(0) as nodes, node_with_mounts(nodes.address, [("-t", "tmpfs", "none", str(tmp_path / "runs"))]):
        said = refusal(tmp_path / "runs", nodes.address)
    assert said == f"node {host} doesn't see {tmp_path / 'runs' / 'run'}: put it on a file system that all nodes share"
    traced = {**GRID, "fleet": {"availability": {"trace": {"file": "inputs/trace.csv"}}}}
    with nodes_of(0) as nodes, node_with_mounts(nodes.address, [("-t", "tmpfs", "none", str(tmp_path / "inputs"))]):
        assert f"node {host} lacks inputs/trace.csv, which a scenario names" in refusal(tmp_path, nodes.address, traced)


@pytest.mark.slow(smaller="test_what_the_cluster_cant_do_is_refused")
def test_another_version_on_a_node_is_told(tmp_path):
    metadata = next(Path(str(file.locate())) for file in distribution("edgefl-sim").files if file.name == "METADATA")
    version = distribution("edgefl-sim").version
    (tmp_path / "METADATA").write_text(metadata.read_text().replace(f"Version: {version}", "Version: 0.0.1"))
    mounts = [("--bind", str(tmp_path / "METADATA"), str(metadata))]
    with nodes_of(0) as nodes, node_with_mounts(nodes.address, mounts):
        said = refusal(tmp_path, nodes.address)
    assert said == f"node {socket.gethostname()} has edgefl 0.0.1, and this one has {version}: install the same"
