"""The image tower ``timm``: any model of timm that gives features, cut by its own stages where it has them."""

from __future__ import annotations

from functools import cache, partial
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl.errors import MethodError, suggestion
from edgefl.models.model import TowerDescription
from edgefl.models.towers.vision import import_torchvision

SEQUENCES = ("stages", "layers", "blocks")
"""Attributes of timm's models that hold stages."""


class LastStage(nn.Module):
    """The last stage with what follows it in the model: final convolution, norm, pooling."""

    def __init__(self, stage: nn.Module, tail: dict[str, nn.Module]):
        super().__init__()
        self.stage = stage
        for name, part in tail.items():
            self.add_module(name, part)


class TimmModel(nn.Module):
    """Any model of timm that gives features; by default MobileNetV3-Small.

    That has 1,517,856 parameters.  ``[batch, channels, size, size] -> [batch, width]``, without a classifier.  Its
    stages are the blocks, where it has them and runs without the last ones (MobileNet, EfficientNet, ConvNeXt, Swin);
    what follows the last is part of it.  A model of all stages gives what timm's gives; one of fewer gives the mean
    over the positions of its last maps, padded with zeros to ``width``.  Others (RegNet, LeViT) are one block, which
    schedules of several stages refuse; plain ViTs can be cut as ``timm-vit``, ResNets as ``resnet``.
    """

    blocks = "stages"

    def __init__(
        self,
        channels: int,
        size: int,
        variant: Annotated[str, Field(description="name of a model of timm")] = "mobilenetv3_small_100",
    ):
        super().__init__()
        self.model = _create_model(variant, channels, size)
        model: Any = self.model
        self.width = _width(model)
        self.sequence, self.count = _stages(variant)
        self.last_channels = getattr(model, "output_fmt", "NCHW") == "NHWC"
        if self.sequence is None:
            self.stages = nn.ModuleList([self._modules.pop("model")])  # type: ignore[list-item]
            return
        stages, tail = _take_apart(model, self.sequence)
        self.kind = type(stages)
        self.tail = tuple(tail)
        self.stages = nn.ModuleList([*stages[:-1], LastStage(stages[-1], tail)])

    @staticmethod
    def library(description: TowerDescription, classes: int = 0) -> nn.Module:
        """timm's own model, with a classifier of so many classes."""
        return _create_model(description["variant"], description["channels"], description["size"], classes)

    @staticmethod
    def classifier(model: Any) -> Any:
        """The layer of timm's model that classifies the tower's feature."""
        return model.get_classifier()

    def own_name(self, name: str) -> str:
        """timm's name of a tensor."""
        part, _, rest = name.partition(".")
        if part == "embedding":
            return rest.removeprefix("model.")
        number, _, rest = rest.partition(".")
        if self.sequence is None:
            return rest
        if int(number) == self.count - 1:
            part, _, rest = rest.partition(".")
            if part != "stage":
                return f"{part}.{rest}"
        return f"{self.sequence}.{number}.{rest}"

    def forward(self, image: Tensor) -> Tensor:
        """The features before the classifier."""
        held = list(self.stages)
        if self.sequence is None:
            whole: Tensor = held[0](image)
            return whole
        model: Any = self.model
        last = held[-1]
        whole_model = isinstance(last, LastStage)
        parts = [stage.stage if isinstance(stage, LastStage) else stage for stage in held]
        # as plain attributes: the stages are this tower's own modules
        object.__setattr__(model, self.sequence, nn.Sequential(*parts) if self.kind is nn.Sequential else parts)
        for name in self.tail:
            object.__setattr__(model, name, last._modules[name] if whole_model else nn.Identity())
        if whole_model:
            features: Tensor = model(image)
            return features
        maps: Tensor = model.forward_features(image)
        pooled = maps.mean(1) if maps.dim() == 3 else maps.mean((1, 2) if self.last_channels else (2, 3))
        return F.pad(pooled, (0, self.width - pooled.shape[1]))


def _take_apart(model: nn.Module, sequence: str) -> tuple[Any, dict[str, nn.Module]]:
    """The stages, and what the model makes after them, which the model has no longer."""
    names = list(model._modules)
    tail = {name: model._modules.pop(name) for name in names[names.index(sequence) + 1 :]}
    return model._modules.pop(sequence), {name: part for name, part in tail.items() if part is not None}


@cache
def _stages(variant: str) -> tuple[str | None, int]:
    """The attribute that holds a model's stages, and their number; None and 1 where it can't be cut by them."""
    for sequence in SEQUENCES:
        with torch.device("meta"):
            model: Any = _create_model(variant, 3, None)
            held = model._modules.get(sequence)
            if not isinstance(held, nn.Sequential | nn.ModuleList) or len(held) < 2:
                continue
            if _can_be_cut(model, sequence):
                return sequence, len(held)
    return None, 1


def _can_be_cut(model: Any, sequence: str) -> bool:
    """Whether the model runs with each number of stages, and gives maps no wider than its features."""
    width = _width(model)
    channels = {stage["module"]: stage["num_chs"] for stage in getattr(model, "feature_info", [])}
    stages, tail = _take_apart(model, sequence)
    for name in tail:
        object.__setattr__(model, name, nn.Identity())
    for depth in range(1, len(stages)):
        parts = list(stages[:depth])
        object.__setattr__(model, sequence, nn.Sequential(*parts) if isinstance(stages, nn.Sequential) else parts)
        try:
            maps = model.forward_features(torch.zeros(2, *model.default_cfg["input_size"]))
        except Exception:  # whatever the model needs of its later parts
            return False
        if not isinstance(maps, Tensor) or maps.dim() != 4:
            return False
        found = maps.shape[3 if getattr(model, "output_fmt", "NCHW") == "NHWC" else 1]
        if found > width or found != channels.get(f"{sequence}.{depth - 1}", found):
            return False
    return True


def _width(model: Any) -> int:
    return int(getattr(model, "head_hidden_size", None) or model.num_features)


def _create_model(variant: str, channels: int, size: int | None, classes: int = 0) -> nn.Module:
    """timm's model with a classifier of so many classes; of its published size without ``size``.

    Raises MethodError for an unknown one, or one that can't be built.
    """
    import_torchvision()
    import timm

    names = timm.list_models()
    if variant not in names:
        near = suggestion(variant, names)
        near = near if "did you mean" in near else ""
        raise MethodError(f"timm has no model {variant!r}{near}: see timm.list_models()")
    made = partial(timm.create_model, variant, in_chans=channels, num_classes=classes)
    try:
        model: nn.Module = made() if size is None else made(img_size=size)
    except TypeError as error:
        if "img_size" not in str(error):
            raise _build_error(variant, channels, size, error) from error
        try:
            model = made()  # of any size
        except Exception as other:  # each model refuses in its own way
            raise _build_error(variant, channels, size, other) from other
    except Exception as error:  # each model refuses in its own way
        raise _build_error(variant, channels, size, error) from error
    return model


def _build_error(variant: str, channels: int, size: int | None, error: Exception) -> MethodError:
    said = " ".join(str(error).split())
    pictures = "" if size is None else f" for {channels} x {size} x {size} pictures"
    return MethodError(f"{variant} can't be built{pictures}: {said}")
