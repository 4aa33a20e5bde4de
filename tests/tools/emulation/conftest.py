"""What the tests of emulated clients share: they are skipped where the kernel lacks something."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.emulation.journal import MachineJournal
from tools.emulation.kernel import missing


@pytest.fixture(scope="session")
def able() -> None:
    """Skip the test, with the reason, where clients can't be emulated."""
    if lacks := missing():
        pytest.skip("; ".join(lacks))


@pytest.fixture
def journal(able: None) -> Iterator[MachineJournal]:
    """A journal whose namespaces and control groups are removed after the test."""
    made = MachineJournal()
    try:
        yield made
    finally:
        made.close()
