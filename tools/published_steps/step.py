"""The cost of a published training step: its network runs on fake tensors under the meter, or its cost is stated."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgefl import models
from edgefl.cost.client_cost import ComputeCost, operator_table
from edgefl.cost.fake_tensors import PredictionMode
from edgefl.cost.predict import ROOMS, replace_tensors
from edgefl.devices.measurements import Measurement
from edgefl.devices.written_facts import library_folder
from edgefl.errors import DeviceError, UnknownName
from edgefl.memo import cache_folder, recall, remember
from edgefl.models.towers.vision import import_torchvision
from edgefl.plain_data import from_data, to_data
from edgefl.registry import package_digest
from edgefl.registry.part_fields import Fields
from edgefl.work import CUDA_ROUNDING, METERED, Meter, StepTrace, digest

AUTOCAST = {"float16": torch.float16, "bfloat16": torch.bfloat16}
OPTIMIZERS = {
    "SGD": torch.optim.SGD, "MuSGD": torch.optim.SGD, "Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW,
    "BertAdam": torch.optim.AdamW, "Adadelta": torch.optim.Adadelta,
}  # fmt: skip
"""By the first word of ``Measurement.optimizer``; a measurement that doesn't say it counts as SGD with momentum."""


AUXILIARY = {"GoogLeNet": 0.3, "Inception3": 0.4}
"""Weights of the losses of auxiliary heads: GoogLeNet's own (Szegedy et al. 2015, section 5), and for Inception that of
PyTorch's tutorial on fine-tuning torchvision's models.  torchvision's own script for training has none: it trains no
network of which a pass gives a tuple."""
INCEPTION_SIZE = 299

_COSTS: dict[tuple[object, ...], ComputeCost] = {}


def step_cost(row: Measurement, *, gpu: bool) -> ComputeCost:
    """The cost of one training step of a measurement: FLOPs, operators and the peak of live storage.

    On a GPU the optimizer updates all parameters in a few operators where the row's software does, and memory is
    rounded as its allocator does.  Attention is one operator where the row's software has it, and products and a
    softmax elsewhere.  A network of no library has the cost that ``profiles/measurements/costs.json`` states.
    Raises UnknownName for a network or an optimizer that isn't known, DeviceError for a step whose cost isn't stated.
    """
    r = row
    key = (
        r.library, r.model, r.trained, r.batch, r.input, r.classes, r.precision, r.optimizer, r.fuses_attention,
        r.updates_together, gpu,
    )  # fmt: skip
    if key not in _COSTS:
        stated = [step for step in stated_steps() if step.model == r.model]
        _COSTS[key] = (
            _stated_cost(row, gpu, stated) if r.library == "other" and stated else _predicted_cost(row, gpu, key)
        )
    return _COSTS[key]


class StatedStep(Fields):
    """A training step whose network isn't built here, with its cost; ``network`` says where its layers are from.

    ``operators`` are FLOPs, bytes read and written, times and class; ``running_statistics`` are those of batch norms.
    """

    model: str
    batch: int
    input: tuple[int, ...]
    classes: int | None
    precision: str
    optimizer: str | None
    gpu: bool
    network: str
    parameters: int
    running_statistics: int
    peak_memory_bytes: int
    live_memory_bytes: int
    memory_bytes: Mapping[str, int]
    forward_flops: int
    backward_flops: int
    operators: tuple[tuple[int, int, int, int], ...]


@cache
def stated_steps() -> tuple[StatedStep, ...]:
    """The steps of ``profiles/measurements/costs.json``."""
    written = json.loads((library_folder() / "measurements" / "costs.json").read_text(encoding="utf-8"))
    return tuple(StatedStep(**step) for step in written["steps"])


def _stated_cost(row: Measurement, gpu: bool, steps: Sequence[StatedStep]) -> ComputeCost:
    asked = (row.batch, row.input, row.classes, row.precision, row.optimizer, gpu)
    for s in steps:
        if (s.batch, s.input, s.classes, s.precision, s.optimizer, s.gpu) == asked and row.trained == "all":
            return ComputeCost(
                s.peak_memory_bytes, s.memory_bytes, s.forward_flops, s.backward_flops, 0.0,
                np.array(s.operators, dtype=np.float64), precision=row.precision, live_memory_bytes=s.live_memory_bytes,
            )  # fmt: skip
    raise DeviceError(f"the cost of {row.model} isn't stated for this batch, input, precision and optimizer")


