"""The audio tower ``ast``: transformers' audio spectrogram transformer, by default DistilAST's six blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, PositiveInt
from torch import nn

from edgefl.errors import MethodError
from edgefl.models.hf_vit import LAYER, layers
from edgefl.models.tower import EncoderOptions, Tower
from edgefl.models.vision import import_torchvision
from edgefl.models.weights import PARTS, fill, locate


class Ast:
    """The tower named ``ast``: a spectrogram ``[batch, frames, bins]`` in overlapping patches, behind two tokens.

    128 bins and 1,024 frames make 12 x 101 patches: 1,214 tokens.
    """

    class Options(EncoderOptions):
        """Fields of ``audio: {tower: ast}``."""

        tower: Literal["ast"] = "ast"
        blocks: PositiveInt = Field(6, description="transformer blocks at full depth")
        width: PositiveInt = Field(768, description="dimension of a token")
        heads: PositiveInt = Field(12, description="attention heads; must divide the width")
        patch: PositiveInt = Field(16, description="side of a patch, in bins and in frames")
        stride: PositiveInt = Field(10, description="from patch to patch, in bins and in frames")
        dropout: float = Field(0.0, ge=0, lt=1, description="dropout of hidden states and of attention")
        load_norm: bool = Field(True, description="take the final norm from the weights too; LW-FedMML doesn't")

    @staticmethod
    def build(description: Mapping[str, Any], norm: bool) -> Tower:
        """A tower from ``{bins, frames, depth, ...options}``.  Raises MethodError for a sound smaller than a patch."""
        import_torchvision()
        from transformers import ASTConfig, ASTModel

        options = Ast.Options(**{k: v for k, v in description.items() if k in Ast.Options.model_fields})
        bins, frames = description["bins"], description["frames"]
        if min(bins, frames) < options.patch:
            raise MethodError(f"a patch of {options.patch} doesn't fit a spectrogram of {bins} bins, {frames} frames")
        settings: dict[str, Any] = {
            "hidden_size": options.width,
            "num_hidden_layers": description["depth"],
            "num_attention_heads": options.heads,
            "intermediate_size": int(options.width * options.mlp_ratio),
            "hidden_dropout_prob": options.dropout,
            "attention_probs_dropout_prob": options.dropout,
            "patch_size": options.patch,
            "frequency_stride": options.stride,
            "time_stride": options.stride,
            "max_length": frames,
            "num_mel_bins": bins,
            "attn_implementation": "sdpa",
        }
        model: Any = ASTModel(ASTConfig(**settings))
        final = model.layernorm if norm else None
        return Tower(model.embeddings, layers(model), final, options.width, description.get("checkpointing", False))

    @staticmethod
    def load(module: nn.Module, weights: str, description: Mapping[str, Any]) -> None:
        """Fill the tower from a file in transformers' names."""
        spelling = ((r"^audio_spectrogram_transformer\.", ""), *LAYER)
        parts = PARTS if description["load_norm"] else [part for part in PARTS if part != "norm"]
        fill(module, locate(weights, "bookbot/distil-ast-audioset"), spelling, parts=parts)
