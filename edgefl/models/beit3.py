"""BEiT-3's published weights for the model ``multiway``: its authors' ``beit3_base_patch16_224.pth`` and the like.

The files are converted to safetensors, with the names that they have.  They call the experts for images ``A`` and
those for texts ``B``.  Their positions are those of pictures of 224 pixels, which are interpolated for others as in the
authors' code.  Their last LayerNorm isn't loaded: the model that answers questions has none.
"""

from __future__ import annotations

from functools import partial
from math import isqrt
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl.errors import MethodError
from edgefl.models.model import TowerDescription
from edgefl.models.multiway import RESERVED
from edgefl.models.weights import PRETRAINED, fill, locate

SPELLING = (
    (r"^(model\.)?beit3\.", ""),
    (r"^vision_embed\.proj\.", "embedding.patch."),
    (r"^vision_embed\.(cls|mask)_token$", r"embedding.\1"),
    (r"^text_embed\.", "embedding.word."),
    (r"^encoder\.embed_positions\.A\.", "embedding.image_position."),
    (r"^encoder\.embed_positions\.B\.", "embedding.text_position."),
    (r"^encoder\.layers\.", "blocks."),
    (r"\.self_attn\.(q|k|v|out)_proj\.", r".attn.\1."),
    (r"\.self_attn\.inner_attn_ln\.", ".attn.norm."),
    (r"\.self_attn_layer_norm\.", ".norm1."),
    (r"\.final_layer_norm\.", ".norm2."),
    (r"\.ffn_layernorm\.", ".norm."),
    (r"\.A\.", ".image."),
    (r"\.B\.", ".text."),
)
PADDING = 16
"""Rows of the word table that no token has, at most: the table has 64,010 rows, and its tokenizer fewer ids."""


def load(module: nn.Module, weights: str, description: TowerDescription) -> None:
    """Load the weights of a file into an encoder of this description; fusion and classifier stay random.

    Raises MethodError if there is no such file, or if a tensor is missing or has another shape.
    """
    if any(".both." in name for name, _ in module.named_parameters()):
        raise MethodError(
            f"weights {weights!r}: the file has projections for each modality: set shared_attention: false"
        )
    if weights == PRETRAINED:
        raise MethodError(
            "weights 'pretrained': BEiT-3's authors publish files apart from the hub: download one, such as "
            "beit3_base_patch16_224.pth (github.com/microsoft/unilm, beit3), and convert it to safetensors"
        )
    file = locate(weights, "")
    fill(
        module,
        file,
        SPELLING,
        cut=["embedding.text_position.weight"],
        fits={"embedding.image_position.weight": fit_positions, "embedding.word.weight": partial(_fit_words, file)},
    )


def fit_positions(stored: Tensor, rows: int) -> Tensor:
    """``[rows, dim]``: the positions of a square of patches, interpolated for a square of another side."""
    extra = RESERVED + 1
    old, new = isqrt(max(0, len(stored) - extra)), isqrt(rows - extra)
    if old == new or extra + old**2 != len(stored):
        return stored
    square = stored[extra:].T.reshape(1, -1, old, old)
    resized = F.interpolate(square.float(), size=(new, new), mode="bicubic", align_corners=False)
    return torch.cat([stored[:extra], resized.flatten(2)[0].T])


def _fit_words(file: Path, stored: Tensor, rows: int) -> Tensor:
    if not rows <= len(stored) <= rows + PADDING:
        raise MethodError(
            f"weights {file}: the file has vectors of {len(stored):,} tokens, and data.vocabulary {rows:,}: they are "
            "of another tokenizer; set data.vocabulary to a tokenizer.json of BEiT-3's SentencePiece (beit3.spm)"
        )
    return stored[:rows]
