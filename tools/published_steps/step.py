"""The cost of a published training step: its network runs on fake tensors under the meter, or its cost is stated."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgefl import models
from edgefl.cost.client_cost import ComputeCost, operator_table
from edgefl.cost.fake_tensors import PredictionMode
from edgefl.cost.predict import ROOMS, replace_tensors
from edgefl.devices.written_facts import library_folder
from edgefl.errors import DeviceError, UnknownName
from edgefl.memo import cache_folder, recall, remember
from edgefl.models.towers.vision import import_torchvision
from edgefl.plain_data import from_data, to_data
from edgefl.registry import package_digest
from edgefl.registry.part_fields import Fields
from edgefl.work import CUDA_ROUNDING, METERED, Meter, StepTrace, digest
from tools.published_steps.measurements import Measurement

AUTOCAST = {"float16": torch.float16, "bfloat16": torch.bfloat16}
OPTIMIZERS = {
    "SGD": torch.optim.SGD, "MuSGD": torch.optim.SGD, "Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW,
    "BertAdam": torch.optim.AdamW, "FusedAdam": torch.optim.AdamW, "Adadelta": torch.optim.Adadelta,
}  # fmt: skip
"""By the first word of ``Measurement.optimizer``; a measurement that doesn't say it counts as SGD with momentum."""


AUXILIARY = {"GoogLeNet": 0.3, "Inception3": 0.4}
"""Weights of the losses of auxiliary heads: GoogLeNet's own (Szegedy et al. 2015, section 5), and for Inception that of
PyTorch's tutorial on fine-tuning torchvision's models.  torchvision's own script for training has none: it trains no
network of which a pass gives a tuple."""
INCEPTION_SIZE = 299

_COSTS: dict[tuple[object, ...], ComputeCost] = {}


