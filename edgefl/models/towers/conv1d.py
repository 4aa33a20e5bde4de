"""The motion tower named ``conv1d``: residual blocks of convolutions over time, all of one width."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl.errors import MethodError
from edgefl.models.model import TowerDescription
from edgefl.models.tower import Tower, TowerFields, options_from


class Conv1dOptions(TowerFields):
    """Fields of ``motion: {tower: conv1d}``."""

    tower: Literal["conv1d"] = "conv1d"
    blocks: PositiveInt = Field(4, description="residual blocks at full depth, of two convolutions each")
    width: PositiveInt = Field(64, description="channels of every convolution")
    kernel: Literal[1, 3, 5, 7, 9, 11] = Field(5, description="tokens that a convolution of a block sees")
    patch: PositiveInt = Field(4, description="readings that the embedding makes one token of, without overlap")


class ConvolutionBlock(nn.Module):
    """A pre-normalised residual block: ``x + conv2(gelu(conv1(norm(x))))``, 2 k D^2 + 4 D parameters."""

    def __init__(self, width: int, kernel: int):
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.conv1 = nn.Conv1d(width, width, kernel, padding=kernel // 2)
        self.conv2 = nn.Conv1d(width, width, kernel, padding=kernel // 2)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, tokens, dim] -> [batch, tokens, dim]``."""
        hidden = F.gelu(self.conv1(self.norm(x).transpose(1, 2)))
        return x + self.conv2(hidden).transpose(1, 2)  # type: ignore[no-any-return]


class MotionTower(Tower):
    """Tokens of consecutive readings, whose mean over time is the feature."""

    def embed(self, x: Tensor) -> Tensor:
        """``[batch, readings, channels] -> [batch, readings / patch, dim]``."""
        return super().embed(x.transpose(1, 2)).transpose(1, 2)

    def pool_tokens(self, tokens: Tensor) -> Tensor:
        """``[batch, tokens, dim] -> [batch, width]``."""
        return tokens.mean(1)


class Conv1d:
    """Convolutions over time; by default 4 blocks of 64 channels, of 41,216 parameters each.

    It has no positions and takes windows of any length; the width is that of every block, so that it can be cut at any.
    """

    modality = "motion"

    Options = Conv1dOptions

    @staticmethod
    def build(description: TowerDescription, norm: bool) -> MotionTower:
        """Build a tower from ``{readings, channels, depth, ...options}``; ``norm`` adds the final norm."""
        options = options_from(Conv1dOptions, description)
        if (readings := description["readings"]) < options.patch:
            raise MethodError(f"a patch of {options.patch} doesn't fit a window of {readings} readings")
        return MotionTower(
            nn.Conv1d(description["channels"], options.width, options.patch, options.patch),
            [ConvolutionBlock(options.width, options.kernel) for _ in range(description["depth"])],
            nn.LayerNorm(options.width, eps=1e-6) if norm else None,
            options.width,
            description.get("checkpointing", False),
        )
