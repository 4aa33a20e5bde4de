"""From a trace to a round on a device and a link: sums and rooflines by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from edgefl_toys import SideMatrices, Toy, described, make_work, scoring_pass, training_pass
from hypothesis import given
from hypothesis import strategies as st

from edgefl.cost.client_cost import TRAFFIC_PARTS, ComputeCost, compute_cost, traffic
from edgefl.cost.predict import predict
from edgefl.cost.price import price_rounds
from edgefl.devices import Device, Link
from edgefl.devices.budgets import BUDGETS, amounts
from edgefl.devices.processors import Processor
from edgefl.operator_classes import OperatorClass
from edgefl.work import Edit, Item, Payload, Work

DEVICE = Device(
    name="toy", title="Toy", ram_bytes=2**30, usable_memory_bytes=2**29, flops_per_second=1e9,
    peak_flops_per_second=2e9, memory_bytes_per_second=1e8, seconds_per_operator=1e-5, runtime_overhead_bytes=2**20,
    compute_watts=4.0, idle_watts=1.0, jitter=0.0,
)  # fmt: skip
LINK = Link("toy", "Toy", 8e6, 4e6, 0.05, 0.5, 0.8, 0.0)


def computed(work: Work, source: Toy) -> ComputeCost:
    return compute_cost(work, source, predict(work, source))


def of(operators: list[tuple[float, float, float]], **more: int) -> ComputeCost:
    numbers = {"peak_memory_bytes": 100, "forward_flops": 30, "backward_flops": 60, **more}
    return ComputeCost(
        memory_bytes={},
        fvcore_macs_per_sample=0.0,
        operators=np.array([(*each, OperatorClass.PRODUCT) for each in operators]),
        **numbers,
    )  # type: ignore[arg-type]


def test_flops_grow_with_batches_and_epochs() -> None:
    one = computed(make_work(passes=(training_pass(),) * 2), Toy(16))
    many = computed(make_work(passes=(training_pass(),) * 6), Toy(80))
    assert many.forward_flops == 15 * one.forward_flops  # 3 times the epochs, 5 times the batches
    assert many.backward_flops == 15 * one.backward_flops
    assert many.peak_memory_bytes == one.peak_memory_bytes
    assert many.fvcore_macs_per_sample == one.fvcore_macs_per_sample
    assert (one.fvcore_macs, many.fvcore_macs) == tuple(n * one.fvcore_macs_per_sample for n in (2 * 16, 6 * 80))


@given(epochs=st.integers(2, 9), batches=st.integers(2, 9))
def test_operators_are_counted_in_proportion(epochs: int, batches: int) -> None:
    assert OPERATORS[2, 2].shape[1] == 4
    source = Toy(8 * batches)
    found = compute_cost(make_work(passes=(training_pass(),) * epochs), source, TRACE)
    assert found.operators[:, 2].sum() * 4 == OPERATORS[2, 2][:, 2].sum() * epochs * batches
    flops = (found.operators[:, 0] * found.operators[:, 2]).sum()
    assert flops == found.forward_flops + found.backward_flops


TRACE = predict(make_work(), Toy(16))
OPERATORS = {(2, 2): compute_cost(make_work(), Toy(16), TRACE).operators}


def test_an_evaluation_has_no_backward_flops() -> None:
    scored = computed(make_work(passes=(scoring_pass(),)), Toy(40))
    assert scored.backward_flops == 0 == scored.fvcore_macs_per_sample < scored.fvcore_macs
    assert scored.forward_flops > 0


def macs(trainable: tuple[str, ...], batch: int = 8) -> float:
    work = replace(make_work(passes=(training_pass(batch=batch),)), trainable=trainable)
    return computed(work, Toy(16)).fvcore_macs_per_sample


def test_frozen_parts_count_once_and_trained_ones_three_times() -> None:
    """One sample in the papers' convention: attention and products, and 5 per element of a LayerNorm."""
    n, d = 17, 16
    embedding, head, norm = (n - 1) * 16 * d, d * 5, 5 * n * d
    block = 12 * n * d * d + 2 * n * n * d + 2 * 5 * n * d
    names = make_work().trainable
    forward = embedding + 2 * block + norm + head
    assert macs(names) == 3 * forward
    assert macs(tuple(x for x in names if "head" in x)) == forward + 2 * head
    last = tuple(x for x in names if ".blocks.1." in x or "head" in x or x.startswith("image.norm."))
    assert macs(last) == forward + 2 * (block + norm + head)
    assert macs(names, batch=2) == macs(names, batch=8)


