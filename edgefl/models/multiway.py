"""The model named ``multiway``: BEiT-3's encoder for images and texts, whose layers have an expert for each modality.

This is PmcmFL's model (docs/concepts/methods/prototypes.md).  Image and text tokens interact only in the attention
operation.  Each modality has its own attention projections, LayerNorms and feed-forward networks.  At the size that
PmcmFL uses, the model has 224,369,206 parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl.errors import MethodError
from edgefl.models.model import JointDescription, Model, ModelDescription, TowerDescription
from edgefl.models.tower import (
    TowerFields,
    Weights,
    drop_path_rates,
    initialise,
    options_from,
    recompute,
    stand_in,
    through,
    without_float32,
)
from edgefl.models.towers.vit import check_patch

MODALITIES = ("image", "text")
RESERVED = 2
"""Unused rows at the start of a position table: fairseq reserves its padding index and the index before it."""

Tokens = dict[str, Tensor]
"""Tokens ``[batch, tokens, dim]`` by modality, for the modalities in the batch; image comes before text."""


class MultiwayOptions(TowerFields):
    """Fields of ``model: {multiway: {...}}``; the defaults are BEiT-3 base."""

    blocks: PositiveInt = Field(12, description="encoder layers at full depth")
    width: PositiveInt = Field(768, description="dimension of a token")
    heads: PositiveInt = Field(12, description="attention heads; must divide the width")
    mlp_ratio: float = Field(
        4.0, gt=0, description="hidden width of a feed-forward network, as a multiple of the width"
    )
    drop_path: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="stochastic depth: the probability that the last layer is skipped; it rises linearly up to there",
    )
    patch: PositiveInt = Field(16, description="side of a patch in pixels; must divide the image size")
    tokens: PositiveInt = Field(64, description="tokens of a text: shorter texts are padded, longer ones cut")
    positions: PositiveInt = Field(1024, description="rows of the text's position table, two of which are reserved")
    shared_attention: bool = Field(
        False,
        description="one set of attention projections for both modalities (PmcmFL's paper); false: one for each "
        "(its public code)",
    )

    weights: Weights = Field(
        None, description="weights to start from: the tensors of a file of BEiT-3's authors, as a .safetensors file"
    )

    @model_validator(mode="after")
    def _fits(self) -> MultiwayOptions:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} can't be split over {self.heads} heads")
        if self.tokens + RESERVED > self.positions:
            raise ValueError(
                f"{self.positions} positions are too few for {self.tokens} tokens and {RESERVED} reserved rows"
            )
        return self


class Experts(nn.Module):
    """One copy of a layer per modality, or one shared copy; tokens pass through the copy of their modality."""

    def __init__(self, make: Callable[[], nn.Module], *, shared: bool = False):
        super().__init__()
        self.shared = shared
        for name in ("both",) if shared else MODALITIES:
            self.add_module(name, make())

    def forward(self, tokens: Tokens) -> Tokens:
        """Apply the layer to each modality's tokens: ``[batch, tokens, dim] -> [batch, tokens, out]``."""
        return {m: self.get_submodule("both" if self.shared else m)(x) for m, x in tokens.items()}


class MultiwayAttention(nn.Module):
    """Attention over the tokens of all modalities in the batch, with projections per modality unless ``shared``."""

    def __init__(self, width: int, heads: int, shared: bool):
        super().__init__()
        self.heads = heads
        for name in ("q", "k", "v", "out"):
            self.add_module(name, Experts(lambda: nn.Linear(width, width), shared=shared))
        self.norm = Experts(lambda: nn.LayerNorm(width), shared=shared)

    def _heads(self, projection: str, tokens: Tokens) -> Tensor:
        projected = list(self.get_submodule(projection)(tokens).values())
        x: Tensor = torch.cat(projected, 1) if len(projected) > 1 else projected[0]
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, tokens: Tokens) -> Tokens:
        """``[batch, tokens, dim] -> [batch, tokens, dim]`` of every modality.

        There is no mask: as in the other towers, tokens attend to padding too.
        """
        q, k, v = (self._heads(projection, tokens) for projection in ("q", "k", "v"))
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        by_modality = attended.split([x.shape[1] for x in tokens.values()], 1)
        out: Tokens = self.get_submodule("out")(self.norm(dict(zip(tokens, by_modality, strict=True))))
        return out


class FeedForward(nn.Module):
    """A feed-forward network with an inner LayerNorm: ``fc2(LN(gelu(fc1(x))))``."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, tokens, dim] -> [batch, tokens, dim]``."""
        return self.fc2(self.norm(F.gelu(self.fc1(x))))  # type: ignore[no-any-return]


