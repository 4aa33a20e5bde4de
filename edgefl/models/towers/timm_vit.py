"""The image tower ``timm-vit``: timm's vision transformer, block by block as timm builds it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from edgefl.errors import suggestion
from edgefl.models.tower import Tower, TransformerOptions, chosen, drop_path_rates
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
"""timm's names -> the tower's."""


class TimmEmbedding(nn.Module):
    """What timm does before its first block: ``[batch, channels, size, size] -> [batch, tokens, dim]``."""

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
        """Patches behind a class token and registers; positions are added to all of them or to the patches."""
        x = self.patch_embed(image)
        front = [self.cls.expand(x.shape[0], -1, -1)]
        if hasattr(self, "reg"):
            front.append(self.reg.expand(x.shape[0], -1, -1))
        x = torch.cat([*front, x + self.pos], 1) if self.patches_only else torch.cat([*front, x], 1) + self.pos
        return self.norm(x) if hasattr(self, "norm") else x


@cache
def _published(name: str) -> dict[str, Any]:
    """Shape of the timm model of this name.  Raises ValueError if there is none or it isn't a plain ViT."""
    import_torchvision()
    import timm
    from timm.models.vision_transformer import VisionTransformer

    if not timm.is_model(name):
        raise ValueError(f"unknown timm model {name!r}{_near(name)}")
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


def _near(name: str) -> str:
    import timm

    return suggestion(name, [*VIT_SIZES, *timm.list_models("*vit*")]) if "_" in name else suggestion(name, VIT_SIZES)


class TimmViT:
    """The tower named ``timm-vit``."""

    class Options(TransformerOptions):
        """Fields of ``image: {tower: timm-vit}``; ``variant`` gives those of blocks, width, heads that are absent."""

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
        def _sized(cls, value: Any) -> Any:
            if not isinstance(value, dict) or not isinstance(variant := value.get("variant", "small"), str):
                return value
            return {**(VIT_SIZES.get(variant) or _published(variant)), **value}

    @staticmethod
    def build(description: Mapping[str, Any], norm: bool) -> Tower:
        """A tower from ``{channels, size, depth, ...options}``.  Raises MethodError if the patch doesn't fit."""
        import_torchvision()
        import timm
        from timm.layers.drop import DropPath

        options, size = chosen(TimmViT.Options, description), description["size"]
        check_patch(options.patch, size)
        shape = {"width": "embed_dim", "heads": "num_heads", "mlp_ratio": "mlp_ratio", "patch": "patch_size"}
        published = {} if options.variant in VIT_SIZES else _published(options.variant)
        # what is as published isn't said, because some models name it otherwise
        changed = {theirs: v for ours, theirs in shape.items() if (v := getattr(options, ours)) != published.get(ours)}
        model: Any = timm.create_model(
            _name(options.variant),
            num_classes=0,
            img_size=size,
            in_chans=description["channels"],
            depth=description["depth"],
            **changed,
        )
        for block, rate in zip(model.blocks, drop_path_rates(options.drop_path, options.blocks, description["depth"])):
            if rate:
                block.drop_path1, block.drop_path2 = DropPath(rate), DropPath(rate)
        final = model.norm if norm else None
        checkpointing = description.get("checkpointing", False)
        return Tower(TimmEmbedding(model), model.blocks, final, options.width, checkpointing)

    @staticmethod
    def load(module: nn.Module, weights: str, description: Mapping[str, Any]) -> None:
        """Fill the tower from a file in timm's names, or from what timm publishes for the variant."""
        fill(module, locate(weights, lambda: timm_repository(_name(description["variant"]))), SPELLING)


def _name(variant: str) -> str:
    return f"vit_{variant}_patch16_224" if variant in VIT_SIZES else variant
