"""When Python looks for garbage: not while libraries are imported.

An import of torch makes two hundred thousand objects, which stay.  The collections in between look at all of them for
nothing, again and again, for a tenth of the import's time or more.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_left_alone = False


@contextmanager
def pausing_collection() -> Iterator[None]:
    """Within it nothing is collected until ``resume_collection`` is called; what a caller has disabled stays so."""
    global _left_alone
    if not gc.isenabled():
        yield
        return
    gc.disable()
    _left_alone = True
    try:
        yield
    finally:
        _left_alone = False
        gc.enable()


def resume_collection() -> None:
    """Collect from now on, within ``pausing_collection``, but never look at what was made in it, as it stays."""
    global _left_alone
    if _left_alone:
        _left_alone = False
        gc.freeze()
        atexit.register(_thaw)
        gc.enable()


def _thaw() -> None:
    """Let Python free Triton's objects at its end: those that are left fill a page of stderr."""
    if "triton" in sys.modules:
        gc.unfreeze()
