"""Clients' models written by hand: towers with classifiers, a shared embedding space, or BEiT-3's encoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from memory.towers import TOWERS, Tower, apply, rates

Json = dict[str, Any]
PAIR = ("image", "text")


def perceptron(width: int, hidden: Sequence[int], out: int, dropout: float, bias: bool, batch_norm: bool) -> nn.Module:
    """Linear layers with dropout, batch norm and ReLU between them; the last batch norm has no scale."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers.append(nn.Linear(width, size, bias=bias))
        if dropout:
            layers.append(nn.Dropout(dropout))
        if batch_norm:
            layers.append(nn.BatchNorm1d(size))
        layers.append(nn.ReLU())
        width = size
    layers.append(nn.Linear(width, out, bias=bias))
    if batch_norm:
        layers.append(nn.BatchNorm1d(out, affine=False))
    return nn.Sequential(*layers)


class TowerModel(nn.Module):
    """One tower for each modality, and what reads their features."""

    def __init__(self, model: Json, shapes: Json, modalities: Sequence[str], task: str, depth: Json, recompute: int):
        super().__init__()
        self.modalities = tuple(modalities)
        classes, single = shapes["image"]["classes"], len(modalities) == 1
        projected = model.get("dimension") and (not single or model["dimension_for"] == "all")
        one_norm = task == "retrieve" and not projected
        self.towers, widths = nn.ModuleDict(), []
        for modality in modalities:
            options = model[modality]
            tower: Tower = TOWERS[options["tower"]](options, shapes[modality], depth[modality], not one_norm)
            tower.recompute = recompute
            self.towers[modality] = tower
            widths.append(tower.width)
            tower.projection = self._projection(tower.width, model) if projected else None
            if projected:
                widths[-1] = model["dimension"]
        self.dimension = widths[0]
        self.norm = nn.LayerNorm(widths[0], eps=1e-6) if one_norm else None
        self.head: nn.Module | None = None
        if task == "classify" and single:
            self.head = nn.Linear(widths[0], classes)
        elif task == "classify":
            fusion = model["fusion"]
            self.head = perceptron(sum(widths), fusion["hidden"], classes, fusion["dropout"], True, False)
        elif task == "next-token" and not tower.tied:
            self.head = nn.Linear(widths[0], shapes["text"]["vocabulary"], bias=False)
        self.widths = dict(zip(modalities, widths, strict=True))
        self.fused_width = sum(widths)

    @staticmethod
    def _projection(width: int, model: Json) -> nn.Module:
        if "projection" not in model:
            return nn.Linear(width, model["dimension"], bias=False)
        p = model["projection"]
        return perceptron(width, p["hidden"], model["dimension"], p["dropout"], False, p["batch_norm"])

    def feature(self, modality: str, x: Tensor) -> Tensor:
        """``[batch, width]``."""
        tower: Any = self.towers[modality]
        pooled: Tensor = tower.pool(tower(x))
        if self.norm is not None:
            pooled = self.norm(pooled)
        return pooled if tower.projection is None else tower.projection(pooled)

    def embed(self, modality: str, x: Tensor) -> Tensor:
        """A unit vector for each sample."""
        return F.normalize(self.feature(modality, x), dim=-1)

    def features(self, batch: Json) -> Json:
        """The feature of each modality in the batch."""
        return {m: self.feature(m, batch[m]) for m in self.modalities if m in batch}

    def fuse(self, first: Tensor, second: Tensor) -> Tensor:
        """Both features side by side."""
        return torch.cat([first, second], dim=-1)

    def scores(self, fused: Tensor) -> Tensor:
        """Class scores of a fused feature."""
        assert self.head is not None
        return self.head(fused)

    def classify(self, batch: Json) -> Tensor:
        """Class scores of samples with all modalities."""
        features = list(self.features(batch).values())
        return self.scores(features[0] if len(features) == 1 else self.fuse(*features))

    @property
    def words(self) -> nn.Parameter:
        """Rows ``[vocabulary, width]`` that score the next token: a head's, or the embedding's own."""
        tower: Any = self.towers["text"]
        rows: nn.Parameter = tower.word.weight if self.head is None else self.head.weight  # type: ignore[assignment]
        return rows

    def stacks(self) -> Iterator[tuple[str, Any]]:
        """Towers by modality."""
        yield from self.towers.items()


