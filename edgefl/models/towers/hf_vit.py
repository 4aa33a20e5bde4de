"""The image tower ``hf-vit``: transformers' vision transformer, with its pooler as part of the state but unused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, PositiveInt, model_validator
from torch import nn

from edgefl.models.tower import Tower, chosen
from edgefl.models.towers.hugging_face import LAYER, VISION_BLOCK, VisionOptions, layers, loaded_parts, settings
from edgefl.models.towers.vision import import_torchvision
from edgefl.models.towers.vit import VIT_SIZES, check_patch
from edgefl.models.weights import fill, locate

_REPOSITORIES = {
    "tiny": "WinKawaks/vit-tiny-patch16-224",
    "small": "WinKawaks/vit-small-patch16-224",
    "base": "google/vit-base-patch16-224",
}


class HFViT:
    """Vision transformer of transformers; by default ViT-Tiny/16, 12 blocks of 192.

    A block has 444,864 parameters, all have 5,561,472.  It has the pooler of ``ViTModel`` (192 x 192 and a bias).  No
    loss reaches it, so it has no gradient and no optimizer state; it travels with the model, as LW-FedMML counts it.
    ``pooler: false`` leaves it out. ``load_norm: false`` leaves the final norm at identity when weights are loaded, as
    LW-FedMML does, whose norm stands behind other blocks than those that it was trained behind.
    """

    modality = "image"
    block_layers = VISION_BLOCK

    class Options(VisionOptions):
        """Fields of ``image: {tower: hf-vit}``; ``variant`` sets those of blocks, width, heads that are absent."""

        tower: Literal["hf-vit"] = "hf-vit"
        variant: Literal["tiny", "small", "base"] = Field("tiny", description="size of the published model")
        blocks: PositiveInt = Field(12, description="transformer blocks at full depth")
        width: PositiveInt = Field(192, description="dimension of a token")
        heads: PositiveInt = Field(3, description="attention heads; must divide the width")
        patch: PositiveInt = Field(16, description="side of a patch in pixels; must divide the image size")
        pooler: bool = Field(
            True, description="whether the model has the published pooler, which travels with it and is never used"
        )

        @model_validator(mode="before")
        @classmethod
        def _fill_sizes(cls, value: Any) -> Any:
            if not isinstance(value, dict):
                return value
            return {**VIT_SIZES.get(str(value.get("variant", "tiny")), {}), **value}

    @staticmethod
    def build(description: Mapping[str, Any], norm: bool) -> Tower:
        """Build a tower from ``{channels, size, depth, ...options}``.

        Raises MethodError if the patch doesn't divide the image size.
        """
        return HFViT.of_library(HFViT.library(description), description, norm)

    @staticmethod
    def library(description: Mapping[str, Any]) -> Any:
        """transformers' own model."""
        import_torchvision()
        from transformers import ViTConfig, ViTModel

        options, size = chosen(HFViT.Options, description), description["size"]
        check_patch(options.patch, size)
        config = ViTConfig(
            **settings(options, description["depth"]),
            image_size=size,
            patch_size=options.patch,
            num_channels=description["channels"],
        )
        return ViTModel(config, add_pooling_layer=options.pooler)

    @staticmethod
    def of_library(model: Any, description: Mapping[str, Any], norm: bool) -> Tower:
        """The tower of transformers' model."""
        options = chosen(HFViT.Options, description)
        final = model.layernorm if norm else None
        tower = Tower(model.embeddings, layers(model), final, options.width, description.get("checkpointing", False))
        if options.pooler:
            tower.pooler = model.pooler
        return tower

    @staticmethod
    def load(module: nn.Module, weights: str, description: Mapping[str, Any]) -> None:
        """Load the tower's weights from a file with transformers' tensor names, or the variant's from the hub.

        A published classifier has no pooler; the tower's pooler then keeps its values.
        """
        spelling = ((r"^vit\.", ""), *LAYER)
        file = locate(weights, _REPOSITORIES[description["variant"]])
        fill(module, file, spelling, parts=loaded_parts(description), optional=["pooler"])
