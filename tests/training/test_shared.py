"""Memory shared with worker processes: tensors come through it as they were, and it is free afterwards."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensors import assert_equal_tensors

import edgefl
from edgefl.plain_data import from_data, to_data
from edgefl.runs.kept import TensorLayout
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.training import Assignment, Inline, ProcessExecutor
from edgefl.training.shared import MOST_LENT, Slot, Slots, has_shared_memory, room, write_to_slot

pytestmark = pytest.mark.skipif(
    not has_shared_memory(), reason="this system has no memory that processes share by path"
)

Tiny = Callable[..., dict[str, Any]]


def values() -> dict[str, torch.Tensor]:
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    return {
        "w": base, "column": base[:, 1], "turned": base.T, "half": torch.ones(3).bfloat16(), "scalar": torch.tensor(7),
        "empty": torch.empty(0, 4), "flags": torch.tensor([True, False]), "trained": torch.nn.Parameter(torch.ones(2)),
    }  # fmt: skip


def shared_bytes() -> int:
    """Bytes of memfds that this process has mapped."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    found = [i for i, line in enumerate(lines) if "memfd:edgefl" in line]
    return sum(int(lines[i + 1].split()[1]) * 1024 for i in found)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow(smaller="test_a_slot_that_reports_of_several_sizes_use_keeps_what_is_mapped")
def test_tensors_come_back_as_they_were_and_outlive_the_slot() -> None:
    slot = Slot()
    path, back = slot.path, slot.read_tensors(write_to_slot(slot.path, values()))
    assert Path(path).exists()
    del slot
    gc.collect()
    assert not Path(path).exists() or "edgefl" not in os.readlink(path)  # the number may be another file's by now
    assert_equal_tensors(back, values())


@pytest.mark.slow(smaller="test_a_slot_that_reports_of_several_sizes_use_keeps_what_is_mapped")
def test_another_process_reads_and_writes_a_slot() -> None:
    code = (
        "import json, sys\n"
        "from edgefl.plain_data import from_data, to_data\n"
        "from edgefl.runs.kept import StoredTensors\n"
        "from edgefl.training.shared import write_to_slot\n"
        "stored, path = json.loads(sys.argv[1])\n"
        "tensors = from_data(StoredTensors, stored).tensors()\n"
        "print(json.dumps(to_data(write_to_slot(path, {name: t + t for name, t in tensors.items()}))))"
    )
    inputs, answer = Slot(), Slot()
    given = {"a": torch.arange(1000.0), "b": torch.ones(2, 3, dtype=torch.float64)}
    stored = inputs.write(given)
    text = json.dumps([to_data(stored), answer.path])
    out = subprocess.run([sys.executable, "-c", code, text], check=True, capture_output=True, text=True).stdout
    assert_equal_tensors(
        answer.read_tensors(from_data(TensorLayout, json.loads(out))), {name: t + t for name, t in given.items()}
    )


def test_a_slot_that_reports_of_several_sizes_use_keeps_what_is_mapped() -> None:
    slot = Slot()
    for size in (1 << 16, 64, 1 << 16):
        assert len(room(slot.number, slot.path, size)) == size
        assert os.fstat(slot.descriptor).st_size >= 1 << 16, "a write to a page that the file lacks ends the process"


@pytest.mark.slow(smaller="test_a_slot_that_reports_of_several_sizes_use_keeps_what_is_mapped")
def test_a_slot_comes_back_when_nothing_refers_to_its_report() -> None:
    slots, size = Slots(2), 1 << 12
    first, second = slots.take(reused=True), slots.take(reused=True)
    assert first.reused
    assert second.reused
    third = slots.take(reused=True)
    assert not third.reused, "there are as many as there may be"
    assert not slots.take(reused=False).reused
    written = room(first.number, first.path, size)
    written.fill_(7)
    report = slots.bytes(first, size)
    part = report[:10].view(torch.int16)
    del report
    assert slots.take(reused=True) is not first, "a report refers to it"
    assert part.tolist() == [7 * 257] * 5
    del part
    gc.collect()
    again = slots.take(reused=True)
    assert again is first
    assert room(again.number, again.path, size).data_ptr() == written.data_ptr(), "a worker maps it once"
    slots.back(again)
    assert slots.take(reused=True) is first


@pytest.mark.slow(smaller="test_a_slot_that_reports_of_several_sizes_use_keeps_what_is_mapped")
def test_memory_of_a_slot_that_is_not_reused_is_free_when_its_report_is() -> None:
    slots, size = Slots(0), 1 << 24
    before = shared_bytes()
    for _ in range(3):
        slot = slots.take(reused=True)
        room(slot.number if slot.reused else None, slot.path, size).fill_(1)
        report = slots.bytes(slot, size)
        assert shared_bytes() >= before + size
        assert int(report[-1]) == 1
        del slot, report
        gc.collect()
    assert shared_bytes() < before + size


@pytest.mark.slow(smaller="test_inline_and_processes_give_the_same_reports")
def test_workers_share_inputs_and_leave_nothing_open(tiny: Tiny) -> None:
    scenario = load(tiny())
    setup = compose(scenario)
    state = setup.method.initial(setup.seed)
    work = setup.method.client_work("image", 1).limit_batches(setup.clients.client(0).size)
    inputs = state.wire(work)
    tasks = [
        Assignment(work.form, work.scalars, inputs, client, client) for client in setup.of_kind("image").tolist()
    ] * 18
    with ProcessExecutor(scenario.data, scenario.seed, scenario.model.tokens, None, 2, "cpu") as executor:
        first = executor.submit(tasks[0]).result(120)
        before = open_files()
        futures = [executor.submit(task) for task in tasks]
        reports = [future.result(120) for future in futures]
        assert len(executor._inputs) == 1
        # inputs of the next round lie where nobody reads any more, in memory that is there already
        moved = {name: value + 1 for name, value in inputs.items()}
        later = executor.submit(Assignment(work.form, work.scalars, moved, tasks[0].client, tasks[0].seed)).result(120)
        assert open_files() < before + 8 + MOST_LENT and len(executor._inputs) == 1
        del futures
        gc.collect()
        assert len(tasks) >= 36
        # those of another worker's pipes and of a few slots, none for each report
        assert open_files() < before + 8 + MOST_LENT
    with Inline(setup.clients, "cpu") as inline:  # type: ignore[arg-type]
        for task, report in zip(tasks, reports, strict=True):
            expected = inline.submit(task).result()
            assert_equal_tensors(report.payloads, expected.payloads)
        expected = inline.submit(Assignment(work.form, work.scalars, moved, tasks[0].client, tasks[0].seed)).result()
        assert_equal_tensors(later.payloads, expected.payloads)
    assert_equal_tensors(first.payloads, reports[0].payloads)


@pytest.mark.slow(smaller="test_inline_and_processes_give_the_same_reports")
def test_without_such_memory_everything_goes_through_pipes(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = tiny(executor={"name": "processes", "workers": 2, "device": "cpu"})
    shared = edgefl.run(scenario, out=tmp_path / "shared")
    monkeypatch.setattr("edgefl.training.processes.has_shared_memory", lambda: False)
    piped = edgefl.run(scenario, out=tmp_path / "piped")
    for name in ("weights.safetensors", "rounds.jsonl", "clients.jsonl"):
        assert (shared.path / name).read_bytes() == (piped.path / name).read_bytes()
