"""The cost of a published training step: it runs on fake tensors under the meter, as a work's prediction does."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from edgefl.commands.published.networks import Network, network
from edgefl.cost import ComputeCost
from edgefl.cost.predict import CpuNormFakeMode, replaced
from edgefl.devices.measurements import Measurement
from edgefl.errors import UnknownName
from edgefl.work import CUDA_ROUNDING, METERED, Meter

AUTOCAST = {"float16": torch.float16, "bfloat16": torch.bfloat16}
OPTIMIZERS = {
    "SGD": torch.optim.SGD, "MuSGD": torch.optim.SGD, "Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW,
    "BertAdam": torch.optim.AdamW,
}  # fmt: skip
"""By the first word of ``Measurement.optimizer``; a measurement that doesn't say it counts as SGD with momentum."""


_COSTS: dict[tuple[object, ...], ComputeCost] = {}


def step_cost(row: Measurement, *, gpu: bool) -> ComputeCost:
    """The cost of one training step of a measurement: FLOPs, operators and the peak of live storage.

    On a GPU the optimizer updates all parameters in a few operators (torch's default there), and memory is rounded as
    its allocator does.  With ``tf32``, the rate is that of float32, as profiles have none for it.
    Raises UnknownName for a network or an optimizer that isn't known.
    """
    r = row
    key = (r.library, r.model, r.trained, r.batch, r.input, r.classes, r.precision, r.optimizer, gpu)
    if key not in _COSTS:
        _COSTS[key] = _predicted(row, gpu)
    return _COSTS[key]


def _predicted(row: Measurement, gpu: bool) -> ComputeCost:
    with torch.device("meta"):
        built = network(row)
    mode = CpuNormFakeMode()
    with mode:
        module = replaced(built.module, lambda old: torch.empty(old.shape, dtype=old.dtype)).train()
    trained = [p for n, p in module.named_parameters() if p.requires_grad and _is_trained(row, built, n)]
    for parameter in module.parameters():
        parameter.requires_grad_(any(parameter is p for p in trained))
    meter = Meter(CUDA_ROUNDING if gpu else 1)
    meter.adopt(module.parameters(), "parameters")
    meter.adopt(module.buffers(), "buffers")
    for parameter in trained:
        parameter.register_post_accumulate_grad_hook(lambda p: meter.adopt([p.grad], "gradients"))
    with torch.random.fork_rng([]), mode:
        optimizer = _optimizer(row, trained, gpu)
        for _ in range(METERED):
            batch = built.batch()
            meter.adopt(batch.values(), "inputs")
            with meter.step(0, "all"):
                _step(row, built, module, optimizer, meter, batch)
    step = meter.steps[0, "all"]
    table = np.array([[*o, n] for o, n in step.operators.items()], dtype=np.float64).reshape(-1, 3)
    trace = meter.trace()
    precision = row.precision if row.precision in AUTOCAST else "float32"
    return ComputeCost(
        trace.peak_memory_bytes, trace.memory_bytes, step.forward_flops, step.backward_flops, 0.0, table,
        precision=precision, live_memory_bytes=trace.live_memory_bytes,
    )  # fmt: skip


def _step(
    row: Measurement,
    built: Network,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    meter: Meter,
    batch: dict[str, torch.Tensor],
) -> None:
    meter.enter("forward")
    half = AUTOCAST.get(row.precision)
    with torch.autocast("cpu", dtype=half, enabled=half is not None):
        loss = built.loss(module, batch)
    meter.enter("backward")
    loss.backward()
    meter.enter("optimizer")
    optimizer.step()
    for state in optimizer.state.values():
        meter.adopt([t for t in state.values() if isinstance(t, torch.Tensor)], "optimizer")
    optimizer.zero_grad()


def _is_trained(row: Measurement, built: Network, name: str) -> bool:
    return row.trained == "all" or name.startswith(built.last)


def _optimizer(row: Measurement, trained: list[nn.Parameter], gpu: bool) -> torch.optim.Optimizer:
    said = row.optimizer or "SGD, momentum 0.9"
    name, _, rest = said.partition(",")
    if name not in OPTIMIZERS:
        raise UnknownName("optimizer", name, sorted(OPTIMIZERS))
    momentum = {"momentum": 0.9} if "momentum" in rest else {}
    made: torch.optim.Optimizer = OPTIMIZERS[name](trained, lr=0.01, foreach=gpu, **momentum)
    return made