class MultiwayBlock(nn.Module):
    """Pre-LN transformer layer with another LayerNorm inside its attention and its feed-forward network.

    This is the sub-LN of Magneto.
    """

    def __init__(self, options: MultiwayOptions, drop_path: float):
        super().__init__()
        width, hidden = options.width, int(options.width * options.mlp_ratio)
        self.norm1 = Experts(lambda: nn.LayerNorm(width))
        self.attn = MultiwayAttention(width, options.heads, options.shared_attention)
        self.norm2 = Experts(lambda: nn.LayerNorm(width))
        self.ffn = Experts(lambda: FeedForward(width, hidden))
        self.drop_path = drop_path

    def _add_residual(self, tokens: Tokens, residual: Tokens) -> Tokens:
        if self.drop_path and self.training:
            x = next(iter(tokens.values()))
            keep = x.new_empty(x.shape[0], 1, 1).bernoulli_(1 - self.drop_path) / (1 - self.drop_path)
            residual = {m: x * keep for m, x in residual.items()}
        return {m: x + residual[m] for m, x in tokens.items()}

    def forward(self, tokens: Tokens) -> Tokens:
        """``[batch, tokens, dim] -> [batch, tokens, dim]`` of every modality.

        Stochastic depth drops both modalities of a sample together.
        """
        tokens = self._add_residual(tokens, self.attn(self.norm1(tokens)))
        return self._add_residual(tokens, self.ffn(self.norm2(tokens)))


