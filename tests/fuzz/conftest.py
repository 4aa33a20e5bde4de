"""The process that tries hostile inputs, shared by the tests of this folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))

from fuzzing.judging import Judge

from edgefl.memo import cache_folder


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    """A process with the cache of the other tests, in which the data of small runs are built already."""
    with Judge(cache_folder()) as judge:
        yield judge


@pytest.fixture(scope="session")
def patient_judge() -> Iterator[Judge]:
    """A process for thousands of cases, which fill a cache of its own."""
    with Judge() as judge:
        yield judge
