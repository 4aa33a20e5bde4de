"""Workers on Ray: the bytes of a run in this process, whatever happens to workers and nodes; and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray_nodes import QUIET, nodes_of
from tensors import assert_equal_tensors

import edgefl
from edgefl.data import open_federation, pack_federation
from edgefl.errors import EdgeflError, ScenarioError, TrainingError
from edgefl.planning.setup import Setup
from edgefl.runs import Run
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.simulation.learning import shards
from edgefl.training import Assignment, Inline
from edgefl.training.options import ExecutorOptions

ray = pytest.importorskip("ray", reason="the extra ray isn't installed")
Tiny = Callable[..., dict[str, Any]]
pytestmark = [pytest.mark.filterwarnings("ignore:a worker on Ray was lost:RuntimeWarning"), *QUIET]


def on_ray(address: str | None = None, **more: Any) -> dict[str, Any]:
    return {"name": "ray", "workers": 2, "device": "cpu", "address": address, **more}


def assert_same(one: Run, other: Run) -> None:
    assert_equal_tensors(one.weights(), other.weights())
    for table in ("clients", "rounds"):
        assert one.records(table) == other.records(table)


def of_ray() -> list[str]:
    """The commands of this process's descendants that belong to Ray."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any("ray" in Path(word).name.lower() for word in process.cmdline()[:3]):
                found.append(" ".join(process.cmdline()[:3]))
        except psutil.Error:
            continue
    return found


def test_a_ray_of_its_own_gives_the_bytes_of_this_process_and_leaves_nothing(tiny: Tiny, tmp_path: Path) -> None:
    inline = edgefl.run(tiny(), out=tmp_path / "inline")
    run = edgefl.run(tiny(executor=on_ray()), out=tmp_path / "ray")
    assert_same(run, inline)
    assert len({row["process"] for row in run.records("host")} - {os.getpid()}) == 2
    assert not ray.is_initialized()
    until = time.monotonic() + 300
    while of_ray() and time.monotonic() < until:
        time.sleep(0.5)
    assert not of_ray()


