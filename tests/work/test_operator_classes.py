"""The class of each operator: a step of one layer has its products, or convolutions, in the class of that layer."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from edgefl.operator_classes import OPERATOR_CLASSES, OperatorClass
from edgefl.work import Meter

IMAGE = (2, 8, 6, 6)
TOKENS = (2, 5, 8)


class Unfused(nn.Module):
    """Attention as two batched products."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[batch, tokens, dim]`."""
        return torch.softmax(x @ x.transpose(1, 2), dim=-1) @ x


class Fused(nn.Module):
    """Attention as one operator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[batch, tokens, dim]`."""
        x = x[:, None]
        return nn.functional.scaled_dot_product_attention(x, x, x)


def step(layer: nn.Module, shape: tuple[int, ...]) -> Counter[tuple[int, int, int]]:
    x = torch.ones(shape, requires_grad=True)
    optimizer = torch.optim.SGD(layer.parameters()) if list(layer.parameters()) else None
    meter = Meter()
    with meter.step(0, ""):
        meter.enter("forward")
        loss = layer(x).square().mean()
        meter.enter("backward")
        loss.backward()
        if optimizer is not None:
            meter.enter("optimizer")
            optimizer.step()
    return meter.steps[0, ""].operators


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (nn.Linear(8, 4), TOKENS, OperatorClass.PRODUCT),
        (nn.Conv2d(8, 4, 3), IMAGE, OperatorClass.CONVOLUTION),
        (nn.Conv2d(8, 4, 1), IMAGE, OperatorClass.CONVOLUTION_1X1),
        (nn.Conv2d(8, 8, 3, groups=2), IMAGE, OperatorClass.GROUPED_CONVOLUTION),
        (nn.Conv2d(8, 16, 3, groups=8), IMAGE, OperatorClass.DEPTHWISE_CONVOLUTION),
        (nn.ConvTranspose2d(8, 8, 3, groups=8), IMAGE, OperatorClass.DEPTHWISE_CONVOLUTION),
        (nn.Conv1d(8, 8, 3, groups=4), (2, 8, 5), OperatorClass.GROUPED_CONVOLUTION),
        (Unfused(), TOKENS, OperatorClass.ATTENTION),
        (Fused(), TOKENS, OperatorClass.ATTENTION),
    ],
)
def test_flops_are_in_the_class_of_the_layer(layer: nn.Module, shape: tuple[int, ...], expected: int) -> None:
    operators = step(layer, shape)
    assert {kind for flops, _, kind in operators if flops} == {expected}
    updates = sum(n for (_, _, kind), n in operators.items() if kind == OperatorClass.OPTIMIZER)
    assert (updates > 0) == bool(list(layer.parameters()))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.BatchNorm2d(8), IMAGE), (nn.LayerNorm(8), TOKENS), (nn.GroupNorm(2, 8), IMAGE)],
)
def test_norms_forward_and_backward(layer: nn.Module, shape: tuple[int, ...]) -> None:
    kinds = Counter[int]()
    for (_, _, kind), times in step(layer, shape).items():
        kinds[kind] += times
    assert kinds[OperatorClass.NORMALISATION] == 2  # forward and backward
    assert not kinds[OperatorClass.PRODUCT]


def test_rows_of_a_table_are_looked_up_and_get_gradients() -> None:
    table, ids = nn.Embedding(10, 4), torch.tensor([[1, 2, 3]])
    meter = Meter()
    with meter.step(0, ""):
        table(ids).sum().backward()
    found = [n for (_, _, kind), n in meter.steps[0, ""].operators.items() if kind == OperatorClass.EMBEDDING]
    assert sum(found) == 2


def test_titles_are_distinct_and_in_order() -> None:
    assert [each.value for each in OPERATOR_CLASSES] == list(range(10))
    assert len({each.title for each in OPERATOR_CLASSES}) == 10
    assert OperatorClass.DEPTHWISE_CONVOLUTION.title == "depthwise convolution"
