"""Twelve networks of timm and transformers, their training steps as a bare loop of PyTorch, and what the meter counts.

The loop is the witness: eager mode, forward, backward and an optimizer of torch, without anything of edgefl.  The same
loop on fake tensors is counted by the meter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from edgefl.cost.client_cost import operator_table
from edgefl.cost.fake_tensors import PredictionMode
from edgefl.cost.predict import replace_tensors
from edgefl.models.towers.vision import import_torchvision
from edgefl.work import METERED, NO_METER, Meter, NoMeter

IMAGE, CLASSES = 224, 1000
"""Side of images, and their classes."""

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Network:
    """How a network, a batch, the loss and the optimizer are made."""

    module: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    optimizer: Callable[[Any], torch.optim.Optimizer]


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def _of_timm(name: str, batch: int, optimizer: Callable[[Any], torch.optim.Optimizer] = _sgd) -> Network:
    def module() -> nn.Module:
        import timm

        made: nn.Module = timm.create_model(name, num_classes=CLASSES, pretrained=False)
        return made

    return Network(
        module,
        lambda: {"x": torch.randn(batch, 3, IMAGE, IMAGE), "label": torch.randint(0, CLASSES, (batch,))},
        lambda module, inputs: functional.cross_entropy(module(inputs["x"]), inputs["label"]),
        optimizer,
    )


def _of_transformers(kind: str, batch: int, tokens: int, task: str, **config: Any) -> Network:
    """``task`` is ``SequenceClassification`` into two classes, or a language model's (``CausalLM``, ``LMHead``)."""
    classifies = task == "SequenceClassification"

    def module() -> nn.Module:
        import transformers

        transformers.logging.set_verbosity_error()
        settings = getattr(transformers, f"{kind}Config")(**config)
        name = f"{kind}{task}Model" if task == "LMHead" else f"{kind}For{task}"
        made: nn.Module = getattr(transformers, name)(settings)
        return made

    def inputs() -> Batch:
        ids = torch.randint(0, 30_000, (batch, tokens))
        return {"input_ids": ids, "labels": torch.randint(0, 2, (batch,)) if classifies else ids}

    return Network(module, inputs, lambda module, inputs: module(**inputs).loss, torch.optim.AdamW)


NETWORKS = {
    "ResNet-18, batch 8": _of_timm("resnet18", 8),
    "ResNet-50, batch 4": _of_timm("resnet50", 4),
    "MobileNetV2, batch 4": _of_timm("mobilenetv2_100", 4),
    "MobileNetV3-Large, batch 8": _of_timm("mobilenetv3_large_100", 8),
    "EfficientNet-B0, batch 4": _of_timm("efficientnet_b0", 4),
    "ConvNeXt-Tiny, batch 2": _of_timm("convnext_tiny", 2, torch.optim.AdamW),
    "ViT-Tiny/16, batch 8": _of_timm("vit_tiny_patch16_224", 8, torch.optim.AdamW),
    "DeiT-Small/16, batch 4": _of_timm("deit_small_patch16_224", 4, torch.optim.AdamW),
    "Swin-Tiny, batch 2": _of_timm("swin_tiny_patch4_window7_224", 2, torch.optim.AdamW),
    "BERT-base, 4 x 128 tokens": _of_transformers("Bert", 4, 128, "SequenceClassification"),
    "GPT-2 small, 2 x 128 tokens": _of_transformers("GPT2", 2, 128, "LMHead", loss_type="ForCausalLMLoss"),
    "Llama of 512 x 8, 2 x 256 tokens": _of_transformers(
        "Llama", 2, 256, "CausalLM", hidden_size=512, num_hidden_layers=8, intermediate_size=1376,
        num_attention_heads=8, num_key_value_heads=4,
    ),
}  # fmt: skip


def _step(
    network: Network, module: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, meter: Meter | NoMeter
) -> None:
    loss = network.loss(module, batch)
    meter.enter("backward")
    loss.backward()
    meter.enter("optimizer")
    optimizer.step()
    optimizer.zero_grad()


def operators_of(name: str) -> NDArray[np.float64]:
    """The operators of a step of this network, ``[n, 4]`` as in ``ComputeCost.operators``, counted on fake tensors."""
    import_torchvision()
    network, meter, mode = NETWORKS[name], Meter(), PredictionMode()
    with torch.device("meta"):
        module = network.module()
    with torch.random.fork_rng([]), mode:
        module = replace_tensors(module, lambda old: torch.empty(old.shape, dtype=old.dtype)).train()
        optimizer = network.optimizer(module.parameters())
        for _ in range(METERED):
            batch = network.batch()
            with meter.step(0, ""):
                _step(network, module, optimizer, batch, meter)
    return operator_table(meter.steps[0, ""].operators)


def seconds_of_steps(name: str, steps: int, now: Callable[[], float]) -> list[float]:
    """Seconds of training steps of this network by a clock, after one that isn't timed."""
    import_torchvision()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    network = NETWORKS[name]
    module = network.module().train()
    optimizer, batch = network.optimizer(module.parameters()), network.batch()
    seconds = []
    for _ in range(steps + 1):
        began = now()
        _step(network, module, optimizer, batch, NO_METER)
        seconds.append(now() - began)
    return seconds[1:]