@pytest.mark.slow(smaller="test_two_workers_give_the_run_of_this_process_and_get_each_form_once_whatever_its_rate")
def test_a_work_is_stored_once_whatever_its_learning_rate(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[Any] = []
    put = ray.put

    def counted(value: Any) -> Any:
        stored.append(value)
        return put(value)

    monkeypatch.setattr(ray, "put", counted)
    sections = {
        "schedule": {"name": "end-to-end", "rounds": 4},
        "training": {"batch": 8, "lr_schedule": "cosine"},
        "evaluation": {"every": 1},
    }
    inline = edgefl.run(tiny(**sections), out=tmp_path / "inline")
    run = edgefl.run(tiny(**sections, executor=on_ray()), out=tmp_path / "ray")
    assert_same(run, inline)
    assert len({row["lr"] for row in run.records("clients")}) == 4
    # of each kind one that trains, and two that evaluate its model on the server's splits
    texts = [value for value in stored if isinstance(value, str)]
    assert sorted(json.loads(text)["kind"] for text in texts) == sorted(3 * ["image", "text", "image-text"])


def test_an_address_where_nothing_is_is_told_at_once(tiny: Tiny, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    # of the socket: Ray itself would wait
    with pytest.raises(TrainingError, match=f"no Ray at {address}: Connection refused") as refusal:
        edgefl.run(tiny(executor=on_ray(address)), out=tmp_path / "run")
    assert refusal.value.exit_code == 2 and "\n" not in str(refusal.value)
    with pytest.raises(TrainingError, match="write it as HOST:PORT") as refusal:
        edgefl.run(tiny(executor=on_ray("here")), out=tmp_path / "run")
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize(
    ("executor", "says"),
    [
        (on_ray("ray://10.0.0.5:10001"), "run edgefl on a node of the cluster"),
        ({"name": "processes", "address": "auto"}, "address belongs to name: ray, not processes"),
        ({"name": "inline", "ship_data": True}, "ship_data belongs to name: ray, not inline"),
        ({"name": "inline", "gpus_per_worker": 0.5}, "gpus_per_worker belongs to name: ray, not inline"),
        (on_ray(gpus_per_worker=0.5), "gpus_per_worker needs device: cuda or auto, not cpu"),
        (on_ray(device="cuda"), "device: cuda on Ray needs gpus_per_worker, such as 0.25"),
        (on_ray(device=["cuda:0", "cuda:1"]), "name: ray gives GPUs to workers by gpus_per_worker"),
        (on_ray(device="cuda:1", gpus_per_worker=1.0), "name: ray gives GPUs to workers by gpus_per_worker"),
        (on_ray(workers=0), "executor.workers"),
    ],
)
def test_a_wrong_section_is_refused(tiny: Tiny, executor: dict[str, Any], says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        edgefl.validate(tiny(executor=executor))


# --- a cluster of three nodes -----------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without processors for workers, and two nodes with two each."""
    with nodes_of(0, 2, 2) as nodes:
        yield nodes


CASES: dict[str, dict[str, Any]] = {
    "server works": {
        "method": "creamfl",
        "data": {
            "source": "glyphs",
            "clients": {"image": 3, "text": 2, "image-text": 2},
            "samples": 40,
            "validation": 40,
            "test": 40,
            "public": 16,
        },
    },
    "kept": {"method": {"name": "fedavg", "personal": ["norm"]}},
    "controls": {"method": "scaffold", "training": {"batch": 8, "optimizer": "sgd"}},
    "slices": {"schedule": {"name": "heterofl", "rounds": 2}, "fleet": {"budgets": {"memory": "100..400 KiB"}}},
    "layer-wise": {"method": "fedcola", "schedule": {"name": "layerwise", "stages": 2, "rounds": 2}},
    "codec": {"payload": {"up": {"top_k": 0.2}, "down": "bfloat16"}},
    "buffered": {"round": {"policy": "buffered", "cohort": 1.0}},
    "asynchronous": {"round": {"policy": "asynchronous", "cohort": 1.0}},
    "attacked": {"fleet": {"failures": {"attack": {"name": "label-flip", "share": 0.5}}}},
    "shards": {},
    "shipped": {"executor": on_ray(ship_data=True)},
}


@pytest.mark.slow(smaller="test_a_ray_of_its_own_gives_the_bytes_of_this_process_and_leaves_nothing")
def test_the_bytes_are_those_of_this_process(
    tiny: Tiny, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "FEWEST_SHARDS", 1)
    for case, sections in CASES.items():
        executor = {**sections.get("executor", on_ray()), "address": cluster.address}
        here = {"executor": {"name": "inline", "device": "cpu"}}
        inline = edgefl.run(tiny(**sections | here), out=tmp_path / f"inline-{case}")
        run = edgefl.run(tiny(**sections | {"executor": executor}), out=tmp_path / f"ray-{case}")
        assert_same(run, inline)


@pytest.mark.slow(smaller="test_an_address_where_nothing_is_is_told_at_once")
def test_what_the_cluster_lacks_is_told(tiny: Tiny, cluster: Any, tmp_path: Path) -> None:
    gpus = on_ray(cluster.address, gpus_per_worker=0.5, device="auto")
    for executor, says in (
        (gpus, "2 workers need 1 GPUs, and the Ray cluster has 0"),
        (on_ray(cluster.address, workers=5), "5 workers need 5 CPUs, and the Ray cluster has 4"),
    ):
        with pytest.raises(TrainingError, match=says) as refusal:
            edgefl.run(tiny(executor=executor), out=tmp_path / "run")
        assert refusal.value.exit_code == 2


def of_workers(run: Path) -> set[int]:
    """The processes that clients have trained in so far."""
    lines = (run / "host.jsonl").read_text().splitlines() if (run / "host.jsonl").exists() else []
    return {json.loads(line)["process"] for line in lines}


LONG = {"schedule": {"name": "end-to-end", "rounds": 6}}


@pytest.mark.slow(smaller="test_a_task_that_the_host_failed_runs_again_to_the_same_report")
@pytest.mark.parametrize("what", ["a worker", "a node"])
def test_what_is_lost_in_a_round_is_replaced(tiny: Tiny, cluster: Any, tmp_path: Path, what: str) -> None:
    inline = edgefl.run(tiny(**LONG), out=tmp_path / "inline")
    lost: list[int] = []

    def observe(event: str, facts: Any) -> None:
        if event == "client" and facts["round"] == 3 and not lost:
            lost.append(min(of_workers(tmp_path / "run") - {os.getpid()}))
            if what == "a worker":
                os.kill(lost[0], signal.SIGKILL)
            else:
                cluster.remove_node(cluster.others[0], allow_graceful=False)

    executor = on_ray(cluster.address, workers=3 if what == "a node" else 2)
    with pytest.warns(RuntimeWarning, match="a worker on Ray was lost, and its works run again"):
        run = edgefl.run(tiny(**LONG, executor=executor), out=tmp_path / "run", on_progress=observe)
    assert_same(run, inline)
    assert lost


@pytest.mark.slow(smaller="test_a_ray_of_its_own_gives_the_bytes_of_this_process_and_leaves_nothing")
def test_the_loss_of_all_nodes_ends_the_run_which_goes_on_elsewhere(
    tiny: Tiny, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgefl.training.on_ray import executor

    inline = edgefl.run(tiny(**LONG), out=tmp_path / "inline")
    lost: list[bool] = []

    def observe(event: str, facts: Any) -> None:
        if event == "client" and facts["round"] == 3 and not lost:
            monkeypatch.setattr(executor, "START_SECONDS", 5.0)
            lost.extend(cluster.remove_node(node, allow_graceful=False) is None for node in cluster.others)

    with (
        pytest.warns(RuntimeWarning, match="a worker on Ray was lost"),
        pytest.raises(TrainingError, match="no worker on Ray is left: none could be started again within 5 s"),
    ):
        edgefl.run(tiny(**LONG, executor=on_ray(cluster.address)), out=tmp_path / "run", on_progress=observe)
    assert_same(edgefl.run(resume=tmp_path / "run", overrides=["executor={name: inline, device: cpu}"]), inline)


CHILD = """
import json, os, signal, sys
import edgefl

def observe(name, facts):
    if name == "client" and facts["round"] == 4:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    edgefl.run(json.loads(sys.argv[1]), out=sys.argv[2], on_progress=observe)
"""


@pytest.mark.slow(smaller="test_a_killed_run_ends_as_an_uninterrupted_one")
@pytest.mark.parametrize("after", ["ray", "inline"])
def test_a_run_whose_process_was_killed_goes_on(tiny: Tiny, cluster: Any, tmp_path: Path, after: str) -> None:
    inline = edgefl.run(tiny(**LONG), out=tmp_path / "inline")
    scenario = json.dumps(tiny(**LONG, executor=on_ray(cluster.address)))
    words = [sys.executable, "-c", CHILD, scenario, str(tmp_path / "run")]
    assert subprocess.run(words, capture_output=True, timeout=900).returncode == -signal.SIGKILL
    sets = [] if after == "ray" else ["executor={name: inline, device: cpu}"]
    assert_same(edgefl.run(resume=tmp_path / "run", overrides=sets), inline)


def task_of(setup: Setup, client: int, step: str = "", **args: Any) -> Assignment:
    """A client's task, with another step if one is named."""
    work = setup.method.work(setup.kind_of(client), 1).limit_batches(setup.clients.client(client).size)
    if step:
        work = replace(work, passes=tuple(replace(p, step=step, args={**p.args, **args}) for p in work.passes))
    tensors = setup.method.initial(setup.seed).tensors
    return Assignment(
        work.form, work.scalars, {i.name: tensors[i.source] for p in work.down for i in p.items}, client, 100 + client
    )


@pytest.mark.slow(smaller="test_a_worker_that_cannot_open_its_data_says_why")
def test_data_that_a_node_lacks_are_told_or_shipped(tiny: Tiny, tmp_path: Path) -> None:
    """Between opening the data here and starting workers, the table and the cache are taken away."""
    from edgefl.training.on_ray.executor import OnRay  # it needs the extra

    table, cache = tmp_path / "rows.csv", tmp_path / "cache"
    words = ("red", "blue")
    table.write_text("text,label\n" + "".join(f"{words[n % 2]} {n},{words[n % 2]}\n" for n in range(60)))
    data = {"source": "table", "folders": {"table": str(table)}, "clients": {"text": 2}, "partition": "iid"}
    scenario = load(tiny(data=data, model={"text": {"blocks": 1, "width": 16, "heads": 2}}))
    setup = compose(scenario)
    federation = open_federation(scenario.data, seed=scenario.seed, tokens=scenario.model.tokens, cache=cache)
    federation = federation.with_held_out(0.2, scenario.seed)
    task = task_of(setup, 0)
    expected = Inline(federation, "cpu").submit(task).result().tensors()
    cargo = pack_federation(federation, scenario.data)
    shutil.rmtree(cache)
    table.rename(tmp_path / "elsewhere.csv")
    options = ExecutorOptions.model_validate(on_ray(workers=1))
    given = (options, scenario.data, scenario.seed, scenario.model.tokens, cache, 0.2)
    with pytest.raises(TrainingError, match=r"node .* can't open the data.*rows.csv.*ship_data: true sends it") as told:
        OnRay(*given)
    assert told.value.exit_code == 2
    with OnRay(*given, cargo) as executor:
        assert_equal_tensors(executor.submit(task).result(120).tensors(), expected)


@pytest.mark.slow(smaller="test_a_failure_names_the_node")
def test_a_task_that_kills_its_workers_is_named(tiny: Tiny, cluster: Any, tmp_path: Path) -> None:
    scenario = load(tiny(method="fedcola"))
    setup = compose(scenario)
    from edgefl.training.on_ray.executor import OnRay  # it needs the extra

    options = ExecutorOptions.model_validate(on_ray(cluster.address))
    with OnRay(options, scenario.data, scenario.seed, scenario.model.tokens, None, 0.0) as executor:
        good = executor.submit(task_of(setup, 0))
        bad = executor.submit(task_of(setup, 1, "toy-unlucky", times=99, how="kill", file=str(tmp_path / "tries")))
        with pytest.raises(TrainingError, match="of client 1 was begun 3 times, and its worker on Ray was lost each"):
            bad.result(300)
        assert good.result(300).loss is not None
        with pytest.raises(TrainingError, match=r"kind 'image' failed on client 0.*the toy is broken"):
            executor.submit(task_of(setup, 0, "toy-broken")).result(120)
        with pytest.raises(EdgeflError, match="did you mean 'toy-broken'"):
            executor.submit(task_of(setup, 0, "toy-brokn")).result(120)


@pytest.mark.slow(smaller="test_a_ray_of_its_own_gives_the_bytes_of_this_process_and_leaves_nothing")
def test_the_object_store_does_not_grow_with_rounds(tiny: Tiny, cluster: Any, tmp_path: Path) -> None:
    """Ray's own count of the bytes that its store holds, early and late in a run of 200 rounds."""
    from ray._private.internal_api import memory_summary

    found: dict[int, str] = {}

    def observe(event: str, facts: Any) -> None:
        if event == "record" and facts["round"] in (20, 190):
            found[facts["round"]] = memory_summary(cluster.address, stats_only=True)

    scenario = tiny(schedule={"name": "end-to-end", "rounds": 200}, evaluation={"every": 1000})
    edgefl.run(scenario | {"executor": on_ray(cluster.address)}, out=tmp_path / "run", on_progress=observe)
    objects = {round: int(text.split(" objects")[0].split(",")[-1].split()[-1]) for round, text in found.items()}
    assert set(objects) == {20, 190} and objects[190] <= objects[20] + 10


THREE_NODES = """
export RAY_AUTH_MODE=disabled
ray start --head --port 6379 --num-cpus 1
ray start --address 127.0.0.1:6379 --num-cpus 1
ray start --address 127.0.0.1:6379 --num-cpus 1
edgefl run quickstart --set 'executor={name: ray, workers: 3, address: "127.0.0.1:6379"}'
ray stop
"""
"""Commands of docs/guides/slurm.md, for three nodes that are processes of one machine."""


@pytest.mark.slow(smaller="test_a_ray_of_its_own_gives_the_bytes_of_this_process_and_leaves_nothing")
def test_three_nodes_of_one_machine(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-e", "-c", THREE_NODES],
        env={**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for way in ("end-to-end", "layerwise", "progressive"):
        run = edgefl.read_run(tmp_path / "runs" / "quickstart" / way)
        assert run.is_finished and len({row["process"] for row in run.records("host")}) == 3


# what a run on a Ray of its own, as a command, says where one of Ray's own processes is killed
ENDS = {
    "RuntimeEnvAgent": "runtime-environment agent", "DashboardAgent": "dashboard agent",
    "raylet": "raylet", "gcs_server": "GCS server",
}  # fmt: skip
GOES_ON = ["RayWorker", "log_monitor.py", "monitor.py", "dashboard.py"]


def named(process: psutil.Process) -> str:
    """A process of Ray by its file or title."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return ""
    names = [Path(word).name.removeprefix("ray::").partition(".run")[0].strip() for word in words[:3]]
    return next((name for name in names if name in (*ENDS, *GOES_ON)), "")


@pytest.mark.filterwarnings("ignore:.* has no checkpoint:RuntimeWarning")
@pytest.mark.slow(smaller="test_a_ray_of_its_own_gives_the_bytes_of_this_process_and_leaves_nothing")
@pytest.mark.parametrize("what", [*ENDS, *GOES_ON])
def test_each_of_rays_own_processes_is_killed(tiny: Tiny, tmp_path: Path, what: str) -> None:
    scenario = tiny(schedule={"name": "end-to-end", "rounds": 12})
    (tmp_path / "s.json").write_text(json.dumps({"edgefl": 1, **scenario, "executor": on_ray()}))
    folder, temporary = tmp_path / "ray", Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # sockets have short paths
    command = [sys.executable, "-m", "edgefl", "run", str(tmp_path / "s.json"), "-o", str(folder)]
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(temporary)},
    ) as run:
        until, found, rays = time.monotonic() + 600, [], []
        while not found and run.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
            if (folder / "rounds.jsonl").exists() and (folder / "rounds.jsonl").read_text().count("\n") >= 1:
                rays = psutil.Process(run.pid).children(recursive=True)
                found = [process for process in rays if named(process) == what]
        assert found
        found[0].kill()
        said = run.communicate(timeout=600)[1].strip().splitlines()
    if what in ENDS:
        assert run.returncode == 1
        assert re.fullmatch(
            rf"edgefl: error: Ray's .*{ENDS[what]}.* ended, .*continue with edgefl run --resume", said[-1]
        )
        assert len([line for line in said if "error:" in line]) == 1
    else:
        assert run.returncode == 0
    assert not [line for line in said if "\\t" in line or "Traceback" in line]
    _, left = psutil.wait_procs(rays, 30)
    # torch's compiler may have a folder for its cache there, of a worker that was begun anew
    assert not left and not [path for path in temporary.iterdir() if not path.name.startswith("torchinductor")]
    shutil.rmtree(temporary)
    resumed = edgefl.run(resume=folder, overrides=["executor={name: inline, device: cpu}"])
    assert_same(resumed, edgefl.run(scenario, out=tmp_path / "inline"))