def test_blocks_1_and_10_are_different_parts() -> None:
    model = described(blocks=11)
    whole = make_work(passes=(training_pass(),), model=model)
    one = replace(whole, trainable=tuple(n for n in whole.trainable if ".blocks.1." in n))
    none = computed(replace(whole, trainable=("image.head.bias",)), Toy(16)).fvcore_macs_per_sample
    block = 12 * 17 * 256 + 2 * 17 * 17 * 16 + 2 * 5 * 17 * 16
    assert computed(one, Toy(16)).fvcore_macs_per_sample == none + 2 * block


@pytest.mark.parametrize("rank", [1, 4])
def test_side_matrices_count_what_trains(rank: int) -> None:
    """Of a frozen block with a trained product beside its qkv, each product has the gradients that it needs."""
    n, d = 17, 16
    layers = [f"image.blocks.{index}.attn.qkv" for index in (0, 1)]
    edit = Edit("toy-side", {"layers": layers, "rank": rank})
    work = replace(
        make_work(passes=(training_pass(),)), edits=(edit,), trainable=tuple(SideMatrices.names(edit)), up=()
    )
    attention, norm = 2 * n * n * d, 5 * n * d
    beside = n * rank * d + n * rank * 3 * d
    embedding, head, block = (n - 1) * 16 * d, d * 5, 12 * n * d * d + attention + 2 * norm
    forward = embedding + 2 * (block + beside) + norm + head
    # gradients: of the second small matrix and its input, of both products of attention, and of the inputs of what
    # follows in the block; the first block's own input and norm1 need none
    after_qkv = 2 * attention + n * d * d + norm + 8 * n * d * d
    first = after_qkv + n * rank * d + 2 * (n * rank * 3 * d)
    second = after_qkv + norm + 3 * n * d * d + 2 * beside
    found = computed(work, Toy(16))
    assert found.fvcore_macs_per_sample == forward + first + second
    # the meter's FLOPs count the same gradients, and those of the norm and the head, which are frozen as a whole
    products = (first + second - 3 * norm) + head
    assert found.backward_flops == 2 * 16 * (products + (5 * attention // 2 - 2 * attention) * 2)
    assert found.fvcore_macs_per_sample < macs(make_work().trainable)


def test_a_frozen_weight_in_a_block_leaves_out_its_own_gradient() -> None:
    """The published convention is that of whole blocks: without one weight's gradient, a block has one product less."""
    names = make_work().trainable
    frozen = ("image.blocks.1.mlp.fc1.weight", "image.blocks.1.mlp.fc1.bias")
    assert set(frozen) < set(names)
    assert macs(names) - macs(tuple(name for name in names if name not in frozen)) == 4 * 17 * 16 * 16


def test_roofline_seconds_of_a_profile_without_a_processor() -> None:
    # bound by arithmetic (3 s, twice), by memory (2 s, once)
    cost = of([(3e9, 1e6, 2), (1e9, 2e8, 1)])
    assert cost.seconds(DEVICE) == pytest.approx(3 * 2 + 2 + 3 * 1e-5)
    assert cost.seconds(replace(DEVICE, flops_per_second=6e9)) == pytest.approx(0.5 * 2 + 2 + 3e-5)
    assert ComputeCost(0, {}, 0, 0, 0.0, np.empty((0, 4))).seconds(DEVICE) == 0


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"name": "adamw"}])
def test_a_gpu_without_kernels_on_lists_runs_foreach_operators_once_for_each_tensor(settings: dict[str, Any]) -> None:
    def of_optimizer(implementation: str) -> ComputeCost:
        optimizer = {"name": "sgd", "lr": 1e-2, "implementation": implementation, **settings}
        return computed(make_work(optimizer=optimizer), Toy(16))

    lists, loop = of_optimizer("foreach"), of_optimizer("for-loop")
    assert lists.more_kernels > 0 == loop.more_kernels
    has = replace(DEVICE, processor=Processor("gpu", (1.0,) * 10, (1.0,) * 10, kernel_seconds=1e-3))
    lacks = replace(DEVICE, processor=replace(has.processor, lists=False))
    assert loop.seconds(lacks) == loop.seconds(has)
    # kernels, the fixed time of which is most: as many as of a loop over tensors
    kernels = loop.operators[:, 2].sum()
    assert lists.seconds(lacks) - lists.seconds(has) == pytest.approx(1e-3 * lists.more_kernels)
    assert lists.operators[:, 2].sum() + lists.more_kernels == kernels


MODEL = Payload("model", (Item("a", (1000,), "float32", "k/a"),))
PARTNER = Payload("partner", (Item("p", (10, 10), "float32", "o/p"),))


