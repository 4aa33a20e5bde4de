"""What is remembered on disk between commands: where, and small JSON answers under a content hash."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from edgefl.files import replacing

Answer = TypeVar("Answer")


def cache_folder() -> Path:
    """``EDGEFL_CACHE``, else ``edgefl`` in the user's cache folder."""
    if named := os.environ.get("EDGEFL_CACHE"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "edgefl"


def remembered(folder: Path | None, key: str, read: Callable[[Any], Answer], what: str) -> Answer | None:
    """The answer kept under ``key``, as ``read`` understands it; None, with a warning, if its file is damaged."""
    if folder is None:
        return None
    path = folder / f"{key}.json"
    try:
        return read(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        warnings.warn(f"{path.name} in the memo of {what} can't be read; making it anew", stacklevel=3)
        return None


def remember(folder: Path | None, key: str, answer: Any) -> None:
    """Keep plain data under ``key``; a folder that can't be written costs time, not results."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / f"{key}.json") as draft:
            draft.touch(0o600)
            draft.write_text(json.dumps(answer), encoding="utf-8")
    except OSError:
        pass