def _predicted_cost(row: Measurement, gpu: bool, key: tuple[object, ...]) -> ComputeCost:
    """The cost of a network's step, whose trace is kept on disk as those of works are."""
    code = package_digest("edgefl", (*ROOMS, "commands/devices"))
    folder, name = cache_folder() / "costs", digest([*key, *models.versions(), code])
    trace = recall(folder, name, partial(from_data, StepTrace), "costs")
    if trace is None:
        trace = _trace(row, gpu)
        remember(folder, name, to_data(trace))
    step = trace.steps[0, "all"]
    return ComputeCost(
        trace.peak_memory_bytes, trace.memory_bytes, step.forward_flops, step.backward_flops, 0.0,
        operator_table(step.operators), precision=row.precision, live_memory_bytes=trace.live_memory_bytes,
    )  # fmt: skip


def _trace(row: Measurement, gpu: bool) -> StepTrace:
    with torch.device("meta"):
        built = network(row)
    mode = PredictionMode()
    with mode:
        module = replace_tensors(built.module, lambda old: torch.empty(old.shape, dtype=old.dtype)).train()
    trained = [p for n, p in module.named_parameters() if p.requires_grad and _is_trainable(row, built, n)]
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
    return meter.trace()


def _step(
    row: Measurement,
    built: PublishedNetwork,
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


def _is_trainable(row: Measurement, built: PublishedNetwork, name: str) -> bool:
    return row.trained == "all" or name.startswith(built.last)


def _optimizer(row: Measurement, trained: list[nn.Parameter], gpu: bool) -> torch.optim.Optimizer:
    said = row.optimizer or "SGD, momentum 0.9"
    name, _, rest = said.partition(",")
    if name not in OPTIMIZERS:
        raise UnknownName("optimizer", name, sorted(OPTIMIZERS))
    momentum = {"momentum": 0.9} if "momentum" in rest else {}
    made: torch.optim.Optimizer = OPTIMIZERS[name](trained, lr=0.01, foreach=gpu and row.updates_together, **momentum)
    return made


@dataclass(frozen=True)
class PublishedNetwork:
    """A module, a function that makes a batch of its size, and the loss of a batch: ``loss(module, batch)``.

    ``last`` are the starts of the names of the last layer's parameters.
    """

    module: nn.Module
    batch: Callable[[], dict[str, Tensor]]
    loss: Callable[[nn.Module, dict[str, Tensor]], Tensor]
    last: tuple[str, ...] = ("",)


def network(row: Measurement) -> PublishedNetwork:
    """Build the network of a measurement on the current device, from timm, torchvision or transformers.

    Raises UnknownName for another, unless it is in ``OTHERS``.
    """
    if row.library == "transformers":
        return _of_transformers(row)
    if row.library == "other" and row.model not in OTHERS:
        raise UnknownName("model", row.model, sorted({*OTHERS, *(step.model for step in stated_steps())}))
    import_torchvision()
    if row.library == "timm":
        module = _of_timm(row)
        last = module.default_cfg["classifier"]
        names = last if isinstance(last, tuple) else (last,)  # a distilled network has two heads
        return PublishedNetwork(module, _images(row), _cross_entropy, tuple(f"{name}." for name in names))
    build: Callable[[Measurement], Any] = OTHERS.get(row.model, _of_torchvision)
    return PublishedNetwork(build(row), _images(row), _cross_entropy)


def _of_timm(row: Measurement) -> Any:
    import timm

    layers: Any = timm.layers
    before = layers.use_fused_attn(), layers.use_fused_attn(experimental=True)
    layers.set_fused_attn(row.fuses_attention)
    try:
        return timm.create_model(row.model, num_classes=row.classes, pretrained=False)
    finally:
        layers.set_fused_attn(*before)


def _of_torchvision(row: Measurement, **more: Any) -> Any:
    import torchvision

    name = row.model.partition("-")[0]
    if name in ("googlenet", "inception_v3"):
        more["init_weights"] = False  # which would draw each of them from scipy's truncated normal distribution
    if name == "inception_v3" and row.input[-1] < INCEPTION_SIZE:
        raise DeviceError(
            f"{row.model} trains on pictures of {INCEPTION_SIZE} pixels or more, because its auxiliary head has a "
            f"kernel of 5 x 5 on the maps of 5 x 5 that these give; the measurement has {row.input[-1]}"
        )
    return torchvision.models.get_model(name, num_classes=row.classes, **more)


def _resnet_for_32(row: Measurement) -> Any:
    module = _of_torchvision(row)
    module.conv1, module.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return module


def _resnet_v1(row: Measurement) -> Any:
    """The ResNet of 2015, and Keras': the first layer of a block has the stride, not the second."""
    module = _of_torchvision(row)
    for stage in (module.layer2, module.layer3, module.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    return module


def _shufflenet_for_32(row: Measurement) -> Any:
    module = _of_torchvision(row)
    module.conv1[0].stride, module.maxpool = (1, 1), nn.Identity()
    return module


def _lenet(row: Measurement) -> nn.Module:
    convolutions = nn.Conv2d(1, 6, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.MaxPool2d(2)
    dense = nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10)
    return nn.Sequential(*convolutions, nn.Flatten(), *dense)


def _mlp(row: Measurement) -> nn.Module:
    hidden = (layer for i, o in ((784, 256), (256, 128), (128, 64)) for layer in (nn.Linear(i, o, False), nn.ReLU()))
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 10))


