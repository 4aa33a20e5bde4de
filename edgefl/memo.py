"""The on-disk cache between commands: its folder, and small JSON results stored under a content hash."""

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
    """The cache folder: ``EDGEFL_CACHE`` if it is set, otherwise ``edgefl`` in the user's cache folder."""
    if named := os.environ.get("EDGEFL_CACHE"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "edgefl"


def remembered(folder: Path | None, key: str, read: Callable[[Any], Answer], what: str) -> Answer | None:
    """The cached result of ``key``, parsed by ``read``; None if there is none.

    Returns None also for a damaged file, with a warning that names the file and ``what`` was cached.
    """
    if folder is None:
        return None
    path = folder / f"{key}.json"
    try:
        return read(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        warnings.warn(f"{path.name} in the cache of {what} can't be read; it is computed again", stacklevel=3)
        return None


def remember(folder: Path | None, key: str, answer: Any) -> None:
    """Cache plain data under ``key``.  A folder that can't be written is ignored: results don't depend on the cache."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / f"{key}.json") as draft:
            draft.touch(0o600)
            draft.write_text(json.dumps(answer), encoding="utf-8")
    except OSError:
        pass
