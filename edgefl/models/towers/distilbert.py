"""The text tower ``distilbert``: transformers' DistilBERT, which has neither a final norm nor a pooler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from edgefl.models.layers import BlockLayers
from edgefl.models.tower import Tower, chosen
from edgefl.models.towers.hugging_face import TextOptions
from edgefl.models.towers.vision import import_torchvision
from edgefl.models.weights import fill, locate


class DistilBertTower(Tower):
    """Passes positions to DistilBERT's embedding, from its buffer ``position_ids`` if it has one."""

    def embed(self, x: Tensor) -> Tensor:
        """Embed token ids ``[batch, tokens]``: ``[batch, tokens, dim]``."""
        length = x.shape[1]
        buffer = getattr(self.embedding, "position_ids", None)
        positions = torch.arange(length, device=x.device)[None] if buffer is None else buffer[:, :length]
        tokens: Tensor = self.embedding(x, position_ids=positions)
        return tokens


class DistilBert:
    """DistilBERT of transformers, by default 6 blocks of 768, without a final norm and a pooler.

    A block has 7,087,872 parameters, all have 66,362,880.  With ``position_ids: true`` its state has the 512 int64
    numbers that older versions of transformers kept there; the positions are the same either way.
    """

    modality = "text"
    block_layers: ClassVar[BlockLayers] = {
        "attention.q_lin": ("query",),
        "attention.k_lin": ("key",),
        "attention.v_lin": ("value",),
        "attention.out_lin": ("proj",),
        "sa_layer_norm": ("post-norm1",),
        "ffn.lin1": ("fc1",),
        "ffn.lin2": ("fc2",),
        "output_layer_norm": ("post-norm2",),
    }

    class Options(TextOptions):
        """Fields of ``text: {tower: distilbert}``."""

        tower: Literal["distilbert"] = "distilbert"
        width: PositiveInt = Field(768, description="dimension of a token")
        position_ids: bool = Field(
            False,
            description="keep the position numbers (int64) in the model's state, as older versions of DistilBERT did",
        )

    @staticmethod
    def build(description: Mapping[str, Any], norm: bool) -> Tower:
        """Build a tower from ``{vocabulary, depth, ...options}``; ``norm`` is ignored, because it has no final norm."""
        return DistilBert.of_library(DistilBert.library(description), description, norm)

    @staticmethod
    def library(description: Mapping[str, Any]) -> Any:
        """transformers' own model."""
        import_torchvision()
        from transformers import DistilBertConfig, DistilBertModel

        options = chosen(DistilBert.Options, description)
        settings: dict[str, Any] = {
            "vocab_size": description["vocabulary"],
            "max_position_embeddings": options.positions,
            "dim": options.width,
            "n_layers": description["depth"],
            "n_heads": options.heads,
            "hidden_dim": int(options.width * options.mlp_ratio),
            "dropout": options.dropout,
            "attention_dropout": options.dropout,
            "attn_implementation": "sdpa",
        }
        return DistilBertModel(DistilBertConfig(**settings))

    @staticmethod
    def of_library(model: Any, description: Mapping[str, Any], norm: bool) -> Tower:
        """The tower of transformers' model."""
        options = chosen(DistilBert.Options, description)
        embedding = model.embeddings
        if hasattr(embedding, "position_ids"):
            del embedding.position_ids
        if options.position_ids:
            embedding.register_buffer("position_ids", torch.arange(options.positions)[None])
        checkpointing = description.get("checkpointing", False)
        return DistilBertTower(embedding, model.transformer.layer, None, options.width, checkpointing)

    @staticmethod
    def load(module: nn.Module, weights: str, description: Mapping[str, Any]) -> None:
        """Load the tower's weights from a file with transformers' tensor names, or DistilBERT's from the hub."""
        spelling = (
            (r"^distilbert\.", ""),
            (r"^embeddings\.", "embedding."),
            (r"^transformer\.layer\.", "blocks."),
        )
        fill(module, locate(weights, "distilbert/distilbert-base-uncased"), spelling)
