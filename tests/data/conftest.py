from __future__ import annotations

from pathlib import Path

import pytest

from edgefl.data import DataOptions, Federation, open_federation


@pytest.fixture(scope="session")
def data_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests of the data, so that glyphs are drawn once."""
    return tmp_path_factory.mktemp("data-cache")


@pytest.fixture(scope="session")
def glyph_federation(data_cache: Path) -> Federation:
    return open_federation(DataOptions(public=0.02), seed=1, tokens=16, cache=data_cache)
