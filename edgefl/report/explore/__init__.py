"""The page of ``edgefl explore``."""

from __future__ import annotations

from edgefl.records.explore import Explored, ExploredDevices


def page_of(record: Explored | ExploredDevices) -> str:
    """The page as HTML."""
    import json

    return json.dumps(record.as_json(), separators=(",", ":"))
