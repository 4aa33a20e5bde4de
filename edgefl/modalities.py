"""The modalities of samples and the kinds of clients that hold them: whatever goes through either asks here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["image", "text", "image-text", "audio", "image-audio", "motion"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Modality:
    """How samples of a modality are shaped, and what reads them."""

    tower: str
    """Its tower, if a scenario names none."""
    shape: tuple[str, ...]
    """The facts that are a sample's shape; a text's length is an option of its tower."""
    of_data: tuple[str, ...]
    """The facts that the data set determines, which towers are built by."""
    dtype: str = "float32"
    """The dtype of its tensor in a batch, before precision is applied."""


MODALITIES = {
    "image": Modality("vit", ("channels", "size", "size"), ("channels", "size")),
    "text": Modality("transformer", ("tokens",), ("vocabulary",), "int64"),
    "audio": Modality("ast", ("frames", "bins"), ("bins", "frames")),
    "motion": Modality("conv1d", ("readings", "channels"), ("readings", "channels")),
}
SIGNALS = ("audio", "motion")
"""Those whose samples a data set has as floats of their shape."""
