"""The audio tower ``ast``: transformers' audio spectrogram transformer, by default with DistilAST's six blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, PositiveInt
from torch import nn

from edgefl.errors import MethodError
from edgefl.models.tower import Tower, chosen
from edgefl.models.towers.hugging_face import LAYER, VISION_BLOCK, VisionOptions, layers, loaded_parts, settings
from edgefl.models.towers.vision import import_torchvision
from edgefl.models.weights import fill, locate


class Ast:
    """Audio Spectrogram Transformer of transformers; by default DistilAST, 6 blocks of 768.

    It reads spectrograms ``[batch, frames, bins]``.  A block has 7,087,872 parameters; with 128 bins and 1,024 frames
    all have 43,660,032.  ``load_norm`` as for ``hf-vit``.

    The tokens are two special tokens followed by overlapping patches.  For example, 128 bins and 1,024 frames give
    12 x 101 patches and so 1,214 tokens.
    """

    modality = "audio"
    block_layers = VISION_BLOCK

    class Options(VisionOptions):
        """Fields of ``audio: {tower: ast}``."""

        tower: Literal["ast"] = "ast"
        blocks: PositiveInt = Field(6, description="transformer blocks at full depth")
        width: PositiveInt = Field(768, description="dimension of a token")
        heads: PositiveInt = Field(12, description="attention heads; must divide the width")
        patch: PositiveInt = Field(16, description="side of a patch, in bins and in frames")
        stride: PositiveInt = Field(10, description="distance from patch to patch, in bins and in frames")

    @staticmethod
    def build(description: Mapping[str, Any], norm: bool) -> Tower:
        """Build a tower from ``{bins, frames, depth, ...options}``.

        Raises MethodError if the spectrogram is smaller than a patch.
        """
        return Ast.of_library(Ast.library(description), description, norm)

    @staticmethod
    def library(description: Mapping[str, Any]) -> Any:
        """transformers' own model."""
        import_torchvision()
        from transformers import ASTConfig, ASTModel

        options = chosen(Ast.Options, description)
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

    @staticmethod
    def of_library(model: Any, description: Mapping[str, Any], norm: bool) -> Tower:
        """The tower of transformers' model."""
        final, width = model.layernorm if norm else None, chosen(Ast.Options, description).width
        return Tower(model.embeddings, layers(model), final, width, description.get("checkpointing", False))

    @staticmethod
    def load(module: nn.Module, weights: str, description: Mapping[str, Any]) -> None:
        """Load the tower's weights from a file with transformers' tensor names, or DistilAST's from the hub."""
        spelling = ((r"^audio_spectrogram_transformer\.", ""), *LAYER)
        fill(module, locate(weights, "bookbot/distil-ast-audioset"), spelling, parts=loaded_parts(description))
