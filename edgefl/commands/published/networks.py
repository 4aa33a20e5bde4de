"""The networks of published measurements, by library and name, with the batch and the loss of a training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgefl.commands.published.ssd import MobileNetSsd
from edgefl.commands.published.yolo import Detector, classifier
from edgefl.devices.measurements import Measurement
from edgefl.errors import UnknownName
from edgefl.models.towers.vision import import_torchvision


@dataclass(frozen=True)
class Network:
    """A module, a function that makes a batch of its size, and the loss of a batch: ``loss(module, batch)``.

    ``last`` is the start of the names of the last layer's parameters.
    """

    module: nn.Module
    batch: Callable[[], dict[str, Tensor]]
    loss: Callable[[nn.Module, dict[str, Tensor]], Tensor]
    last: str = ""


def network(row: Measurement) -> Network:
    """Build the network of a measurement on the current device.

    Raises UnknownName for a model of no library that has no description here.
    """
    if row.library == "transformers":
        return _of_transformers(row)
    import_torchvision()
    if row.library == "timm":
        import timm

        module: Any = timm.create_model(row.model, num_classes=row.classes, pretrained=False)
        return Network(module, _images(row), _cross_entropy, f"{module.default_cfg['classifier']}.")
    if row.library == "torchvision":
        import torchvision

        return Network(torchvision.models.get_model(row.model, num_classes=row.classes), _images(row), _cross_entropy)
    if row.model not in _DESCRIBED:
        raise UnknownName("model", row.model, sorted(_DESCRIBED))
    return _DESCRIBED[row.model](row)


def _images(row: Measurement) -> Callable[[], dict[str, Tensor]]:
    return lambda: {"image": torch.empty(row.batch, *row.input), "label": torch.empty(row.batch, dtype=torch.long)}


def _cross_entropy(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(module(batch["image"]).float(), batch["label"])


def _mean_of_outputs(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Stands for a detector's loss, whose matching of boxes is left out."""
    return torch.stack([output.float().square().mean() for output in module(batch["image"])]).sum()


def _small_resnet(row: Measurement) -> Network:
    import torchvision

    module = torchvision.models.get_model(row.model.removesuffix("-cifar"), num_classes=row.classes)
    module.conv1, module.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return Network(module, _images(row), _cross_entropy)


def _layers(*layers: nn.Module) -> Callable[[Measurement], Network]:
    return lambda row: Network(nn.Sequential(*layers), _images(row), _cross_entropy)


def _lenet(row: Measurement) -> Network:
    return _layers(
        nn.Conv2d(1, 6, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10),
    )(row)  # fmt: skip


def _one_hidden_layer(row: Measurement) -> Network:
    return _layers(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))(row)


def _three_hidden_layers(row: Measurement) -> Network:
    return _layers(
        nn.Flatten(), nn.Linear(784, 256, bias=False), nn.ReLU(), nn.Linear(256, 128, bias=False), nn.ReLU(),
        nn.Linear(128, 64, bias=False), nn.ReLU(), nn.Linear(64, 10),
    )(row)  # fmt: skip


def _faces(row: Measurement) -> Network:
    def convolution(c1: int, c2: int, kernel: int) -> list[nn.Module]:
        return [nn.Conv2d(c1, c2, kernel, padding="same"), nn.ReLU(), nn.BatchNorm2d(c2)]

    return _layers(
        *convolution(1, 32, 3), *convolution(32, 64, 3), nn.MaxPool2d(2), nn.Dropout(0.25), *convolution(64, 128, 5),
        nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), nn.Linear(18432, 256), nn.ReLU(), nn.BatchNorm1d(256),
        nn.Dropout(0.25), nn.Linear(256, 7),
    )(row)  # fmt: skip


def _detector(row: Measurement) -> Network:
    version = "v8" if row.model.startswith("yolov8") else "11"
    return Network(Detector(version, row.model[-1], row.classes or 0), _images(row), _mean_of_outputs)


def _of_transformers(row: Measurement) -> Network:
    """BERT answers questions, as in NVIDIA's examples; RoBERTa classifies.  Their attention is not fused."""
    import_torchvision()
    import transformers

    kinds: Any = transformers
    config: Any
    if row.model.startswith("roberta"):
        config = kinds.RobertaConfig(
            vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, num_labels=row.classes,
            attn_implementation="eager",
        )  # fmt: skip
        module: Any = kinds.RobertaForSequenceClassification(config)
    else:
        large = "large" in row.model
        config = kinds.BertConfig(
            hidden_size=1024 if large else 768, num_hidden_layers=24 if large else 12,
            num_attention_heads=16 if large else 12, intermediate_size=4096 if large else 3072,
            attn_implementation="eager",
        )  # fmt: skip
        module = kinds.BertForQuestionAnswering(config)
    tokens = (row.batch, row.input[0])
    ids = {"input_ids": tokens, "attention_mask": tokens, "token_type_ids": tokens}
    answers = {"labels": tokens[:1]} if row.classes else {"start_positions": tokens[:1], "end_positions": tokens[:1]}

    def batch() -> dict[str, Tensor]:
        return {name: torch.empty(shape, dtype=torch.long) for name, shape in (ids | answers).items()}

    def loss(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        value: Tensor = module(**inputs).loss
        return value

    return Network(module, batch, loss)


_DESCRIBED: dict[str, Callable[[Measurement], Network]] = {
    "resnet18-cifar": _small_resnet,
    "resnet50-cifar": _small_resnet,
    "lenet5": _lenet,
    "mlp-784-128-10": _one_hidden_layer,
    "mlp-784-256-128-64-10": _three_hidden_layers,
    "fer-cnn": _faces,
    "mb1-ssd": lambda row: Network(MobileNetSsd(row.classes or 0), _images(row), _mean_of_outputs),
    "yolov8n": _detector,
    "yolo11m": _detector,
    "yolo11x": _detector,
    "yolov8s-cls": lambda row: Network(classifier("s", row.classes or 0), _images(row), _cross_entropy),
}
