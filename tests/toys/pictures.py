"""Runs in the process of the tests draw no pictures, which take as long as their training; a test may ask for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

_patch = pytest.MonkeyPatch()


def leave_out() -> None:
    """From now on runs of this process leave their pictures out, as those of a search do."""
    from edgefl.cells import run_scenario
    from edgefl.drawing import charts

    _patch.setattr(run_scenario, "_run_one", partial(run_scenario._run_one, pictures=False))
    _patch.setattr(charts, "draw_curves", lambda run: None)  # of a comparison


@contextmanager
def drawn() -> Iterator[None]:
    """Runs in this context draw their pictures."""
    _patch.undo()
    try:
        yield
    finally:
        leave_out()
