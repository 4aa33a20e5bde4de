"""The calibrated machine, and batches that hold random values of the right kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from edgefl_toys import FACTS, Toy, described, make_work, training_pass
from tensors import assert_equal_tensors

from edgefl.cost import predict
from edgefl.machine import host
from edgefl.machine.microbenchmarks import (
    CPU,
    NAME,
    WIDTHS,
    Act,
    Bench,
    Stopwatch,
    calibrate_here,
    movements,
    products,
    rate,
    rounds,
)
from edgefl.machine.observed_work import RandomBatches, run_observed, step_seconds
from edgefl.machine.throughput import autocast_trains, fitting, sustained, throttling
from edgefl.work import distinct


def test_a_calibration_is_a_device_with_possible_numbers() -> None:
    before = torch.get_num_threads(), torch.is_grad_enabled()
    machine = calibrate_here(0.05)
    assert machine.name == NAME
    assert 1e8 < machine.flops_per_second <= machine.peak_flops_per_second < 1e13
    assert 1e8 < machine.memory_bytes_per_second < 1e12
    assert 1e-7 < machine.seconds_per_operator < 1e-2
    assert 0 < machine.usable_memory_bytes <= machine.ram_bytes
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == before


def test_a_rate_is_the_amount_over_the_seconds_of_the_repetition() -> None:
    acts = [Act(3, 10.0, 1.0, []), Act(1, 20.0, 5.0, [])]
    seconds = np.array([[1.0, 2.0], [2.0, 4.0]])
    assert rate(acts, seconds, "flops").tolist() == [10.0, 5.0]  # 3 x 10 + 20 in 3 x 1 + 2 s, and in twice as much
    assert rate(acts, seconds, "bytes").tolist() == [1.6, 0.8]


def test_every_set_of_operands_is_timed_in_every_repetition() -> None:
    ticks = iter(range(1000))
    watch = Stopwatch(lambda: float(next(ticks)), keep=1)
    acts = [Act(1, 0.0, 0.0, [int, str]), Act(1, 0.0, 0.0, [float, list])]
    assert rounds(acts, 15.0, watch).tolist() == [[[1.0, 1.0], [1.0, 1.0]]] * 2  # nine ticks in each
    assert len(rounds(acts, 0.0, watch, least=3)) == 3


def test_operands_fit_half_of_the_free_memory() -> None:
    held: list[int] = []

    class Counted(Bench):
        def filled(self, *shape: int) -> torch.Tensor:
            made = super().filled(*shape)
            held.append(made.nbytes)
            return made

    kept = [*products(64, Counted(1)), *movements(64, Counted(1))]
    assert kept and fitting(1e12) == (WIDTHS, 8)
    for free in (512e6, 200e6, 100e6, 60e6, 30e6):
        widths, turns = fitting(free)
        # operands are in proportion to the width, but for the weights, of which a wider layer has more
        assert sum(sum(held) * (w / 64) for w in widths) * turns < 0.5 * free
    assert fitting(0.0) == (WIDTHS[:1], 1)
    assert [fitting(free)[1] for free in (3e9, 1e9, 3e8)] == [8, 4, 1]
    # one set of all widths has 108 MB: a cache of 1 MB (a Raspberry Pi 4) needs one, of 32 MB two, of 512 MB eight
    assert [fitting(1e12, cache * 2**20) for cache in (1, 32, 512)] == [(WIDTHS, 1), (WIDTHS, 2), (WIDTHS, 8)]


def test_the_last_cache_is_the_one_of_the_highest_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "SYS", tmp_path)
    assert host.last_cache_bytes() == 32 << 20  # the system doesn't say
    for index, (level, size) in enumerate([(1, "32K"), (1, "48K"), (3, "8192K"), (2, "512K")]):
        folder = tmp_path / "devices/system/cpu/cpu0/cache" / f"index{index}"
        folder.mkdir(parents=True)
        (folder / "level").write_text(f"{level}\n")
        (folder / "size").write_text(f"{size}\n")
    assert host.last_cache_bytes() == 8 << 20


def test_a_short_calibration_takes_memory_by_the_cache_and_gives_it_back() -> None:
    code = (
        "import psutil\n"
        "from edgefl.machine import host, microbenchmarks as bench\n"
        "resident = lambda: psutil.Process().memory_info().rss\n"
        "before = resident(); bench.calibrate_here(0.05); after = resident()\n"
        "status = open('/proc/self/status').read()\n"  # ru_maxrss would begin with this process's
        "print(int(status.split('VmHWM:')[1].split()[0]) * 1024 - before, after - before,\n"
        "      bench.set_bytes(bench.WIDTHS) * bench.turns_beyond(host.last_cache_bytes()))\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    peak, left, operands = map(int, told.stdout.split())
    # eight results of a product are kept too, and torch has some memory of its own
    assert operands < peak < operands + 8 * 4 * 1024 * 4 * 384 + (100 << 20)
    assert left < 150 << 20


def test_throttling_is_found_where_it_sets_in() -> None:
    at = np.arange(1.0, 601.0)
    steady = throttling(at, np.full(600, 100.0) + np.sin(at))
    assert steady.after_seconds is None and steady.share == pytest.approx(1, abs=0.02)
    slowed = throttling(at, np.where(at <= 200, 100.0, 60.0))
    assert slowed.share == 0.6 and slowed.after_seconds == pytest.approx(200, abs=20)
    fading = throttling(at, 100.0 - 40.0 * np.clip((at - 100) / 200, 0, 1))
    assert fading.share == 0.6 and fading.after_seconds == pytest.approx(200, abs=25)
    spikes = throttling(at, np.where(at % 50 == 0, 5.0, 100.0))
    assert spikes.after_seconds is None


def test_what_is_sustained_has_a_spread_and_a_small_machine_small_operands() -> None:
    before = torch.get_num_threads(), torch.is_grad_enabled()
    said: list[str] = []
    found = sustained(0.2, 1, CPU, 60e6, said.append)
    assert found.widths == (64,) and said
    for each in (found.flops_per_second, found.memory_bytes_per_second, found.seconds_per_operator, found.jitter):
        assert 0 < each.low <= each.value <= each.high and each.times >= 3
    assert found.flops_per_second.value <= found.peak_flops_per_second.value < 1e13
    assert autocast_trains("bfloat16", CPU) == (found.halves["bfloat16"] is not None)
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == before


@pytest.mark.slow
def test_a_calibrated_machine_predicts_a_step_within_a_factor_of_two() -> None:
    """tools/bench.py steps has the true errors; a machine that does much else meanwhile must not fail here."""
    model = described(blocks=4, width=128)
    work = make_work(passes=(training_pass(batch=128),), model=model)
    source = Toy(512)
    predicted = step_seconds(work, source, predict(work, source), calibrate_here())
    seen = run_observed(work, source, torch.device("cpu"), on_message=str)
    _, cpu = seen.seconds[0, "image"]
    assert predicted[0, "image"] == pytest.approx(cpu, rel=1.0)


def test_random_batches_have_the_shapes_and_ranges_of_the_model() -> None:
    modalities = ("image", "text")
    pass_, source = training_pass(modalities, 8), Toy(64)
    batches = RandomBatches(source, described(modalities), 2)
    found = list(batches.batches(pass_, 7))
    assert len(found) == 2 and source.counts(pass_) == batches.counts(pass_)
    for pattern, batch in found:
        for name, spec in source.spec(pass_, pattern).items():
            assert tuple(batch[name].shape) == spec.shape
        assert batch["text"].min() >= 0 and batch["text"].max() < FACTS["text"]["vocabulary"]
        assert 0.5 < batch["image"].std() < 2
    again = list(RandomBatches(source, described(modalities), 2).batches(pass_, 7))
    assert_equal_tensors([batch["image"] for _, batch in again], [batch["image"] for _, batch in found])
    short = RandomBatches(source, described(modalities), 2, short=True)
    assert sum(short.counts(pass_).values()) == 2 and short.size(pass_) == 16


def test_what_is_observed_is_what_was_predicted() -> None:
    work, source = make_work(), Toy(64)
    predicted, seen = predict(work, source), run_observed(work, source, torch.device("cpu"), on_message=str)
    assert seen.peak_memory_bytes == pytest.approx(predicted.peak_memory_bytes, abs=64)  # no scratch in so small a work
    assert seen.trace.memory_bytes == predicted.memory_bytes
    assert set(seen.seconds) == {(i, "image") for i in range(len(distinct(work)))}
