"""AdamP: timm's steps in each of its three cases, states and memory as measured, what it is refused with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from edgefl_toys import CPU, Toy, described, do, make_work
from tensors import assert_equal_tensors
from torch import Tensor, nn
from torch.nn import functional as F

import edgefl
from edgefl import models
from edgefl.cost.predict import predict
from edgefl.errors import EdgeflError
from edgefl.models.towers.vision import import_torchvision
from edgefl.scenario import load
from edgefl.work import AllocatorPeak, Meter, Work
from edgefl.work.optimizer.gradient_trainer import make_optimizer

Tiny = Callable[..., dict[str, Any]]
DELTA = 0.1


def trained() -> list[nn.Parameter]:
    torch.manual_seed(1)
    shapes = [(6, 3, 3, 3), (5, 40), (4, 30), (7,), (), (3, 8)]
    made = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    made[0].data = made[0].data.to(memory_format=torch.channels_last)
    made[-1].data.zero_()
    return made


def loss_of(parameters: list[nn.Parameter], step: int) -> Tensor:
    """The first is invariant to the scale of each row, the second to that of the whole, the others to none."""
    torch.manual_seed(100 + step)
    rows, whole, *others = parameters
    images, x = torch.randn(8, 3, 6, 6), torch.randn(8, 40)
    filtered = F.conv2d(images, rows / rows.flatten(1).norm(dim=1).view(-1, 1, 1, 1))
    loss = (
        filtered.square().mul(torch.linspace(0, 1, 6).view(-1, 1, 1)).mean()
        + (x @ (whole / whole.norm()).T).sum(1).sigmoid().mean()
    )
    return loss + torch.stack([(p - torch.randn(p.shape)).square().sum() for p in others]).sum()


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_steps_are_timms(decay: float) -> None:
    import_torchvision()
    from timm.optim import adamp
    from timm.optim.adamp import AdamP

    ours, theirs = trained(), trained()
    settings: Any = {"name": "adamp", "lr": 0.05, "betas": (0.8, 0.98), "weight_decay": decay}
    work = replace(make_work(optimizer=settings), trainable=tuple(map(str, range(len(ours)))))
    made = make_optimizer(work, {str(i): p for i, p in enumerate(ours)})
    peer = AdamP(theirs, lr=0.05, betas=(0.8, 0.98), weight_decay=decay, delta=DELTA, wd_ratio=0.1)
    cases: set[tuple[int, str]] = set()
    for step in range(20):
        for chosen, optimizer in ((ours, made), (theirs, peer)):
            optimizer.zero_grad()
            loss_of(chosen, step).backward()
        for index, p in enumerate(theirs):
            if p.dim() > 1:
                views = (("rows", adamp._channel_view), ("whole", adamp._layer_view))
                cosines = ((n, F.cosine_similarity(v(p.grad), v(p), eps=1e-8).abs(), v(p).shape[1]) for n, v in views)
                cases.add((index, next((n for n, c, size in cosines if c.max() < DELTA / size**0.5), "none")))
        made.step()
        peer.step()
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6)
    assert {(0, "rows"), (1, "whole"), (2, "none"), (5, "rows")} <= cases  # zeros are orthogonal to all


def work_of(**more: Any) -> Work:
    return make_work(model=described(blocks=2, width=32), optimizer={"name": "adamp", "lr": 1e-2, **more})


def test_its_states_are_adams_and_its_peak_is_that_of_the_allocator() -> None:
    work, source = work_of(weight_decay=0.1), Toy()
    trace, measured = predict(work, source), do(work, source, meter=Meter()).trace
    assert measured is not None and trace.peak_memory_bytes == measured.peak_memory_bytes > 0
    assert trace.memory_bytes == measured.memory_bytes
    sizes = [4 * p.numel() for p in models.build(work.model).parameters()]
    adam = predict(replace(work, optimizer={**work.optimizer, "name": "adam", "implementation": "fused"}), source)
    # a counter of steps is a tensor of 4 bytes there
    assert adam.memory_bytes["optimizer"] - trace.memory_bytes["optimizer"] == 4 * len(sizes)
    assert 0 <= trace.peak_memory_bytes - adam.peak_memory_bytes + 4 * len(sizes) <= 2 * max(sizes) + 4096


def test_a_step_takes_the_step_and_one_product_of_a_parameter() -> None:
    parameter = nn.Parameter(torch.randn(64, 1024))
    parameter.grad = torch.randn(64, 1024)
    made = make_optimizer(work_of(weight_decay=0.1), {"p": parameter})
    made.step()
    with AllocatorPeak(CPU) as peak:
        made.step()
    assert peak.bytes == pytest.approx(2 * parameter.nbytes, abs=8192)  # beside them numbers a row


@pytest.mark.parametrize("more", [{"step_in_backward": True}, {"offload_states": True}], ids=str)
def test_a_parameter_may_step_alone(more: dict[str, Any]) -> None:
    ordinary, alone = do(work_of()), do(work_of(**more))
    for name, value in ordinary.payloads["model"].items():
        assert_equal_tensors(alone.payloads["model"][name], value)


def test_what_it_has_no_step_for_is_refused(tiny: Tiny) -> None:
    for training, says in (
        ({"precision": "float16"}, "optimizer adamp has no step in precision float16; allowed: float64, float32, bf"),
        ({"optimizer": {"name": "adamp", "delta": 0}}, "delta"),
        ({"optimizer": {"name": "adamp", "eps": 1}}, "eps"),
    ):
        with pytest.raises(EdgeflError, match=says):
            load(tiny(training={"optimizer": "adamp", **training}))
    text = edgefl.profile(tiny(training={"optimizer": {"name": "adamp", "delta": 0.2}, "precision": "bfloat16"}))
    assert text["rows"]
