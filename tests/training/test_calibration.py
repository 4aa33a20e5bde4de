"""The calibrated machine, and batches that hold random values of the right kind."""

from __future__ import annotations

import pytest
import torch
from edgefl_toys import FACTS, Toy, described, make_work, training_pass

from edgefl.cost import predict
from edgefl.training.calibration import NAME, calibrate_here
from edgefl.training.witness import RandomBatches, observe, step_seconds
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


@pytest.mark.slow
def test_a_calibrated_machine_predicts_a_step_within_a_factor_of_two() -> None:
    """tools/bench_time.py has the true errors; a machine that does much else meanwhile must not fail here."""
    model = described(blocks=4, width=128)
    work = make_work(passes=(training_pass(batch=128),), model=model)
    source = Toy(512)
    predicted = step_seconds(work, source, predict(work, source), calibrate_here())
    seen = observe(work, source, torch.device("cpu"), say=str)
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
    assert all(torch.equal(a["image"], b["image"]) for (_, a), (_, b) in zip(found, again, strict=True))
    short = RandomBatches(source, described(modalities), 2, short=True)
    assert sum(short.counts(pass_).values()) == 2 and short.size(pass_) == 16


def test_what_is_observed_is_what_was_predicted() -> None:
    work, source = make_work(), Toy(64)
    predicted, seen = predict(work, source), observe(work, source, torch.device("cpu"), say=str)
    assert seen.peak_memory_bytes == predicted.peak_memory_bytes
    assert seen.trace.memory_bytes == predicted.memory_bytes
    assert seen.witness_peak_memory_bytes is not None
    assert set(seen.seconds) == {(i, "image") for i in range(len(distinct(work)))}
