"""The block of the page ``towers.md``: every tower, what it reads, and what its class says of it."""

from __future__ import annotations

from edgefl.models.plain import PlainTower
from edgefl.models.towers.hf_encoder import MODALITIES
from tools.pages.markdown import listed, oneline, registered, table


def tower_blocks() -> dict[str, str]:
    """The table of the towers."""
    rows = []
    for name, tower in registered("towers").items():
        reads = [tower.modality] if hasattr(tower, "modality") else list(dict.fromkeys(MODALITIES.values()))
        text = (tower.made if isinstance(tower, PlainTower) else tower).__doc__ or ""
        text = oneline(text)
        rows.append((f"`{name}`", listed(reads), text.removesuffix(".")))
    return {"towers": table(("Tower", "Reads", "What it is"), rows)}
