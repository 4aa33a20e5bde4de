"""The models, samples and local training in plain torch, for the contestants that aren't edgefl."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.jobs import CHANNELS, CLASSES, SIZE, Job


class Layer(nn.Module):
    """A pre-norm transformer layer, ``[batch, tokens, width] -> [batch, tokens, width]``."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attention and MLP, each added to its input."""
        batch, tokens, width = x.shape
        qkv = self.qkv(self.before(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.between(x))))


class PlainViT(nn.Module):
    """Vision transformer with a class token and learned positions, ``[batch, 3, 32, 32] -> [batch, classes]``."""

    def __init__(self, blocks: int, width: int, heads: int, patch: int):
        super().__init__()
        self.patches = nn.Conv2d(CHANNELS, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (SIZE // patch) ** 2 + 1, width))
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, read from the class token."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.positions
        return self.head(self.norm(self.layers(tokens))[:, 0])


def plain_cnn() -> nn.Module:
    """The convolutional network, ``[batch, 3, 32, 32] -> [batch, classes]``."""
    return nn.Sequential(
        nn.Conv2d(CHANNELS, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (SIZE // 4) ** 2, 48), nn.ReLU(), nn.Linear(48, CLASSES),
    )  # fmt: skip


def plain_model(job: Job) -> nn.Module:
    """The job's model, the same in every process."""
    torch.manual_seed(1)
    return plain_cnn() if job.vit is None else PlainViT(*job.vit)


def count(module: nn.Module) -> int:
    """Number of parameters."""
    return sum(p.numel() for p in module.parameters())


def samples_of(job: Job, client: int) -> tuple[Tensor, Tensor]:
    """A client's pictures ``[samples, 3, 32, 32]`` and labels ``[samples]``, drawn for this client.

    Pixels are uniform with mean 0 and deviation 1, as edgefl's are: the time of ReLU and max-pool depends on values.
    """
    draw = torch.Generator().manual_seed(client + 1)
    pictures = (torch.rand(job.samples, CHANNELS, SIZE, SIZE, generator=draw) - 0.5) * 12**0.5
    return pictures, torch.randint(CLASSES, (job.samples,), generator=draw)


def shuffled(x: Tensor, y: Tensor, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of one epoch in a random order."""
    order = torch.randperm(len(x))
    for start in range(0, len(x), batch):
        rows = order[start : start + batch]
        yield x[rows], y[rows]


def train(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, batch: int) -> None:
    """One epoch on a client's samples."""
    for pictures, labels in shuffled(x, y, batch):
        F.cross_entropy(module(pictures), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
