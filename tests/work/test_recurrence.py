"""A GPU's GRU without a GPU: torch's shapes, and operators, FLOPs and bytes by closed forms."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from edgefl.cost.fake_tensors import PredictionMode
from edgefl.cost.predict import predict
from edgefl.operator_classes import OperatorClass
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.work.attention import attention

BATCH, TOKENS, WIDTH, HIDDEN = 2, 5, 3, 4


class Seen(TorchDispatchMode):
    """Counts operators by name, and keeps the outputs of recurrences."""

    def __init__(self) -> None:
        super().__init__()
        self.names, self.outputs = Counter[str](), list[Any]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.names[str(func).removeprefix("aten.")] += 1
        if "cudnn" in str(func):
            self.outputs.append(out)
        return out


def trained(layer: nn.GRU, x: Tensor) -> tuple[Any, ...]:
    """Shapes and dtypes of what a pass and its gradients give."""
    out, last = layer(x)
    (out.float().sum() + last.float().sum()).backward()
    given = (out, last, x.grad, *(p.grad for p in layer.parameters()))
    return tuple((tuple(each.shape), each.dtype) for each in given)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("more", [{}, {"bidirectional": True, "num_layers": 2}, {"bias": False, "batch_first": False}])
def test_it_is_one_operator_with_the_shapes_of_torchs_own(more: dict[str, Any], half: bool) -> None:
    made = {"batch_first": True, **more}
    with torch.autocast("cpu", torch.bfloat16, enabled=half):  # the gradients are float32 all the same
        own = trained(nn.GRU(WIDTH, HIDDEN, **made), torch.randn(BATCH, TOKENS, WIDTH, requires_grad=True))
        with PredictionMode(), attention("device", torch.device("cpu"), "cuda"), Seen() as seen:
            found = trained(nn.GRU(WIDTH, HIDDEN, **made), torch.empty(BATCH, TOKENS, WIDTH, requires_grad=True))
    # autocast gives a GPU's recurrence in half precision, which a CPU gives in float32
    assert found == tuple((shape, torch.bfloat16 if half and i < 2 else dtype) for i, (shape, dtype) in enumerate(own))
    assert (seen.names["_cudnn_rnn.default"], seen.names["_cudnn_rnn_backward.default"]) == (1, 1)
    assert not seen.names["addmm.default"] and not seen.names["mm.default"]
    numbers = 5 * BATCH * TOKENS * HIDDEN * (4 if "num_layers" in more else 1)  # of directions and layers
    kept = seen.outputs[0][3]
    assert (kept.numel(), kept.dtype) == (numbers * (2 if half else 4), torch.uint8)


def test_nothing_is_kept_in_evaluation() -> None:
    with PredictionMode(), attention("device", torch.device("cpu"), "cuda"), Seen() as seen, torch.no_grad():
        nn.GRU(WIDTH, HIDDEN).eval()(torch.empty(TOKENS, BATCH, WIDTH))
    assert seen.outputs[0][3].numel() == 0


def test_a_gpus_step_launches_a_kernel_for_each_token(tiny: Any) -> None:
    """Forward and backward; the FLOPs are those of a CPU's products."""
    text = {"tower": "gru", "hidden": HIDDEN, "embedding": WIDTH, "tokens": TOKENS, "blocks": 2}
    data = {
        "source": "declared",
        "clients": {"text": 1},
        "samples": BATCH,
        "shapes": {"text": {"vocabulary": 9, "classes": 10}},
    }
    setup = compose(load(tiny(data=data, model={"text": text}, training={"batch": BATCH, "mode": "none"})))
    work, source = setup.method.work("text", 1), setup.clients.client(0)
    by_device = {device: predict(work, source, device, brief=True) for device in ("cpu", "cuda")}
    (on_cpu,), (on_gpu,) = ([s for s in trace.steps.values() if s.backward_flops] for trace in by_device.values())

    classifier = 2 * BATCH * 2 * HIDDEN * 10
    recurrent = 3 * HIDDEN * (WIDTH + HIDDEN) + 3 * HIDDEN * (2 * HIDDEN + HIDDEN)  # of a direction's layers
    assert on_gpu.forward_flops == on_cpu.forward_flops == classifier + 2 * BATCH * TOKENS * 2 * recurrent
    products = {key: n for key, n in on_gpu.operators.items() if key[2] == OperatorClass.PRODUCT}
    assert sum(flops * n for (flops, _, _), n in products.items()) == on_gpu.forward_flops + on_gpu.backward_flops
    kernels = sum(products.values())
    assert kernels == 2 * 2 * TOKENS + 3  # of two layers, forward and backward; the classifier's products
    assert kernels < sum(n for key, n in on_cpu.operators.items() if key[2] == OperatorClass.PRODUCT)
