"""The tower ``hf``: any encoder of transformers by configuration, for texts, images and audio."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from edgefl.errors import MethodError
from edgefl.models.layers import BlockLayers
from edgefl.models.model import TowerDescription
from edgefl.models.tower import options_from
from edgefl.models.towers.hugging_face import VISION_BLOCK, Bert, DistilBert
from edgefl.models.towers.library_model import (
    PADDING,
    LibraryModel,
    LibraryOptions,
    configuration,
    copy_folder,
    make_model,
    model_class,
    prepare,
    read_only,
)

FROM_DATA = {"text": ("vocab_size",), "image": ("num_channels", "image_size"), "audio": ()}
"""Fields of a configuration that the data set determines."""
MODALITIES = {"input_ids": "text", "pixel_values": "image", "input_values": "audio", "input_features": "audio"}
"""The modality of what the library calls a model's main input."""


class HFEncoderOptions(LibraryOptions):
    """Fields of ``{tower: hf}``."""

    modalities: ClassVar[tuple[str, ...]] = ("text", "image", "audio")
    tower: Literal["hf"] = "hf"
    read: Literal["first", "mean"] = Field(
        "first", description="what is read of a sample: the first token, or the mean of all tokens"
    )

    @classmethod
    def check_kind(cls, kind: str) -> None:
        """Raise ValueError, which says what would work, for what isn't an encoder alone, or Whisper's."""
        if kind in ("convnextv2", "swin"):
            raise ValueError(
                f"model_type {kind}: its stages differ in width; timm has it: {{tower: timm, variant: ...}}"
            )
        super().check_kind(kind)
        from transformers.models.auto import modeling_auto

        names: Any = modeling_auto
        config = read_only({"model_type": kind})
        if getattr(config, "is_encoder_decoder", False) and kind != "whisper":
            raise ValueError(
                f"{kind} is an encoder and a decoder that reads it: take one alone, such as roberta or deberta-v2"
            )
        masked = kind in names.MODEL_FOR_MASKED_LM_MAPPING_NAMES
        if kind in names.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not masked and kind != "whisper":
            raise ValueError(f"{kind} is a decoder, whose tokens see those before them alone: take tower: hf-causal")
        if model_class(config).main_input_name not in MODALITIES:
            raise ValueError(f"{kind} reads {model_class(config).main_input_name}: take a model of texts or images")

    @property
    def modality(self) -> str:
        """What it reads: text, image or audio."""
        return MODALITIES[model_class(read_only(self.config)).main_input_name]


class Encoder(LibraryModel):
    """An encoder; it reads the first token, or the mean of all."""

    mean = False

    def pool_tokens(self, tokens: Tensor) -> Tensor:
        """The first token, or the mean of all: ``[batch, width]``."""
        return tokens.mean(1) if self.mean else tokens[:, 0]


BLOCK: BlockLayers = {
    **Bert.block_layers,
    **DistilBert.block_layers,
    **VISION_BLOCK,
    # MPNet
    "attention.attn.q": ("query",),
    "attention.attn.k": ("key",),
    "attention.attn.v": ("value",),
    "attention.attn.o": ("proj",),
    "attention.LayerNorm": ("post-norm1",),
    # ModernBERT, whose MLP has a gate
    "attn.Wqkv": ("query", "key", "value"),
    "attn.Wo": ("proj",),
    "attn_norm": ("norm1",),
    "mlp_norm": ("norm2",),
    # SigLIP, Whisper, DINOv2
    "self_attn.q_proj": ("query",),
    "self_attn.k_proj": ("key",),
    "self_attn.v_proj": ("value",),
    "self_attn.out_proj": ("proj",),
    "fc1": ("fc1",),
    "fc2": ("fc2",),
    "layer_norm1": ("norm1",),
    "layer_norm2": ("norm2",),
    "self_attn_layer_norm": ("norm1",),
    "final_layer_norm": ("norm2",),
    "norm1": ("norm1",),
    "norm2": ("norm2",),
}
"""Layers of a block of any of these models."""


class HFEncoder:
    """Any encoder of transformers by configuration: BERT, RoBERTa, DeBERTa, ELECTRA, ALBERT, ModernBERT, ViT, Whisper.

    ``config`` is transformers' configuration, written out or a folder's ``config.json`` (RoBERTa: 108,893,184
    parameters).  Poolers and heads are left out; what comes before the blocks is the embedding, with tables of relative
    positions.  ``pool_tokens`` says what is read of a sample: the first token, or the mean of all, which fits SigLIP
    and Whisper.  ``weights`` is a folder that the library itself reads.  Outputs equal the library's (to 1e-6).
    Schedules cut the list of blocks that is called one after the other.  Blocks that share their weights (ALBERT) are
    one block, which schedules of several stages refuse.  ``frozen-prefix`` needs ``keep: false`` with images and audio,
    and where embeddings are narrower than tokens.  Whisper's table of positions is trained, unlike the library's.
    """

    Options = HFEncoderOptions
    block_layers = BLOCK

    @staticmethod
    def build(description: TowerDescription, norm: bool) -> Encoder:
        """Build a tower from ``{depth, ...options, ...data}``; it has its own norm, if any.

        Raises MethodError if the library refuses the sizes of the data.
        """
        return HFEncoder.of_library(HFEncoder.library(description), description, norm)

    @staticmethod
    def library(description: TowerDescription) -> nn.Module:
        """transformers' own model; of Whisper the encoder."""
        options = options_from(HFEncoderOptions, description)
        return make_model(_config(options, description), options.tokens)

    @staticmethod
    def of_library(model: nn.Module, description: TowerDescription, norm: bool) -> Encoder:
        """The tower of transformers' model, which it takes apart."""
        options = options_from(HFEncoderOptions, description)
        tower = Encoder(model, options.structure, description.get("checkpointing", False))
        tower.mean = options.read == "mean"
        return tower

    @staticmethod
    def load(module: nn.Module, weights: str, description: TowerDescription) -> None:
        """Copy the weights of a folder, read by the library itself.  Raises MethodError."""
        options = options_from(HFEncoderOptions, description)
        config = _config(options, description)

        def take_apart(whole: Any) -> nn.Module:
            return HFEncoder.of_library(prepare(whole, options.tokens), description, True)

        copy_folder(module, weights, model_class(config), config, take_apart, {"embedding", "blocks", "norm"})


def _config(options: HFEncoderOptions, description: TowerDescription) -> Any:
    data = {
        "vocab_size": description.get("vocabulary"), "num_channels": description.get("channels"),
        "image_size": description.get("size"),
    }  # fmt: skip
    more: dict[str, object] = {name: data[name] for name in FROM_DATA[options.modality]}
    if options.modality == "audio":
        bins, frames = description["bins"], description["frames"]
        more = {"num_mel_bins": bins, "max_length": frames}
        if options.family == "whisper":
            if frames % 2:
                raise MethodError(f"whisper halves the frames, and {frames} are odd: set an even data.audio length")
            more = {"num_mel_bins": bins, "max_source_positions": frames // 2}
    if options.structure.offset:
        more["pad_token_id"] = PADDING
    try:
        config = configuration({**options.fields_at(description["depth"]), **more})
    except ValueError as error:
        raise MethodError(str(error)) from error
    if options.modality == "image" and description["size"] % config.patch_size:
        raise MethodError(
            f"a {options.family}'s patch of {config.patch_size} doesn't divide images of {description['size']} pixels"
        )
    return config
