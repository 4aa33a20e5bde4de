"""The image tower ``hf-vit``: the vision transformer of transformers, with the pooler that it carries unused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, PositiveInt, model_validator
from torch import nn

from edgefl.errors import MethodError
from edgefl.models.tower import EncoderOptions, Tower
from edgefl.models.vision import import_torchvision
from edgefl.models.vit import VIT_SIZES
from edgefl.models.weights import PARTS, Spelling, fill, locate

LAYER: Spelling = (
    (r"^encoder\.layer\.|^layers\.", "blocks."),
    (r"^embeddings\.", "embedding."),
    (r"^layernorm\.", "norm."),
    # a layer's names before transformers 5.18 (and in every published file) -> its names since
    (r"^(blocks\.\d+\.attention)\.attention\.query\.", r"\1.q_proj."),
    (r"^(blocks\.\d+\.attention)\.attention\.key\.", r"\1.k_proj."),
    (r"^(blocks\.\d+\.attention)\.attention\.value\.", r"\1.v_proj."),
    (r"^(blocks\.\d+\.attention)\.output\.dense\.", r"\1.o_proj."),
    (r"^(blocks\.\d+)\.intermediate\.dense\.", r"\1.mlp.fc1."),
    (r"^(blocks\.\d+)\.output\.dense\.", r"\1.mlp.fc2."),
)
"""Names of transformers' ViT and AST -> the tower's."""

_REPOSITORIES = {
    "tiny": "WinKawaks/vit-tiny-patch16-224",
    "small": "WinKawaks/vit-small-patch16-224",
    "base": "google/vit-base-patch16-224",
}


class HFViT:
    """The tower named ``hf-vit``."""

    class Options(EncoderOptions):
        """Fields of ``image: {tower: hf-vit}``; ``variant`` gives those of blocks, width, heads that are absent."""

        tower: Literal["hf-vit"] = "hf-vit"
        variant: Literal["tiny", "small", "base"] = Field("tiny", description="size of the published model")
        blocks: PositiveInt = Field(12, description="transformer blocks at full depth")
        width: PositiveInt = Field(192, description="dimension of a token")
        heads: PositiveInt = Field(3, description="attention heads; must divide the width")
        patch: PositiveInt = Field(16, description="side of a patch in pixels; must divide the image size")
        dropout: float = Field(0.0, ge=0, lt=1, description="dropout of hidden states and of attention")
        pooler: bool = Field(True, description="carry the published pooler, which is part of the state and never used")
        load_norm: bool = Field(True, description="take the final norm from the weights too; LW-FedMML doesn't")

        @model_validator(mode="before")
        @classmethod
        def _sized(cls, value: Any) -> Any:
            if not isinstance(value, dict):
                return value
            return {**VIT_SIZES.get(str(value.get("variant", "tiny")), {}), **value}

    @staticmethod
    def build(description: Mapping[str, Any], norm: bool) -> Tower:
        """A tower from ``{channels, size, depth, ...options}``.  Raises MethodError if the patch doesn't fit."""
        import_torchvision()
        from transformers import ViTConfig, ViTModel

        fields = {k: v for k, v in description.items() if k in HFViT.Options.model_fields}
        options, size = HFViT.Options(**fields), description["size"]
        if size % options.patch:
            raise MethodError(f"patch {options.patch} doesn't divide the image size {size}")
        settings: dict[str, Any] = {
            "hidden_size": options.width,
            "num_hidden_layers": description["depth"],
            "num_attention_heads": options.heads,
            "intermediate_size": int(options.width * options.mlp_ratio),
            "hidden_dropout_prob": options.dropout,
            "attention_probs_dropout_prob": options.dropout,
            "image_size": size,
            "patch_size": options.patch,
            "num_channels": description["channels"],
            "attn_implementation": "sdpa",
        }
        model: Any = ViTModel(ViTConfig(**settings), add_pooling_layer=options.pooler)
        final = model.layernorm if norm else None
        tower = Tower(model.embeddings, layers(model), final, options.width, description.get("checkpointing", False))
        if options.pooler:
            tower.pooler = model.pooler
        return tower

    @staticmethod
    def load(module: nn.Module, weights: str, description: Mapping[str, Any]) -> None:
        """Fill the tower from a file in transformers' names; a classifier's file has no pooler, which then stays."""
        spelling = ((r"^vit\.", ""), *LAYER)
        parts = PARTS if description["load_norm"] else [part for part in PARTS if part != "norm"]
        file = locate(weights, _REPOSITORIES[description["variant"]])
        fill(module, file, spelling, parts=parts, optional=["pooler"])


def layers(model: Any) -> nn.ModuleList:
    """The blocks of a ViT or AST of transformers, where this version of it keeps them."""
    found: nn.ModuleList = model.layers if hasattr(model, "layers") else model.encoder.layer
    return found
