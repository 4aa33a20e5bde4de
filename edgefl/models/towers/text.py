"""The text tower: BERT's embedding followed by pre-LN transformer blocks (FedCola's text model, at any size)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt
from torch import Tensor, nn

from edgefl.models.model import TowerDescription
from edgefl.models.tower import Tower, TransformerOptions, assemble, options_from
from edgefl.models.towers.vit import published_vit
from edgefl.models.weights import fill, locate


class TextEmbedding(nn.Module):
    """The normalised sum of word, position and token type embeddings; [CLS] is at position 0."""

    def __init__(self, vocabulary: int, tokens: int, width: int):
        super().__init__()
        self.word = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(tokens, width)
        self.token_type = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, text: Tensor) -> Tensor:
        """Embed token ids ``[batch, tokens]``, all of token type 0: ``[batch, tokens, dim]``."""
        x = self.word(text) + self.position.weight[: text.shape[1]] + self.token_type.weight[0]
        return self.norm(x)  # type: ignore[no-any-return]


class TextTransformer:
    """Transformer encoder of edgefl, with the pre-LN blocks of a ViT; by default 4 blocks of 64, 24 tokens.

    ``weights`` are a ViT's blocks and final norm, or BERT's embedding (the first ``tokens`` positions), or both; what
    the file doesn't have stays random.
    """

    modality = "text"

    class Options(TransformerOptions):
        """Fields of ``text: {tower: transformer}``."""

        tower: Literal["transformer"] = "transformer"
        tokens: PositiveInt = Field(24, description="tokens of a text: shorter texts are padded, longer ones cut")

    @staticmethod
    def build(description: TowerDescription, norm: bool) -> Tower:
        """Build a tower from ``{vocabulary, tokens, depth, ...options}``; ``norm`` adds the final norm."""
        options = options_from(TextTransformer.Options, description)
        embedding = TextEmbedding(description["vocabulary"], options.tokens, options.width)
        return assemble(embedding, options, description, norm)

    @staticmethod
    def load(module: nn.Module, weights: str, description: TowerDescription) -> None:
        """Load BERT's embedding, a ViT's blocks and final norm with timm's tensor names, or both from a file.

        ``pretrained`` loads the blocks of timm's ViT of this width, with which FedCola's paper initialises its text
        blocks.
        """
        spelling = (
            (r"^bert\.", ""),
            (r"^embeddings\.(word|position|token_type)_embeddings\.", r"embedding.\1."),
            (r"^embeddings\.LayerNorm\.", "embedding.norm."),
        )
        file = locate(weights, lambda: published_vit(description["width"], 16))
        parts = ["embedding", "blocks", "norm"]
        fill(module, file, spelling, optional=parts, cut=["embedding.position.weight"])
