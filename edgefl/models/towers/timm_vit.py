"""The image tower ``timm-vit``: a vision transformer built by timm."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from edgefl.errors import suggestion
from edgefl.models.model import TowerDescription
from edgefl.models.tower import Tower, TransformerOptions, drop_path_rates, options_from
from edgefl.models.towers.vision import import_torchvision
from edgefl.models.towers.vit import VIT_SIZES, check_patch
from edgefl.models.weights import Spelling, fill, locate, timm_repository

SPELLING: Spelling = (
    (r"^(module|model)\.", ""),
    (r"^patch_embed\.", "embedding.patch_embed."),
    (r"^cls_token$", "embedding.cls"),
    (r"^reg_token$", "embedding.reg"),
    (r"^pos_embed$", "embedding.pos"),
    (r"^norm_pre\.", "embedding.norm."),
)
"""Maps timm's tensor names to the tower's names."""


class TimmEmbedding(nn.Module):
    """The part of a timm model before its first block: ``[batch, channels, size, size] -> [batch, tokens, dim]``."""

    def __init__(self, model: Any):
        super().__init__()
        self.patch_embed = model.patch_embed
        self.cls = model.cls_token
        if model.reg_token is not None:
            self.reg = model.reg_token
        self.pos = model.pos_embed
        if not isinstance(model.norm_pre, nn.Identity):
            self.norm = model.norm_pre
        self.patches_only = bool(model.no_embed_class)

    def forward(self, image: Tensor) -> Tensor:
        """Embed images as class token, registers and patches; positions are added to all tokens or only to patches."""
        x = self.patch_embed(image)
        prefix = [self.cls.expand(x.shape[0], -1, -1)]
        if hasattr(self, "reg"):
            prefix.append(self.reg.expand(x.shape[0], -1, -1))
        x = torch.cat([*prefix, x + self.pos], 1) if self.patches_only else torch.cat([*prefix, x], 1) + self.pos
        return self.norm(x) if hasattr(self, "norm") else x


@cache
def _timm_sizes(name: str) -> dict[str, int | float]:
    """The sizes of a timm model.  Raises ValueError if timm has no such model or it isn't a plain ViT."""
    import_torchvision()
    import timm
    from timm.models.vision_transformer import VisionTransformer

    if not timm.is_model(name):
        raise ValueError(f"unknown timm model {name!r}{_suggested_variant(name)}")
    with torch.device("meta"):
        model: Any = timm.create_model(name, num_classes=0)
    plain = isinstance(model, VisionTransformer) and isinstance(model.norm, nn.LayerNorm)
    if not plain or model.cls_token is None or model.pos_embed is None:
        raise ValueError(f"timm model {name!r} isn't a vision transformer with class token, positions and final norm")
    first = model.blocks[0]
    return {
        "blocks": len(model.blocks),
        "width": model.embed_dim,
        "heads": first.attn.num_heads,
        "mlp_ratio": first.mlp.fc1.out_features / model.embed_dim,
        "patch": model.patch_embed.patch_size[0],
    }


def _suggested_variant(name: str) -> str:
    import timm

    return suggestion(name, [*VIT_SIZES, *timm.list_models("*vit*")]) if "_" in name else suggestion(name, VIT_SIZES)


class TimmViT:
    """Vision transformer of timm; by default ViT-Small/16, 12 blocks of 384.

    A block has 1,774,464 parameters, all have 21,665,664.  ``variant`` is a size, or the name of any plain ViT of timm,
    such as ``vit_small_patch14_reg4_dinov2``.
    """

    modality = "image"

    class Options(TransformerOptions):
        """Fields of ``image: {tower: timm-vit}``; ``variant`` sets those of blocks, width, heads that are absent."""

        tower: Literal["timm-vit"] = "timm-vit"
        variant: str = Field(
            "small",
            description="size of the published model: tiny, small or base; or the name of a timm vision transformer",
        )
        blocks: PositiveInt = Field(12, description="transformer blocks at full depth")
        width: PositiveInt = Field(384, description="dimension of a token")
        heads: PositiveInt = Field(6, description="attention heads; must divide the width")
        patch: PositiveInt = Field(16, description="side of a patch in pixels; must divide the image size")

        @model_validator(mode="before")
        @classmethod
        def _fill_sizes(cls, value: Any) -> Any:
            if not isinstance(value, dict) or not isinstance(variant := value.get("variant", "small"), str):
                return value
            return {**(VIT_SIZES.get(variant) or _timm_sizes(variant)), **value}

    @staticmethod
    def build(description: TowerDescription, norm: bool) -> Tower:
        """Build a tower from ``{channels, size, depth, ...options}``.

        Raises MethodError if the patch doesn't divide the image size.
        """
        return TimmViT.of_library(TimmViT.library(description), description, norm)

    @staticmethod
    def library(description: TowerDescription, classes: int = 0) -> Any:
        """timm's own model, with a classifier of so many classes."""
        import_torchvision()
        import timm

        options, size = options_from(TimmViT.Options, description), description["size"]
        check_patch(options.patch, size)
        arguments = {"width": "embed_dim", "heads": "num_heads", "mlp_ratio": "mlp_ratio", "patch": "patch_size"}
        published = {} if options.variant in VIT_SIZES else _timm_sizes(options.variant)
        # Only sizes that differ from the published ones are passed, because some timm models reject these arguments.
        changed = {arg: v for field, arg in arguments.items() if (v := getattr(options, field)) != published.get(field)}
        return timm.create_model(
            _timm_name(options.variant),
            num_classes=classes,
            img_size=size,
            in_chans=description["channels"],
            depth=description["depth"],
            **changed,
        )

    @staticmethod
    def classifier(model: Any) -> Any:
        """The layer of timm's model that classifies the tower's feature, its first token."""
        return model.head if model.global_pool == "token" else None

    @staticmethod
    def of_library(model: Any, description: TowerDescription, norm: bool) -> Tower:
        """The tower of timm's model."""
        from timm.layers.drop import DropPath

        options = options_from(TimmViT.Options, description)
        for block, rate in zip(model.blocks, drop_path_rates(options.drop_path, options.blocks, description["depth"])):
            if rate:
                block.drop_path1, block.drop_path2 = DropPath(rate), DropPath(rate)
        final = model.norm if norm else None
        checkpointing = description.get("checkpointing", False)
        return Tower(TimmEmbedding(model), model.blocks, final, options.width, checkpointing)

    @staticmethod
    def load(module: nn.Module, weights: str, description: TowerDescription) -> None:
        """Load the tower's weights from a file with timm's tensor names, or timm's weights of the variant."""
        fill(module, locate(weights, lambda: timm_repository(_timm_name(description["variant"]))), SPELLING)


def _timm_name(variant: str) -> str:
    return f"vit_{variant}_patch16_224" if variant in VIT_SIZES else variant
