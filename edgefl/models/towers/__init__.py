"""Towers, one file each: an encoder of one modality, cut into embedding, blocks and norm."""
