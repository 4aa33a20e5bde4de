"""The process that tries hostile inputs, shared by the tests of this folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))

from fuzzing.judging import Judge


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    with Judge() as judge:
        yield judge
