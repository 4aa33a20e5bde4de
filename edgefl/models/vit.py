"""The former import path of the ViT tower, kept for plug-ins; the code is in ``edgefl.models.towers.vit``."""

from edgefl.models.towers.vit import PatchEmbedding, ViT

__all__ = ["PatchEmbedding", "ViT"]
