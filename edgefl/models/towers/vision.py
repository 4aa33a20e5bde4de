"""torchvision, made importable beside a torch of another build."""

from __future__ import annotations

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_keep: list[torch.library.Library] = []


def import_torchvision() -> None:
    """Import torchvision, which timm and transformers import too.  Call this before any of them.

    A torchvision whose compiled part was built for another torch doesn't bring its operators; the two that its Python
    part registers fakes for are then declared here, without kernels: no model of ours calls them.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error) or _keep:
            raise
        library = torch.library.Library("torchvision", "DEF")
        for schema in _SCHEMAS:
            library.define(schema)
        _keep.append(library)  # an operator lives as long as its library
        import torchvision  # noqa: F401
