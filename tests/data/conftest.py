from __future__ import annotations

from pathlib import Path

import pytest

from edgefl.data import DataOptions, Federation, open_federation
from edgefl.memo import cache_folder


@pytest.fixture(scope="session")
def data_cache() -> Path:
    """The cache of all other tests, so that glyphs are drawn once."""
    return cache_folder()


@pytest.fixture(scope="session")
def glyph_federation(data_cache: Path) -> Federation:
    return open_federation(DataOptions(public=0.02), seed=1, tokens=16, cache=data_cache)
