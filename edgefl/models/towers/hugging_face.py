"""What the towers built from the library transformers share: options, configuration fields and layer names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, PositiveInt, model_validator
from torch import nn

from edgefl.models.layers import BlockLayers
from edgefl.models.tower import EncoderOptions
from edgefl.models.weights import PARTS, Spelling

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
"""Maps the tensor names of transformers' ViT and AST to the tower's names."""

VISION_BLOCK: BlockLayers = {
    "attention.q_proj": ("query",),
    "attention.k_proj": ("key",),
    "attention.v_proj": ("value",),
    "attention.o_proj": ("proj",),
    "mlp.fc1": ("fc1",),
    "mlp.fc2": ("fc2",),
    "layernorm_before": ("norm1",),
    "layernorm_after": ("norm2",),
    # before transformers 5.18
    "attention.attention.query": ("query",),
    "attention.attention.key": ("key",),
    "attention.attention.value": ("value",),
    "attention.output.dense": ("proj",),
    "intermediate.dense": ("fc1",),
    "output.dense": ("fc2",),
}
"""Layers of a block of transformers' ViT and AST, whose names depend on the version of transformers."""


class VisionOptions(EncoderOptions):
    """Options of the ViT and AST towers, which have the same kind of block."""

    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of hidden states and of attention, a probability")
    load_norm: bool = Field(True, description="whether weights also set the final norm, which LW-FedMML leaves")


class TextOptions(EncoderOptions):
    """Options of the BERT and DistilBERT towers."""

    tokens: PositiveInt = Field(40, description="tokens of a text: shorter texts are padded, longer ones cut")
    blocks: PositiveInt = Field(6, description="transformer blocks at full depth")
    heads: PositiveInt = Field(12, description="attention heads; must divide the width")
    positions: PositiveInt = Field(512, description="rows of the position table; no fewer than tokens")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout of hidden states and of attention, a probability")

    @model_validator(mode="after")
    def _check_positions(self) -> TextOptions:
        if self.tokens > self.positions:
            raise ValueError(f"{self.tokens} tokens don't fit into {self.positions} positions")
        return self


def settings(options: VisionOptions | TextOptions, depth: int) -> dict[str, Any]:
    """Fields of a transformers configuration with ``depth`` blocks; DistilBERT's configuration has other names."""
    return {
        "hidden_size": options.width,
        "num_hidden_layers": depth,
        "num_attention_heads": options.heads,
        "intermediate_size": int(options.width * options.mlp_ratio),
        "hidden_dropout_prob": options.dropout,
        "attention_probs_dropout_prob": options.dropout,
        "attn_implementation": "sdpa",
    }


def layers(model: Any) -> nn.ModuleList:
    """The blocks of a ViT or AST of transformers, whose attribute depends on the version of transformers."""
    blocks: nn.ModuleList = model.layers if hasattr(model, "layers") else model.encoder.layer
    return blocks


def loaded_parts(description: Mapping[str, Any]) -> list[str]:
    """The parts of a ViT or AST tower that are loaded from a file; the norm only with ``load_norm``."""
    return [part for part in PARTS if part != "norm" or description["load_norm"]]
