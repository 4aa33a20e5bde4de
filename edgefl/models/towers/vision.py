"""Importing torchvision, also if its compiled operators were built for another version of torch."""

from __future__ import annotations

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[torch.library.Library] = []


def import_torchvision() -> None:
    """Import torchvision.  Call this before importing timm or transformers, which import it too.

    If torchvision's compiled part was built for another torch, its operators are missing and the import fails.  Its
    Python part needs the declarations of two of them, so they are declared here without kernels.  No tower calls them.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error) or _libraries:
            raise
        library = torch.library.Library("torchvision", "DEF")
        for schema in _SCHEMAS:
            library.define(schema)
        _libraries.append(library)  # keeps the operators: they are removed when their library object is deleted
        import torchvision  # noqa: F401
