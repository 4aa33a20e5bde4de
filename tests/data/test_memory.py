"""Data that this machine's memory can't hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgefl import registry
from edgefl.data import DataOptions, open_federation
from edgefl.data.packages import glyphs
from edgefl.errors import DataError


def test_data_that_memory_cannot_hold_are_an_error_with_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(size: int, on_message: object) -> object:
        return np.empty((2**50, size), np.uint8)

    monkeypatch.setattr("edgefl.registry.get", lambda noun, name, get=registry.get: (
        replace(glyphs.GLYPHS, build=build) if noun == "data set" else get(noun, name)))  # fmt: skip
    options = DataOptions.model_validate({"source": "glyphs", "clients": {"image": 2}, "size": 224})
    with pytest.raises(DataError, match="doesn't suffice to build glyphs at a size of 224 .*smaller data.size"):
        open_federation(options, seed=1, tokens=16, cache=tmp_path)
