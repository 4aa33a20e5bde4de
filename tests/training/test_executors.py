"""Inline and in worker processes: the same reports; and what happens to a task that fails, dies or is dropped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensors import assert_equal_tensors

import edgefl
from edgefl import start_method
from edgefl.errors import ScenarioError, TrainingError, UnknownName
from edgefl.planning.setup import Setup
from edgefl.scenario import Scenario, load
from edgefl.setup.compose import compose
from edgefl.training import Assignment, Inline, ProcessExecutor, device_of
from edgefl.training.packing import CONTEXT_BYTES, DeviceMemory, limit_of
from edgefl.training.pools import Pools
from edgefl.work import Form, Pass, Work
from edgefl.work.update import Update


@pytest.fixture(scope="module")
def scenario(tiny: Callable[..., dict[str, Any]]) -> Scenario:
    return load(tiny(method="fedcola"))


@pytest.fixture(scope="module")
def setup(scenario: Scenario) -> Setup:
    return compose(scenario)


def workers(scenario: Scenario, count: int) -> ProcessExecutor:
    return ProcessExecutor(scenario.data, scenario.seed, scenario.model.tokens, None, count, "cpu")


@pytest.fixture(scope="module")
def processes(scenario: Scenario, setup: Setup) -> Iterator[ProcessExecutor]:
    with workers(scenario, 1) as executor:
        executor.warm()
        yield executor


def task_of(setup: Setup, client: int, change: Callable[[Work], Work] = lambda work: work, **more: Any) -> Assignment:
    source = setup.clients.client(client)
    work = change(setup.method.work(setup.kind_of(client), 1).limit_batches(source.size))
    tensors = setup.method.initial(setup.seed).tensors
    return Assignment(
        work.form,
        work.scalars,
        {i.name: tensors[i.source] for p in work.down for i in p.items},
        client,
        100 + client,
        **more,
    )


def doing(step: str) -> Callable[[Work], Work]:
    return lambda work: replace(work, passes=(Pass(step, "private", work.passes[0].patterns, 4),))


def assert_same(a: Update, b: Update) -> None:
    assert (
        a.loss == b.loss and a.metrics == b.metrics and (a.trace, a.peak_memory_bytes) == (b.trace, b.peak_memory_bytes)
    )
    assert_equal_tensors(a.payloads, b.payloads)


def test_inline_and_processes_give_the_same_reports(setup: Setup, processes: ProcessExecutor) -> None:
    clients = {setup.kind_of(c): c for c in range(len(setup.fleet))}
    assert len(clients) == 3
    tasks = [task_of(setup, c, metered=True) for c in clients.values()]
    for kind in clients:
        evaluation = setup.method.evaluate(kind, "validation")
        tensors = setup.method.initial(setup.seed).tensors
        inputs = {i.name: tensors[i.source] for p in evaluation.down for i in p.items}
        tasks.append(Assignment(evaluation.form, evaluation.scalars, inputs, None, 1, True))
    with Inline(setup.clients, "cpu") as inline:  # type: ignore[arg-type]
        futures = [processes.submit(task) for task in tasks]
        for future, task in zip(futures, tasks, strict=True):
            report = future.result(120)
            assert_same(inline.submit(task).result(), report)
            assert report.trace is not None


def test_two_workers_give_the_run_of_this_process_and_get_each_form_once_whatever_its_rate(
    tiny: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []
    encode = Form.encode

    def counted(form: Form) -> str:
        encoded.append(encode(form))
        return encoded[-1]

    monkeypatch.setattr(Form, "encode", counted)
    rate = {"batch": 8, "lr_schedule": "cosine"}
    sections = {"schedule": {"name": "end-to-end", "rounds": 4}, "training": rate, "evaluation": {"every": 1}}
    inline = edgefl.run(tiny(**sections), out=tmp_path / "inline")
    assert not encoded
    workers = {"name": "processes", "workers": 2, "device": "cpu"}
    run = edgefl.run(tiny(**sections, executor=workers), out=tmp_path / "workers")
    assert_equal_tensors(run.weights(), inline.weights())
    for table in ("clients", "rounds"):
        assert run.records(table) == inline.records(table)
    assert len({row["lr"] for row in run.records("clients")}) == 4
    # of each kind one that trains, and two that evaluate its model on the server's splits
    assert sorted(json.loads(text)["kind"] for text in encoded) == sorted(3 * ["image", "text", "image-text"])


def test_room_for_threads_is_asked_for_until_the_workers_run(
    setup: Setup, processes: ProcessExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert processes.submit(task_of(setup, 0)).result(120).loss is not None
    monkeypatch.setattr(start_method, "start_faults", lambda *_: pytest.fail("a running worker needs no room"))
    assert processes.submit(task_of(setup, 0)).result(120).loss is not None


@pytest.mark.parametrize("where", ["inline", "processes"])
def test_a_failure_names_the_node(setup: Setup, processes: ProcessExecutor, where: str) -> None:
    executor = processes if where == "processes" else Inline(setup.clients, "cpu")  # type: ignore[arg-type]
    with pytest.raises(TrainingError, match=r"kind 'image' failed on client 0.*the toy is broken"):
        executor.submit(task_of(setup, 0, doing("toy-broken"))).result(120)
    with pytest.raises(UnknownName, match="did you mean 'toy-broken'"):
        executor.submit(task_of(setup, 0, doing("toy-brokn"))).result(120)
    assert executor.submit(task_of(setup, 0)).result(120).loss is not None


def test_a_queued_task_can_be_cancelled_and_never_runs(setup: Setup, processes: ProcessExecutor) -> None:
    # a worker takes one task and has one more at hand; those behind them wait
    task = task_of(setup, 0)
    # long enough that handing over all takes less time than doing the first
    long = replace(task, form=replace(task.form, passes=task.form.passes * 10))
    futures = [processes.submit(long) for _ in range(5)]
    last = futures[-1]
    assert last.cancel() and last.cancelled()
    assert all(f.result(120).loss is not None for f in futures[:-1])
    assert not futures[0].cancel()


def unlucky(times: int, how: str, file: Path) -> Callable[[Work], Work]:
    args = {"times": times, "how": how, "file": str(file)}
    return lambda work: replace(
        work, passes=tuple(replace(p, step="toy-unlucky", args={**p.args, **args}) for p in work.passes)
    )


@pytest.mark.filterwarnings("ignore:.*run again")
@pytest.mark.parametrize(
    ("how", "count"),
    [("kill", 1), *(pytest.param(how, 2, marks=pytest.mark.slow) for how in ("kill", "memory", "hang"))],
)
def test_a_task_that_the_host_failed_runs_again_to_the_same_report(
    scenario: Scenario, setup: Setup, tmp_path: Path, how: str, count: int
) -> None:
    file = tmp_path / "failures"
    with ProcessExecutor(scenario.data, scenario.seed, scenario.model.tokens, None, count, "cpu", 40.0) as executor:
        tasks = [task_of(setup, 0, unlucky(1, how, file)), task_of(setup, 1)]
        reports = [future.result(240) for future in [executor.submit(task) for task in tasks]]
        assert file.read_text() == "x" and executor._workers == 1
        again = executor.submit(tasks[0]).result(120)  # and the executor goes on
    assert_same(reports[0], again)
    with Inline(setup.clients, "cpu") as inline:  # type: ignore[arg-type]
        for report, task in zip(reports, tasks, strict=True):
            assert_same(inline.submit(task).result(), report)


@pytest.mark.slow(smaller="test_a_task_that_the_host_failed_runs_again_to_the_same_report")
@pytest.mark.filterwarnings("ignore:.*run again")
@pytest.mark.parametrize("how", ["kill", "memory"])
def test_a_task_that_fails_alone_too_is_named(scenario: Scenario, setup: Setup, tmp_path: Path, how: str) -> None:
    file = tmp_path / "failures"
    with workers(scenario, 2) as executor:
        futures = [
            executor.submit(task_of(setup, c, unlucky(99, how, file) if c == 1 else lambda w: w)) for c in (0, 1)
        ]
        with pytest.raises(
            TrainingError, match=r"kind 'image' of client 1 fails on this machine even alone: .*--resume"
        ):
            futures[1].result(240)
    assert len(file.read_text()) == 3  # with two workers, one after the other, and alone


@pytest.mark.slow(smaller="test_a_task_that_the_host_failed_runs_again_to_the_same_report")
def test_memory_that_runs_out_in_this_process_is_tried_twice(setup: Setup, tmp_path: Path) -> None:
    file = tmp_path / "failures"
    with Inline(setup.clients, "cpu") as inline:  # type: ignore[arg-type]
        with pytest.warns(RuntimeWarning, match="doesn't suffice .* client 0; it runs once more"):
            report = inline.submit(task_of(setup, 0, unlucky(1, "memory", file))).result()
        assert_same(inline.submit(task_of(setup, 0, unlucky(1, "memory", file))).result(), report)
        with pytest.warns(RuntimeWarning), pytest.raises(TrainingError, match="doesn't suffice for the work of kind"):
            inline.submit(task_of(setup, 1, unlucky(99, "memory", file))).result()


@pytest.mark.slow(smaller="test_workers_with_places_that_die_are_packed_anew_with_more_memory_each")
@pytest.mark.filterwarnings("ignore:.*run again")
def test_a_killed_worker_is_a_training_error(scenario: Scenario, setup: Setup) -> None:
    with workers(scenario, 1) as executor:
        with pytest.raises(TrainingError, match="ended unexpectedly.*edgefl run --resume") as caught:
            executor.submit(task_of(setup, 0, doing("toy-killer"))).result(240)
        assert caught.value.exit_code == 1
        with pytest.raises(TrainingError, match="on this machine even alone"):
            executor.submit(task_of(setup, 0)).result(120)


def test_a_worker_that_cannot_open_its_data_says_why(scenario: Scenario, setup: Setup, tmp_path: Path) -> None:
    data = scenario.data.model_copy(update={"folders": {"glyphs": tmp_path}})
    executor = ProcessExecutor(data, scenario.seed, scenario.model.tokens, None, 1, "cpu")
    with (
        executor,
        pytest.raises(TrainingError, match="couldn't open the data or load plug-ins: .*glyphs"),
    ):
        executor.submit(task_of(setup, 0)).result(120)


@pytest.mark.slow(smaller="test_a_queued_task_can_be_cancelled_and_never_runs")
def test_closing_does_not_wait_for_a_worker_that_hangs(
    scenario: Scenario, setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgefl.training.processes.PATIENCE", 0.5)
    executor = workers(scenario, 1)
    file = tmp_path / "failures"
    executor.submit(task_of(setup, 0, unlucky(1, "hang", file)))
    while not file.exists():
        time.sleep(0.1)
    started = time.monotonic()
    executor.close()
    assert time.monotonic() - started < 300


# placed by predicted peak memory, as on GPUs -------------------------------------------------------------------------

GIB = 2**30


def placed(scenario: Scenario, count: int, free: int) -> ProcessExecutor:
    """Workers on a CPU that are placed as if it were a GPU with so many bytes."""
    memories = [DeviceMemory("cpu", 100 * GIB, free)]
    return ProcessExecutor(scenario.data, scenario.seed, scenario.model.tokens, None, count, "cpu", memories=memories)


@pytest.mark.filterwarnings("ignore:.*fit the memory of")
def test_works_go_where_they_are_held_and_a_larger_one_packs_workers_anew(
    scenario: Scenario, setup: Setup, tmp_path: Path
) -> None:
    small, large = GIB // 4, 4 * GIB

    def meeting(work: Work) -> Work:  # a work as short as these may end before the next one is submitted
        args = {"folder": str(tmp_path), "processes": 3}
        return replace(work, passes=tuple(replace(p, step="toy-meeting", args={**p.args, **args}) for p in work.passes))

    # three contexts with 0.25 GiB each, or one with 4.4 GiB beside at most one more
    with placed(scenario, 3, 3 * (CONTEXT_BYTES + limit_of(small)) + 3 * GIB) as executor:
        executor.expect({"a work": small})
        assert isinstance(executor._pool, Pools)
        assert len(executor._pool.places) == 3 and not any(place.holds(large) for place in executor._pool.places)
        peaks = [large, small, None]
        tasks = [task_of(setup, 0, meeting, peak=small)] * 3 + [task_of(setup, 0, peak=peak) for peak in peaks]
        reports = [future.result(240) for future in [executor.submit(task) for task in tasks]]
        assert len({report.host["process"] for report in reports[:3]}) == 3
        after = executor._pool
        assert isinstance(after, Pools) and [place.holds(large) for place in after.places].count(True) == 1
        # works that need the large place, and those of unknown size, went to one worker
        assert reports[3].host["process"] == reports[5].host["process"]
        assert reports[3].host["process"] not in {report.host["process"] for report in reports[:3]}
        with pytest.raises(
            TrainingError, match=r"a large one needs 90 GiB of GPU .* 6.58 GiB free: a smaller"
        ) as refused:
            executor.expect({"a work": small, "a large one": 90 * GIB})
        assert refused.value.exit_code == 2
        with pytest.raises(TrainingError, match=r"image' of client 0 needs 90 GiB of GPU memory .* cpu, has 6.58 GiB"):
            executor.submit(task_of(setup, 0, peak=90 * GIB)).result(120)
        again = executor.submit(tasks[0]).result(120)  # and the executor goes on
    with Inline(setup.clients, "cpu") as inline:  # type: ignore[arg-type]
        for report in (*reports, again):
            assert_same(inline.submit(tasks[0]).result(), report)


def test_fewer_workers_than_asked_for_are_told_once(scenario: Scenario) -> None:
    with placed(scenario, 4, 2 * (CONTEXT_BYTES + limit_of(GIB))) as executor:
        with pytest.warns(RuntimeWarning, match=r"2 of 4 workers \(executor.workers\) fit the memory of cpu") as told:
            executor.expect({"a work": GIB})
        executor.expect({"a smaller one": GIB // 2})  # another warning would be an error
        assert len(told) == 1


@pytest.mark.filterwarnings("ignore:.*run again")
def test_workers_with_places_that_die_are_packed_anew_with_more_memory_each(
    scenario: Scenario, setup: Setup, tmp_path: Path
) -> None:
    file = tmp_path / "failures"
    with placed(scenario, 2, 2 * (CONTEXT_BYTES + limit_of(GIB))) as executor:
        executor.expect({"a work": GIB})
        assert isinstance(executor._pool, Pools)
        before = executor._pool.places
        tasks = [task_of(setup, 0, unlucky(1, "kill", file), peak=GIB), task_of(setup, 1, peak=GIB)]
        reports = [future.result(240) for future in [executor.submit(task) for task in tasks]]
        assert file.read_text() == "x" and isinstance(executor._pool, Pools)
        (alone,) = executor._pool.places
        assert len(before) == 2 and alone.bytes > 2 * GIB > before[0].bytes
    with Inline(setup.clients, "cpu") as inline:  # type: ignore[arg-type]
        for report, task in zip(reports, tasks, strict=True):
            assert_same(inline.submit(task).result(), report)


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ([], "an empty list names no device"),
        (["cpu", "cuda:0"], "a list of several devices has GPUs with their numbers only, not cpu"),
        (["cuda", "cuda:0"], "with their numbers only, not cuda"),
        (["cuda:0", "cuda:0"], "cuda:0 is listed twice"),
        ("cuda:01", "'cuda:01' is no device; allowed: auto, cpu, cuda, cuda:0, cuda:1"),
        (["cuda:0", 1], "1 is no device"),
        ({"cuda": 1}, "is no device"),
    ],
)
def test_a_device_that_is_none_is_one_line(tiny: Callable[..., dict[str, Any]], device: Any, said: str) -> None:
    with pytest.raises(ScenarioError) as found:
        load(tiny(executor={"name": "processes", "device": device}))
    assert said in str(found.value) and "\n" not in str(found.value)


def test_one_process_trains_on_one_device(tiny: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(ScenarioError, match="device: name: inline trains on one device, not on 2; .*processes"):
        load(tiny(executor={"name": "inline", "device": ["cuda:0", "cuda:1"]}))
    assert load(tiny(executor={"name": "inline", "device": ["cuda:1"]})).executor.devices == ("cuda:1",)
    several = load(tiny(executor={"name": "processes", "device": ["cuda:0", "cuda:1"]}))
    assert several.executor.devices == ("cuda:0", "cuda:1") and several.executor.device_type == "cuda"
    assert load(several.to_data()).executor == several.executor


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU says")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_gpu_that_is_not_there_is_told_with_exit_code_2(device: str) -> None:
    with pytest.raises(TrainingError, match=f"executor.device is {device}, but this machine or .* no CUDA") as found:
        device_of(device)
    assert found.value.exit_code == 2
