"""The calibrated machine, and batches that hold random values of the right kind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from edgefl_toys import FACTS, Toy, described, make_work, training_pass
from tensors import assert_equal_tensors

from edgefl.cost.predict import predict
from edgefl.cost.step_seconds import step_seconds as seconds_of_operators
from edgefl.devices import Hardware
from edgefl.devices.processors import Processor
from edgefl.machine import microbenchmarks
from edgefl.machine.fitted_rates import TimedStep, nearest, rates_of
from edgefl.machine.microbenchmarks import (
    CPU,
    CUDA_SCALE,
    LEAST_SCALE,
    NAME,
    OTHERS,
    PRODUCTS,
    Probe,
    ProbeBench,
    by_clock,
    calibrate_here,
    probes,
    rounds,
    scale_for,
)
from edgefl.machine.observed_work import RandomBatches, run_observed, step_seconds
from edgefl.machine.throughput import autocast_trains, measure_sustained, throttling
from edgefl.operator_classes import OPERATOR_CLASSES, OperatorClass
from edgefl.work import distinct

FEW = ("convolutions of 512", "depthwise 3x3 960", "attention", "layer norm", "GELU")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few probes: what the others measure isn't tested here."""
    monkeypatch.setattr(microbenchmarks, "OTHERS", {name: OTHERS[name] for name in FEW})
    monkeypatch.setattr(microbenchmarks, "_TABLE", 1000)


@pytest.mark.usefixtures("few")
def test_a_calibration_is_a_device_with_possible_numbers() -> None:
    before = torch.get_num_threads(), torch.is_grad_enabled()
    machine = calibrate_here(0.05)
    assert machine.name == NAME
    assert 1e8 < machine.flops_per_second <= machine.peak_flops_per_second < 1e13
    assert 1e8 < machine.memory_bytes_per_second < 1e12
    assert 1e-7 < machine.seconds_per_operator < 1e-2
    assert machine.processor.type == "cpu" and min(machine.processor.memory) > 0
    assert 0 < machine.usable_memory_bytes <= machine.ram_bytes
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == before


def _by_hand(
    table: np.ndarray, arithmetic: np.ndarray, memory: np.ndarray, fixed: float, kernel: float | None
) -> float:
    """Seconds of operators on a CPU; with ``kernel`` on a GPU."""
    total = launches = 0.0
    for flops, moved, times, kind in table:
        parts = flops / arithmetic[int(kind)], moved / memory[int(kind)]
        total += times * (sum(parts) + fixed if kernel is None else max(parts) + kernel)
        launches += times * fixed
    return total if kernel is None else max(total, launches)


@pytest.mark.parametrize("kernel", [None, 5e-4])
def test_rates_by_class_are_those_that_steps_were_made_of(kernel: float | None) -> None:
    draw = np.random.default_rng(0)
    arithmetic = np.array([2e11, 3e11, 1e11, 3e10, 5e9, 9e10, *[np.inf] * 4])
    memory, fixed = draw.uniform(3e9, 2e10, 10), 6e-6  # of an operator: 1 to 10 ms for its FLOPs, as for its bytes
    steps = []
    for number in range(60):
        kind = number % 10
        computing, moving = 10 ** draw.uniform(-3, -2, (2, 3))
        flops = computing * arithmetic[kind] if kind < 6 else np.zeros(3)
        table = np.stack([flops, moving * memory[kind], [1, 2, 1], np.full(3, kind)], axis=1)
        steps.append(TimedStep(table, _by_hand(table, arithmetic, memory, fixed, kernel)))
    small = np.array([[0.0, 0.0, 400.0, OperatorClass.POINTWISE]])
    found = rates_of("cpu" if kernel is None else "gpu", steps, TimedStep(small, 400 * fixed))
    assert found.seconds_per_operator == pytest.approx(fixed)
    of_memory = found.memory_bytes_per_second * np.array(found.processor.memory)
    np.testing.assert_allclose(of_memory, memory, rtol=0.03)
    of_flops = found.flops_per_second * np.array(found.processor.arithmetic)
    np.testing.assert_allclose(of_flops, arithmetic, rtol=0.03)
    if kernel is not None:
        assert found.processor.kernel_seconds == pytest.approx(kernel, rel=0.05)
    for each in steps:
        assert seconds_of_operators(each.operators, found).total == pytest.approx(each.seconds, rel=0.02)


def test_a_class_of_unlike_operators_has_the_rate_of_all_together() -> None:
    """A byte takes 1 ns in one operator and 3 ns in another: 2 ns in a network that has both."""
    table = np.array([[0.0, 1e6, 1.0, OperatorClass.POINTWISE]])
    here = calibrated(1e9)
    found = nearest(lambda x: calibrated(x[0]), [1e9], [TimedStep(table, 1e-3), TimedStep(table, 3e-3)])
    assert here.memory_bytes_per_second / found.memory_bytes_per_second == pytest.approx(2.0, rel=1e-3)


def calibrated(bandwidth: float) -> Hardware:
    shares = (1.0,) * len(OPERATOR_CLASSES)
    return Hardware("", "", 1e9, 1e9, float(bandwidth), 0.0, 0.0, 0.0, processor=Processor("cpu", shares, shares))