def step_cost(row: Measurement, *, gpu: bool, lists: bool = True) -> ComputeCost:
    """The cost of one training step of a measurement: FLOPs, operators and the peak of live storage.

    On a GPU the optimizer updates all parameters in a few operators where the row's software and the class of its
    processor (``lists``) have them, and memory is rounded as its allocator does.  Attention is one operator where the
    row's software has it, and products and a softmax elsewhere.  A network of no library has the cost that
    ``profiles/measurements/costs.json`` states.
    Raises UnknownName for a network or an optimizer that isn't known, DeviceError for a step whose cost isn't stated.
    """
    r = row
    key = (
        r.library, r.model, r.trained, r.batch, r.input, r.classes, r.precision, r.half_model, r.optimizer,
        r.fuses_attention, r.updates_together(lists), gpu,
    )  # fmt: skip
    if key not in _COSTS:
        stated = [step for step in stated_steps() if step.model == r.model]
        _COSTS[key] = (
            _stated_cost(row, gpu, stated) if r.library == "other" and stated else _predicted_cost(row, gpu, lists, key)
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


def _predicted_cost(row: Measurement, gpu: bool, lists: bool, key: tuple[object, ...]) -> ComputeCost:
    """The cost of a network's step, whose trace is kept on disk as those of works are."""
    code = package_digest("edgefl", ROOMS), Path(__file__).read_text(encoding="utf-8")
    folder, name = cache_folder() / "costs", digest([*key, *models.versions(), *code])
    trace = recall(folder, name, partial(from_data, StepTrace), "costs")
    if trace is None:
        trace = _trace(row, gpu, lists)
        remember(folder, name, to_data(trace))
    step = trace.steps[0, "all"]
    return ComputeCost(
        trace.peak_memory_bytes, trace.memory_bytes, step.forward_flops, step.backward_flops, 0.0,
        operator_table(step.operators), precision=row.precision, live_memory_bytes=trace.live_memory_bytes,
    )  # fmt: skip


def _trace(row: Measurement, gpu: bool, lists: bool) -> StepTrace:
    with torch.device("meta"):
        built = network(row)
    mode = PredictionMode()
    with mode:
        half = AUTOCAST[row.precision] if row.half_model else None
        module = replace_tensors(
            built.module, lambda old: torch.empty(old.shape, dtype=(old.is_floating_point() and half) or old.dtype)
        ).train()
    trained = [p for n, p in module.named_parameters() if p.requires_grad and _is_trainable(row, built, n)]
    for parameter in module.parameters():
        parameter.requires_grad_(any(parameter is p for p in trained))
    meter = Meter(CUDA_ROUNDING if gpu else 1)
    meter.adopt(module.parameters(), "parameters")
    meter.adopt(module.buffers(), "buffers")
    for parameter in trained:
        parameter.register_post_accumulate_grad_hook(lambda p: meter.adopt([p.grad], "gradients"))
    with torch.random.fork_rng([]), mode:
        masters = [nn.Parameter(p.detach().float()) for p in trained] if row.half_model else trained
        meter.adopt(masters, "parameters")
        optimizer = _optimizer(row, masters, gpu and row.updates_together(lists))
        for _ in range(METERED):
            batch = built.batch()
            meter.adopt(batch.values(), "inputs")
            with meter.step(0, "all"):
                _step(row, built, module, optimizer, meter, batch, trained)
    return meter.trace()


def _step(
    row: Measurement,
    built: PublishedNetwork,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    meter: Meter,
    batch: dict[str, torch.Tensor],
    trained: list[nn.Parameter],
) -> None:
    """One step; of a model in half precision the optimizer's parameters are copies of ``trained`` in float32."""
    meter.enter("forward")
    half = None if row.half_model else AUTOCAST.get(row.precision)
    with torch.autocast("cpu", dtype=half, enabled=half is not None):
        loss = built.loss(module, batch)
    meter.enter("backward")
    loss.backward()
    meter.enter("optimizer")
    masters = optimizer.param_groups[0]["params"]
    if row.half_model:
        for master in masters:
            master.grad = torch.empty_like(master) if master.grad is None else master.grad
        gradients = [[each.grad for each in of if each.grad is not None] for of in (masters, trained)]
        torch._foreach_copy_(gradients[0], gradients[1])
    optimizer.step()
    if row.half_model:
        with torch.no_grad():
            torch._foreach_copy_(list[Tensor](trained), masters)
    for state in optimizer.state.values():
        meter.adopt([t for t in state.values() if isinstance(t, torch.Tensor)], "optimizer")
    for parameter in trained:
        parameter.grad = None


def _is_trainable(row: Measurement, built: PublishedNetwork, name: str) -> bool:
    return row.trained == "all" or name.startswith(built.last)


def _optimizer(row: Measurement, trained: list[nn.Parameter], together: bool) -> torch.optim.Optimizer:
    said = row.optimizer or "SGD, momentum 0.9"
    name, _, rest = said.partition(",")
    if name not in OPTIMIZERS:
        raise UnknownName("optimizer", name, sorted(OPTIMIZERS))
    more = {"momentum": 0.9} if "momentum" in rest else {}
    more |= {"fused": True} if name.startswith("Fused") else {"foreach": together}
    made: torch.optim.Optimizer = OPTIMIZERS[name](trained, lr=0.01, **more)
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


def _mnn_alexnet(row: Measurement) -> nn.Module:
    pool, relu = nn.MaxPool2d(3, 2), nn.ReLU()
    first = nn.Conv2d(3, 96, 11, 4), relu, pool, nn.Conv2d(96, 256, 5, padding=2), relu, pool
    shapes = ((256, 384), (384, 384), (384, 256))
    last = [layer for i, o in shapes for layer in (nn.Conv2d(i, o, 3, padding=1), relu)][:-1]
    dense = nn.Linear(6400, 4096), relu, nn.Dropout(), relu, nn.Dropout(), nn.Linear(4096, 10)
    return nn.Sequential(*first, *last, pool, nn.Flatten(), *dense)


class Branches(nn.Module):
    """Layers that read the same image, whose outputs lie one behind the other."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, image: Tensor) -> Tensor:
        """`[batch, channels, height, width]`, with the channels of all branches."""
        return torch.cat([branch(image) for branch in self.branches], dim=1)


def _mnn_squeezenet(row: Measurement) -> nn.Module:
    def fire(inner: int, squeezed: int, wide: int) -> nn.Module:
        both = Branches(nn.Conv2d(squeezed, wide, 1), nn.Conv2d(squeezed, wide, 3, padding=1))
        return nn.Sequential(nn.Conv2d(inner, squeezed, 1), both)

    pool = nn.MaxPool2d(3, 2, 1)
    shapes = ((96, 16, 64), (128, 16, 64), (128, 32, 128), (256, 32, 128), (256, 48, 192), (384, 48, 192),
              (384, 64, 256), (512, 64, 256))  # fmt: skip
    fires = [fire(*shape) for shape in shapes]
    layers = nn.Conv2d(3, 96, 7, 2, 3), pool, *fires[:3], pool, *fires[3:7], pool, fires[7], nn.Conv2d(512, 10, 1, 2)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _mnn_googlenet(row: Measurement) -> nn.Module:
    def inception(inner: int, one: int, less3: int, three: int, less5: int, five: int, pooled: int) -> nn.Module:
        return Branches(
            nn.Conv2d(inner, one, 1),
            nn.Sequential(nn.Conv2d(inner, less3, 1), nn.Conv2d(less3, three, 3, padding=1)),
            nn.Sequential(nn.Conv2d(inner, less5, 1), nn.Conv2d(less5, five, 5, padding=2)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(inner, pooled, 1)),
        )

    pool = nn.MaxPool2d(3, 2, 1)
    shapes = (
        (192, 64, 96, 128, 16, 32, 32), (256, 128, 128, 192, 32, 96, 64), (480, 192, 96, 208, 16, 48, 64),
        (512, 160, 112, 224, 24, 64, 64), (512, 128, 128, 256, 24, 64, 64), (512, 112, 144, 288, 32, 64, 64),
        (528, 256, 160, 320, 32, 128, 128), (832, 256, 160, 320, 32, 128, 128), (832, 384, 192, 384, 48, 128, 128),
    )  # fmt: skip
    blocks = [inception(*shape) for shape in shapes]
    stem = nn.Conv2d(3, 64, 7, 2, 3), pool, nn.Conv2d(64, 192, 3, 2, 1), pool
    last = nn.AdaptiveAvgPool2d(1), nn.Conv2d(1024, 10, 1, 2), nn.Flatten()
    return nn.Sequential(*stem, *blocks[:2], pool, *blocks[2:7], pool, *blocks[7:], *last)


OTHERS: dict[str, Callable[[Measurement], Any]] = {
    "resnet18-cifar": _resnet_for_32, "resnet50-cifar": _resnet_for_32, "resnet50-v1": _resnet_v1,
    "shufflenet_v2_x1_0-cifar": _shufflenet_for_32, "lenet5": _lenet, "mlp-784-256-128-64-10": _mlp,
    "googlenet-plain": partial(_of_torchvision, aux_logits=False),
    "mnn-alexnet": _mnn_alexnet, "mnn-squeezenet": _mnn_squeezenet, "mnn-googlenet": _mnn_googlenet,
}  # fmt: skip
"""Networks of no library: those of torchvision with changes, two short ones, and those of MNN's tools/train.

GoogLeNet without its auxiliary heads is that of runtimes that have none.  MNN's have no activations between most
layers.  Options of a convolution stay until they are reset, so some later convolutions have the stride of the first.
"""


def _images(row: Measurement) -> Callable[[], dict[str, Tensor]]:
    dtype, shape = AUTOCAST[row.precision] if row.half_model else torch.float32, (row.batch, *row.input)
    return lambda: {"image": torch.empty(shape, dtype=dtype), "label": torch.empty(row.batch, dtype=torch.long)}


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