class MultiwayEmbedding(nn.Module):
    """Embeds an image as a class token and patches, and a text as words, each with learned positions.

    ``mask`` is BEiT-3's token for masked patches in pre-training.  The forward pass doesn't use it, but it is part of
    the state dict.
    """

    def __init__(self, channels: int, size: int, vocabulary: int, options: MultiwayOptions):
        super().__init__()
        width = options.width
        self.patch = nn.Conv2d(channels, width, options.patch, options.patch)
        self.cls, self.mask = (nn.Parameter(torch.empty(1, 1, width)) for _ in range(2))
        self.image_position = nn.Embedding(RESERVED + 1 + (size // options.patch) ** 2, width)
        self.word = nn.Embedding(vocabulary, width)
        self.text_position = nn.Embedding(options.positions, width)

    def forward(self, batch: Mapping[str, Tensor]) -> Tokens:
        """Embed images ``[batch, channels, size, size]``, texts ``[batch, tokens]``, or both."""
        tokens: Tokens = {}
        if "image" in batch:
            x = self.patch(batch["image"]).flatten(2).transpose(1, 2)
            x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1)
            tokens["image"] = x + self.image_position.weight[RESERVED:]
        if "text" in batch:
            x = self.word(batch["text"])
            tokens["text"] = x + self.text_position.weight[RESERVED : RESERVED + x.shape[1]]
        return tokens


class MultiwayEncoder(nn.Module):
    """Embedding and ``depth`` layers, without a final LayerNorm."""

    def __init__(self, description: TowerDescription):
        super().__init__()
        options = options_from(MultiwayOptions, description)
        self.width = options.width
        self.embedding = MultiwayEmbedding(
            description["channels"], description["size"], description["vocabulary"], options
        )
        rates = drop_path_rates(options.drop_path, options.blocks, description["depth"])
        blocks = nn.ModuleList(MultiwayBlock(options, rate) for rate in rates)
        self.blocks = recompute(blocks, description.get("checkpointing", False))
        self._initialise(options)

    def _initialise(self, options: MultiwayOptions) -> None:
        initialise(self)
        for token in (self.embedding.cls, self.embedding.mask):
            nn.init.trunc_normal_(token, std=0.02)
        # Magneto's sub-LN scales the weights that write into the residual stream; the gain uses the full depth.
        gain = math.sqrt(math.log(2 * options.blocks))
        for name, parameter in self.blocks.named_parameters():
            if name.endswith("weight") and {"v", "out", "fc1", "fc2"} & set(name.split(".")):
                with torch.no_grad():
                    parameter.mul_(gain)

    def forward(self, batch: Mapping[str, Tensor]) -> Tokens:
        """Encode a batch of one modality or of pairs into tokens ``[batch, tokens, dim]`` of each."""
        tokens: Tokens = self.embedding(batch)
        for block in self.blocks:
            tokens = through(block, tokens)
        return tokens


class FeatureFusion(nn.Module):
    """PmcmFL's fusion F of an image and a text feature: ``tanh(Linear([LN(h_i); LN(h_t)]) / 2)``."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = Experts(lambda: nn.LayerNorm(width))
        self.proj = nn.Linear(2 * width, width)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        """``[batch, dim], [batch, dim] -> [batch, dim]``."""
        normed = self.norm({"image": image, "text": text})
        return torch.tanh(self.proj(torch.cat([normed["image"], normed["text"]], -1)) / 2)


class MultiwayModel(Model):
    """One transformer for images and texts, with experts per modality (BEiT-3).

    The encoder is under ``multiway``, and for classification the fusion and the classifier under ``joint``.  All
    clients have the whole model.  Clients that only have images train only the experts for images.
    """

    def __init__(self, description: ModelDescription):
        super().__init__(description)
        self.modalities = tuple(description["modalities"])
        self.multiway = MultiwayEncoder(description["towers"]["multiway"])
        width = self.multiway.width
        if classes := description["joint"].get("classes"):
            self.joint = nn.Module()
            self.joint.fusion = FeatureFusion(width)
            self.joint.head = nn.Sequential(
                nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.GELU(), nn.Linear(2 * width, classes)
            )
            initialise(self.joint)

    def tower(self, modality: str) -> MultiwayEncoder:
        """The encoder, which is the same for every modality."""
        return self.multiway

    @property
    def dimension(self) -> int:
        """Width of the features that ``feature`` and ``embed`` return."""
        return self.multiway.width

    def classes(self, pattern: str) -> int:
        """Number of output classes, the same for every pattern."""
        return int(cast(nn.Linear, self.get_submodule("joint.head.3")).out_features)

    def features(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The first token of each modality in ``batch``, ``[batch, dim]``; the modalities attend to each other."""
        return {m: tokens[:, 0] for m, tokens in self.multiway(batch).items()}

    def feature(self, modality: str, x: Tensor) -> Tensor:
        """The first token of one modality, encoded without the other: ``[batch, dim]``."""
        return self.features({modality: x})[modality]

    def embed(self, modality: str, x: Tensor) -> Tensor:
        """The L2-normalised feature: ``[batch, dim]``."""
        return F.normalize(self.feature(modality, x), dim=-1)

    def fuse(self, image: Tensor, text: Tensor) -> Tensor:
        """Fuse an image and a text feature ``[batch, dim]`` into one of that shape.

        The caller provides a substitute for a missing feature (``stand_in``).
        """
        fused: Tensor = self.get_submodule("joint.fusion")(image, text)
        return fused

    def scores(self, fused: Tensor) -> Tensor:
        """Class scores of a joint feature: ``[batch, dim] -> [batch, classes]``."""
        scores: Tensor = self.get_submodule("joint.head")(fused)
        return scores

    def classify(self, pattern: str, batch: Mapping[str, Tensor], mask: str = "zero") -> Tensor:
        """Class scores ``[batch, classes]`` of samples of the pattern ``image-text``, ``image`` or ``text``.

        ``mask`` selects the substitute for a missing feature: ``zero``, or ``random`` for standard normal noise,
        drawn for every sample.
        """
        features = self.features({m: batch[m] for m in pattern.split("-")})
        like = next(iter(features.values()))
        image, text = (features[m] if m in features else stand_in(mask, like, self.dimension) for m in MODALITIES)
        return self.scores(self.fuse(image, text))

    def logits(self, modality: str, x: Tensor) -> Tensor:
        """Class scores of samples that have only this modality: ``[batch, classes]``."""
        return self.classify(modality, {modality: x})


def describe_multiway(
    options: MultiwayOptions,
    modalities: Sequence[str],
    task: str,
    facts: Mapping[str, Mapping[str, int]],
    *,
    checkpointing: int = False,
) -> ModelDescription:
    """The description, at full depth, of the model of clients that have these modalities.

    All clients have the whole model, so ``facts`` must always have the channels and size of images and the vocabulary
    of texts.  Raises MethodError if one is missing, for a modality other than image and text, if the patch doesn't
    divide the image size, and if the modalities have different numbers of classes.
    """
    if other := [m for m in modalities if m not in MODALITIES]:
        raise MethodError(f"the multiway model reads image and text; these clients have {other[0]}")
    fields = {**without_float32(options.model_dump(exclude={"weights"})), "depth": options.blocks}
    for modality, field in (("image", "channels"), ("image", "size"), ("text", "vocabulary")):
        if field not in facts.get(modality, {}):
            raise MethodError(f"the multiway model needs the {field} of {modality}, which the data set doesn't have")
        fields[field] = facts[modality][field]
    check_patch(options.patch, fields["size"])
    tower = cast(TowerDescription, {**fields, "checkpointing": checkpointing} if checkpointing else fields)
    joint: JointDescription = {}
    if task == "classify":
        classes = {facts[m]["classes"] for m in modalities}
        if len(classes) > 1:
            numbers = " and ".join(map(str, sorted(classes)))
            raise MethodError(f"the modalities have {numbers} classes, but the model has one classifier")
        joint["classes"] = classes.pop()
    return {"name": "multiway", "modalities": list(modalities), "towers": {"multiway": tower}, "joint": joint}
