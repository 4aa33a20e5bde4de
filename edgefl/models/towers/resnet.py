"""The image tower named ``resnet``: torchvision's ResNets, cut between their four stages (CreamFL's image clients)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl.models.tower import Tower, chosen
from edgefl.models.towers.vision import import_torchvision
from edgefl.models.weights import Spelling, fill, locate

STAGES = 4
TORCHVISION: Spelling = (
    (r"^(conv1|bn1)\.", r"embedding.\1."),
    *((rf"^layer{i + 1}\.", f"blocks.{i}.") for i in range(STAGES)),
)
"""torchvision's names, which timm's ResNets have too -> this tower's."""


class ResNetOptions(BaseModel):
    """Fields of ``image: {tower: resnet}``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tower: Literal["resnet"] = "resnet"
    layers: Literal[18, 34, 50, 101] = Field(18, description="number of layers of the ResNet")
    stem: Literal["imagenet", "small"] = Field(
        "imagenet",
        description="first layers: a 7x7 convolution and a max pool, both of stride 2 (imagenet), or a 3x3 "
        "convolution of stride 1 for images of about 32 pixels (small)",
    )

    weights: str | None = Field(
        None,
        description="weights to start from: a folder with model.safetensors or a .safetensors file in torchvision's "
        "names, or pretrained (torchvision's for ImageNet, downloaded); random if absent",
    )

    @computed_field(description="stages of residual blocks: what a depth counts")  # type: ignore[prop-decorator]
    @property
    def blocks(self) -> int:
        """The four stages."""
        return STAGES

    @computed_field(description="channels of the last stage")  # type: ignore[prop-decorator]
    @property
    def width(self) -> int:
        """Channels of the last stage; a ResNet of 50 layers and more has bottlenecks, four times as wide."""
        return 512 if self.layers < 50 else 2048


class ResNetTower(Tower):
    """``embedding`` (the stem) and up to four ``blocks`` (the stages); no norm of its own."""

    def __init__(self, options: ResNetOptions, channels: int, depth: int, checkpointing: bool):
        import_torchvision()
        from torchvision.models import get_model

        whole = get_model(f"resnet{options.layers}", weights=None)
        if options.stem == "small" or channels != 3:
            side, stride = (3, 1) if options.stem == "small" else (7, 2)
            whole.conv1 = nn.Conv2d(channels, 64, side, stride, side // 2, bias=False)
            nn.init.kaiming_normal_(whole.conv1.weight, mode="fan_out", nonlinearity="relu")
        stem = nn.Sequential()
        for name in ("conv1", "bn1", "relu", *(["maxpool"] if options.stem == "imagenet" else [])):
            stem.add_module(name, getattr(whole, name))
        super().__init__(
            stem, [getattr(whole, f"layer{i + 1}") for i in range(depth)], None, options.width, checkpointing
        )

    def forward(self, image: Tensor) -> Tensor:
        """Images ``[batch, channels, height, width]`` -> ``[batch, positions, channels]`` of the last stage."""
        return super().forward(image).flatten(2).transpose(1, 2)

    def read(self, tokens: Tensor) -> Tensor:
        """The mean over positions, ``[batch, width]``: channels that only later stages would have are zero."""
        pooled = tokens.mean(1)
        return F.pad(pooled, (0, self.width - pooled.shape[1])) if pooled.shape[1] < self.width else pooled


class ResNet:
    """The tower named ``resnet``."""

    Options = ResNetOptions

    @staticmethod
    def build(description: Mapping[str, Any], norm: bool) -> ResNetTower:
        """A tower from ``{channels, depth, ...options}``; it has no norm of its own to leave out."""
        return ResNetTower(
            chosen(ResNetOptions, description),
            description["channels"],
            description["depth"],
            bool(description.get("checkpointing")),
        )

    @staticmethod
    def load(module: nn.Module, weights: str, description: Mapping[str, Any]) -> None:
        """Fill the tower, running statistics included, from a file in torchvision's names or from the hub."""
        fill(module, locate(weights, f"timm/resnet{description['layers']}.tv_in1k"), TORCHVISION)