# BEiT-3 -----------------------------------------------------------------------------------------------------------


class PerModality(nn.ModuleDict):
    """A layer for each modality, or one for both."""

    def forward(self, tokens: Json) -> Json:
        """Each modality's tokens through its layer."""
        return {m: self[m if m in self else "both"](x) for m, x in tokens.items()}


def _per_modality(make: Any, shared: bool = False) -> PerModality:
    return PerModality({name: make() for name in (("both",) if shared else PAIR)})


class InnerNormMlp(nn.Module):
    """An MLP with a norm before its second layer."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, tokens, width]`` to the same shape."""
        return self.fc2(self.norm(F.gelu(self.fc1(x))))


class MultiwayBlock(nn.Module):
    """A block whose tokens share attention and have experts for everything else (Wang et al. 2023)."""

    def __init__(self, options: Json, drop: float):
        super().__init__()
        width, shared = options["width"], options["shared_attention"]
        self.heads, self.drop = options["heads"], drop
        self.norm1 = _per_modality(lambda: nn.LayerNorm(width))
        self.q, self.k, self.v, self.out = (_per_modality(lambda: nn.Linear(width, width), shared) for _ in range(4))
        self.inner = _per_modality(lambda: nn.LayerNorm(width), shared)
        self.norm2 = _per_modality(lambda: nn.LayerNorm(width))
        self.mlp = _per_modality(lambda: InnerNormMlp(width, int(width * options["mlp_ratio"])))

    def _split(self, layer: PerModality, tokens: Json) -> Tensor:
        parts = list(layer(tokens).values())
        x = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return x.view(*x.shape[:2], self.heads, x.shape[2] // self.heads).transpose(1, 2)

    def _attend(self, tokens: Json) -> Json:
        q, k, v = (self._split(layer, tokens) for layer in (self.q, self.k, self.v))
        joined = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        parts = joined.split([x.shape[1] for x in tokens.values()], 1)
        return self.out(self.inner(dict(zip(tokens, parts, strict=True))))

    def _add(self, tokens: Json, branch: Json) -> Json:
        if self.drop and self.training:
            some = next(iter(tokens.values()))
            keep = some.new_empty(len(some), 1, 1).bernoulli_(1 - self.drop) / (1 - self.drop)
            branch = {m: x * keep for m, x in branch.items()}
        return {m: x + branch[m] for m, x in tokens.items()}

    def forward(self, tokens: Json) -> Json:
        """Tokens by modality to the same shapes."""
        tokens = self._add(tokens, self._attend(self.norm1(tokens)))
        return self._add(tokens, self.mlp(self.norm2(tokens)))


class MultiwayModel(nn.Module):
    """BEiT-3's encoder without its last norm, PmcmFL's fusion, and a classifier."""

    def __init__(self, options: Json, shapes: Json, depth: int, recompute: int):
        super().__init__()
        width, image = options["width"], shapes["image"]
        self.patches = nn.Conv2d(image["channels"], width, options["patch"], options["patch"])
        self.cls, self.mask = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, 1, width))
        # the first two rows of both tables are reserved
        self.image_positions = nn.Embedding(3 + (image["size"] // options["patch"]) ** 2, width)
        self.word = nn.Embedding(shapes["text"]["vocabulary"], width)
        self.text_positions = nn.Embedding(options["positions"], width)
        drops = rates(options["drop_path"], options["blocks"], depth)
        self.blocks = nn.ModuleList(MultiwayBlock(options, drop) for drop in drops)
        self.recompute = recompute
        self.norms = _per_modality(lambda: nn.LayerNorm(width))
        self.fusion = nn.Linear(2 * width, width)
        self.head = nn.Sequential(
            nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.GELU(),
            nn.Linear(2 * width, image["classes"]),
        )  # fmt: skip
        self.modalities, self.widths, self.fused_width, self.dimension = PAIR, dict.fromkeys(PAIR, width), width, width

    def embedded(self, batch: Json) -> Json:
        """Tokens by modality; a method of its own, so that nothing but the tokens outlives it."""
        tokens = {}
        if "image" in batch:
            x = self.patches(batch["image"]).flatten(2).transpose(1, 2)
            x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1)
            tokens["image"] = x + self.image_positions.weight[2:]
        if "text" in batch:
            x = self.word(batch["text"])
            tokens["text"] = x + self.text_positions.weight[2 : 2 + x.shape[1]]
        return tokens

    def features(self, batch: Json) -> Json:
        """The first token of each modality in the batch; modalities attend to each other."""
        tokens = self.embedded(batch)
        for place, block in enumerate(self.blocks):
            tokens = apply(block, tokens, place < self.recompute)
        return {m: x[:, 0] for m, x in tokens.items()}

    def fuse(self, image: Tensor, text: Tensor) -> Tensor:
        """``tanh(Linear([LN(image); LN(text)]) / 2)``."""
        normed = self.norms({"image": image, "text": text})
        return torch.tanh(self.fusion(torch.cat([normed["image"], normed["text"]], -1)) / 2)

    def scores(self, fused: Tensor) -> Tensor:
        """Class scores of a fused feature."""
        return self.head(fused)

    def early(self) -> list[nn.Parameter]:
        """Parameters of the embedding."""
        tables = (self.patches, self.image_positions, self.word, self.text_positions)
        return [self.cls, self.mask, *(p for part in tables for p in part.parameters())]

    def stacks(self) -> Iterator[tuple[str, Any]]:
        """The encoder."""
        yield "multiway", self


# gates and stages ---------------------------------------------------------------------------------------------------


class GatedLinear(nn.Module):
    """``(W + g A) x + b``: FedCola's linear layer with the other modality's matrix A behind a gate g."""

    def __init__(self, layer: nn.Linear, partner_trains: bool):
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.partner = nn.Parameter(torch.randn_like(layer.weight), requires_grad=partner_trains)
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``."""
        return F.linear(x, self.weight + self.gate * self.partner, self.bias)


def add_gates(blocks: Sequence[nn.Module], complementary: str, partner_trains: bool) -> None:
    """Put gates into the linear layers of attention, MLP or both, of these blocks."""
    for block in blocks:
        linear = [name for name, layer in block.named_modules() if isinstance(layer, nn.Linear)]
        mlp, attention = linear[-2:], linear[:-2]  # in every block, attention comes first
        for name in {"none": [], "attention": attention, "mlp": mlp, "blocks": linear}[complementary]:
            block.set_submodule(name, GatedLinear(block.get_submodule(name), partner_trains))  # type: ignore[arg-type]


def narrowed(options: Json, share: float) -> Json:
    """A transformer with about this share of its heads, each as wide as before (HeteroFL)."""
    heads = max(1, int(share * options["heads"] + 0.5))
    return {**options, "heads": heads, "width": heads * (options["width"] // options["heads"])}


def scale(blocks: Sequence[nn.Module], share: float) -> None:
    """Divide what the blocks' linear layers give by the share of the width that they have, while training."""
    for block in blocks:
        for layer in block.modules():
            if isinstance(layer, nn.Linear):
                layer.register_forward_hook(lambda layer, _, out: out / share if layer.training else None)


def freeze(model: TowerModel | MultiwayModel, first: Json) -> None:
    """Keep the embeddings and the blocks before ``first`` of each tower from training."""
    for name, tower in model.stacks():
        for parameter in tower.early():
            parameter.requires_grad_(False)
        for block in tower.blocks[: first[name]]:
            for parameter in block.parameters():
                parameter.requires_grad_(False)
