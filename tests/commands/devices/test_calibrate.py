"""``devices calibrate``: what is written is read back, what can't be done is said before anything is measured."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from math import inf
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from edgefl_toys import Toy, described, make_work, training_pass

import edgefl
from edgefl.commands.devices import measured_machine as calibrating
from edgefl.commands.devices.answer import Calibration
from edgefl.commands.devices.table import print_calibration
from edgefl.cost.client_cost import compute_cost
from edgefl.cost.predict import predict
from edgefl.cost.step_seconds import step_seconds
from edgefl.devices import Hardware, load_link, read_device, read_link
from edgefl.devices.processors import Processor
from edgefl.devices.written_facts import library_folder
from edgefl.errors import DeviceError, EdgeflError
from edgefl.machine import link_speed, microbenchmarks
from edgefl.machine.microbenchmarks import threads_of
from edgefl.machine.observed_work import RandomBatches
from tests.toys.answers import read_back


@pytest.fixture
def swift(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second in all, on one thread: sizes and durations are settings of the module."""
    monkeypatch.setattr(calibrating, "QUICK_SECONDS", 0.2)
    monkeypatch.setattr(calibrating, "QUICK_READ_BYTES", 2**20)
    monkeypatch.setattr(calibrating.host, "free_bytes", lambda: 60_000_000)
    few = ("convolutions of 512", "depthwise 3x3 960", "layer norm", "GELU")
    monkeypatch.setattr(microbenchmarks, "OTHERS", {name: microbenchmarks.OTHERS[name] for name in few})
    monkeypatch.setattr(link_speed, "QUICK_SECONDS", 0.4)
    monkeypatch.setattr(link_speed, "PIECE", 0.05)


def served(turns: int) -> int:
    """The port of a server in another thread that answers so many connections."""
    port: Queue[int] = Queue()
    arguments: dict[str, Any] = {"on_message": str, "ready": port.put, "turns": turns}
    threading.Thread(target=link_speed.serve, args=(0,), kwargs=arguments, daemon=True).start()
    return port.get(timeout=300)


@pytest.mark.slow(smaller="test_a_profile_has_the_seconds_of_the_rates_that_were_measured")
@pytest.mark.usefixtures("swift")
def test_what_is_written_is_read_back(tmp_path: Path, capsys: Any) -> None:
    out, heard = tmp_path / "mine.yaml", []
    found = edgefl.calibrate(
        out, quick=True, threads=1, watts="6.4 W", type="microcomputer", title="My board", minutes=0.002,
        address=f"localhost:{served(3)}", like="wifi-5", on_progress=lambda event, facts: heard.append(facts["what"]),
    )  # fmt: skip
    read_back(Calibration, json.dumps(found.to_data()))
    beside = tmp_path / "mine-link.yaml"
    assert sorted(tmp_path.iterdir()) == [beside, out] and found["files"] == [str(out), str(beside)]
    mine, to_server = read_device(out), read_link(beside)
    assert mine.title == "My board" and mine.type == "microcomputer" and mine.compute_watts == 6.4
    assert 1e8 < mine.flops_per_second <= mine.peak_flops_per_second < 1e13
    assert mine.storage_bytes_per_second < 1e12 and mine.runtime_overhead_bytes < mine.usable_memory_bytes
    assert mine.facts["flops_per_second"].confidence == "measured"
    assert mine.processor.type == "cpu" and mine.processor.memory[7] == 1
    assert mine.facts["compute_watts"].confidence == "datasheet"
    assert "repetitions" in mine.facts["flops_per_second"].source.quote
    assert mine.facts["idle_watts"].confidence in ("estimated", "measured")
    assert to_server.download_goodput > 1e6 < to_server.upload_goodput
    assert 0 < to_server.latency_seconds < 1 and to_server.download_watts == load_link("wifi-5").download_watts
    for fact in (*mine.facts.values(), *to_server.facts.values()):
        assert str(tmp_path) not in fact.source.quote + fact.source.title
    assert heard and found["devices"][0]["values"]["flops_per_second"]["value"] == mine.flops_per_second
    print_calibration(found)
    said = capsys.readouterr().out
    assert f"written: {out}" in said and "My board" in said and max(map(len, said.splitlines()[:-2])) <= 100


