"""States in the memory of a GPU's host: the same weights, where they are counted, what is refused.

No GPU is needed: what is copied, and what is counted, is the same without one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from edgefl_toys import Toy, described, do, make_work
from tensors import assert_equal_tensors

import edgefl
from edgefl import models
from edgefl.cost.predict import predict
from edgefl.errors import EdgeflError
from edgefl.scenario import load
from edgefl.work import Meter, Work
from edgefl.work.training_options import TrainingOptions

Tiny = Callable[..., dict[str, Any]]
IMAGES = {"source": "declared", "clients": {"image": 2}, "samples": 40,
          "shapes": {"image": {"channels": 1, "size": 16, "classes": 5}}}  # fmt: skip


def work_of(name: str = "adamw", **more: Any) -> Work:
    settings = {"name": name, "lr": 1e-2, "implementation": "fused", **more}
    return make_work(model=described(blocks=2, width=64), optimizer=settings)


def offloaded(work: Work) -> Work:
    return replace(work, optimizer={**work.optimizer, "offload_states": True})


@pytest.mark.parametrize(
    "more",
    [{}, {"name": "sgd", "momentum": 0.9}, {"name": "adamw-8bit"}, {"step_in_backward": True},
     {"clip": 0.1, "accumulation": 2}],
    ids=["adamw", "momentum", "8 bits", "in backward", "clip and accumulation"],
)  # fmt: skip
def test_the_weights_are_those_of_states_on_the_device(more: dict[str, Any]) -> None:
    work = work_of(**more)
    here, there = do(work), do(offloaded(work))
    assert here.updates == there.updates > 0
    for name, value in here.payloads["model"].items():
        assert_equal_tensors(there.payloads["model"][name], value)


def test_the_device_holds_the_states_of_one_parameter() -> None:
    work = work_of("sgd", momentum=0.9, step_in_backward=True)
    work = replace(work, passes=tuple(replace(p, batch=1) for p in work.passes))
    sizes = [4 * p.numel() for p in models.build(work.model).parameters()]
    here, there = (predict(each, Toy(), "cuda") for each in (work, offloaded(work)))
    assert here.host_bytes == 0 and there.host_bytes == sum(sizes)
    assert here.peak_memory_bytes - there.peak_memory_bytes > sum(sizes) - max(sizes)
    assert there.memory_bytes["optimizer"] <= max(sizes) + 512
    measured = do(offloaded(work), meter=Meter(512)).trace
    assert measured is not None and measured.host_bytes == sum(sizes)
    assert measured.memory_bytes["optimizer"] <= max(sizes) + 512


def test_adamw_has_two_states_and_a_count() -> None:
    work = work_of()
    parameters = list(models.build(work.model).parameters())
    assert predict(offloaded(work), Toy(), "cuda").host_bytes == sum(2 * 4 * p.numel() for p in parameters)


def test_a_profile_says_what_the_host_holds(tiny: Tiny) -> None:
    scenario = tiny(data=IMAGES, model={"image": {"blocks": 2, "width": 64, "heads": 2}})
    here, there = (
        edgefl.profile(scenario, overrides=["executor.device=cuda", f"training.offload_states={on}"])["rows"][0]
        for on in ("false", "true")
    )
    assert "host_memory_bytes" not in here
    assert there["host_memory_bytes"] > 0.9 * here["memory_bytes"]["optimizer"]
    assert there["peak_memory_bytes"] < here["peak_memory_bytes"]


def test_a_cpu_has_nowhere_to_offload_to(tiny: Tiny) -> None:
    with pytest.raises(EdgeflError, match=r"training\.offload_states: a CPU computes in its host's memory"):
        edgefl.profile(tiny(data=IMAGES, training={"batch": 8, "offload_states": True}))


def test_what_it_does_not_go_with(tiny: Tiny) -> None:
    with pytest.raises(EdgeflError, match="offload_states takes a step for each parameter, which float16 would skip"):
        load(tiny(training={"offload_states": True, "precision": "float16"}))
    with pytest.raises(EdgeflError, match="mezo has no gradients .* leave out offload_states"):
        load(tiny(training={"offload_states": True, "optimizer": "mezo"}))
    assert "offload_states" not in TrainingOptions().settings()
