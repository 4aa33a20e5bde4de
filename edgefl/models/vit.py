"""Kept for plug-ins: ``PatchEmbedding`` and the other parts of the ViT tower are in ``edgefl.models.towers.vit``."""

from edgefl.models.towers.vit import PatchEmbedding, ViT

__all__ = ["PatchEmbedding", "ViT"]
