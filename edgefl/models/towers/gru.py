"""The text tower named ``gru``: word vectors and bidirectional GRU layers (CreamFL's text clients)."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, PositiveInt, computed_field
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl.models.model import TowerDescription
from edgefl.models.tower import Tower, TowerFields, options_from
from edgefl.registry.part_fields import FileName


class GruOptions(TowerFields):
    """Fields of ``text: {tower: gru}``; the defaults are CreamFL's, which uses GloVe vectors of dimension 300."""

    tower: Literal["gru"] = "gru"
    blocks: PositiveInt = Field(1, description="GRU layers at full depth")
    embedding: PositiveInt = Field(300, description="dimension of a word vector")
    hidden: PositiveInt = Field(
        256, description="dimension of a GRU's state in one direction; a token has both directions'"
    )
    vectors: FileName | None = Field(
        None,
        description="word vectors to start from: a text file such as glove.840B.300d.txt; tokens that aren't its words "
        "start at random, and so do all if absent",
    )
    tokens: PositiveInt = Field(40, description="tokens of a text: shorter texts are padded, longer ones cut")
    pooling: Literal["last", "max", "mean"] = Field(
        "max",
        description="what is read of a text: the maximum or the mean of its states, or the last state of each "
        "direction, which has seen the padding too",
    )

    @computed_field(description="dimension of a token")  # type: ignore[prop-decorator]
    @property
    def width(self) -> int:
        """Dimension of a token, which concatenates the states of both directions."""
        return 2 * self.hidden


class GruTower(Tower):
    """A word embedding followed by blocks, each of which is one bidirectional GRU layer."""

    def __init__(self, options: GruOptions, vocabulary: int, depth: int, checkpointing: int):
        inputs = [options.embedding, *[options.width] * depth]
        # One module per layer, so that a stage of a schedule can leave out the upper layers.
        layers = [nn.GRU(inputs[i], options.hidden, batch_first=True, bidirectional=True) for i in range(depth)]
        embedding = nn.Embedding(vocabulary, options.embedding)
        super().__init__(embedding, layers, None, options.width, checkpointing)
        self.pooling = options.pooling
        nn.init.normal_(embedding.weight, std=0.4)  # about the spread of GloVe's entries
        for name, parameter in self.blocks.named_parameters():
            if "weight" in name:
                # The matrix stacks three gates; Xavier's scale is that of a single gate.
                for gate in parameter.detach().chunk(3):
                    nn.init.xavier_uniform_(gate)
            else:
                nn.init.zeros_(parameter)

    def pool_tokens(self, tokens: Tensor) -> Tensor:
        """Pool tokens, including padding, into a feature: ``[batch, tokens, dim] -> [batch, width]``."""
        if self.pooling == "mean":
            pooled = tokens.mean(1)
        elif self.pooling == "max":
            pooled = tokens.amax(1)
        else:
            half = tokens.shape[-1] // 2
            pooled = torch.cat([tokens[:, -1, :half], tokens[:, 0, half:]], -1)
        # At depth 0 the tokens are word vectors, which may be narrower than the feature.
        return F.pad(pooled, (0, self.width - pooled.shape[-1])) if pooled.shape[-1] < self.width else pooled


class Gru:
    """Bidirectional GRU layers on word vectors; by default one layer of 2 x 256 on vectors of 300.

    The layer has 857,088 parameters, with the word vectors 10,013,688.  It pools; its width is twice ``hidden``, and it
    takes ``vectors`` in place of ``weights``.
    """

    modality = "text"

    Options = GruOptions

    @staticmethod
    def build(description: TowerDescription, norm: bool) -> GruTower:
        """Build a tower from ``{vocabulary, depth, ...options}``; ``norm`` is ignored, because it has no final norm."""
        options = options_from(GruOptions, description)
        return GruTower(
            options, description["vocabulary"], description["depth"], description.get("checkpointing", False)
        )
