"""The image tower: a vision transformer of any size, such as FedCola's ViT-S for 224 pixels with patches of 16."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from edgefl.errors import MethodError
from edgefl.models.model import TowerDescription
from edgefl.models.tower import Tower, TransformerOptions, assemble, options_from
from edgefl.models.weights import Spelling, fill, locate, timm_repository

VIT_SIZES = {
    "tiny": {"blocks": 12, "width": 192, "heads": 3},
    "small": {"blocks": 12, "width": 384, "heads": 6},
    "base": {"blocks": 12, "width": 768, "heads": 12},
}
"""Sizes of the published vision transformers, by name."""

TIMM: Spelling = (
    (r"^patch_embed\.", "embedding."),
    (r"^cls_token$", "embedding.cls"),
    (r"^pos_embed$", "embedding.pos"),
)
"""Maps timm's tensor names to this tower's names; blocks and the final norm have the same names."""


class PatchEmbedding(nn.Module):
    """Embeds an image as a class token and patches (a strided convolution), with learned positions."""

    def __init__(self, channels: int, size: int, patch: int, width: int):
        super().__init__()
        self.proj = nn.Conv2d(channels, width, patch, patch)
        self.cls = nn.Parameter(torch.empty(1, 1, width))
        self.pos = nn.Parameter(torch.empty(1, (size // patch) ** 2 + 1, width))
        for token in (self.cls, self.pos):
            nn.init.trunc_normal_(token, std=0.02)

    def forward(self, image: Tensor) -> Tensor:
        """``[batch, channels, size, size] -> [batch, 1 + patches, dim]``."""
        x = self.proj(image).flatten(2).transpose(1, 2)
        return torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos


class ViT:
    """Small vision transformer of edgefl, with pre-LN blocks; by default 4 blocks of 64, patch 8.

    A block of width D has 12 D^2 + 13 D parameters.  ``weights`` are timm's: patches, class token, positions, blocks
    and final norm, as FedCola reads them.
    """

    modality = "image"

    class Options(TransformerOptions):
        """Fields of ``image: {tower: vit}``."""

        tower: Literal["vit"] = "vit"
        patch: PositiveInt = Field(8, description="side of a patch in pixels; must divide the image size")

    @staticmethod
    def build(description: TowerDescription, norm: bool) -> Tower:
        """Build a tower from ``{channels, size, depth, ...options}``; ``norm`` adds the final norm.

        Raises MethodError if the patch doesn't divide the image size.
        """
        options, size = options_from(ViT.Options, description), description["size"]
        check_patch(options.patch, size)
        embedding = PatchEmbedding(description["channels"], size, options.patch, options.width)
        return assemble(embedding, options, description, norm)

    @staticmethod
    def load(module: nn.Module, weights: str, description: TowerDescription) -> None:
        """Load the tower's weights from a file with timm's tensor names, or timm's ViT of this width and patch."""
        fill(module, locate(weights, lambda: published_vit(description["width"], description["patch"])), TIMM)


def check_patch(patch: int, size: int) -> None:
    """Raise MethodError if the patch doesn't divide the image size, both in pixels."""
    if size % patch:
        raise MethodError(f"patch {patch} doesn't divide the image size {size}")


def published_vit(width: int, patch: int) -> str:
    """The hub repository of timm's ViT of this width and patch.  Raises MethodError if there is none."""
    sizes = {size["width"]: name for name, size in VIT_SIZES.items()}
    if width not in sizes:
        raise MethodError(f"weights 'pretrained': no ViT of width {width} is published; widths: {sorted(sizes)}")
    return timm_repository(f"vit_{sizes[width]}_patch{patch}_224")