def test_a_profile_has_the_seconds_of_the_rates_that_were_measured(tmp_path: Path) -> None:
    arithmetic, memory = (1.0, 1.4, 0.8, 0.3, 0.04, 0.6, *[inf] * 4), tuple(np.linspace(0.2, 1.0, 10).tolist())
    processor = Processor("gpu", arithmetic, memory, kernel_seconds=3e-6)
    rates = Hardware("", "", 1e11, 1.6e11, 8e9, 1e-6, 0.0, 0.0, processor=processor)
    library = yaml.safe_load((library_folder() / "devices" / "n100-mini-pc.yaml").read_text())
    numbers = {name: library[name] | {"value": text, "range": text} for name, text in (
        ("peak_flops_per_second", "160 GFLOP/s"), ("memory_bytes_per_second", "8 GB/s"),
        ("seconds_per_operator", "1 us"),
    )}  # fmt: skip
    numbers["flops_per_second"] = numbers["peak_flops_per_second"] | {"value": "100 GFLOP/s", "range": "100 GFLOP/s"}
    own = {"processor": calibrating.written_processor(rates, rates.peak_flops_per_second)}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(library | numbers | own))
    read = read_device(tmp_path / "mine.yaml")
    for kind in range(10):
        table = np.array([[1e9 * (kind < 6), 1e6, 3.0, kind]])
        assert step_seconds(table, read).total == pytest.approx(step_seconds(table, rates).total, rel=0.01)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"out": "nowhere/mine.yaml"}, "the folder nowhere doesn't exist"),
        ({"out": "mine.json"}, "a profile is a .yaml file"),
        ({"out": "here.yaml"}, "exists; --force"),
        ({"out": "here-link.yaml", "address": "x"}, "not HOST:PORT"),
        ({"out": "other.yaml", "address": "localhost:1"}, "doesn't answer a link test"),
        ({"out": "other.yaml", "like": "wify-5", "address": "localhost:1"}, "did you mean 'wifi-5'?"),
        ({"type": "labtop"}, "did you mean 'laptop'?"),
        ({"threads": 0}, "--threads must be at least 1, not 0"),
        ({"watts": "5 apples"}, "unknown unit 'apples'"),
    ],
)
def test_what_cannot_be_done_is_said_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.yaml").write_text("kept")
    with pytest.raises(EdgeflError) as error:
        edgefl.calibrate(**change)
    assert said in str(error.value) and "\n" not in str(error.value) and error.value.exit_code == 2
    assert Path("here.yaml").read_text() == "kept" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow(smaller="test_a_profile_has_the_seconds_of_the_rates_that_were_measured")
@pytest.mark.usefixtures("swift")
def test_idle_is_never_above_computing(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="--idle-watts: 9 W is above the 5 W of --watts"):
        edgefl.calibrate(quick=True, threads=1, watts=5, idle_watts=9)
    found = edgefl.calibrate(quick=True, threads=1, watts="10 mW")
    assert found["devices"][0]["values"]["idle_watts"]["value"] <= 0.01 and found["files"] == []


def test_a_server_answers_after_visitors_who_say_something_else() -> None:
    port = served(4)
    where = ("localhost", port)
    with link_speed.socket.create_connection(where) as rude:
        rude.sendall(b"GET / HTTP/1.0\r\n\r\n" + b"x" * 200)
    assert min(link_speed._round_trips(where)) > 0
    with pytest.raises(DeviceError, match="can't listen on port"):
        link_speed.serve(port, str)


@pytest.mark.slow(smaller="test_what_cannot_be_done_is_said_first")
def test_an_interrupted_calibration_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edgefl", "devices", "calibrate", "-o", str(tmp_path / "mine.yaml")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "peak" in process.stderr.readline()
        process.send_signal(2)
        assert process.wait(60) == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow(smaller="test_a_profile_has_the_seconds_of_the_rates_that_were_measured")
def test_a_calibrated_device_predicts_the_wall_seconds_of_a_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The round trip: file, loader, cost.  The band is wide for machines that do much else meanwhile."""
    threads = calibrating.host.physical_cores()
    edgefl.calibrate(tmp_path / "mine.yaml", quick=True)
    mine = read_device(tmp_path / "mine.yaml")
    work = make_work(passes=(training_pass(batch=128),), model=described(blocks=4, width=192))
    source = Toy(1024)
    cost = compute_cost(work, source, predict(work, source))
    predicted = cost.seconds(mine) / 8
    with threads_of(threads):
        measured = step_wall_seconds(work, source)
    with capsys.disabled():
        print(f"\n  predicted {predicted:.4f} s a step, measured {measured:.4f} s: {predicted / measured:.2f}")
    assert 1 / 3 < predicted / measured < 3


def step_wall_seconds(work: Any, source: Any) -> float:
    from edgefl.machine.observed_work import run_once

    batches = RandomBatches(source, work.model, 10)
    run_once(work, batches, torch.device("cpu"))
    walls: list[float] = [wall for every in batches.seconds.values() for wall, _ in every][1:]
    return sorted(walls)[len(walls) // 2]