OTHERS: dict[str, Callable[[Measurement], Any]] = {
    "resnet18-cifar": _resnet_for_32, "resnet50-cifar": _resnet_for_32, "resnet50-v1": _resnet_v1,
    "shufflenet_v2_x1_0-cifar": _shufflenet_for_32, "lenet5": _lenet, "mlp-784-256-128-64-10": _mlp,
    "googlenet-plain": partial(_of_torchvision, aux_logits=False),
}  # fmt: skip
"""Networks of no library: those of torchvision with changes, and two short ones.

GoogLeNet without its auxiliary heads is that of runtimes that have none (MNN).
"""


def _images(row: Measurement) -> Callable[[], dict[str, Tensor]]:
    return lambda: {"image": torch.empty(row.batch, *row.input), "label": torch.empty(row.batch, dtype=torch.long)}


def _cross_entropy(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    scores = module(batch["image"])
    heads = scores if isinstance(scores, tuple) else (scores,)
    loss, *others = (functional.cross_entropy(head.float(), batch["label"]) for head in heads)
    for other in others:
        loss = loss + AUXILIARY[type(module).__name__] * other
    return loss


def _of_transformers(row: Measurement) -> PublishedNetwork:
    """BERT without classes answers questions, as in NVIDIA's examples; others classify.  Attention isn't fused."""
    import_torchvision()
    import transformers

    kinds: Any = transformers
    told: dict[str, Any] = {"num_labels": row.classes} if row.classes else {}
    if row.model.startswith("roberta"):
        told |= {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
    elif "large" in row.model:
        told |= {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    kind = next(kind for kind in ("Roberta", "DistilBert", "Bert") if row.model.startswith(kind.lower()))
    config = getattr(kinds, f"{kind}Config")(attn_implementation="eager", **told)
    task = "SequenceClassification" if row.classes else "QuestionAnswering"
    module: Any = getattr(kinds, f"{kind}For{task}")(config)
    tokens = (row.batch, row.input[0])
    ids = {"input_ids": tokens, "attention_mask": tokens}
    if kind != "DistilBert":
        ids["token_type_ids"] = tokens
    answers = {"labels": tokens[:1]} if row.classes else {"start_positions": tokens[:1], "end_positions": tokens[:1]}

    def batch() -> dict[str, Tensor]:
        return {name: torch.empty(shape, dtype=torch.long) for name, shape in (ids | answers).items()}

    def loss(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        value: Tensor = module(**inputs).loss
        return value

    return PublishedNetwork(module, batch, loss)
