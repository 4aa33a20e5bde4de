"""The text tower ``distilbert``: DistilBERT of transformers, which has neither final norm nor pooler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from edgefl.models.tower import Tower, chosen
from edgefl.models.towers.hugging_face import TextOptions
from edgefl.models.towers.vision import import_torchvision
from edgefl.models.weights import fill, locate


class DistilBertTower(Tower):
    """Gives the embedding its positions: transformers keeps them in a buffer that no state has."""

    def embed(self, x: Tensor) -> Tensor:
        """Token ids ``[batch, tokens]`` -> ``[batch, tokens, dim]``."""
        length = x.shape[1]
        kept = getattr(self.embedding, "position_ids", None)
        places = torch.arange(length, device=x.device)[None] if kept is None else kept[:, :length]
        tokens: Tensor = self.embedding(x, position_ids=places)
        return tokens


class DistilBert:
    """The tower named ``distilbert``; padding is attended to, as in every text tower."""

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
        """A tower from ``{vocabulary, depth, ...options}``; it has no final norm to leave out."""
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
        model: Any = DistilBertModel(DistilBertConfig(**settings))
        embedding = model.embeddings
        if hasattr(embedding, "position_ids"):
            del embedding.position_ids
        if options.position_ids:
            embedding.register_buffer("position_ids", torch.arange(options.positions)[None])
        checkpointing = description.get("checkpointing", False)
        return DistilBertTower(embedding, model.transformer.layer, None, options.width, checkpointing)

    @staticmethod
    def load(module: nn.Module, weights: str, description: Mapping[str, Any]) -> None:
        """Fill the tower from a file in transformers' names."""
        spelling = (
            (r"^distilbert\.", ""),
            (r"^embeddings\.", "embedding."),
            (r"^transformer\.layer\.", "blocks."),
        )
        fill(module, locate(weights, "distilbert/distilbert-base-uncased"), spelling)