def test_probes_measure_what_they_say() -> None:
    """FLOPs and bytes are counted by hand: one product forward and two backward, no gradient to data."""
    table = {name: microbenchmarks._probe(name, microbenchmarks._make_layer_step(layers, ProbeBench(0.25))).operators
             for name, layers in {**PRODUCTS, **OTHERS}.items()
             if name in ("layers of 64", "first 3x3", "depthwise 3x3 960", "1x1 16", "GELU")}  # fmt: skip
    flops = {name: rows[:, 0] @ rows[:, 2] for name, rows in table.items()}
    assert flops["layers of 64"] == 3 * 2 * 1024 * 64 * 256 * 2
    assert flops["first 3x3"] == 2 * 2 * 2 * 112**2 * 32 * 27
    assert flops["depthwise 3x3 960"] == 3 * 2 * 2 * 49 * 960 * 9
    assert flops["1x1 16"] == 3 * 2 * 56**2 * (16 * 96 + 96 * 24)
    gelu = table["GELU"]
    assert set(gelu[:, 3]) == {OperatorClass.POINTWISE} and flops["GELU"] == 0
    assert gelu[:, 1] @ gelu[:, 2] == 4 * 197 * 768 * (2 * 2 + 2 * 3 + 2)  # twice GELU, its gradient, and ones
    for name, of in {"layers of 64": OperatorClass.PRODUCT, "1x1 16": OperatorClass.CONVOLUTION_1X1}.items():
        assert of in set(table[name][:, 3])


@pytest.mark.usefixtures("few")
def test_every_probe_is_timed_in_every_repetition() -> None:
    ticks, called = iter(range(1000)), []
    clock = by_clock(lambda: float(next(ticks)))
    two = [Probe(name, lambda _, name=name: called.append(name), np.zeros((0, 4))) for name in "ab"]
    assert rounds(two, 7.5, clock).tolist() == [[1.0, 1.0]] * 2 and called == ["a", "b", "a", "b"]
    assert len(rounds(two, 0.0, clock, least=3)) == 3
    names = [probe.name for probe in probes(ProbeBench(LEAST_SCALE))]
    assert names[: len(PRODUCTS)] == list(PRODUCTS) and names[-1] == microbenchmarks.SMALL


def test_batches_fit_the_time_and_half_of_the_free_memory() -> None:
    def clock(call: Callable[[], object]) -> float:  # 2 x 2 layers of 384 and 1536, forward and backward, in 10 ms
        call()
        return 0.01

    rate = 3 * 2 * 2 * 512 * 384 * 1536 / 0.01
    assert scale_for(3e11 / rate, 1e12, clock, CPU) == pytest.approx(0.5)
    assert scale_for(1e3, 1e12, clock, CPU) == 1 < CUDA_SCALE
    assert scale_for(1e3, 850e6, clock, CPU) == 0.5
    assert scale_for(1e3, 60e6, clock, CPU) == scale_for(0.0, 1e12, clock, CPU) == LEAST_SCALE


@pytest.mark.slow(smaller="test_batches_fit_the_time_and_half_of_the_free_memory")
def test_a_short_calibration_gives_its_memory_back() -> None:
    code = (
        "import psutil\n"
        "from edgefl.machine import microbenchmarks as bench\n"
        "resident = lambda: psutil.Process().memory_info().rss\n"
        "before = resident(); bench.calibrate_here(0.05); after = resident()\n"
        "status = open('/proc/self/status').read()\n"  # ru_maxrss would begin with this process's
        "print(int(status.split('VmHWM:')[1].split()[0]) * 1024 - before, after - before)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=900)
    peak, left = map(int, told.stdout.split())
    # torch and scipy have some memory of their own: 115 MiB were measured
    assert peak < microbenchmarks.FIXED_BYTES + microbenchmarks.SCALED_BYTES * LEAST_SCALE + (150 << 20)
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


@pytest.mark.slow(smaller="test_throttling_is_found_where_it_sets_in")
@pytest.mark.usefixtures("few")
def test_what_is_sustained_has_a_spread_and_a_small_machine_small_batches() -> None:
    before = torch.get_num_threads(), torch.is_grad_enabled()
    said: list[str] = []
    found = measure_sustained(0.2, 1, CPU, 60e6, said.append)
    assert found.scale == LEAST_SCALE and said
    for each in (found.flops_per_second, found.memory_bytes_per_second, found.seconds_per_operator, found.jitter):
        assert 0 < each.low <= each.value <= each.high and each.times >= 3
    assert found.flops_per_second.value <= found.peak_flops_per_second.value < 1e13
    assert found.rates.flops_per_second == found.flops_per_second.value
    assert autocast_trains("bfloat16", CPU) == (found.halves["bfloat16"] is not None)
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == before


@pytest.mark.gpu
def test_a_gpu_has_rates_by_class_and_launches() -> None:
    found = measure_sustained(2.0, 1, torch.device("cuda"), float(torch.cuda.mem_get_info()[0]), str)
    processor = found.rates.processor
    assert processor.type == "gpu" and 0 < processor.kernel_seconds < 1e-4
    assert 1e-7 < found.seconds_per_operator.value < 1e-3
    assert 1e12 < found.flops_per_second.value < 1e15 and 1e10 < found.memory_bytes_per_second.value < 1e13


@pytest.mark.slow(smaller="test_rates_by_class_are_those_that_steps_were_made_of")
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