def test_traffic_by_payload() -> None:
    moved = traffic((MODEL, PARTNER), (MODEL,))
    assert moved.download_bytes_by_payload == {"model": 4000, "partner": 400}
    assert (moved.download_bytes, moved.upload_bytes) == (4400, 4000)
    assert moved.serialised_upload_bytes == MODEL.serialised_bytes > 4000
    assert moved.serialised_download_bytes == MODEL.serialised_bytes + PARTNER.serialised_bytes


@pytest.mark.parametrize(
    ("name", "source", "part"),
    [
        ("image.blocks.3.attn.qkv.weight", "image/image.blocks.3.attn.qkv.weight", "blocks"),
        ("image.blocks.3.attn.qkv.partner", "text/text.blocks.3.attn.qkv.weight", "blocks"),
        ("text.embedding.word.weight", "text/text.embedding.word.weight", "embedding"),
        ("joint.norm.weight", "image-text/joint.norm.weight", "norm"),
        ("image.pooler.weight", "image/image.pooler.weight", "pooler"),
        ("image.rep.1.running_mean", "image/image.rep.1.running_mean", "buffers"),
        ("prototypes.head", "table/prototypes.image", "tables"),
        ("confusion", "image/confusion", "tables"),
    ],
)
def test_every_item_is_of_one_part(name: str, source: str, part: str) -> None:
    payload = Payload("any", (Item(name, (5,), "float32", source),))
    moved = traffic((payload, MODEL), (), frozenset({"image/image.rep.1.running_mean"}))
    assert set(moved.download_bytes_by_part) == set(moved.upload_bytes_by_part) == set(TRAFFIC_PARTS)
    expected = Counter({part: 20}) + Counter({"tables": 4000})  # the other one's name says nothing
    assert {p: n for p, n in moved.download_bytes_by_part.items() if n} == expected
    assert sum(moved.download_bytes_by_part.values()) == moved.download_bytes
    assert not any(moved.upload_bytes_by_part.values())


def test_time_and_energy_of_a_round() -> None:
    compute, moved = of([(3e9, 1e6, 1)]), traffic((MODEL, PARTNER), (MODEL,))
    # a tenth of the throughput is lost; the model's 60 bytes are read from storage first
    place, way = replace(DEVICE, storage_bytes_per_second=30.0), replace(LINK, loss=0.1)
    compute = replace(compute, memory_bytes={"parameters": 40, "buffers": 20, "activations": 100})
    spent = price_rounds([(compute, moved)], place, way)
    down = 0.05 + 8 * moved.serialised_download_bytes / (8e6 * 0.9)
    busy = 3 + 1e-5 + 2
    up = 0.05 + 8 * moved.serialised_upload_bytes / (4e6 * 0.9)
    assert spent.download_seconds == pytest.approx(down)
    assert spent.compute_seconds == pytest.approx(busy)
    assert spent.upload_seconds == pytest.approx(up)
    assert spent.virtual_seconds == pytest.approx(down + busy + up)
    # the device computes at 4 W and idles at 1 W beside a radio of 0.5 W down and 0.8 W up
    assert spent.energy_joules == pytest.approx(busy * 4 + down * 1.5 + up * 1.8)


def test_a_device_that_gets_hot_slows_down_and_half_precision_has_its_own_rate() -> None:
    hot = replace(DEVICE, throttle_after_seconds=1.0, throttled_share=0.5)
    compute, nothing = of([(3e9, 1e6, 1)]), traffic((), ())
    for throttling, seconds in ((False, 3 + 1e-5), (True, 1 + (2 + 1e-5) / 0.5)):
        price = price_rounds([(compute, nothing)], hot, LINK, throttling=throttling)
        assert price.compute_seconds == pytest.approx(seconds)
    half = replace(DEVICE, bfloat16_flops_per_second=3 * DEVICE.flops_per_second)
    assert replace(compute, precision="bfloat16").seconds(half) == pytest.approx(1 + 1e-5)
    assert replace(compute, precision="float16").seconds(half) == pytest.approx(3 + 1e-5)


def test_the_gate_is_given_what_links_carry() -> None:
    compute, moved = of([(3e9, 1e6, 1)]), traffic((MODEL,), (MODEL,))
    price = price_rounds([(compute, moved)], DEVICE, LINK)
    budgets = {name: values.item() for name, values in amounts(BUDGETS, price).items()}
    assert type(budgets["memory"]) is type(budgets["bytes"]) is int  # as records write them
    assert budgets == {
        "memory": 100,
        "flops": 90,
        "bytes": 2 * MODEL.serialised_bytes,
        "seconds": price.virtual_seconds,
        "joules": price.energy_joules,
    }
    # the device computes at 4 W and idles at 1 W beside a radio of 0.5 W down and 0.8 W up
    assert amounts(["power", "memory"], price) == {"power": 4.0, "memory": 100}
