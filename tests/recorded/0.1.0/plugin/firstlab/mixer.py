from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from edgefl.models.tower import Mlp
from edgefl.models.towers.vit import PatchEmbedding


class Block(nn.Module):
    """Tokens exchange their mean, then each passes an MLP: ``[batch, tokens, width]`` both ways."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = Mlp(width, 2 * width)

    def forward(self, x):
        x = self.norm(x + x.mean(1, keepdim=True))
        return x + self.mlp(x)


class MixerTower(nn.Module):
    def __init__(self, description, norm: bool):
        super().__init__()
        self.width = description["width"]
        self.embedding = PatchEmbedding(description["channels"], description["size"], description["patch"], self.width)
        self.blocks = nn.ModuleList(Block(self.width) for _ in range(description["depth"]))
        if norm:
            self.norm = nn.LayerNorm(self.width)

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.norm(x) if hasattr(self, "norm") else x


class Mixer:
    """The tower named ``mixer``."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)
        tower: Literal["mixer"] = "mixer"
        blocks: int = Field(4, ge=1, description="blocks at full depth")
        width: int = Field(64, ge=1, description="dimension of a token")
        patch: int = Field(8, ge=1, description="side of a patch in pixels")

    @staticmethod
    def build(description, norm: bool) -> MixerTower:
        return MixerTower(description, norm)
