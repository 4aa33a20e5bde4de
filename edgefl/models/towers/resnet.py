"""The image tower named ``resnet``: torchvision's ResNets; a block is one of the four stages (CreamFL's images)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, computed_field
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl.models.model import TowerDescription
from edgefl.models.tower import Tower, TowerFields, Weights, options_from
from edgefl.models.towers.vision import import_torchvision
from edgefl.models.weights import Spelling, fill, locate

STAGES = 4
"""Of each ResNet of torchvision and timm: they are the tower's blocks."""
TORCHVISION: Spelling = (
    (r"^(conv1|bn1)\.", r"embedding.\1."),
    *((rf"^layer{i + 1}\.", f"blocks.{i}.") for i in range(STAGES)),
)
"""Maps torchvision's tensor names, which timm's ResNets use too, to this tower's names."""


class ResNetOptions(TowerFields):
    """Fields of ``image: {tower: resnet}``."""

    tower: Literal["resnet"] = "resnet"
    layers: Literal[18, 34, 50, 101] = Field(18, description="number of layers of the ResNet")
    stem: Literal["imagenet", "small"] = Field(
        "imagenet",
        description="first layers: a 7x7 convolution and a max pool, both of stride 2 (imagenet), or a 3x3 "
        "convolution of stride 1 for images of about 32 pixels (small)",
    )

    weights: Weights = Field(
        None,
        description="weights to start from: a folder with model.safetensors or a .safetensors file in torchvision's "
        "names, or pretrained (torchvision's for ImageNet, downloaded); random if absent",
    )

    @computed_field(description="stages of residual blocks; a depth is a number of stages")  # type: ignore[prop-decorator]
    @property
    def blocks(self) -> int:
        """Number of stages: always four."""
        return STAGES

    @computed_field(description="channels of the last stage")  # type: ignore[prop-decorator]
    @property
    def width(self) -> int:
        """Channels of the last stage; ResNets of 50 and more layers have bottleneck blocks, which are 4 times wider."""
        return 512 if self.layers < 50 else 2048


class ResNetTower(Tower):
    """A stem (``embedding``) and up to four stages (``blocks``), without a final norm."""

    def __init__(self, options: ResNetOptions, channels: int, depth: int, checkpointing: int):
        import_torchvision()
        from torchvision.models import get_model

        resnet = get_model(f"resnet{options.layers}", weights=None)
        if options.stem == "small" or channels != 3:
            side, stride = (3, 1) if options.stem == "small" else (7, 2)
            resnet.conv1 = nn.Conv2d(channels, 64, side, stride, side // 2, bias=False)
            nn.init.kaiming_normal_(resnet.conv1.weight, mode="fan_out", nonlinearity="relu")
        stem = nn.Sequential()
        for name in ("conv1", "bn1", "relu", *(["maxpool"] if options.stem == "imagenet" else [])):
            stem.add_module(name, getattr(resnet, name))
        super().__init__(
            stem, [getattr(resnet, f"layer{i + 1}") for i in range(depth)], None, options.width, checkpointing
        )

    def forward(self, image: Tensor) -> Tensor:
        """Encode images ``[batch, channels, height, width]`` into tokens ``[batch, positions, channels]``.

        A token is a position of the last stage's maps.
        """
        return super().forward(image).flatten(2).transpose(1, 2)

    def pool_tokens(self, tokens: Tensor) -> Tensor:
        """The mean over positions, ``[batch, width]``, padded with zeros if the last stages are missing."""
        pooled = tokens.mean(1)
        return F.pad(pooled, (0, self.width - pooled.shape[1])) if pooled.shape[1] < self.width else pooled


class ResNet:
    """ResNet of torchvision, whose four stages are the blocks; by default ResNet-18.

    That has 11,176,512 parameters, its blocks 147,968 to 8,393,728.  It pools; blocks and width follow from ``layers``.
    """

    modality = "image"

    Options = ResNetOptions

    @staticmethod
    def build(description: TowerDescription, norm: bool) -> ResNetTower:
        """Build a tower from ``{channels, depth, ...options}``; ``norm`` is ignored, because it has no final norm."""
        return ResNetTower(
            options_from(ResNetOptions, description),
            description["channels"],
            description["depth"],
            description.get("checkpointing", False),
        )

    @staticmethod
    def load(module: nn.Module, weights: str, description: TowerDescription) -> None:
        """Load weights and running statistics from a file with torchvision's tensor names, or from the hub."""
        fill(
            module,
            locate(weights, f"timm/resnet{options_from(ResNetOptions, description).layers}.tv_in1k"),
            TORCHVISION,
        )
