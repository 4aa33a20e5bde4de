"""The page of ``edgefl explore``."""

from __future__ import annotations

from edgefl.records.explore import Explored


def page_of(record: Explored) -> str:
    """The page as HTML."""
    import json

    return json.dumps(record.as_json(), separators=(",", ":"))
